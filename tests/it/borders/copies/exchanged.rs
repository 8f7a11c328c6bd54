//! Copies where an agent renames, and puts links, while they go on.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use hands::sandbox::{Landing, pack};
use tests::gateway::{Gateway, Options, binary};

use super::{archive, names, seen, sent, victim};
use crate::cli::Home;

/// Files of the folder that is copied.
const FILES: usize = 800;

/// Takes each hidden folder away, and puts a link in its place.
const RACE: &str = r#"
use strict;
my ($victim, $stolen) = @ARGV;
chdir '/project' or die;
for (1 .. 10_000_000) {
    opendir my $here, '.' or die;
    for my $name (grep { /^\.(out|manyhands)/ && -d && ! -l } readdir $here) {
        symlink $victim, $name if rename $name, "stolen" . $stolen++;
    }
}
"#;

/// A link on the way to what a person names: theirs is followed, an agent's is not, in either direction.
#[test]
fn a_link_that_an_agent_made_leads_no_copy_elsewhere() {
    let home = Home::new();
    let victim = victim(home.path());
    fs::write(victim.join("key"), "secret").unwrap();
    let project = home.path().join("project");
    fs::create_dir(&project).unwrap();
    let mount = format!("{}:/project", project.display());
    home.json(&["hand", "add", "work", "--kind", "sandbox", "--mount", &mount]);
    let script = format!("echo x > file; ln -s {} /project/sub", victim.display());
    let arguments = serde_json::json!({ "command": script }).to_string();
    assert_eq!(home.run(&["hand", "call", "work", "bash", &arguments]).code, Some(0));
    let before = seen(&victim);
    let absolute = project.join("sub/planted");
    for (from, to) in [
        ("work:file", absolute.to_str().unwrap()),
        ("work:file", "project/sub/planted"),
        ("work:file", "project/../project/sub/planted"),
        ("project/sub/key", "work:stolen"),
    ] {
        home.run(&["hand", "cp", from, to])
            .refuses(1, &["project/sub is a link in a folder that a hand may write to"]);
    }
    assert_eq!(seen(&victim), before);
    symlink("project", home.path().join("mine")).unwrap();
    assert_eq!(home.run(&["hand", "cp", "work:file", "mine/file"]).code, Some(0));
    assert_eq!(fs::read_to_string(project.join("file")).unwrap(), "x\n");
}

/// A mounted project: the agent may write where the copy is to be.
#[test]
fn a_copy_goes_where_it_began_whatever_an_agent_renames() {
    let home = Home::new();
    let _gateway = Gateway::start_blocking(&Options::default().data(&home.data())).unwrap();
    let victim = victim(home.path());
    // What everybody may write: so a link to it would do.
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o777)).unwrap();
    let project = home.path().join("project");
    fs::create_dir(&project).unwrap();
    let mount = format!("{}:/project", project.display());
    let added = home.run(&["hand", "add", "work", "--kind", "sandbox", "--mount", &mount]);
    assert_eq!(added.code, Some(0), "{added:?}");
    let bash = |script: &str| {
        let arguments = serde_json::json!({ "command": script }).to_string();
        let called = home.run(&["hand", "call", "work", "bash", &arguments]);
        assert_eq!(called.code, Some(0), "{called:?}");
    };
    fs::write(project.join("race.pl"), RACE).unwrap();
    bash(&format!("mkdir big && cd big && for i in $(seq {FILES}); do echo $i > $i; done"));
    bash(&format!("perl /project/race.pl '{}' 0 > /dev/null 2>&1 &", victim.display()));
    let before = seen(&victim);
    for attempt in 0.. {
        let out = format!("project/out{attempt}");
        let copied = home.run(&["hand", "cp", "work:big", &out]);
        assert_eq!(seen(&victim), before, "{copied:?}");
        let whole = home.path().join(&out);
        match copied.code {
            Some(0) => {
                assert!(whole.symlink_metadata().unwrap().is_dir());
                assert_eq!(names(&whole).len(), FILES);
            }
            _ => copied.refuses(1, &["manyhands: "]),
        }
        if names(&project).iter().any(|name| name.starts_with("stolen")) {
            break;
        }
        assert!(attempt < 50, "the agent was always too slow");
    }
}

/// What was unpacked is exchanged at the last moment.
#[test]
fn a_copy_that_was_exchanged_is_said() {
    let scratch = tempfile::tempdir().unwrap();
    let victim = victim(scratch.path());
    let project = scratch.path().join("project");
    fs::create_dir(&project).unwrap();
    let mut landing = Landing::beside(&project.join("out")).unwrap();
    landing.unpack(archive(&[sent('5', "top", ""), sent('0', "top/file", "")]).as_slice()).unwrap();
    let hidden = project.join(&names(&project)[0]);
    fs::rename(hidden.join("content"), project.join("stolen")).unwrap();
    symlink(&victim, hidden.join("content")).unwrap();
    let said = landing.keep().unwrap_err().to_string();
    assert!(said.starts_with("Another program changed the copy"), "{said}");
    assert_eq!(names(&project), ["stolen"]);
    assert_eq!(fs::read_to_string(victim.join("file")).unwrap(), "untouched");
}

/// Exchanges files for other things as soon as the first bytes of the archive are there.
struct Exchanging {
    to: Vec<u8>,
    exchange: Option<Box<dyn FnOnce() + Send>>,
}

impl Write for Exchanging {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(exchange) = self.exchange.take() {
            exchange();
        }
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What `pack` makes of a folder whose files become what `exchange` makes of them.
fn packed(exchange: fn(&Path, &Path)) -> Option<Vec<u8>> {
    let scratch = tempfile::tempdir().unwrap();
    let (folder, secret) = (scratch.path().join("folder"), scratch.path().join("secret"));
    fs::create_dir(&folder).unwrap();
    fs::write(&secret, "what nobody else may read").unwrap();
    let files: Vec<PathBuf> = (0..20).map(|count| folder.join(count.to_string())).collect();
    for file in &files {
        fs::write(file, "harmless").unwrap();
    }
    let exchange = move || {
        for file in &files {
            fs::remove_file(file).unwrap();
            exchange(file, &secret);
        }
    };
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut to = Exchanging { to: Vec::new(), exchange: Some(Box::new(exchange)) };
        let packed = pack(&folder, &mut to);
        let _ = tell.send(packed.is_ok().then_some(to.to));
    });
    told.recv_timeout(Duration::from_mins(1)).expect("it waits for something")
}

#[test]
fn what_is_exchanged_while_it_is_packed_is_not_followed() {
    let linked = packed(|file, secret| symlink(secret, file).unwrap());
    let secret = b"what nobody else may read";
    let is_in = |archive: Vec<u8>| archive.windows(secret.len()).any(|bytes| bytes == secret);
    assert!(!linked.is_some_and(is_in), "a link was followed");
    packed(|file, _| {
        let made = Command::new("mkfifo").arg(file).status().unwrap();
        assert!(made.success());
    });
}

/// Answers to `renameat2` with EINVAL, as NFS and 9p do.
fn without_renameat2() -> Vec<u8> {
    let number: u32 = if cfg!(target_arch = "x86_64") { 316 } else { 276 };
    let program: [(u16, u8, u8, u32); 4] =
        [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x0005_0016), (0x06, 0, 0, 0x7fff_0000)];
    let bytes = |(code, yes, no, value): (u16, u8, u8, u32)| {
        [&code.to_ne_bytes()[..], &[yes, no], &value.to_ne_bytes()].concat()
    };
    program.into_iter().flat_map(bytes).collect()
}

#[test]
fn a_file_system_that_cannot_name_a_copy_is_said() {
    let home = Home::new();
    let _gateway = Gateway::start_blocking(&Options::default().data(&home.data())).unwrap();
    fs::write(home.path().join("filter"), without_renameat2()).unwrap();
    fs::write(home.path().join("one"), "text").unwrap();
    assert_eq!(home.run(&["hand", "cp", "one", "sandbox:one"]).code, Some(0));
    let copied = Command::new("bash")
        .args(["-c", "exec bwrap --seccomp 10 --dev-bind / / \"$@\" 10< filter", "bash"])
        .arg(binary())
        .args(["hand", "cp", "sandbox:one", "two"])
        .env("MANYHANDS_DATA", home.data())
        .current_dir(home.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&copied.stderr);
    assert_eq!(copied.status.code(), Some(1), "{said}");
    assert!(said.contains("NFS or 9p") && said.lines().count() == 1, "{said}");
    assert_eq!(names(home.path()), ["data", "filter", "one"]);
}
