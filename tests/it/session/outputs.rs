//! Outputs beside the log: written whole, read in parts, swept when nothing names them.

use anyhow::{Result, ensure};
use gateway::clock;
use gateway::session::{
    At, Body, CallOutcome, EventLog, NewEvent, OUTPUT_BYTES_MAX, OUTPUT_CHUNK_BYTES, OutputError, OutputRef,
    SessionId, SessionRef,
};
use jiff::SignedDuration;

use crate::log::{Store, by, on_both, owner, used};

on_both!(
    what_was_stored_is_read_in_any_part,
    an_output_that_comes_in_pieces,
    an_output_has_a_limit,
    an_archived_or_unknown_session_stores_nothing,
    the_sweep_takes_what_no_event_names,
);

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| u8::try_from(n * 31 % 251).unwrap_or_default()).collect()
}

async fn what_was_stored_is_read_in_any_part(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let outputs = store.sessions.outputs();
    let chunk = OUTPUT_CHUNK_BYTES as u64;
    for bytes in [0, 1, OUTPUT_CHUNK_BYTES, OUTPUT_CHUNK_BYTES + 1, 3 * OUTPUT_CHUNK_BYTES - 1] {
        let stored = pattern(bytes);
        let output = outputs.store(id, &stored).await?;
        ensure!(output.bytes == bytes as u64);
        for range in
            [0..u64::MAX, 0..1, 1..chunk, chunk - 1..chunk + 1, chunk..2 * chunk, 2 * chunk + 5..u64::MAX]
        {
            let read = outputs.read(id, &output, range.clone()).await?;
            let end = usize::try_from(range.end).unwrap_or(usize::MAX).min(bytes);
            let start = usize::try_from(range.start)?.min(end);
            ensure!(read == stored[start..end], "{range:?} of {bytes}");
        }
    }
    let foreign = OutputRef { id: "out_none".into(), bytes: 9, holds: None };
    ensure!(matches!(outputs.read(id, &foreign, 0..9).await, Err(OutputError::NoOutput)));
    let elsewhere = store.session().await?.id;
    let output = outputs.store(id, b"mine").await?;
    ensure!(matches!(outputs.read(elsewhere, &output, 0..4).await, Err(OutputError::NoOutput)));
    Ok(())
}

async fn an_output_that_comes_in_pieces(store: &Store) -> Result<()> {
    let session = store.session().await?;
    let outputs = store.sessions.outputs();
    let whole = pattern(700_000);
    let mut writer = outputs.writer(session.id);
    for piece in whole.chunks(12_345) {
        writer.write(piece).await?;
    }
    let output = writer.finish().await?;
    ensure!(outputs.read(session.id, &output, 0..u64::MAX).await? == whole);
    let counted = store.sessions.find(&owner(), &SessionRef::Id(session.id)).await?.bytes;
    ensure!(counted == session.bytes + 700_000, "{counted}");
    Ok(())
}

async fn an_output_has_a_limit(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let mut writer = store.sessions.outputs().writer(id);
    let piece = vec![0; usize::try_from(OUTPUT_BYTES_MAX / 8)?];
    for _ in 0..8 {
        writer.write(&piece).await?;
    }
    ensure!(matches!(writer.write(b"x").await, Err(OutputError::TooLarge)));
    Ok(())
}

async fn an_archived_or_unknown_session_stores_nothing(store: &Store) -> Result<()> {
    let session = store.session().await?;
    store.sessions.archive(&session, &by(), At::End).await?;
    for id in [session.id, SessionId::new()] {
        let refused = store.sessions.outputs().store(id, b"x").await;
        ensure!(matches!(refused, Err(OutputError::NoSession)), "{refused:?}");
    }
    Ok(())
}

fn naming(output: &OutputRef) -> NewEvent {
    let body = Body::ToolResult {
        tool_use_id: used().id,
        content: vec![],
        output: Some(output.clone()),
        rest: Box::default(),
        is_error: false,
        outcome: CallOutcome::Ok,
    };
    NewEvent::of(by(), &body)
}

async fn the_sweep_takes_what_no_event_names(store: &Store) -> Result<()> {
    let session = store.session().await?;
    let outputs = store.sessions.outputs();
    let named = outputs.store(session.id, &pattern(300_000)).await?;
    let unnamed = outputs.store(session.id, &pattern(300_000)).await?;
    store.log.append(session.id, At::End, &[naming(&named)]).await?;
    ensure!(outputs.sweep(clock::now() - SignedDuration::from_hours(1)).await? == 0, "both are young");
    let with_both = store.sessions.usage(&owner()).await?.stored_bytes;
    ensure!(outputs.sweep(clock::now() + SignedDuration::from_secs(1)).await? == 1);
    ensure!(outputs.read(session.id, &named, 0..u64::MAX).await? == pattern(300_000));
    ensure!(matches!(outputs.read(session.id, &unnamed, 0..1).await, Err(OutputError::NoOutput)));
    ensure!(store.sessions.usage(&owner()).await?.stored_bytes == with_both - 300_000);
    Ok(())
}
