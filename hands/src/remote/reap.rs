//! Ending what a gateway that is gone left on a host.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::keeper::{MOST_NOISE, shown};
use super::{Event, Line, OpenError, Terms, script};
use crate::{HandError, InstanceId};

/// How long it may take, for each instance.
const REAP: Duration = Duration::from_secs(20);

/// Ends everything of some instances, their keepers included.
pub(crate) async fn reap(line: &dyn Line, terms: &Terms, instances: &[InstanceId]) -> Result<(), HandError> {
    let most = REAP.saturating_mul(u32::try_from(instances.len()).unwrap_or(u32::MAX));
    let why = match timeout(most, said(line, instances)).await {
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

async fn said(line: &dyn Line, instances: &[InstanceId]) -> Result<String, String> {
    let broken = || line.why_broken().unwrap_or_else(|| "the line broke".into());
    let (mut writer, mut reader) = line.open().await.map_err(|error| match error {
        OpenError::Refused(why) => why,
        OpenError::Broken => broken(),
    })?;
    let nonce = script::nonce();
    let text = script::line(&script::reap(&nonce, instances));
    writer.send(Bytes::from(text)).await.map_err(|_| broken())?;
    let start = format!("{}{nonce} reaped ", script::ATTENTION);
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
