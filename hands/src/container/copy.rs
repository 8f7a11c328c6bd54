//! Copying in and out of a container, by the daemon: the image needs no program that can.
//!
//! The daemon sees the workspace and nothing else that a container has. So what goes in comes to the workspace first and
//! is moved from there by whoever works in the container, and what is to come from elsewhere goes there first.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Container;
use super::call::limit;
use super::entries::Plan;
use super::instance::Instance;
use super::window::{OURS, Rewriting, Shows, TIMEOUT, Whole, Window, inside, while_given};
use crate::posix::given::Given;
use crate::posix::{Flow, Input, Stop};
use crate::sandbox::copy::{FOLDERS, ToArchive, beside, broke_off, clear, fresh, look, place, run, stopped};
use crate::sandbox::watch::Watch;
use crate::sandbox::{CopyError, WORKSPACE};
use crate::{Files, Handle};

/// Bytes that are given at once.
const PIECE: usize = 64 << 10;

/// Moves what came to `$3` as `$2` into the folder `$1`, by way of `$4`: it may lie elsewhere, and be long on its way.
const MOVE: &str = r#"
set -e
wipe "$4"
move "$3/content" "$4"
move "$4" "$1/$2"
rmdir -- "$3""#;

/// Copies `$1`, which the daemon does not see, to `$2`, by what every shell can and little more.
const STAGE: &str = r#"
set -e
put() {
    if [ -L "$1" ]; then
        ln -s -- "$(readlink -- "$1")" "$2"
    elif [ -d "$1" ]; then
        mkdir -- "$2"
        for entry in "$1"/..?* "$1"/.[!.]* "$1"/*; do
            if [ -e "$entry" ] || [ -L "$entry" ]; then (put "$entry" "$2/${entry##*/}"); fi
        done
    elif [ -f "$1" ]; then
        cat -- "$1" > "$2"
        if [ -x "$1" ]; then chmod +x -- "$2"; fi
    fi
}
if [ ! -e "$1" ] && [ ! -L "$1" ]; then
    echo "$1: No such file or directory" >&2
    exit 1
fi
wipe "$2"
mkdir -p -- "$2"
put "$1" "$2/content""#;

#[async_trait]
impl Files for Container {
    async fn copy_in(
        &self,
        handle: &Handle,
        to: &str,
        archive: Box<dyn AsyncRead + Send + Unpin>,
        cancel: &CancellationToken,
    ) -> Result<(), CopyError> {
        let instance = self.shared.instances.get(handle).await?;
        let (folder, name) = place(to)?;
        let copy = Copy::new();
        let beside = format!("{folder}/{}", copy.name);
        let argv = |script: &str| {
            ["sh", "-c", script, "sh", &folder, &name, &copy.stage, &beside].map(str::to_owned)
        };
        let end = cancel.child_token();
        let (archive, failed) = Given::new(archive, end.clone());
        let copied = async {
            run(&instance, argv(&fresh("")).to_vec(), nothing(), cancel).await?;
            let plan = Plan { skip: 1, below: inside(&copy.content), without: None, owner: instance.owner() };
            let Rewriting { old, new, whole } = Rewriting::begin(plan);
            while_given(archive, old, written(&instance, new, whole, &end)).await?;
            run(&instance, argv(&format!("{FOLDERS}{MOVE}")).to_vec(), nothing(), cancel).await
        };
        let copied = copied.await.map_err(|error| failed.take().map_or(error, |why| broke_off(&why)));
        if copied.is_err() {
            clear(&instance, &[&copy.stage, &beside]).await;
        }
        copied
    }

    async fn copy_out(
        &self,
        handle: &Handle,
        from: &str,
        archive: &mut (dyn AsyncWrite + Send + Unpin),
        moved: &(dyn Fn(u64) + Send + Sync),
        cancel: &CancellationToken,
    ) -> Result<u64, CopyError> {
        let instance = self.shared.instances.get(handle).await?;
        let most = self.shared.config.limits.workspace.saturating_mul(2);
        let to = ToArchive { archive, moved, bytes: 0, most };
        let (folder, name) = place(from)?;
        let whole = Path::new(&folder).join(&name);
        let left_out = look(&instance, &whole.to_string_lossy(), cancel).await?;
        if whole.starts_with(WORKSPACE) {
            read(&instance, &whole.to_string_lossy(), to, cancel).await?;
            return Ok(left_out);
        }
        let copy = Copy::new();
        let argv = ["sh", "-c", &format!("{FOLDERS}{STAGE}"), "sh", &whole.to_string_lossy(), &copy.stage]
            .map(str::to_owned);
        let copied = async {
            run(&instance, argv.to_vec(), nothing(), cancel).await?;
            read(&instance, &format!("{WORKSPACE}/{}", copy.content), to, cancel).await
        };
        let copied = copied.await;
        clear(&instance, &[&copy.stage]).await;
        copied.map(|()| left_out)
    }
}

/// Where one copy has its place.
struct Copy {
    name: String,
    /// A folder of the workspace.
    stage: String,
    /// What is copied, below the workspace.
    content: String,
}

impl Copy {
    fn new() -> Self {
        let name = beside();
        let stage = format!("{WORKSPACE}/{OURS}/{name}");
        let content = format!("{OURS}/{name}/content");
        Self { name, stage, content }
    }
}

fn nothing() -> Input {
    Input::Bytes(Bytes::new())
}

/// Has the daemon unpack an archive for as long as the limits allow it.
pub(super) async fn written(
    instance: &Arc<Instance>,
    archive: DuplexStream,
    whole: Whole,
    cancel: &CancellationToken,
) -> Result<(), CopyError> {
    if let Some(watch) = &instance.watch {
        watch.admit()?;
    }
    let _active = instance.watch.as_ref().map(Watch::active);
    let mut alarm = instance.watch.as_ref().map(|watch| watch.alarm());
    let window = Window::open(instance, Shows::All).await?;
    let writing = async {
        let written = window.write(archive).await;
        // Where the archive was not whole, that is the reason of all else.
        whole.check().await?;
        written
    };
    let written = tokio::select! {
        written = writing => written,
        () = cancel.cancelled() => Err(stopped(Stop::Cancelled)),
        why = limit(&mut alarm) => Err(stopped(Stop::Limit(why))),
        () = sleep(TIMEOUT) => Err(stopped(Stop::Timeout)),
    };
    window.close().await;
    written
}

/// Gives what the daemon packs of a path in the workspace.
async fn read(
    instance: &Arc<Instance>,
    path: &str,
    mut to: ToArchive<'_>,
    cancel: &CancellationToken,
) -> Result<(), CopyError> {
    let window = Window::open(instance, Shows::All).await?;
    let given = async {
        let Some(packed) = window.read(path).await? else {
            return Err(CopyError::Refused(format!("{path}: No such file or directory.")));
        };
        // What is kept of a workspace is no part of it.
        let without = (path == WORKSPACE).then_some(OURS);
        let plan = Plan { skip: 1, below: "content".into(), without, owner: instance.owner() };
        let Rewriting { old, mut new, whole } = Rewriting::begin(plan);
        let giving = async {
            let mut piece = vec![0; PIECE];
            while let Ok(length @ 1..) = new.read(&mut piece).await {
                if let Flow::Stop(stop) = to.give(&piece[..length]).await {
                    return Err(stopped(stop));
                }
            }
            Ok(())
        };
        while_given(packed, old, giving).await?;
        whole.check().await
    };
    let given = tokio::select! {
        given = given => given,
        () = cancel.cancelled() => Err(stopped(Stop::Cancelled)),
        () = sleep(TIMEOUT) => Err(stopped(Stop::Timeout)),
    };
    window.close().await;
    given
}
