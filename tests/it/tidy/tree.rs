//! Where things are: the top level, the migrations, what the README mentions.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{none, root};

/// What a stranger sees first stays this short; dot-files beside it are for tools.
const TOP_LEVEL: [&str; 11] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "Makefile",
    "README.md",
    "gateway",
    "hands",
    "migrations",
    "tests",
];

#[test]
fn top_level_is_the_map() {
    let extra: Vec<_> = tracked()
        .iter()
        .filter_map(|path| Some(path.components().next()?.as_os_str().to_string_lossy().into_owned()))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .filter(|name| !name.starts_with('.') && !TOP_LEVEL.contains(&name.as_str()))
        .collect();
    none("nothing else stands at the top level", &extra);
}

#[test]
fn migrations_have_the_same_names_for_both_databases() {
    let names = |dialect: &str| -> BTreeSet<String> {
        let folder = root().join("migrations").join(dialect);
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let sqlite = names("sqlite");
    assert!(!sqlite.is_empty());
    assert_eq!(sqlite, names("postgres"));
}

/// A README that names what is not there is worse than none.
#[test]
fn readme_names_only_what_is_there() {
    let (readme, makefile) = (read(Path::new("README.md")), read(Path::new("Makefile")));
    let no_target = mentioned(&readme, "make ").into_iter().filter(|target| {
        !makefile
            .lines()
            .any(|line| line.strip_prefix(target.as_str()).is_some_and(|rest| rest.starts_with(':')))
    });
    let mut missing: Vec<_> = no_target.map(|target| format!("make {target}")).collect();
    for command in mentioned(&readme, "manyhands ") {
        let help = Command::new(tests::gateway::binary()).args([&command, "--help"]).output().unwrap();
        if !help.status.success() {
            missing.push(format!("manyhands {command}"));
        }
    }
    none("in the README and nowhere else", &missing);
}

/// The words behind `before` where it begins a line or a piece of code.
fn mentioned(text: &str, before: &str) -> BTreeSet<String> {
    let starts =
        text.match_indices(before).filter(|(at, _)| matches!(text[..*at].chars().last(), Some('`' | '\n')));
    let words = starts.map(|(at, _)| {
        text[at + before.len()..].chars().take_while(|c| c.is_ascii_lowercase()).collect::<String>()
    });
    words.filter(|word| !word.is_empty()).collect()
}

/// What git tracks, or would once added.
pub(super) fn tracked() -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git lists the checkout");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let list = String::from_utf8(output.stdout).expect("paths are UTF-8");
    list.lines().map(PathBuf::from).filter(|path| root().join(path).exists()).collect()
}

/// Tracked files with this extension and what they hold.
pub(super) fn files(extension: &str) -> Vec<(PathBuf, String)> {
    let wanted = |path: &PathBuf| path.extension().is_some_and(|found| found == extension);
    tracked().into_iter().filter(wanted).map(|path| (path.clone(), read(&path))).collect()
}

/// A file of the checkout, by its path in it.
pub(super) fn read(path: &Path) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
