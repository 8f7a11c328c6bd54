//! How an Android device is set up.

use std::net::SocketAddr;

use hands::android::{AndroidConfig, Device};
use serde::{Deserialize, Serialize};

use super::permission::Permissions;
use super::setting::{BadSetting, mib, seconds, size};

/// Where the adb server of this machine listens.
const ADB_SERVER: &str = "127.0.0.1:5037";

/// How an Android device is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AndroidSettings {
    /// The device as `adb devices` lists it. Either this or `address`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// `host:port` of its adbd, which the adb server connects to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Where the adb server listens. Default `127.0.0.1:5037`.
    pub server: SocketAddr,
    /// The folder on the device in which each session has its own; absolute. Default `/data/local/tmp/manyhands`.
    pub folder: String,
    /// What one call may print, in MiB. Default 64.
    pub output_mib: u64,
    /// An instance that no call used for so long is released, in seconds; the workspace stays. Default 900.
    pub idle_s: u64,
    /// Which tools a brain may call: allow, ask, ask-owner or deny, for all or by tool. Default allow.
    #[serde(skip_serializing_if = "Permissions::is_usual")]
    pub permission: Permissions,
}

impl Default for AndroidSettings {
    fn default() -> Self {
        let usual = AndroidConfig::new(Device::Serial(String::new()));
        Self {
            serial: None,
            address: None,
            server: ADB_SERVER.parse().unwrap_or(usual.server),
            folder: usual.folder,
            output_mib: 64,
            idle_s: 900,
            permission: Permissions::default(),
        }
    }
}

impl AndroidSettings {
    /// Refuses what makes no sense. Touches nothing.
    pub fn check(&self) -> Result<(), BadSetting> {
        self.device()?;
        if !self.folder.starts_with('/') {
            let must = "an absolute path on the device".to_owned();
            return Err(BadSetting::Value { setting: "folder", must });
        }
        mib("output_mib", self.output_mib)?;
        seconds("idle_s", self.idle_s)
    }

    /// What the hand is made of.
    pub fn resolve(&self) -> Result<AndroidConfig, BadSetting> {
        self.check()?;
        Ok(AndroidConfig {
            server: self.server,
            folder: self.folder.clone(),
            output: size(self.output_mib),
            ..AndroidConfig::new(self.device()?)
        })
    }

    fn device(&self) -> Result<Device, BadSetting> {
        let needs = "an Android device needs a serial, as `adb devices` lists it, or an address, host:port: give one of \
                     the two";
        match (&self.serial, &self.address) {
            (Some(serial), None) if !serial.is_empty() => Ok(Device::Serial(serial.clone())),
            (None, Some(address)) if address.contains(':') => Ok(Device::Address(address.clone())),
            _ => Err(BadSetting::Needs(needs)),
        }
    }
}
