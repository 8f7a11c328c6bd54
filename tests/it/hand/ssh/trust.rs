//! Whom an SSH hand trusts, how it gets in, and how it says what is wrong.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use hands::sandbox::State;
use hands::ssh::{Auth, HostKey, Ssh, SshConfig, host_key, inspect};
use hands::upstream::Given;
use hands::{Ending, Hand, HandError};
use secrecy::SecretString;
use tests::sshd::{Sshd, make_key};

use super::connections::is_closed;
use crate::hand::rig::{bash, lease, soon};

/// A hand that works: it says who it is.
async fn works(server: &Sshd, config: SshConfig) {
    let hand = Ssh::new(config);
    let handle = hand.provision(&lease(server.folder.path(), "trust"), &hands::NoProgress).await.unwrap();
    assert_eq!(bash(&hand, &handle, "echo in").await, (Ending::Ok, "in\n".into()));
    hand.shutdown().await;
}

/// What is said of a hand that can't be provisioned, and that doctor says so beforehand.
async fn refusal(server: &Sshd, config: SshConfig) -> String {
    let hand = Ssh::new(config.clone());
    let error = hand.provision(&lease(server.folder.path(), "trust"), &hands::NoProgress).await.unwrap_err();
    hand.shutdown().await;
    let HandError::Unavailable { why, remedy } = &error else { panic!("{error:?}") };
    assert!(
        !why.is_empty() && !why.contains('\n') && !remedy.is_empty() && !remedy.contains('\n'),
        "{error}"
    );
    let findings = inspect(&config).await;
    let lack = findings.iter().find(|finding| finding.state == State::Missing).unwrap();
    assert!(!lack.found.is_empty() && lack.remedy.is_some(), "{lack:?}");
    error.to_string()
}

#[tokio::test]
async fn a_host_is_trusted_by_a_known_hosts_file_a_hash_in_it_or_an_accepted_key() {
    let server = Sshd::start().await.unwrap();
    let (config, known) = (server.config().unwrap(), server.path("known_hosts"));
    let key = fs::read_to_string(server.path("host.pub")).unwrap();
    let (port, pinned) = (server.port, HostKey::KnownHosts(known.clone()));
    let by_file = SshConfig { host_key: pinned, ..config.clone() };
    assert!(refusal(&server, by_file.clone()).await.contains("nobody has said yet"));
    fs::write(&known, format!("other {key}[127.0.0.1]:{port} {key}")).unwrap();
    works(&server, by_file.clone()).await;
    let hashed = Command::new("ssh-keygen").args(["-q", "-H", "-f"]).arg(&known).output().unwrap();
    assert!(hashed.status.success() && !fs::read_to_string(&known).unwrap().contains("127.0.0.1"));
    works(&server, by_file.clone()).await;
    fs::write(&known, format!("[127.0.0.1]:{port} {key}@revoked * {key}")).unwrap();
    assert!(refusal(&server, by_file).await.contains("changed"));
    // The key that a person is shown is the one to accept.
    let shown = host_key(&config).await.unwrap();
    let print = Command::new("ssh-keygen").arg("-lf").arg(server.path("host.pub")).output().unwrap();
    assert!(String::from_utf8_lossy(&print.stdout).contains(&shown.fingerprint));
    works(&server, SshConfig { host_key: HostKey::Accepted(vec![shown.line]), ..config.clone() }).await;
    let findings = inspect(&config).await;
    assert!(findings.iter().all(|finding| finding.state == State::Fine), "{findings:?}");
    let unknown = refusal(&server, SshConfig { host_key: HostKey::Accepted(Vec::new()), ..config }).await;
    assert!(unknown.contains(&shown.fingerprint) && unknown.contains("--accept-host-key"), "{unknown}");
}

#[tokio::test]
async fn a_changed_host_key_is_refused() {
    let mut server = Sshd::start().await.unwrap();
    let config = server.config().unwrap();
    let before = host_key(&config).await.unwrap().fingerprint;
    works(&server, config.clone()).await;
    server.stop();
    is_closed(server.port).await;
    fs::remove_file(server.path("host")).unwrap();
    make_key(&server.path("host"), "ed25519", "").unwrap();
    server.serve().await.unwrap();
    let config = SshConfig { port: server.port, ..config };
    let after = host_key(&config).await.unwrap().fingerprint;
    let said = refusal(&server, config.clone()).await;
    assert!(said.contains("changed") && said.contains(&before) && said.contains(&after), "{said}");
    // A key of another kind is no better.
    server.stop();
    is_closed(server.port).await;
    fs::remove_file(server.path("host")).unwrap();
    make_key(&server.path("host"), "ecdsa", "").unwrap();
    server.serve().await.unwrap();
    let said = refusal(&server, SshConfig { port: server.port, ..config }).await;
    assert!(said.contains("changed") && said.contains("another kind"), "{said}");
    let tried = fs::read_to_string(server.path("log")).unwrap();
    assert!(!tried.contains("Accepted publickey"), "{tried}");
}

#[tokio::test]
async fn a_key_file_must_be_ours_alone_and_open() {
    let server = Sshd::start().await.unwrap();
    let config = server.config().unwrap();
    let with = |file: &Path, passphrase| {
        let auth = Auth::Key { file: file.to_owned(), passphrase };
        SshConfig { auth, ..config.clone() }
    };
    let said = refusal(&server, with(&server.path("nonesuch"), None)).await;
    assert!(said.contains("there is no key file"), "{said}");
    let user = server.path("user");
    fs::set_permissions(&user, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(refusal(&server, with(&user, None)).await.contains("chmod 600"));
    let other = server.path("other");
    make_key(&other, "ecdsa", "open sesame").unwrap();
    assert!(refusal(&server, with(&other, None)).await.contains("encrypted"));
    let wrong = Given::new(|| Ok(SecretString::from("wrong")));
    assert!(refusal(&server, with(&other, Some(wrong))).await.contains("does not open"));
    let right = || Some(Given::new(|| Ok(SecretString::from("open sesame"))));
    let findings = inspect(&with(&other, right())).await;
    assert!(findings.iter().any(|finding| finding.found.contains("does not let")), "{findings:?}");
    let authorized = fs::read_to_string(server.path("other.pub")).unwrap();
    fs::write(server.path("authorized"), authorized).unwrap();
    works(&server, with(&other, right())).await;
    let rsa = server.path("rsa");
    make_key(&rsa, "rsa", "").unwrap();
    assert!(refusal(&server, with(&rsa, None)).await.contains("RSA"));
}

/// An agent that ends with the test.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn an_agent_proves_who_we_are() {
    let server = Sshd::start().await.unwrap();
    let socket = server.path("agent");
    let config = SshConfig { auth: Auth::Agent(socket.clone()), ..server.config().unwrap() };
    assert!(refusal(&server, config.clone()).await.contains("ssh-agent"));
    let agent =
        Command::new("ssh-agent").args(["-D", "-a"]).arg(&socket).stdout(Stdio::null()).spawn().unwrap();
    let _agent = Agent(agent);
    soon(|| std::os::unix::net::UnixStream::connect(&socket).is_ok()).await;
    let hand = Ssh::new(config.clone());
    let error = hand
        .provision(&lease(server.folder.path(), "trust"), &hands::NoProgress)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("ssh-add"), "{error}");
    let add = |name: &str| {
        let added =
            Command::new("ssh-add").arg("-q").arg(server.path(name)).env("SSH_AUTH_SOCK", &socket).status();
        assert!(added.unwrap().success());
    };
    make_key(&server.path("rsa"), "rsa", "").unwrap();
    add("rsa");
    let error = hand
        .provision(&lease(server.folder.path(), "trust"), &hands::NoProgress)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("does not let"), "{error}");
    add("user");
    works(&server, config.clone()).await;
    fs::copy(server.path("rsa.pub"), server.path("authorized")).unwrap();
    works(&server, config).await;
}

#[tokio::test]
async fn a_host_that_is_not_there_is_said_in_a_sentence() {
    let mut server = Sshd::start().await.unwrap();
    let hand = Ssh::new(server.config().unwrap());
    let handle = hand.provision(&lease(server.folder.path(), "gone"), &hands::NoProgress).await.unwrap();
    server.stop();
    is_closed(server.port).await;
    // What was connected before is.
    assert_eq!(bash(&hand, &handle, "echo in").await.1, "in\n");
    let config = server.config().unwrap();
    let error = Ssh::new(config.clone())
        .provision(&lease(server.folder.path(), "none"), &hands::NoProgress)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("nothing listens there"), "{error}");
    hand.shutdown().await;
    let not_ssh = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = not_ssh.local_addr().unwrap().port();
    std::thread::spawn(move || {
        use std::io::Write;
        for stream in not_ssh.incoming().take(2) {
            let _ = stream.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let error = Ssh::new(SshConfig { port, ..config.clone() })
        .provision(&lease(server.folder.path(), "none"), &hands::NoProgress)
        .await;
    assert!(
        matches!(&error, Err(HandError::Unavailable { why, .. }) if why.contains("no SSH connection")),
        "{error:?}"
    );
    let nowhere = SshConfig { host: "nowhere.invalid".into(), ..config };
    let error = Ssh::new(nowhere)
        .provision(&lease(server.folder.path(), "none"), &hands::NoProgress)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("nowhere.invalid:"), "{error}");
}
