//! Keys: whom a host must be, and who we are to it.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use russh::keys::known_hosts::known_host_keys_path;
use russh::keys::{Algorithm, HashAlg, PrivateKey, PublicKey, load_secret_key, parse_public_key_base64};
use russh::{Preferred, keys};
use rustix::fs::OFlags;
use secrecy::ExposeSecret;

use super::{HostKey, SshConfig};
use crate::upstream::Given;
use crate::{HandError, canonical};

/// A host key as it was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownKey {
    /// As one line of OpenSSH's, to be given as an accepted key: `ssh-ed25519 AAAA…`.
    pub line: String,
    /// For people to compare: `SHA256:…`.
    pub fingerprint: String,
}

impl ShownKey {
    pub(super) fn of(key: &PublicKey) -> Self {
        let mut bare = key.clone();
        bare.set_comment("");
        let line = bare.to_openssh().unwrap_or_default().trim_end().to_owned();
        Self { line, fingerprint: key.fingerprint(HashAlg::Sha256).to_string() }
    }
}

/// The keys that a host may show.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    keys: Vec<PublicKey>,
    revoked: Vec<PublicKey>,
}

/// What a shown key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// One of the pinned.
    Pinned,
    /// Nothing is pinned.
    Unknown(ShownKey),
    /// Others are pinned, or it was revoked.
    Changed(ShownKey),
}

impl Pins {
    /// Reads what is pinned for a host.
    pub(super) fn read(config: &SshConfig) -> Result<Self, HandError> {
        match &config.host_key {
            HostKey::KnownHosts(path) => {
                let opened = match canonical::open(path, OFlags::RDONLY) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                    opened => opened.map(Some),
                };
                let opened = opened.map_err(|error| {
                    unavailable(
                        format!("{} can't be read: {error}", path.display()),
                        "name another known_hosts",
                    )
                })?;
                let opened_path = opened.as_ref().map_or_else(|| path.clone(), held);
                let keys =
                    known_host_keys_path(&config.host, config.port, &opened_path).map_err(|error| {
                        unavailable(
                            format!("{} can't be read: {error}", path.display()),
                            "correct the line of this host, or pin its key with --accept-host-key",
                        )
                    })?;
                let keys = keys.into_iter().map(|(_, key)| key).collect();
                Ok(Self { keys, revoked: revoked(&opened_path) })
            }
            HostKey::Accepted(lines) => {
                let keys = lines.iter().map(|line| PublicKey::from_openssh(line)).collect::<Result<_, _>>();
                let keys = keys.map_err(|error| {
                    unavailable(
                        format!("an accepted host key of {} is no key ({error})", config.host),
                        "add the hand anew with --accept-host-key",
                    )
                })?;
                Ok(Self { keys, revoked: Vec::new() })
            }
        }
    }

    /// None at all: to look which key a host shows.
    pub(super) fn none() -> Self {
        Self { keys: Vec::new(), revoked: Vec::new() }
    }

    pub(super) fn check(&self, shown: &PublicKey) -> Verdict {
        let among = |keys: &[PublicKey]| keys.iter().any(|key| key.key_data() == shown.key_data());
        if among(&self.revoked) {
            Verdict::Changed(ShownKey::of(shown))
        } else if among(&self.keys) {
            Verdict::Pinned
        } else if self.keys.is_empty() {
            Verdict::Unknown(ShownKey::of(shown))
        } else {
            Verdict::Changed(ShownKey::of(shown))
        }
    }

    /// Fingerprints of what is pinned, for people.
    pub(super) fn expected(&self) -> String {
        let prints = self.keys.iter().map(|key| key.fingerprint(HashAlg::Sha256).to_string());
        prints.collect::<Vec<_>>().join(" or ")
    }

    /// Asks the host for a key of a kind that is pinned, as it may have several.
    pub(super) fn preferred(&self, host: &str) -> Result<Preferred, HandError> {
        let pinned = |algorithm: &Algorithm| self.keys.iter().any(|key| key.algorithm() == *algorithm);
        let ours: Vec<Algorithm> = Preferred::DEFAULT
            .key
            .iter()
            .filter(|algorithm| !matches!(algorithm, Algorithm::Rsa { .. }))
            .cloned()
            .collect();
        let wanted: Vec<Algorithm> = ours.iter().filter(|algorithm| pinned(algorithm)).cloned().collect();
        let key = match (self.keys.is_empty(), wanted.is_empty()) {
            (true, _) => ours,
            (false, false) => wanted,
            (false, true) => {
                return Err(unavailable(
                    format!(
                        "of {host} only host keys are pinned of a kind that is not used here, such as RSA"
                    ),
                    "pin its Ed25519 or ECDSA key with --accept-host-key",
                ));
            }
        };
        Ok(Preferred { key: Cow::Owned(key), ..Preferred::DEFAULT })
    }
}

/// A path to what is open, for those who read by path.
fn held(opened: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()))
}

/// Keys that a `known_hosts` file says never to accept, of whatever host.
fn revoked(path: &Path) -> Vec<PublicKey> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("@revoked"));
    lines.filter_map(|line| parse_public_key_base64(line.split_whitespace().nth(2)?).ok()).collect()
}

/// Reads our private key. Nobody else may be able to.
pub(super) fn private(path: &Path, passphrase: Option<&Given>) -> Result<PrivateKey, HandError> {
    let shown = path.display();
    let opened = canonical::open(path, OFlags::PATH).map(File::from);
    let mode = opened.and_then(|file| Ok((file.metadata()?, file)));
    let (mode, file) = mode.map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::NotFound => format!("there is no key file {shown}"),
            _ => format!("the key file {shown} can't be looked at ({error})"),
        };
        unavailable(why, "name another with the hand's setting `key`, or make one with ssh-keygen -t ed25519")
    })?;
    if mode.permissions().mode() & 0o077 != 0 {
        let remedy = format!("chmod 600 {shown}");
        return Err(unavailable(format!("the key file {shown} can be read by others"), &remedy));
    }
    let passphrase = passphrase.map(Given::read).transpose().map_err(|why| {
        unavailable(format!("the passphrase of {shown} can't be read: {why}"), "correct the hand's settings")
    })?;
    let passphrase = passphrase.as_ref().map(ExposeSecret::expose_secret);
    let key = load_secret_key(held(&file.into()), passphrase).map_err(|error| match (error, passphrase) {
        (keys::Error::IO(error), _) => {
            unavailable(format!("the key file {shown} can't be read ({error})"), "look at whose it is")
        }
        (keys::Error::KeyIsEncrypted, None) => unavailable(
            format!("the key file {shown} is encrypted"),
            "put the key into an ssh-agent, or name a file with its passphrase",
        ),
        (_, Some(_)) => {
            unavailable(format!("the key file {shown} does not open with the passphrase given"), "correct it")
        }
        (_, None) => unavailable(
            format!("the key file {shown} holds no private key, or is encrypted"),
            "put an encrypted key into an ssh-agent, or make one with ssh-keygen -t ed25519",
        ),
    })?;
    if key.algorithm().is_rsa() {
        return Err(unavailable(
            format!("the key file {shown} holds an RSA key, which is only used by way of an ssh-agent"),
            "put it into one, or make an Ed25519 key with ssh-keygen -t ed25519",
        ));
    }
    Ok(key)
}

pub(super) fn unavailable(why: String, remedy: &str) -> HandError {
    HandError::Unavailable { why, remedy: remedy.to_owned() }
}
