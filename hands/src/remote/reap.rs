//! Ending what a gateway that is gone left on a host, and removing what nobody needs any more.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::keeper::{MOST_NOISE, shown};
use super::{Event, Line, OpenError, Terms, script};
use crate::{HandError, InstanceId};

/// How long it may take, for each instance.
const REAP: Duration = Duration::from_secs(20);
/// How long removing one folder may take.
const REMOVE: Duration = Duration::from_mins(2);

/// Ends everything of some instances, their keepers included.
pub(crate) async fn reap(line: &dyn Line, terms: &Terms, instances: &[InstanceId]) -> Result<(), HandError> {
    let most = REAP.saturating_mul(u32::try_from(instances.len()).unwrap_or(u32::MAX));
    let nonce = script::nonce();
    let why = match timeout(most, said(line, &nonce, "reaped", &script::reap(&nonce, instances))).await {
        Ok(Ok(said)) if said == "all" => return Ok(()),
        Ok(Ok(_)) => "some of their processes do not end".to_owned(),
        Ok(Err(why)) => why,
        Err(_) => format!("it took more than {} s", most.as_secs()),
    };
    Err(HandError::Unavailable {
        why: format!("what earlier instances left on {} could not be ended: {why}", terms.host),
        remedy: "look there for processes with MANYHANDS_CALL in their environment".into(),
    })
}

/// Removes the work whose folder on this machine is `work`, where each has a folder of its own there.
pub(crate) async fn remove(line: &dyn Line, terms: &Terms, work: &Path) -> Result<(), HandError> {
    let (nonce, name) = (script::nonce(), script::work_name(work));
    let Some(folder) = terms.folder_of(&name) else { return Ok(()) };
    let why =
        match timeout(REMOVE, said(line, &nonce, "removed", &script::remove(&nonce, &name, &folder))).await {
            Ok(Ok(said)) if said == "all" => return Ok(()),
            Ok(Ok(_)) => "not all of it may be removed".to_owned(),
            Ok(Err(why)) => why,
            Err(_) => format!("it took more than {} s", REMOVE.as_secs()),
        };
    Err(HandError::Unavailable {
        why: format!("the folder {folder} on {} could not be removed: {why}", terms.host),
        remedy: "remove it there".into(),
    })
}

/// Runs a script, and waits for what it says behind a word.
async fn said(line: &dyn Line, nonce: &str, word: &str, script: &str) -> Result<String, String> {
    let broken = || line.why_broken().unwrap_or_else(|| "the line broke".into());
    let (mut writer, mut reader) = line.open().await.map_err(|error| match error {
        OpenError::Refused(why) => why,
        OpenError::Broken => broken(),
    })?;
    writer.send(Bytes::from(script::line(script))).await.map_err(|_| broken())?;
    let start = format!("{}{nonce} {word} ", script::ATTENTION);
    let mut printed = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&printed);
        if let Some((said, _)) = text.split_once(&start).and_then(|(_, rest)| rest.split_once('\n')) {
            return Ok(said.to_owned());
        }
        match reader.next().await {
            Some(Event::Output(bytes)) if printed.len() < MOST_NOISE => printed.extend(bytes),
            Some(Event::Output(_)) => return Err("it prints without end".into()),
            Some(Event::End) | None => return Err(shown(&printed).unwrap_or_else(broken)),
            Some(_) => {}
        }
    }
}
