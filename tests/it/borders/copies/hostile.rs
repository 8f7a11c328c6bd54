//! What an agent sends in the place of an honest archive.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hands::sandbox::Landing;
use proptest::prelude::*;
use tests::gateway::{Gateway, Options};

use super::{Sent, archive, names, seen, sent, victim};
use crate::cli::Home;
use crate::sandbox_kit;

/// Unpacks entries as `here/to`, beside a victim whose path is `{victim}` in them: how it ended, and what is there then.
fn unpack(entries: &[Sent]) -> (Result<(), String>, Vec<String>) {
    let scratch = tempfile::tempdir().unwrap();
    let victim = victim(scratch.path());
    let here = scratch.path().join("here");
    fs::create_dir(&here).unwrap();
    let name = |text: &str| text.replace("{victim}", victim.to_str().unwrap());
    let entries: Vec<_> =
        entries.iter().map(|entry| sent(entry.kind.into(), name(&entry.path), name(&entry.link))).collect();
    let before = (seen(&victim), names(scratch.path()));
    let target = here.join("to");
    let unpacked = sandbox_kit::unpack(&archive(&entries), &target);
    assert_eq!((seen(&victim), names(scratch.path())), before, "{entries:?}");
    let made = names(&here);
    match &unpacked {
        Ok(()) => {
            assert_eq!(made, ["to"], "{entries:?}");
            // Links have no mode of their own.
            for (path, (mode, ..)) in
                seen(&here).iter().filter(|(_, (mode, ..))| mode & 0o170_000 != 0o120_000)
            {
                assert_eq!(mode & 0o7000, 0, "{} of {entries:?}", path.display());
            }
        }
        Err(error) => assert!(made.is_empty(), "{error} {made:?} {entries:?}"),
    }
    (unpacked.map_err(|error| error.to_string()), made)
}

/// What once went wrong, or might have. New finds of the property below belong here.
fn corpus() -> Vec<(&'static str, Vec<Sent>)> {
    let top = || sent('5', "top/", "");
    vec![
        ("behind a link", vec![top(), sent('2', "top/x", "{victim}"), sent('2', "top/x/planted", "/any")]),
        ("behind a link", vec![top(), sent('2', "top/x", "{victim}"), sent('0', "top/x/planted", "")]),
        ("behind a link", vec![top(), sent('2', "top/x", "{victim}"), sent('5', "top/x/planted", "")]),
        ("behind a link", vec![top(), sent('2', "top/x/planted", "/any"), sent('2', "top/x", "{victim}")]),
        ("behind a link", vec![sent('2', "top", "{victim}"), sent('2', "top/planted", "/any")]),
        ("behind a link", vec![sent('2', "top", "../victim"), sent('0', "top/file", "")]),
        ("behind a link", vec![top(), sent('2', "top/a", ".."), sent('2', "top/a/b", "{victim}")]),
        ("behind a link", vec![top(), sent('2', "top/x", "{victim}"), sent('1', "top/h", "top/x/file")]),
        ("behind a link", vec![top(), sent('2', "top/x", "{victim}"), sent('1', "top/x/h", "top/x")]),
        ("no path below", vec![top(), sent('1', "top/h", "{victim}/file"), sent('0', "top/h", "")]),
        ("no path below", vec![top(), sent('1', "top/h", "top/../../victim/file")]),
        ("no path below", vec![top(), sent('0', "top/../../victim/planted", "")]),
        ("no path below", vec![top(), sent('0', "{victim}/planted", "")]),
        ("no path below", vec![sent('0', "..", "")]),
        ("no path below", vec![sent('5', "./", "")]),
        ("was there already", vec![top(), sent('2', "top/x", "{victim}/file"), sent('0', "top/x", "")]),
        ("was there already", vec![top(), sent('2', "top/x", "{victim}"), sent('5', "top/x", "")]),
        ("was there already", vec![top(), sent('0', "other", "")]),
        ("what is no file", vec![top(), sent('1', "top/h", "top")]),
        ("neither a file nor a folder", vec![sent('3', "top", "")]),
        ("neither a file nor a folder", vec![]),
        ("sparse", vec![top(), sent('S', "top/x", "")]),
    ]
}

/// The first one is the one that was made to reach this machine.
#[test]
fn an_archive_with_a_link_as_a_parent_makes_nothing() {
    for (why, entries) in corpus() {
        let (unpacked, made) = unpack(&entries);
        let said = unpacked.expect_err(&format!("{entries:?}"));
        assert!(said.contains(why) && made.is_empty(), "{why}: {said} {entries:?}");
    }
}

/// What honest programs send, some of which looks like the above.
#[test]
fn links_that_lead_anywhere_are_copied_as_they_are() {
    let scratch = tempfile::tempdir().unwrap();
    let victim = victim(scratch.path());
    let out = victim.to_str().unwrap();
    let entries = [
        sent('5', "top/", ""),
        sent('2', "top/out", out),
        sent('1', "top/same-link", "top/out"),
        sent('0', "top/file", ""),
        sent('1', "top/same-file", "top/file"),
        sent('6', "top/pipe", ""),
        sent('1', "top/same-pipe", "top/pipe"),
    ];
    let to = scratch.path().join("to");
    sandbox_kit::unpack(&archive(&entries), &to).unwrap();
    assert_eq!(names(&to), ["file", "out", "same-file", "same-link"]);
    assert_eq!(fs::read_link(to.join("same-link")).unwrap(), victim);
    assert_eq!(fs::read_to_string(to.join("same-file")).unwrap(), "planted");
    assert_eq!(fs::metadata(to.join("file")).unwrap().permissions().mode() & 0o7000, 0);
    // And nothing that is there already is replaced.
    assert!(Landing::beside(&to).err().unwrap().to_string().contains("exists already"));
    let late = scratch.path().join("late");
    let mut landing = Landing::beside(&late).unwrap();
    landing.unpack(archive(&entries).as_slice()).unwrap();
    fs::write(&late, "meanwhile").unwrap();
    assert!(landing.keep().unwrap_err().to_string().contains("exists already"));
    assert_eq!(fs::read_to_string(&late).unwrap(), "meanwhile");
    assert_eq!(names(scratch.path()), ["late", "to", "victim"]);
}

/// A name for any purpose: few, so that they meet.
fn path() -> impl Strategy<Value = String> {
    let part = || prop_oneof![6 => "[abc]", 1 => Just("..".to_owned()), 1 => Just(".".to_owned())];
    let below = proptest::collection::vec(part(), 0..4)
        .prop_map(|parts| ["top".to_owned()].into_iter().chain(parts).collect::<Vec<_>>().join("/"));
    prop_oneof![
        12 => below,
        1 => Just("{victim}/planted".to_owned()),
        1 => Just("{victim}/file".to_owned()),
        1 => Just("../victim/planted".to_owned()),
        1 => Just("other/a".to_owned()),
    ]
}

fn target() -> impl Strategy<Value = String> {
    let out = ["{victim}", "../../victim", "..", ".", "../..", "/", "a", "b"].map(str::to_owned);
    prop_oneof![2 => path(), 3 => proptest::sample::select(out.to_vec())]
}

fn entry() -> impl Strategy<Value = Sent> {
    let kinds = proptest::sample::select(b"0012225556734".to_vec());
    (kinds, path(), target()).prop_map(|(kind, path, link)| {
        let link = if matches!(kind, b'1' | b'2') { link } else { String::new() };
        Sent { path, kind, link }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_archive_touches_nothing_but_its_place(rest in proptest::collection::vec(entry(), 0..12), whole in proptest::bool::weighted(0.9)) {
        let top = whole.then(|| sent('5', "top", ""));
        let entries: Vec<_> = top.into_iter().chain(rest).collect();
        let _ = unpack(&entries);
    }
}

/// Waits for `tar`, stops it before it has written anything, and writes another archive where its own would go.
const TAKE_OVER: &str = r#"
for _ in $(seq 20000); do
    for one in /proc/[0-9]*; do
        read -r name 2> /dev/null < $one/comm || continue
        [ "$name" = tar ] || continue
        kill -STOP ${one#/proc/}
        written=$(sed -n 's/^wchar: //p' $one/io)
        if [ "$written" = 0 ]; then cat /workspace/evil.tar > $one/fd/1; echo took over > /workspace/said
        else echo "late: $written" > /workspace/said; fi
        kill -CONT ${one#/proc/}
        exit
    done
done
"#;

/// `tar` runs as the agent's own user, who may write to whatever it has open.
#[test]
fn an_agent_that_takes_over_tar_plants_nothing() {
    let home = Home::new();
    let _gateway = Gateway::start_blocking(&Options::default().data(&home.data())).unwrap();
    let victim = victim(home.path());
    let evil = [
        sent('5', "top/", ""),
        sent('2', "top/x", victim.to_str().unwrap()),
        sent('2', "top/x/planted", "/any"),
    ];
    fs::write(home.path().join("evil.tar"), archive(&evil)).unwrap();
    let bash = |script: &str| {
        let arguments = serde_json::json!({ "command": script }).to_string();
        let called = home.run(&["hand", "call", "sandbox", "bash", &arguments]);
        assert_eq!(called.code, Some(0), "{called:?}");
        called.out
    };
    assert_eq!(home.run(&["hand", "cp", "evil.tar", "sandbox:evil.tar"]).code, Some(0));
    // It reads all names of a folder before it writes the first.
    bash("mkdir top && cd top && seq 50000 | xargs touch");
    let before = seen(&victim);
    let there = |name: &str| Path::new(&home.path().join(name)).symlink_metadata().is_ok();
    for attempt in 0.. {
        bash(&format!("rm -f said; (bash -c '{}') > /dev/null 2>&1 &", TAKE_OVER.replace('\'', r"'\''")));
        let out = format!("out{attempt}");
        let copied = home.run(&["hand", "cp", "sandbox:top", &out]);
        assert_eq!(seen(&victim), before, "{copied:?}");
        let said = bash("for _ in $(seq 600); do [ -s said ] && break; sleep 0.1; done; cat said");
        if said.contains("took over") {
            copied.refuses(1, &["top/x/planted", "lies behind a link"]);
            assert!(!there(&out));
            break;
        }
        assert!(attempt < 50, "it was always too late: {said}");
    }
    assert!(names(home.path()).iter().all(|name| !name.starts_with('.')), "{:?}", names(home.path()));
}
