//! How a virtual machine is set up.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hands::vm::{self, VmConfig};
use serde::{Deserialize, Serialize};

use super::permission::Permissions;
use super::setting::{BadSetting, Ground, absolute, bytes, mib, place, seconds, size, within};

/// Where, in the data directory, machines are kept that have booted.
const CACHE: &str = "cache/vm";

/// How a virtual machine is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VmSettings {
    /// The guest's kernel: Linux 5.14 or newer with a serial console and cgroups.
    pub kernel: PathBuf,
    /// Its initial file system: `sh`, `stty`, `mke2fs` and the usual small programs.
    pub initrd: PathBuf,
    /// A qcow2 image with a Linux system, in which commands run; each instance has an overlay of it, and it is never written
    /// to. Default: commands run in the initial file system, and `/workspace` is the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<PathBuf>,
    /// QEMU for this kind of machine; a bare name is looked for in the gateway's `PATH`. Default `qemu-system-x86_64`.
    pub qemu: PathBuf,
    /// What makes disks. Default `qemu-img`.
    pub qemu_img: PathBuf,
    /// Memory, in MiB. Default 256.
    pub memory_mib: u32,
    /// Processors. Default 1.
    pub cpus: u8,
    /// The disk, in MiB; it takes room as it is written to. Default 2048.
    pub disk_mib: u64,
    /// What one call may print, in MiB. Default 4.
    pub output_mib: u64,
    /// How it is run: `auto`, by KVM where that works, `kvm` or `tcg`, emulated. Default `auto`.
    pub accel: Acceleration,
    /// How long a guest under KVM may say nothing before it is taken to be unable to run there, in seconds. Default 30.
    pub silence_s: u64,
    /// Where KVM is. Default `/dev/kvm`.
    pub kvm: PathBuf,
    /// The folder for what is made once for all machines of a kind. Default `cache/vm` in the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<PathBuf>,
    /// An instance that no call used for so long is released, in seconds; its disk stays. Default 900.
    pub idle_s: u64,
    /// Which tools a brain may call: allow, ask, ask-owner or deny, for all or by tool. Default allow.
    #[serde(skip_serializing_if = "Permissions::is_usual")]
    pub permission: Permissions,
}

/// How machines are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Acceleration {
    /// By KVM where it works, else emulated
    #[default]
    Auto,
    /// By KVM
    Kvm,
    /// Emulated
    Tcg,
}

impl Default for VmSettings {
    fn default() -> Self {
        let usual = VmConfig::new(PathBuf::new(), PathBuf::new(), PathBuf::new(), PathBuf::new());
        Self {
            kernel: PathBuf::new(),
            initrd: PathBuf::new(),
            image: None,
            qemu: usual.qemu,
            qemu_img: usual.qemu_img,
            memory_mib: usual.memory_mib,
            cpus: usual.cpus,
            disk_mib: usual.disk_bytes >> 20,
            output_mib: (usual.output >> 20) as u64,
            accel: Acceleration::Auto,
            silence_s: usual.silence.as_secs(),
            kvm: usual.kvm,
            cache: None,
            idle_s: 900,
            permission: Permissions::default(),
        }
    }
}

impl VmSettings {
    /// Refuses what makes no sense. Touches nothing.
    pub fn check(&self) -> Result<(), BadSetting> {
        if self.kernel.as_os_str().is_empty() || self.initrd.as_os_str().is_empty() {
            return Err(BadSetting::Needs(
                "a virtual machine needs a kernel and an initrd: give the paths of both",
            ));
        }
        absolute("kernel", &self.kernel)?;
        absolute("initrd", &self.initrd)?;
        absolute("kvm", &self.kvm)?;
        if let Some(image) = &self.image {
            absolute("image", image)?;
        }
        if let Some(cache) = &self.cache {
            absolute("cache", cache)?;
        }
        within("memory_mib", self.memory_mib.into(), 64, 1 << 20)?;
        within("cpus", self.cpus.into(), 1, u8::MAX.into())?;
        mib("disk_mib", self.disk_mib)?;
        mib("output_mib", self.output_mib)?;
        seconds("silence_s", self.silence_s)?;
        seconds("idle_s", self.idle_s)
    }

    /// Makes relative paths absolute, as seen from `folder`; `home` is `~`. A program by its bare name stays one.
    pub fn place(&mut self, folder: &Path, home: Option<&Path>) {
        let paths = [&mut self.kernel, &mut self.initrd, &mut self.kvm]
            .into_iter()
            .chain(&mut self.image)
            .chain(&mut self.cache);
        place(paths.filter(|path| !path.as_os_str().is_empty()), folder, home);
        let programs = [&mut self.qemu, &mut self.qemu_img].into_iter();
        place(programs.filter(|path| path.components().count() > 1), folder, home);
    }

    /// Files of this machine that a guest begins with.
    pub(super) fn paths(&mut self) -> Vec<&mut PathBuf> {
        [&mut self.kernel, &mut self.initrd].into_iter().chain(&mut self.image).collect()
    }

    /// What the hand is made of.
    pub fn resolve(&self, ground: &Ground) -> Result<VmConfig, BadSetting> {
        self.check()?;
        let cache = self.cache.clone().unwrap_or_else(|| ground.data.join(CACHE));
        Ok(VmConfig {
            image: self.image.clone(),
            qemu: self.qemu.clone(),
            qemu_img: self.qemu_img.clone(),
            memory_mib: self.memory_mib,
            cpus: self.cpus,
            disk_bytes: bytes(self.disk_mib),
            output: size(self.output_mib),
            accel: match self.accel {
                Acceleration::Auto => vm::Accel::Auto,
                Acceleration::Kvm => vm::Accel::Kvm,
                Acceleration::Tcg => vm::Accel::Tcg,
            },
            silence: Duration::from_secs(self.silence_s),
            kvm: self.kvm.clone(),
            ..VmConfig::new(ground.program.clone(), self.kernel.clone(), self.initrd.clone(), cache)
        })
    }
}
