//! How hands are named and set up: the same in `manyhands.toml` and in the database.

mod android;
mod canonical;
mod container;
mod emulator;
mod guarded;
mod mcp;
mod permission;
mod sandbox;
mod setting;
mod source;
mod ssh;
mod trail;
mod vm;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use android::AndroidSettings;
pub use canonical::{PlantedLink, canonical as canonical_path};
pub use container::{ContainerSettings, RootAccess, ShellProgram, TlsSettings, WorkspacePlace};
pub use emulator::EmulatorSettings;
pub use guarded::{Guard, Guarded};
pub use mcp::{BadServer, McpSettings, Protocol, Share};
pub use permission::{Permission, Permissions};
pub use sandbox::{BadMount, Network, SandboxSettings, split_mount};
pub use setting::{BadSetting, Ground};
pub use source::{Source, Variables};
pub use ssh::SshSettings;
pub use trail::{Step, Trail};
pub use vm::{Acceleration, VmSettings};

/// Longest name of a hand, in characters.
const HAND_NAME_MAX: usize = 24;

/// The text can't name a hand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name for a hand: use 1 to {HAND_NAME_MAX} of a-z, 0-9 and '-', beginning with a letter")]
pub struct BadHandName(String);

/// Names a hand: `^[a-z][a-z0-9-]{0,23}$`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HandName(String);

impl HandName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HandName {
    type Err = BadHandName;

    fn from_str(name: &str) -> Result<Self, BadHandName> {
        let good = name.len() <= HAND_NAME_MAX
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        if good { Ok(Self(name.to_owned())) } else { Err(BadHandName(name.to_owned())) }
    }
}

impl TryFrom<String> for HandName {
    type Error = BadHandName;

    fn try_from(name: String) -> Result<Self, BadHandName> {
        name.parse()
    }
}

impl From<HandName> for String {
    fn from(name: HandName) -> String {
        name.0
    }
}

impl fmt::Display for HandName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A path of this machine without links, as it is now and as far as it exists.
pub fn canonical(path: &Path) -> PathBuf {
    canonical::canonical(path, &[]).unwrap_or_else(|_| path.to_owned())
}

/// How a hand is set up, by kind. The same in the file and in the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum HandConfig {
    /// A sandbox on this machine.
    Sandbox(SandboxSettings),
    /// An MCP server.
    Mcp(McpSettings),
    /// A container of a Docker daemon.
    Container(ContainerSettings),
    /// A host over SSH.
    Ssh(SshSettings),
    /// An Android device.
    Android(AndroidSettings),
    /// A game console.
    Emulator(EmulatorSettings),
    /// A virtual machine.
    Vm(VmSettings),
}

/// Why a hand can't be as it is set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHand {
    /// A mount of a sandbox.
    #[error(transparent)]
    Mount(#[from] BadMount),
    /// What is said of an MCP server.
    #[error(transparent)]
    Server(#[from] BadServer),
    /// A setting of another kind.
    #[error(transparent)]
    Setting(#[from] BadSetting),
    /// A path leads through a link that a brain may have made.
    #[error(transparent)]
    Link(#[from] PlantedLink),
    /// A brain may write a disk's image.
    #[error(
        "the image {} lies in a folder that a hand may write to, where it could be made to show any file of this machine: \
         keep it elsewhere", .0.display()
    )]
    Image(PathBuf),
    /// An agent could change what it relies on.
    #[error(
        "it relies on {}, where the hand {hand} may write, so that an agent could change it: keep it elsewhere",
        file.display()
    )]
    Reachable {
        /// What it relies on.
        file: PathBuf,
        /// Whose agent could.
        hand: HandName,
    },
    /// A permission is for a tool that is not there.
    #[error("permission names {0:?}, and the hand has no such tool: `manyhands hand show` lists them")]
    NoTool(String),
}

impl BadHand {
    /// Whether its settings make sense, and an agent would get hold of this machine by them.
    pub fn is_guarded(&self) -> bool {
        matches!(self, Self::Mount(BadMount::Guarded { .. }) | Self::Reachable { .. })
    }
}

impl HandConfig {
    /// Refuses what can be read and makes no sense. Touches nothing.
    pub fn check(&self) -> Result<(), BadHand> {
        self.permissions().check()?;
        if self.logged() == Logged::No && self.permissions().asks() {
            return Err(BadSetting::Needs(
                "permission = \"ask\" or \"ask-owner\" needs the log, where the answer stands: drop log = false",
            )
            .into());
        }
        match self {
            // Its mounts are read when it is made.
            Self::Sandbox(_) => Ok(()),
            Self::Mcp(settings) => Ok(settings.check()?),
            Self::Container(settings) => Ok(settings.check()?),
            Self::Ssh(settings) => Ok(settings.check()?),
            Self::Android(settings) => Ok(settings.check()?),
            Self::Emulator(settings) => Ok(settings.check()?),
            Self::Vm(settings) => Ok(settings.check()?),
        }
    }

    /// Makes relative paths absolute, as seen from `folder`; `home` is `~`.
    pub fn place(&mut self, folder: &Path, home: Option<&Path>) {
        match self {
            // The host's end of a mount is refused unless it is absolute; a device has no paths here.
            Self::Sandbox(_) | Self::Android(_) => {}
            Self::Mcp(settings) => settings.place(folder, home),
            Self::Container(settings) => settings.place(folder, home),
            Self::Ssh(settings) => settings.place(folder, home),
            Self::Emulator(settings) => settings.place(folder, home),
            Self::Vm(settings) => settings.place(folder, home),
        }
    }

    /// Makes its paths of this machine canonical, as they are now. They are opened later without following any link.
    /// `writable`: folders that brains may write to, in which no link is followed here either.
    pub fn make_canonical(&mut self, writable: &[PathBuf]) -> Result<(), BadHand> {
        let paths = match self {
            Self::Sandbox(settings) => return Ok(settings.make_canonical(writable)?),
            Self::Android(_) => Vec::new(),
            Self::Mcp(settings) => settings.paths(),
            Self::Container(settings) => settings.paths(),
            Self::Ssh(settings) => settings.paths(),
            Self::Emulator(settings) => vec![&mut settings.rom],
            Self::Vm(settings) => settings.paths(),
        };
        canonical::make_canonical(paths, writable)?;
        self.check_image(writable)
    }

    /// Refuses an image in a folder that a brain may write to: one that is written there may name any file of this machine
    /// as the one that it builds on.
    fn check_image(&self, writable: &[PathBuf]) -> Result<(), BadHand> {
        let Self::Vm(VmSettings { image: Some(image), .. }) = self else { return Ok(()) };
        let within = writable.iter().any(|folder| image.starts_with(folder));
        if within { Err(BadHand::Image(image.clone())) } else { Ok(()) }
    }

    /// Folders of this machine that a brain may write to, as they are named and as they are.
    pub fn writable(&self) -> Vec<PathBuf> {
        match self {
            Self::Sandbox(settings) => settings.writable(),
            _ => Vec::new(),
        }
    }

    /// As listings show it: without the values of variables and headers, and without what looks like a credential.
    pub fn shown(&self) -> Value {
        let mut shown = match self {
            Self::Sandbox(settings) => serde_json::to_value(settings).unwrap_or_default(),
            Self::Mcp(settings) => settings.shown(),
            Self::Container(settings) => serde_json::to_value(settings).unwrap_or_default(),
            Self::Ssh(settings) => settings.shown(),
            Self::Android(settings) => serde_json::to_value(settings).unwrap_or_default(),
            Self::Emulator(settings) => serde_json::to_value(settings).unwrap_or_default(),
            Self::Vm(settings) => serde_json::to_value(settings).unwrap_or_default(),
        };
        shown["kind"] = self.kind().into();
        shown
    }

    /// What a brain is told of a lost instance: what the next call gets, and what is gone.
    pub fn loss(&self) -> &'static str {
        match self {
            Self::Sandbox(_) => {
                "The next call gets a fresh instance with the same /workspace; background processes and files outside \
                 /workspace are gone."
            }
            Self::Mcp(settings) if settings.url.is_some() => "The next call connects to the server anew.",
            Self::Mcp(_) => "The next call starts the server anew: what it kept in memory is gone.",
            Self::Container(_) => {
                "The next call gets a fresh container with the same /workspace; background processes and files outside \
                 /workspace are gone."
            }
            Self::Ssh(_) => {
                "The next call connects anew; files are as they were left, and what the call started may still be ending."
            }
            Self::Android(_) => {
                "The next call looks for the device anew; its files and apps are as they were left."
            }
            Self::Emulator(_) => "The next call goes on from where the last finished call left the game.",
            Self::Vm(_) => {
                "The next call gets a fresh machine with the same /workspace; processes and files outside /workspace are \
                 gone."
            }
        }
    }

    /// The kind's name.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Sandbox(_) => "sandbox",
            Self::Mcp(_) => "mcp",
            Self::Container(_) => "container",
            Self::Ssh(_) => "ssh",
            Self::Android(_) => "android",
            Self::Emulator(_) => "emulator",
            Self::Vm(_) => "vm",
        }
    }

    /// Some hand of that kind that leaves processes behind.
    pub(crate) fn any(kind: &str) -> Option<Self> {
        match kind {
            "sandbox" => Some(Self::Sandbox(SandboxSettings::default())),
            "mcp" => {
                Some(Self::Mcp(McpSettings { command: vec!["true".to_owned()], ..McpSettings::default() }))
            }
            "container" => {
                let image = Some("any".to_owned());
                Some(Self::Container(ContainerSettings { image, ..ContainerSettings::default() }))
            }
            "emulator" => {
                let rom = "/any".into();
                Some(Self::Emulator(EmulatorSettings { rom, ..EmulatorSettings::default() }))
            }
            "vm" => {
                let (kernel, initrd) = ("/any".into(), "/any".into());
                Some(Self::Vm(VmSettings { kernel, initrd, ..VmSettings::default() }))
            }
            // What is on another machine can't be reached by somebody who does not know which.
            _ => None,
        }
    }

    /// Whether every hand of its kind finds what another one left behind: what is on this machine.
    pub(crate) fn is_here(&self) -> bool {
        !matches!(self, Self::Ssh(_) | Self::Android(_))
    }

    /// Whether a live instance can go to another session. What an MCP server keeps, it keeps for the session that it was
    /// begun for, and may say so to others: nobody can take that along.
    pub fn movable(&self) -> bool {
        !matches!(self, Self::Mcp(_))
    }

    /// The files of this machine that its settings name, and that the gateway runs, sends or believes for it.
    pub fn relies_on(&self) -> Vec<PathBuf> {
        let named: Vec<Option<&PathBuf>> = match self {
            Self::Sandbox(_) | Self::Android(_) => Vec::new(),
            Self::Mcp(settings) => return settings.relies_on(),
            Self::Container(settings) => match &settings.tls {
                Some(TlsSettings { ca, certificate, key }) => {
                    vec![settings.rootfs.as_ref(), Some(ca), Some(certificate), Some(key)]
                }
                None => vec![settings.rootfs.as_ref()],
            },
            Self::Ssh(settings) => {
                let passphrase = settings.passphrase.as_ref().and_then(Source::file);
                vec![
                    settings.key.as_ref(),
                    settings.agent.as_ref(),
                    settings.known_hosts.as_ref(),
                    passphrase,
                ]
            }
            Self::Emulator(settings) => vec![Some(&settings.rom)],
            Self::Vm(VmSettings { kernel, initrd, image, qemu, qemu_img, .. }) => {
                vec![Some(kernel), Some(initrd), image.as_ref(), Some(qemu), Some(qemu_img)]
            }
        };
        // A bare name of a program is searched in the gateway's PATH.
        named.into_iter().flatten().filter(|path| path.is_absolute()).cloned().collect()
    }

    /// Whether it has the six tools of a machine with files and a shell.
    pub fn posix(&self) -> bool {
        !matches!(self, Self::Mcp(_) | Self::Emulator(_))
    }

    /// Whether its calls are in the log.
    pub fn logged(&self) -> Logged {
        match self {
            Self::Mcp(settings) if !settings.log => Logged::No,
            _ => Logged::Yes,
        }
    }

    /// What one of its instances costs this machine.
    pub fn weight(&self) -> Weight {
        match self {
            Self::Sandbox(_) | Self::Container(_) | Self::Emulator(_) | Self::Vm(_) => Weight::Own,
            Self::Mcp(settings) if settings.url.is_none() && settings.share() == Share::Session => {
                Weight::Own
            }
            Self::Mcp(_) | Self::Ssh(_) | Self::Android(_) => Weight::Shared,
        }
    }

    /// How long making an instance may take. A kind of hand has shorter limits of its own for what it waits for.
    pub fn provision_max(&self) -> Duration {
        match self {
            // An image is pulled, or a machine boots twice: by KVM and then emulated.
            Self::Container(_) | Self::Vm(_) => Duration::from_mins(10),
            _ => Duration::from_secs(90),
        }
    }

    /// Which of its tools a brain may call.
    pub fn permissions(&self) -> &Permissions {
        match self {
            Self::Sandbox(settings) => &settings.permission,
            Self::Mcp(settings) => &settings.permission,
            Self::Container(settings) => &settings.permission,
            Self::Ssh(settings) => &settings.permission,
            Self::Android(settings) => &settings.permission,
            Self::Emulator(settings) => &settings.permission,
            Self::Vm(settings) => &settings.permission,
        }
    }

    /// The same, to be changed before it is registered.
    pub fn permissions_mut(&mut self) -> &mut Permissions {
        match self {
            Self::Sandbox(settings) => &mut settings.permission,
            Self::Mcp(settings) => &mut settings.permission,
            Self::Container(settings) => &mut settings.permission,
            Self::Ssh(settings) => &mut settings.permission,
            Self::Android(settings) => &mut settings.permission,
            Self::Emulator(settings) => &mut settings.permission,
            Self::Vm(settings) => &mut settings.permission,
        }
    }

    /// How long an instance lives that nobody calls.
    pub fn idle(&self) -> Duration {
        Duration::from_secs(match self {
            Self::Sandbox(settings) => settings.idle_s,
            Self::Mcp(settings) => settings.idle_s,
            Self::Container(settings) => settings.idle_s,
            Self::Ssh(settings) => settings.idle_s,
            Self::Android(settings) => settings.idle_s,
            Self::Emulator(settings) => settings.idle_s,
            Self::Vm(settings) => settings.idle_s,
        })
    }
}

/// What an instance costs this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Processes of its own: it counts against `limits.instances`.
    Own,
    /// Next to nothing: a connection, or a share of a process that others have as well.
    Shared,
}

/// Whether calls of a hand are written to the session's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logged {
    /// Before and after, durably.
    Yes,
    /// Not at all: whether a call ran at most once is then the server's to say.
    No,
}
