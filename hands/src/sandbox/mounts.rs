//! Opening what a mount shows, as it was when its path was read.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::OFlags;

use super::Mount;
use super::enter::EnterError;
use super::refusal::Lack;
use crate::canonical;

/// The root of a mount, by `O_PATH`. Refuses one that has become a link, or that lies in one of the `hidden` places, where
/// the gateway's own files are.
pub(super) fn open(mount: &Mount, hidden: &[PathBuf]) -> Result<OwnedFd, EnterError> {
    let host = mount.host.display();
    if let Some(place) = hidden.iter().find(|place| mount.host.starts_with(place)) {
        return Err(Lack::new(
            format!(
                "{host}, a mount of this hand, is not shown: the gateway's own files are in {}",
                place.display()
            ),
            "mount another folder",
        )
        .into());
    }
    canonical::open(&mount.host, OFlags::PATH).map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::Other => {
                "see who made the link; then put the folder back, or remove the hand and add it again with the path that \
                 is meant"
            }
            _ => "make it or add the hand again without it",
        };
        Lack::new(format!("{host}, a mount of this hand, can't be shown ({error})"), remedy).into()
    })
}
