//! A workspace that is a volume of the daemon's: made once, and given to whoever works in it.

use std::path::Path;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, HostConfig, MountType, VolumeCreateRequest};
use bollard::query_parameters::{
    CreateContainerOptions, InspectContainerOptions, RemoveContainerOptionsBuilder, RemoveVolumeOptions,
    StartContainerOptions, WaitContainerOptions,
};
use futures_util::StreamExt;

use super::ContainerConfig;
use super::engine::{Engine, Lack, status};
use super::instance::{mount, volume};
use crate::HandError;
use crate::sandbox::WORKSPACE;

/// The label that says whose a new volume is.
const OWNER: &str = "manyhands.owner";

/// Makes the volume of `work` when it is missing. A fresh one is root's, which no container of ours is: a short-lived
/// one with that single right gives it away.
pub(super) async fn prepare(
    config: &ContainerConfig,
    docker: &Docker,
    image: &str,
    work: &Path,
    (user, group): (u32, u32),
) -> Result<(), HandError> {
    let name = volume(&config.node, work);
    let failed = |error: Error| {
        let why = format!("the Docker daemon can't make a volume ({error})");
        HandError::from(Lack { why, remedy: "see what manyhands doctor says".into() })
    };
    match docker.inspect_volume(&name).await {
        Ok(_) => return Ok(()),
        Err(error) if status(&error) == Some(404) => {}
        Err(error) => return Err(failed(error)),
    }
    let owner = format!("{user}:{group}");
    let request = VolumeCreateRequest {
        name: Some(name.clone()),
        labels: Some([(OWNER.to_owned(), owner.clone())].into()),
        ..VolumeCreateRequest::default()
    };
    docker.create_volume(request).await.map_err(failed)?;
    let given = give(docker, image, &name, &owner).await;
    if given.is_err() {
        let _ = docker.remove_volume(&name, None::<RemoveVolumeOptions>).await;
    }
    given.map_err(failed)
}

/// Removes the volume of `work`, if there is one.
pub(super) async fn remove(config: &ContainerConfig, engine: &Engine, work: &Path) -> Result<(), HandError> {
    let docker = engine.docker().await?;
    let name = volume(&config.node, work);
    match docker.remove_volume(&name, None::<RemoveVolumeOptions>).await {
        Ok(()) => Ok(()),
        Err(error) if status(&error) == Some(404) => Ok(()),
        Err(error) => Err(engine.explain(&error).into()),
    }
}

async fn give(docker: &Docker, image: &str, volume: &str, owner: &str) -> Result<(), Error> {
    let mount = mount(MountType::VOLUME, volume.to_owned());
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        user: Some("0:0".into()),
        entrypoint: Some(["chown", owner, WORKSPACE].map(str::to_owned).to_vec()),
        cmd: Some(Vec::new()),
        host_config: Some(HostConfig {
            mounts: Some(vec![mount]),
            readonly_rootfs: Some(true),
            cap_drop: Some(vec!["ALL".into()]),
            cap_add: Some(vec!["CHOWN".into()]),
            security_opt: Some(vec!["no-new-privileges".into()]),
            network_mode: Some("none".into()),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let id = docker.create_container(None::<CreateContainerOptions>, body).await?.id;
    let ran = async {
        docker.start_container(&id, None::<StartContainerOptions>).await?;
        let mut waiting = std::pin::pin!(docker.wait_container(&id, None::<WaitContainerOptions>));
        waiting.next().await.transpose()?;
        docker.inspect_container(&id, None::<InspectContainerOptions>).await.map(|_| ())
    };
    let ran = ran.await;
    let options = RemoveContainerOptionsBuilder::new().force(true).build();
    docker.remove_container(&id, Some(options)).await?;
    ran
}
