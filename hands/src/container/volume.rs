//! A workspace that is a volume of the daemon's: made once, and given to whoever works in it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType, MountVolumeOptions};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, RemoveVolumeOptions, StartContainerOptions,
    WaitContainerOptions,
};
use futures_util::StreamExt;

use super::engine::{Engine, Lack, status};
use super::instance::{INSTANCE, NODE, remove};
use super::{ContainerConfig, Workspace, filter};
use crate::sandbox::WORKSPACE;
use crate::{HandError, Lease};

/// The label that says whose a new volume is.
const OWNER: &str = "manyhands.owner";
/// The label of a container that gives a volume away: which.
pub(super) const GIVES: &str = "manyhands.gives";

/// Makes the volume of the lease's work when it is missing. A fresh one is root's, which no container of ours is: a
/// short-lived one with that single right gives it away.
///
/// **Invariant:** that container is there before the volume, and goes when the volume can be used. While it is there,
/// whatever broke off, nobody has worked in the volume.
pub(super) async fn prepare(
    config: &ContainerConfig,
    docker: &Docker,
    image: &str,
    lease: &Lease,
    (user, group): (u32, u32),
) -> Result<(), HandError> {
    let name = volume(&config.node, &lease.work);
    let failed = |error: Error| {
        let why = format!("the Docker daemon can't make a volume ({error})");
        HandError::from(Lack { why, remedy: "see what manyhands doctor says".into() })
    };
    let giver = format!("{name}-giver");
    if !there(docker.inspect_container(&giver, None::<InspectContainerOptions>).await).map_err(failed)? {
        if there(docker.inspect_volume(&name).await).map_err(failed)? {
            return Ok(());
        }
        let owner = format!("{user}:{group}");
        let body = body(config, image, lease, &name, &owner);
        let options = CreateContainerOptionsBuilder::new().name(&giver).build();
        docker.create_container(Some(options), body).await.map_err(failed)?;
    }
    let given = finish(docker, &giver).await;
    if given.is_err() {
        let _ = remove(docker, &giver).await;
        let _ = docker.remove_volume(&name, None::<RemoveVolumeOptions>).await;
    }
    given.map_err(failed)
}

fn there<T>(looked: Result<T, Error>) -> Result<bool, Error> {
    match looked {
        Ok(_) => Ok(true),
        Err(error) if status(&error) == Some(404) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the volume of `work`, if there is one.
pub(super) async fn discard(config: &ContainerConfig, engine: &Engine, work: &Path) -> Result<(), HandError> {
    let docker = engine.docker().await?;
    let name = volume(&config.node, work);
    match docker.remove_volume(&name, None::<RemoveVolumeOptions>).await {
        Ok(()) => Ok(()),
        Err(error) if status(&error) == Some(404) => Ok(()),
        Err(error) => Err(engine.explain(&error).into()),
    }
}

/// Has the volume given away, by a container that may have done so already.
pub(super) async fn finish(docker: &Docker, giver: &str) -> Result<(), Error> {
    docker.start_container(giver, None::<StartContainerOptions>).await?;
    let mut waiting = std::pin::pin!(docker.wait_container(giver, None::<WaitContainerOptions>));
    waiting.next().await.transpose()?;
    remove(docker, giver).await
}

/// It makes the volume when it is made.
fn body(
    config: &ContainerConfig,
    image: &str,
    lease: &Lease,
    volume: &str,
    owner: &str,
) -> ContainerCreateBody {
    let labels = [(INSTANCE, &*lease.instance.0), (NODE, &*config.node), (GIVES, volume)];
    let mut mount = mount(MountType::VOLUME, volume.to_owned());
    if let Some(options) = &mut mount.volume_options {
        options.labels = Some([(OWNER.to_owned(), owner.to_owned())].into());
    }
    ContainerCreateBody {
        image: Some(image.to_owned()),
        labels: Some(labels.map(|(label, value)| (label.to_owned(), value.to_owned())).into()),
        user: Some("0:0".into()),
        entrypoint: Some(["chown", owner, WORKSPACE].map(str::to_owned).to_vec()),
        cmd: Some(Vec::new()),
        host_config: Some(HostConfig {
            mounts: Some(vec![mount]),
            readonly_rootfs: Some(true),
            cap_drop: Some(vec!["ALL".into()]),
            cap_add: Some(vec!["CHOWN".into()]),
            security_opt: Some(vec!["no-new-privileges".into(), filter::option()]),
            network_mode: Some("none".into()),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    }
}

/// The volume that holds the work of this folder.
fn volume(node: &str, work: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    (node, work).hash(&mut hasher);
    format!("manyhands-{:016x}", hasher.finish())
}

/// What is mounted as the workspace of a lease's container.
pub(super) fn workspace(config: &ContainerConfig, lease: &Lease) -> Mount {
    match config.workspace {
        Workspace::Bind => mount(MountType::BIND, lease.work.to_string_lossy().into_owned()),
        Workspace::Volume => mount(MountType::VOLUME, volume(&config.node, &lease.work)),
    }
}

/// The workspace. What the image has there is of no interest: its owner would become the volume's.
fn mount(typ: MountType, source: String) -> Mount {
    let plain = MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() };
    Mount {
        volume_options: (typ == MountType::VOLUME).then_some(plain),
        typ: Some(typ),
        source: Some(source),
        target: Some(WORKSPACE.into()),
        ..Mount::default()
    }
}
