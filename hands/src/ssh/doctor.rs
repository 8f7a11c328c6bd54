//! What an SSH hand's host can offer, before anybody calls it.

use super::key::{self, Pins};
use super::{Auth, SshConfig, connect};
use crate::HandError;
use crate::sandbox::{Finding, State};

/// Looks at everything that the hand needs: its key, whether the host's is pinned, and whether it lets us in. Connects,
/// and takes at most some 40 s.
pub async fn inspect(config: &SshConfig) -> Vec<Finding> {
    let mut findings = vec![finding("SSH key", key_of(config)), finding("SSH host key", pinned(config))];
    if findings.iter().all(|finding| finding.state == State::Fine) {
        let reached = match connect::connect(config).await {
            Ok(connection) => {
                let _ = connection.handle.disconnect(russh::Disconnect::ByApplication, "", "en").await;
                Ok(format!("{} lets {} in", connect::address(config), config.user))
            }
            Err(error) => Err(error),
        };
        findings.push(finding("SSH host", reached));
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

fn key_of(config: &SshConfig) -> Result<String, HandError> {
    match &config.auth {
        Auth::Key { file, passphrase } => {
            let key = key::private(file, passphrase.as_ref())?;
            Ok(format!("{} ({})", file.display(), key.algorithm()))
        }
        Auth::Agent(socket) if socket.exists() => Ok(format!("by the ssh-agent at {}", socket.display())),
        Auth::Agent(socket) => Err(key::unavailable(
            format!("there is no ssh-agent at {}", socket.display()),
            "start one, and name its socket with the hand's setting `agent`",
        )),
    }
}

fn pinned(config: &SshConfig) -> Result<String, HandError> {
    let pins = Pins::read(config)?;
    let expected = pins.expected();
    if expected.is_empty() {
        return Err(key::unavailable(
            format!("no host key of {} is pinned", connect::address(config)),
            "add the hand with --accept-host-key, or add the host to the known_hosts file",
        ));
    }
    pins.preferred(&config.host)?;
    Ok(expected)
}
