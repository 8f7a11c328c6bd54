//! A file that was only found, and what it says that a person must have seen.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::{BARE, Machine, Said, until};

impl Said {
    /// A person said no.
    #[track_caller]
    pub(super) fn refused_on_terminal(&self) {
        assert!(self.code == Some(1) && self.out.contains("nothing was done"), "{self:?}");
    }
}

#[test]
fn a_cloned_repository_asks_once() {
    let machine = Machine::new();
    machine.write(&machine.evil());
    for args in [
        &["serve", "--listen", "127.0.0.1:0"][..],
        &["stdio"],
        &["session", "new", "one"],
        &["token", "list"],
    ] {
        machine.run(args).refuses(&["manyhands.toml", "hands.evil.command", "--config", "allow"]);
    }
    // The streams of this one are its client's, terminal or not.
    let said = machine.on_terminal(&["stdio"], "y");
    assert!(said.code == Some(1) && said.out.contains("--config"), "{said:?}");
    for answer in ["n", "", "yess"] {
        let said = machine.on_terminal(&["session", "new", "one"], answer);
        said.refused_on_terminal();
        assert!(said.out.contains("hands.evil.command = [\"sh\",\"-c\",\"touch "), "{said:?}");
    }
    assert!(!machine.path("data").exists());

    let said = machine.on_terminal(&["session", "new", "one"], "y");
    assert!(said.code == Some(0) && said.out.contains("Allow this?"), "{said:?}");
    let kept: Vec<_> = fs::read_dir(machine.path("data/allowed")).unwrap().map(Result::unwrap).collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_to_string(kept[0].path()).unwrap(), machine.file().to_str().unwrap());
    let said = machine.on_terminal(&["session", "new", "two"], "n");
    assert!(said.code == Some(0) && !said.out.contains("Allow this?"), "{said:?}");
    machine.stays_unharmed();
    let gateway = machine.gateway(&[]);
    until("the server is looked at", || machine.harmed());
    drop(gateway);

    // What reaches nothing may change; a command may not, nor may the file be another one.
    let allowed = machine.evil();
    machine.write(&format!("drain_s = 3\n{allowed}"));
    machine.run(&["session", "new", "three"]).succeeds();
    machine.write(&allowed.replace("exec cat", "exec  cat"));
    machine.run(&["session", "new", "four"]).refuses(&["hands.evil.command"]);
    machine.write(&allowed);
    machine.run(&["session", "new", "four"]).succeeds();
    fs::rename(machine.project(), machine.path("moved")).unwrap();
    fs::create_dir(machine.project()).unwrap();
    let mut moved = machine.command(&["session", "new", "five"]);
    let moved = Said::of(&moved.current_dir(machine.path("moved")).output().unwrap());
    moved.refuses(&["hands.evil.command"]);
}

#[test]
fn naming_the_file_is_a_yes() {
    let machine = Machine::new();
    machine.write(&machine.evil());
    let _gateway = machine.gateway(&["--config", "manyhands.toml"]);
    until("the server is looked at", || machine.harmed());
}

/// Whatever reaches beyond the gateway, and what does not.
#[test]
fn settings_that_reach_beyond_the_gateway_need_a_yes() {
    let machine = Machine::new();
    for (toml, setting) in [
        ("data = \"here\"", "data"),
        ("database_url = \"postgres://u:HUNTER2@h/d\"", "database_url"),
        ("listen = \"0.0.0.0:7777\"", "listen"),
        ("allowed_hosts = [\"a.example\"]", "allowed_hosts"),
        ("allowed_origins = [\"http://a.example\"]", "allowed_origins"),
        ("work_retention_days = 1", "work_retention_days"),
        ("[nodes]\ndead_after_ms = 10000", "nodes.dead_after_ms"),
        ("[brain]\nmodel = \"openai/x\"\nbase_url = \"http://a.example\"", "brain.base_url"),
        ("[brain]\nmodel = \"openai/x\"\nkey_file = \"/etc/passwd\"", "brain.key_file"),
        ("[brain]\nmodel = \"openai/x\"\nkey_env = \"A_KEY\"", "brain.key_env"),
        ("[hands.a]\nkind = \"mcp\"\nurl = \"http://a.example\"", "hands.a.url"),
        ("[hands.a]\nkind = \"sandbox\"\nmounts = [\"/etc:/e:ro\"]", "hands.a.mounts"),
        ("[hands.a]\nkind = \"sandbox\"\nnetwork = \"host\"", "hands.a.network"),
        ("[hands.a]\nkind = \"container\"\nimage = \"a\"", "hands.a.image"),
        ("[hands.a]\nkind = \"ssh\"\nhost = \"a\"\nuser = \"u\"", "hands.a.host"),
        ("[hands.a]\nkind = \"android\"\nserial = \"a\"", "hands.a.serial"),
        ("[hands.a]\nkind = \"emulator\"\nrom = \"a.gb\"", "hands.a.rom"),
        ("[hands.a]\nkind = \"vm\"\nkernel = \"k\"\ninitrd = \"i\"\nqemu = \"./q\"", "hands.a.qemu"),
    ] {
        machine.write(toml);
        let said = machine.run(&["session", "new", "one"]);
        said.refuses(&[setting, "--config"]);
        assert!(!said.err.contains("HUNTER2"), "{said:?}");
    }
    assert!(!machine.path("data").exists() && !machine.project().join("here").exists());
    let harmless = "log = \"info\"\ndrain_s = 3\n[limits]\nstreams = 9\n[loop]\nsteps = 3\n[brain]\nmodel = \
                    \"scripted/demo\"\ntoken_ms = 1\n[hands.a]\nkind = \"sandbox\"\nmounts = []\nnetwork = \
                    \"none\"\nidle_s = 3\npermission = \"ask\"\n";
    machine.write(harmless);
    machine.run(&["session", "new", "one"]).succeeds();
}

/// A terminal is shown what stands there, and does nothing of it.
#[test]
fn what_is_asked_moves_no_cursor() {
    let machine = Machine::new();
    machine.write("[hands.evil]\nkind = \"mcp\"\ncommand = [\"sh\", \"\\u001b]52;c;aGk=\\u0007\\u202e\\u0085; evil\"]\n");
    for said in [machine.on_terminal(&["session", "new", "one"], "n"), machine.on_terminal(&["allow"], "n")] {
        said.refused_on_terminal();
        assert!(said.out.contains("; evil") && said.out.contains(r"\u{202e}"), "{said:?}");
        assert!(!said.out.contains(['\u{1b}', '\u{7}', '\u{202e}', '\u{85}']), "{said:?}");
    }
    machine.write("\"\\u001b]52;c;aGk=\\u0007\" = 1\n");
    let said = machine.run(&["session", "new", "one"]);
    said.refuses(&["unknown field"]);
    assert!(!said.err.contains('\u{1b}'), "{said:?}");
}

#[test]
fn a_reload_with_another_command_waits_for_the_same_yes() {
    let machine = Machine::new();
    machine.write(BARE);
    let gateway = machine.gateway(&[]);
    machine.write(&format!("{BARE}{}", machine.evil()));
    until("the log asks", || gateway.stderr().contains("hands.evil.command"));
    machine.stays_unharmed();
    let allow = format!("manyhands --data '{}' allow '{}'", machine.text("data"), machine.file().display());
    assert!(gateway.stderr().contains(&allow), "{}", gateway.stderr());
    // Commands that are typed elsewhere say so, too.
    let typed = |args: &[&str]| gateway.cli(args).map(|output| Said::of(&output)).unwrap();
    let list = typed(&["hand", "list"]);
    assert!(
        list.err.contains(&allow) && list.out.contains("sandbox ") && !list.out.contains("evil"),
        "{list:?}"
    );
    assert!(typed(&["doctor"]).out.contains(&allow));
    let doctor = machine.run(&["doctor"]);
    assert!(doctor.out.contains("is not read") && doctor.out.contains(&allow), "{doctor:?}");

    machine.run(&["allow"]).refuses(&["asks a person", "--config"]);
    machine.on_terminal(&["allow"], "n").refused_on_terminal();
    machine.stays_unharmed();
    let said = machine.on_terminal(&["allow"], "y");
    assert!(said.code == Some(0) && said.out.contains("is allowed"), "{said:?}");
    until("the server is looked at", || machine.harmed());
    until("it is a hand", || typed(&["hand", "list"]).out.contains("evil"));
    assert_eq!(typed(&["hand", "list"]).err, "");
}
