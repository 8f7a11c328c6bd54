//! The data directory: one process owns it.
//!
//! `lock` is held by its owner for as long as it lives; `home` names the directory, so that a later start knows
//! what its own earlier starts left; `owner.token` is the owner's bearer token; `manyhands.sock` is where the
//! owner of this machine talks to the owner of the directory.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::net::{UnixListener, UnixStream};

use crate::access::Principal;
use crate::access::token::{TokenError, Tokens};
use crate::clock;
use crate::leases::node::Nodes;

/// The owner's bearer token, readable by the owner alone.
pub const TOKEN_FILE: &str = "owner.token";
/// Where commands reach the process that owns the directory.
pub const SOCKET_FILE: &str = "manyhands.sock";
const LOCK_FILE: &str = "lock";
const HOME_FILE: &str = "home";
/// Longest path of a Unix socket on Linux, in bytes (`sockaddr_un`).
const SOCKET_PATH_MAX: usize = 107;
/// How often the lock of an owner that is gone is tried again.
const LOCK_TRIES: usize = 100;
/// Pause between two tries.
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// How long a command that has the directory for a moment is waited for.
pub(crate) const PASSING: Duration = Duration::from_secs(10);
/// How often it is looked at meanwhile.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The token that the first start makes.
const OWNER: &str = "owner";
/// Hex digits that tell the owner's tokens of further data directories apart.
const OWNER_HEX: usize = 12;

/// Why the data directory can't be had.
#[derive(Debug, thiserror::Error)]
pub enum OwnError {
    /// Another process has it.
    #[error("another manyhands{} owns {}: use it, stop it, or choose another directory with --data", pid_text(.pid), directory.display())]
    Taken {
        /// Which.
        directory: PathBuf,
        /// Whose, when it says.
        pid: String,
    },
    /// A file in it can't be used.
    #[error(
        "{} can't be used ({source}): make it readable and writable for this user, or choose another directory with --data",
        path.display()
    )]
    Unusable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is no token file yet.
    #[error("there is no {} yet: start the gateway once (`manyhands`), it makes the owner's token", .0.display())]
    NoToken(PathBuf),
    /// The token file can be read by others.
    #[error(
        "{} can be read by others: run `chmod 600` on it; if somebody may have seen it, remove it, and the next start \
         makes a new token",
        .0.display()
    )]
    Exposed(PathBuf),
    /// The socket's path is too long.
    #[error(
        "{} is too long for a socket (the most is {SOCKET_PATH_MAX} bytes): choose a shorter directory with --data",
        .0.display()
    )]
    LongPath(PathBuf),
}

fn pid_text(pid: &str) -> String {
    if pid.is_empty() { String::new() } else { format!(" (process {pid})") }
}

/// A data directory that this process owns.
pub(super) struct Own {
    directory: PathBuf,
    home: String,
    /// Locked; the kernel unlocks it when the process ends, however it ends.
    _lock: File,
}

impl Own {
    /// Makes the directory when it is missing, and takes it. A command that has it for a moment, and answers nobody
    /// meanwhile, is waited for.
    pub(super) async fn take(directory: &Path) -> Result<Self, OwnError> {
        let start = Instant::now();
        loop {
            match Self::try_take(directory) {
                Err(OwnError::Taken { .. }) if start.elapsed() < PASSING && !answers(directory).await => {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                tried => return tried,
            }
        }
    }

    fn try_take(directory: &Path) -> Result<Self, OwnError> {
        let unusable = |path: &Path| {
            let path = path.to_owned();
            move |source| OwnError::Unusable { path, source }
        };
        check_length(directory)?;
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(unusable(directory))?;
        let directory = directory.canonicalize().map_err(unusable(directory))?;
        check_length(&directory)?;
        let path = directory.join(LOCK_FILE);
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(unusable(&path))?;
        match lock_when_free(&mut lock) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OwnError::Taken { directory, pid: pid(&mut lock) });
            }
            Err(TryLockError::Error(source)) => return Err(OwnError::Unusable { path, source }),
        }
        lock.set_len(0).and_then(|()| write!(lock, "{}", std::process::id())).map_err(unusable(&path))?;
        let home = home(&directory.join(HOME_FILE))?;
        Ok(Self { directory, home, _lock: lock })
    }

    /// What names this directory, on whatever machine and database.
    pub(super) fn home(&self) -> &str {
        &self.home
    }

    /// Makes the owner's token at the first start, or when its file is gone. A file that others can read is refused.
    ///
    /// The directory that a database was first used with calls its token `owner`; others that share the database have
    /// one each, for the same principal, so that none makes another's worthless.
    pub(super) async fn owner_token(&self, tokens: &Tokens, nodes: &Nodes) -> Result<(), super::ServeError> {
        match self.read_token() {
            Ok(token) if tokens.verify(token.expose_secret()).await?.is_some() => return Ok(()),
            Ok(_) | Err(OwnError::NoToken(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let name = if nodes.is_first_home().await? {
            OWNER.to_owned()
        } else {
            let home: Vec<char> = self.home.chars().filter(char::is_ascii_hexdigit).collect();
            let end = home.iter().skip(home.len().saturating_sub(OWNER_HEX)).collect::<String>();
            format!("{OWNER}-{}", end.to_ascii_lowercase())
        };
        match tokens.revoke(&name).await {
            Ok(()) | Err(TokenError::Unknown(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let token = tokens.create_for(Principal::owner(), &name, None).await?;
        self.write_token(&token)?;
        Ok(())
    }

    pub(super) fn read_token(&self) -> Result<SecretString, OwnError> {
        read_token(&self.directory)
    }

    fn write_token(&self, token: &SecretString) -> Result<(), OwnError> {
        write_whole(&self.directory.join(TOKEN_FILE), &format!("{}\n", token.expose_secret()))
    }

    /// The socket for commands. One that a killed process left is in the way of nobody: the lock is ours.
    pub(super) fn socket(&self) -> Result<UnixListener, OwnError> {
        let path = self.directory.join(SOCKET_FILE);
        let _ = std::fs::remove_file(&path);
        let unusable = |source| OwnError::Unusable { path: path.clone(), source };
        let listener = UnixListener::bind(&path).map_err(unusable)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(unusable)?;
        Ok(listener)
    }

    /// Takes the socket away.
    pub(super) fn leave(&self) {
        let _ = std::fs::remove_file(self.directory.join(SOCKET_FILE));
    }
}

/// Who owns a data directory, if another process does. Makes nothing.
pub(super) fn taken(directory: &Path) -> Option<OwnError> {
    let mut lock = File::open(directory.join(LOCK_FILE)).ok()?;
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Some(OwnError::Taken { directory: directory.to_owned(), pid: pid(&mut lock) })
        }
        Ok(()) | Err(TryLockError::Error(_)) => None,
    }
}

async fn answers(directory: &Path) -> bool {
    UnixStream::connect(directory.join(SOCKET_FILE)).await.is_ok()
}

fn pid(lock: &mut File) -> String {
    let mut pid = String::new();
    let _ = lock.seek(SeekFrom::Start(0)).and_then(|_| lock.read_to_string(&mut pid));
    pid.trim().to_owned()
}

/// Takes the lock. An owner that was killed while it started a child leaves it to that child, until this becomes
/// another program a moment later: that moment is waited for.
fn lock_when_free(lock: &mut File) -> Result<(), TryLockError> {
    let mut waits = 0..LOCK_TRIES;
    loop {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) if !owner_lives(lock) && waits.next().is_some() => {
                std::thread::sleep(LOCK_PAUSE);
            }
            done => return done,
        }
    }
}

/// Whether the process that the lock file names is there. When it names none, its owner is just starting.
fn owner_lives(lock: &mut File) -> bool {
    let pid = pid(lock).parse().ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// The owner's token of a data directory, whoever owns it now.
pub fn read_token(directory: &Path) -> Result<SecretString, OwnError> {
    let path = directory.join(TOKEN_FILE);
    let unusable = |source| OwnError::Unusable { path: path.clone(), source };
    let mode = match std::fs::metadata(&path) {
        Ok(metadata) => metadata.permissions().mode(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(OwnError::NoToken(path)),
        Err(source) => return Err(unusable(source)),
    };
    if mode & 0o077 != 0 {
        return Err(OwnError::Exposed(path));
    }
    std::fs::read_to_string(&path).map(|text| SecretString::from(text.trim())).map_err(unusable)
}

fn check_length(directory: &Path) -> Result<(), OwnError> {
    let path = directory.join(SOCKET_FILE);
    if path.as_os_str().len() > SOCKET_PATH_MAX { Err(OwnError::LongPath(path)) } else { Ok(()) }
}

/// Writes a file that the owner alone can read: beside it and then in its place, so that nobody meets half of it.
fn write_whole(path: &Path, text: &str) -> Result<(), OwnError> {
    let unusable = |source| OwnError::Unusable { path: path.to_owned(), source };
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)
        .map_err(unusable)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(unusable)?;
    std::fs::rename(&beside, path).map_err(unusable)
}

fn home(path: &Path) -> Result<String, OwnError> {
    let unusable = |source| OwnError::Unusable { path: path.to_owned(), source };
    match std::fs::read_to_string(path) {
        Ok(home) if !home.trim().is_empty() => Ok(home.trim().to_owned()),
        Ok(_) => Err(unusable(std::io::ErrorKind::InvalidData.into())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let home = format!("home_{}", clock::id().simple());
            write_whole(path, &home)?;
            Ok(home)
        }
        Err(source) => Err(unusable(source)),
    }
}

/// This machine's name.
pub(super) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
