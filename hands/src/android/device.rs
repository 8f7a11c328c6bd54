//! Finding a device, with one clear sentence for each way that it is not there.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::server::{ServerError, ask};
use super::{AndroidConfig, Device};
use crate::HandError;
use crate::sandbox::{Finding, State};

/// How long a device may take to speak once it is connected.
const SETTLE: Duration = Duration::from_secs(10);
/// How often it is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(100);
/// What a device must be able to do: say exit codes and tell standard error apart. Since Android 7.
const SHELL_V2: &str = "shell_v2";

/// The serial of the device, once it is there and can do what is needed.
pub(super) async fn find(config: &AndroidConfig) -> Result<String, HandError> {
    let serial = config.device.serial();
    if serial.is_empty() || serial.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(unavailable(
            format!("{serial:?} is no device"),
            "take a serial or host:port that `adb devices` lists",
        ));
    }
    let features = match &config.device {
        Device::Serial(_) => features(config).await,
        Device::Address(address) => {
            connect(config, address).await?;
            match features(config).await {
                // A connection that broke may still be listed as one.
                Err(ServerError::Refused(_)) => {
                    let _ = ask(config.server, &format!("host:disconnect:{address}")).await;
                    connect(config, address).await?;
                    settled(config, address).await
                }
                asked => asked,
            }
        }
    };
    let features = features.map_err(|error| lack(config, error))?;
    if !features.split(',').any(|feature| feature == SHELL_V2) {
        return Err(unavailable(
            format!("the device {serial} can't tell exit codes (it lacks {SHELL_V2})"),
            "use one with Android 7 or newer",
        ));
    }
    Ok(serial.to_owned())
}

/// What the device says that it can do.
async fn features(config: &AndroidConfig) -> Result<String, ServerError> {
    ask(config.server, &format!("host-serial:{}:features", config.device.serial())).await
}

/// The same of a device whose connection is renewed: the server lists it as offline until it has spoken, and may have to
/// forget the old connection first.
async fn settled(config: &AndroidConfig, address: &str) -> Result<String, ServerError> {
    let deadline = Instant::now() + SETTLE;
    loop {
        match features(config).await {
            Err(ServerError::Refused(why)) if Instant::now() < deadline => {
                if why.contains("not found") {
                    let _ = connect(config, address).await;
                }
                sleep(LOOK).await;
            }
            asked => return asked,
        }
    }
}

/// Has the server connect to a device over TCP. One that it is connected to already stays so.
async fn connect(config: &AndroidConfig, address: &str) -> Result<(), HandError> {
    let said = ask(config.server, &format!("host:connect:{address}")).await.map_err(|error| match error {
        ServerError::Refused(why) => no_connection(address, &why),
        other => lack(config, other),
    })?;
    if said.starts_with("connected to") || said.starts_with("already connected") {
        return Ok(());
    }
    Err(no_connection(address, &said))
}

fn no_connection(address: &str, why: &str) -> HandError {
    let why = why.lines().next().unwrap_or_default();
    unavailable(
        format!("the adb server can't connect to {address}: {why}"),
        "look whether the device is on and its adbd listens there (`adb tcpip 5555` on a cable makes it)",
    )
}

fn lack(config: &AndroidConfig, error: ServerError) -> HandError {
    let serial = config.device.serial();
    match error {
        ServerError::NoServer(..) => {
            let port = config.server.port();
            unavailable(error.to_string(), &format!("start it with `adb -P {port} start-server`"))
        }
        ServerError::Refused(why) if why.contains("not found") => unavailable(
            format!("no device {serial} is connected"),
            "plug it in and allow USB debugging on it; `adb devices` lists what is there",
        ),
        ServerError::Refused(why) if why.contains("unauthorized") => unavailable(
            format!("the device {serial} does not trust this machine yet"),
            "confirm it on its screen",
        ),
        ServerError::Refused(why) if why.contains("offline") => unavailable(
            format!("the device {serial} does not answer"),
            "unplug it and plug it in again, or `adb reconnect`",
        ),
        ServerError::Refused(why) => {
            let why = why.lines().next().unwrap_or_default();
            unavailable(format!("the device {serial} can't be used: {why}"), "look at `adb devices -l`")
        }
        ServerError::Broken(_) => unavailable(
            format!("the adb server at {} broke off", config.server),
            "look whether it is one, then try again",
        ),
    }
}

fn unavailable(why: String, remedy: &str) -> HandError {
    HandError::Unavailable { why, remedy: remedy.to_owned() }
}

/// Looks at everything that the hand needs: the adb server, and the device.
pub async fn inspect(config: &AndroidConfig) -> Vec<Finding> {
    let version = ask(config.server, "host:version").await;
    let server = version.map(|version| {
        let version = i64::from_str_radix(&version, 16).unwrap_or_default();
        format!("version {version} at {}", config.server)
    });
    let mut findings = vec![finding("adb server", server.map_err(|error| lack(config, error)))];
    if findings.iter().all(|finding| finding.state == State::Fine) {
        let found = find(config).await.map(|serial| format!("{serial} is there"));
        findings.push(finding("Android device", found));
    }
    findings
}

fn finding(subject: &'static str, looked: Result<String, HandError>) -> Finding {
    match looked {
        Ok(found) => Finding { subject, state: State::Fine, found, remedy: None },
        Err(HandError::Unavailable { why, remedy }) => {
            Finding { subject, state: State::Missing, found: why, remedy: Some(remedy) }
        }
        Err(error) => Finding { subject, state: State::Missing, found: error.to_string(), remedy: None },
    }
}
