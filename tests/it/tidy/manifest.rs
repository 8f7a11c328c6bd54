//! Dependencies: named once, each with its reason.

use std::path::Path;

use super::none;
use super::tree::read;

#[test]
fn every_dependency_says_why() {
    let manifest = read(Path::new("Cargo.toml"));
    let (_, rest) = manifest.split_once("[workspace.dependencies]").unwrap();
    let (section, _) = rest.split_once("\n[").unwrap();
    let silent: Vec<_> = section
        .lines()
        .filter(|line| line.contains('=') && !line.starts_with('#'))
        .filter(|line| !line.contains("path = ") && !line.contains("# "))
        .map(str::to_owned)
        .collect();
    none("a dependency without a reason", &silent);
}

#[test]
fn members_take_their_versions_from_the_workspace() {
    let mut own = Vec::new();
    for member in ["gateway", "hands", "tests"] {
        let manifest = read(&Path::new(member).join("Cargo.toml"));
        own.extend(
            manifest
                .lines()
                .filter(|line| line.contains("version = \"") || line.contains("git = "))
                .map(|line| format!("{member}: {line}")),
        );
    }
    none("a version outside [workspace.dependencies]", &own);
}
