//! What the Docker daemon can offer to containers.

use std::time::Duration;

use tokio::time::timeout;

use super::engine::{Engine, Lack, status};
use super::{ContainerConfig, Image, image};
use crate::sandbox::{Finding, State};

/// How long a registry may take to say whether it has an image.
const REGISTRY: Duration = Duration::from_secs(10);

/// Looks at everything that containers need, and makes nothing.
pub async fn inspect(config: &ContainerConfig) -> Vec<Finding> {
    let engine = Engine::new(config);
    let docker = match engine.docker().await {
        Ok(docker) => docker,
        Err(lack) => return vec![lacking("docker", State::Missing, lack)],
    };
    let mut findings = Vec::new();
    match docker.info().await {
        Ok(info) => {
            let version = info.server_version.unwrap_or_else(|| "of unknown version".into());
            findings.push(fine("docker", format!("daemon {version}")));
            let runtimes = info.runtimes.unwrap_or_default();
            if let Some(runtime) = config.runtime.as_ref().filter(|name| !runtimes.contains_key(*name)) {
                let why = format!("the Docker daemon has no runtime {runtime}");
                let remedy = "install it and name it in /etc/docker/daemon.json".into();
                findings.push(lacking("runtime", State::Missing, Lack { why, remedy }));
            }
            let limits =
                [("memory", info.memory_limit), ("CPU", info.cpu_cfs_quota), ("processes", info.pids_limit)];
            let lacks: Vec<&str> =
                limits.iter().filter(|limit| limit.1 == Some(false)).map(|limit| limit.0).collect();
            findings.push(if lacks.is_empty() {
                fine("limits", "memory, processes and CPU of a container".into())
            } else {
                let why = format!("the Docker daemon can't limit {}", lacks.join(", "));
                let remedy = "enable these cgroup controllers for it, as docker info says".into();
                lacking("limits", State::Weaker, Lack { why, remedy })
            });
        }
        Err(error) => findings.push(lacking("docker", State::Missing, engine.explain(&error))),
    }
    findings.push(look_at_image(config, &docker, &engine).await);
    findings
}

async fn look_at_image(config: &ContainerConfig, docker: &bollard::Docker, engine: &Engine) -> Finding {
    let subject = "image";
    let name = match image::name(&config.image) {
        Ok(name) => name,
        Err(lack) => return lacking(subject, State::Missing, lack),
    };
    match (docker.inspect_image(&name).await, &config.image) {
        (Ok(_), Image::Named(_)) => fine(subject, format!("{name} is there")),
        (Ok(_), Image::Rootfs(tar)) => fine(subject, format!("{} is imported", tar.display())),
        (Err(error), Image::Rootfs(tar)) if status(&error) == Some(404) => match image::check(tar) {
            Ok(()) => fine(subject, format!("{} is imported at the first call", tar.display())),
            Err(lack) => lacking(subject, State::Missing, lack),
        },
        (Err(error), Image::Named(_)) if status(&error) == Some(404) => match pullable(docker, &name).await {
            Ok(()) => {
                let why = format!(
                    "the image {name} is not there; its registry has it, and the first call pulls it"
                );
                let remedy = format!("pull it now: docker pull {name}");
                lacking(subject, State::Weaker, Lack { why, remedy })
            }
            Err(why) => lacking(subject, State::Missing, image::no_image(&name, &why)),
        },
        (Err(error), _) => lacking(subject, State::Missing, engine.explain(&error)),
    }
}

/// Asks the image's registry for it, by way of the daemon that would pull it.
async fn pullable(docker: &bollard::Docker, name: &str) -> Result<(), String> {
    match timeout(REGISTRY, docker.inspect_registry_image(name, None)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(image::said(&error)),
        Err(_) => Err(format!("its registry did not answer within {} s", REGISTRY.as_secs())),
    }
}

fn fine(subject: &'static str, found: String) -> Finding {
    Finding { subject, state: State::Fine, found, remedy: None }
}

fn lacking(subject: &'static str, state: State, Lack { why, remedy }: Lack) -> Finding {
    Finding { subject, state, found: why, remedy: Some(remedy) }
}
