//! Any sequence of appends and slices behaves like a vector.

use gateway::session::{At, EventLog, LogError, NewEvent, Seq, SessionId, Slice};
use proptest::prelude::*;

use super::{Store, said};

/// What is done to a log.
#[derive(Clone, Debug)]
enum Step {
    Append { at: Where, kinds: Vec<u8> },
    Read { after: Option<i64>, before: Option<i64>, limit: Option<u32>, kinds: Vec<u8> },
}

#[derive(Clone, Debug)]
enum Where {
    End,
    /// So far from the end.
    After(i64),
}

fn step() -> impl Strategy<Value = Step> {
    let at = prop_oneof![
        3 => Just(Where::End),
        2 => Just(Where::After(0)),
        1 => prop_oneof![Just(-1_i64), Just(1), -5..5_i64].prop_map(Where::After)
    ];
    let append =
        (at, prop::collection::vec(0..3_u8, 0..4)).prop_map(|(at, kinds)| Step::Append { at, kinds });
    let place = || prop::option::of(-1..25_i64);
    let limit = prop::option::of(1..7_u32);
    let read = (place(), place(), limit, prop::collection::vec(0..4_u8, 0..3))
        .prop_map(|(after, before, limit, kinds)| Step::Read { after, before, limit, kinds });
    prop_oneof![append, read]
}

fn kind(kind: u8) -> String {
    if kind == 3 { "session.created".into() } else { format!("my.kind{kind}") }
}

fn of_kind(number: u8) -> NewEvent {
    let mut event = said("x");
    event.fields.insert("type".into(), kind(number).into());
    event
}

/// Places and types, the way a vector has them.
fn expected(model: &[String], asked: &Slice) -> Vec<i64> {
    let limit = usize::try_from(asked.limit.unwrap_or(100)).unwrap_or(usize::MAX);
    let fits: Vec<i64> = model
        .iter()
        .zip(1..)
        .filter(|(kind, _)| asked.types.is_empty() || asked.types.contains(kind))
        .map(|(_, place)| place)
        .filter(|place| asked.after.is_none_or(|after| *place > after.0))
        .filter(|place| asked.before.is_none_or(|before| *place < before.0))
        .collect();
    if asked.after.is_some() {
        fits.into_iter().take(limit).collect()
    } else {
        fits[fits.len().saturating_sub(limit)..].to_vec()
    }
}

async fn compare(store: &Store, id: SessionId, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut model = vec!["session.created".to_owned()];
    for step in steps {
        match step {
            Step::Append { at, kinds } => {
                let end = i64::try_from(model.len()).unwrap_or(i64::MAX);
                let events: Vec<NewEvent> = kinds.iter().map(|number| of_kind(*number)).collect();
                let (at, fits) = match at {
                    Where::End => (At::End, true),
                    Where::After(off) => (At::After(Seq(end + off)), off == 0),
                };
                let appended = store.log.append(id, at, &events).await;
                if fits {
                    model.extend(kinds.iter().map(|number| kind(*number)));
                    let end = i64::try_from(model.len()).unwrap_or(i64::MAX);
                    prop_assert!(matches!(appended, Ok(seq) if seq.0 == end), "{appended:?}");
                } else {
                    prop_assert!(matches!(appended, Err(LogError::Conflict)), "{appended:?}");
                }
            }
            Step::Read { after, before, limit, kinds } => {
                let types = kinds.iter().map(|number| kind(*number)).collect();
                let asked = Slice { after: after.map(Seq), before: before.map(Seq), limit, types };
                let events = store.log.read(id, asked.clone()).await;
                let events = events.map_err(|error| TestCaseError::fail(error.to_string()))?;
                let places: Vec<i64> = events.iter().map(|event| event.seq.0).collect();
                prop_assert_eq!(places, expected(&model, &asked), "{:?} of {:?}", asked, model);
            }
        }
    }
    Ok(())
}

#[test]
fn the_log_is_a_vector() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let store = runtime.block_on(Store::sqlite())?;
    let config = ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner.run(&prop::collection::vec(step(), 1..24), |steps| {
        let session =
            runtime.block_on(store.session()).map_err(|error| TestCaseError::fail(error.to_string()))?;
        runtime.block_on(compare(&store, session.id, steps))
    })?;
    Ok(())
}
