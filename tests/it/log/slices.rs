//! Slices: which events, in which order, and how to go on.

use anyhow::{Result, ensure};
use gateway::session::{At, EventLog, LogError, NewEvent, Page, SLICE_BYTES_MAX, Seq, SessionId, Slice};

use super::{Store, ensure_refused, on_both, said};

on_both!(
    the_four_forms,
    types_come_before_the_limit,
    a_slice_holds_at_most_a_mebibyte,
    paging_forward_sees_everything_once,
    paging_backward_sees_everything_once,
    at_most_a_thousand,
);

/// Ten events: `session.created`, then nine that are `my.odd` or `my.even` by their place.
async fn ten(store: &Store) -> Result<SessionId> {
    let id = store.session().await?.id;
    let events: Vec<NewEvent> =
        (2..=10).map(|place| kind(if place % 2 == 0 { "my.even" } else { "my.odd" })).collect();
    store.log.append(id, At::End, &events).await?;
    Ok(id)
}

fn kind(kind: &str) -> NewEvent {
    let mut event = said("x");
    event.fields.insert("type".into(), kind.into());
    event
}

fn slice(after: Option<i64>, before: Option<i64>, limit: Option<u32>, types: &[&str]) -> Slice {
    let types = types.iter().map(ToString::to_string).collect();
    Slice { after: after.map(Seq), before: before.map(Seq), limit, types }
}

fn places(page: &Page) -> Vec<i64> {
    page.events.iter().map(|event| event.seq.0).collect()
}

struct Row {
    asked: Slice,
    places: &'static [i64],
    has_more: bool,
    next: Option<i64>,
}

async fn ensure_rows(store: &Store, id: SessionId, rows: Vec<Row>) -> Result<()> {
    for row in rows {
        let page = store.log.page(id, row.asked.clone()).await?;
        let found = (places(&page), page.has_more, page.next.map(|seq| seq.0));
        ensure!(found == (row.places.to_vec(), row.has_more, row.next), "{:?}: {found:?}", row.asked);
        ensure!(page.first.map(|seq| seq.0) == row.places.first().copied());
        ensure!(page.last.map(|seq| seq.0) == row.places.last().copied());
        let events = store.log.read(id, row.asked).await?;
        ensure!(events == page.events);
    }
    Ok(())
}

async fn the_four_forms(store: &Store) -> Result<()> {
    let id = ten(store).await?;
    let row = |after, before, limit, places, has_more, next| Row {
        asked: slice(after, before, limit, &[]),
        places,
        has_more,
        next,
    };
    ensure_rows(
        store,
        id,
        vec![
            // After alone: the first behind it.
            row(Some(0), None, Some(3), &[1, 2, 3], true, Some(3)),
            row(Some(7), None, Some(3), &[8, 9, 10], false, Some(10)),
            row(Some(8), None, None, &[9, 10], false, Some(10)),
            row(Some(10), None, None, &[], false, Some(10)),
            row(Some(99), None, None, &[], false, Some(99)),
            row(Some(i64::MAX), None, None, &[], false, Some(i64::MAX)),
            row(Some(-5), None, Some(1), &[1], true, Some(1)),
            // Before alone: the last ahead of it.
            row(None, Some(4), Some(2), &[2, 3], true, Some(2)),
            row(None, Some(3), Some(2), &[1, 2], false, None),
            row(None, Some(1), None, &[], false, None),
            row(None, Some(0), None, &[], false, None),
            row(None, Some(99), Some(2), &[9, 10], true, Some(9)),
            // Both: the first between them.
            row(Some(2), Some(7), Some(2), &[3, 4], true, Some(4)),
            row(Some(4), Some(7), Some(9), &[5, 6], false, Some(6)),
            row(Some(6), Some(7), None, &[], false, Some(6)),
            row(Some(7), Some(3), None, &[], false, Some(7)),
            // Neither: the last.
            row(None, None, Some(3), &[8, 9, 10], true, Some(8)),
            row(None, None, None, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], false, None),
            // A limit of nothing is one.
            row(Some(0), None, Some(0), &[1], true, Some(1)),
        ],
    )
    .await
}

async fn types_come_before_the_limit(store: &Store) -> Result<()> {
    let id = ten(store).await?;
    let row = |after, before, limit, types: &[&str], places, has_more, next| Row {
        asked: slice(after, before, limit, types),
        places,
        has_more,
        next,
    };
    ensure_rows(
        store,
        id,
        vec![
            row(Some(0), None, Some(2), &["my.odd"], &[3, 5], true, Some(5)),
            // Nothing more of this type: everything was looked at, so it goes on behind the end.
            row(Some(5), None, Some(9), &["my.odd"], &[7, 9], false, Some(10)),
            row(Some(0), Some(6), None, &["my.odd"], &[3, 5], false, Some(5)),
            row(Some(0), None, None, &["my.none"], &[], false, Some(10)),
            row(None, None, Some(2), &["my.even"], &[8, 10], true, Some(8)),
            row(None, Some(8), Some(9), &["my.even", "session.created"], &[1, 2, 4, 6], false, None),
        ],
    )
    .await?;
    let many: Vec<String> = (0..33).map(|n| format!("my.{n}")).collect();
    let refused = store.log.read(id, Slice { types: many, ..Slice::default() }).await;
    ensure_refused(&refused, |error| matches!(error, LogError::Malformed(_)))
}

async fn a_slice_holds_at_most_a_mebibyte(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let sizes = [400, 400, 400, 1_023, 10, 10];
    for kib in sizes {
        store.log.append(id, At::End, &[said(&"x".repeat(kib * 1_024))]).await?;
    }
    let rows = [
        (slice(Some(1), None, None, &[]), vec![2, 3], Some(3)),
        (slice(Some(3), None, None, &[]), vec![4], Some(4)),
        // Larger than all that a slice may hold: it comes alone.
        (slice(Some(4), None, None, &[]), vec![5], Some(5)),
        (slice(None, None, None, &[]), vec![6, 7], Some(6)),
        (slice(None, Some(5), None, &[]), vec![3, 4], Some(3)),
    ];
    for (asked, expected, next) in rows {
        let page = store.log.page(id, asked.clone()).await?;
        ensure!(places(&page) == expected && page.has_more, "{asked:?}: {:?}", places(&page));
        ensure!(page.next.map(|seq| seq.0) == next);
        let bytes: usize = page.events.iter().map(|event| event.to_json().to_string().len() + 1).sum();
        ensure!(bytes <= SLICE_BYTES_MAX || page.events.len() == 1, "{bytes} bytes");
    }
    Ok(())
}

async fn paging_forward_sees_everything_once(store: &Store) -> Result<()> {
    let id = ten(store).await?;
    for types in [&[][..], &["my.odd"]] {
        let (mut seen, mut after) = (Vec::new(), 0);
        loop {
            let page = store.log.page(id, slice(Some(after), None, Some(3), types)).await?;
            seen.extend(places(&page));
            after = page.next.map(|seq| seq.0).expect("forward there is always a next");
            if !page.has_more {
                break;
            }
        }
        let whole = store.log.page(id, slice(Some(0), None, None, types)).await?;
        ensure!(seen == places(&whole), "{seen:?}");
        ensure!(after == 10, "then it waits behind the end");
    }
    Ok(())
}

async fn paging_backward_sees_everything_once(store: &Store) -> Result<()> {
    let id = ten(store).await?;
    let (mut seen, mut before) = (Vec::new(), None);
    loop {
        let page = store.log.page(id, slice(None, before, Some(3), &[])).await?;
        seen.splice(0..0, places(&page));
        before = page.next.map(|seq| seq.0);
        ensure!(page.has_more == before.is_some());
        if before.is_none() {
            break;
        }
    }
    ensure!(seen == (1..=10).collect::<Vec<i64>>(), "{seen:?}");
    Ok(())
}

async fn at_most_a_thousand(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    for _ in 0..3 {
        let events: Vec<NewEvent> = (0..500).map(|n| said(&n.to_string())).collect();
        store.log.append(id, At::End, &events).await?;
    }
    let page = store.log.page(id, slice(Some(0), None, Some(5_000), &[])).await?;
    ensure!(page.events.len() == 1_000 && page.has_more);
    let page = store.log.page(id, slice(None, None, None, &[])).await?;
    ensure!(page.events.len() == 100 && page.last == Some(Seq(1_501)));
    Ok(())
}
