//! Time to first token, when a session has its hands before the model is asked (*coupled*), and when the first call that
//! needs one has it made (*decoupled*, ours), beside the model alone.
//!
//! Both ways have the same gateway, the same prompts and the same calls. Coupled, each session first has a container, and
//! its clone of the repository if it needs one. The ways take turns in blocks, so that none is measured on the other's
//! load. `FULL=1` has 200 sessions in a cell; a build for development has ten in two cells, to show that it works.

mod place;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use self::place::{Need, Place, Session};
use crate::report::{Bound, Row, percentile};

/// Sessions of one block, which one way has before the next way's turn. The parts of a mix are tenths.
const BLOCK: usize = 10;
/// Blocks of a cell.
const BLOCKS: usize = if cfg!(debug_assertions) { 1 } else { 4 };
/// With `FULL=1`.
const BLOCKS_FULL: usize = 20;
/// The longest that a model thinks before its first token, beside what every model takes.
const THOUGHT_MAX: Duration = Duration::from_millis(800);
/// What the ones who published the idea saw change, at p50 and at p95.
const PUBLISHED: [&str; 2] = ["−60 %", "−90 %"];

/// A mix of sessions.
#[derive(Clone, Copy)]
struct Cell {
    /// Of ten sessions, so many ever need a container.
    containers: usize,
    /// Of ten sessions, so many ever need the repository.
    repositories: usize,
    /// Sessions at the same time.
    at_once: usize,
}

/// All mixes, and one of them with fewer and with more sessions at the same time.
const CELLS: [Cell; 8] = [
    Cell { containers: 0, repositories: 0, at_once: 4 },
    Cell { containers: 0, repositories: 1, at_once: 4 },
    Cell { containers: 4, repositories: 0, at_once: 4 },
    Cell { containers: 4, repositories: 1, at_once: 4 },
    Cell { containers: 10, repositories: 0, at_once: 4 },
    Cell { containers: 10, repositories: 1, at_once: 4 },
    Cell { containers: 4, repositories: 1, at_once: 1 },
    Cell { containers: 4, repositories: 1, at_once: 8 },
];

/// How a session comes to its first token.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Bare,
    Coupled,
    Decoupled,
}

const WAYS: [Way; 3] = [Way::Bare, Way::Coupled, Way::Decoupled];

/// What one way took in a cell.
#[derive(Default)]
struct Taken {
    /// Seconds to the first token.
    first: Vec<f64>,
    /// Containers that were started.
    containers: usize,
    /// Those that were started for sessions that called no container.
    idle: usize,
}

pub(crate) async fn rows(scratch: &Path) -> Result<Vec<Row>> {
    let place = Place::new(scratch).await?;
    // The image is imported and everything is warm before the first cell.
    let warm = Cell { containers: 10, repositories: 1, at_once: 4 };
    measured(&place, warm, 1).await?;
    let (first, each) = if cfg!(debug_assertions) { (2, 3) } else { (CELLS.len(), 1) };
    let mut rows = Vec::new();
    for cell in CELLS.into_iter().step_by(each).take(first) {
        rows.extend(cell.rows(measured(&place, cell, blocks()).await?));
    }
    Ok(rows)
}

#[expect(clippy::disallowed_methods, reason = "the bench is a program of its own")]
fn blocks() -> usize {
    if std::env::var_os("FULL").is_some_and(|full| full == "1") { BLOCKS_FULL } else { BLOCKS }
}

/// Each way's, in the order of [`WAYS`].
async fn measured(place: &Place, cell: Cell, blocks: usize) -> Result<[Taken; 3]> {
    let mut taken: [Taken; 3] = Default::default();
    for block in 0..blocks {
        for turn in 0..WAYS.len() {
            // Nobody is always the first one after the pause between blocks.
            let way = (block + turn) % WAYS.len();
            let sessions: Vec<Session> =
                (0..BLOCK).map(|n| cell.session(block * BLOCK + n, blocks * BLOCK)).collect();
            run(place, cell, WAYS[way], &sessions, &mut taken[way]).await?;
        }
    }
    Ok(taken)
}

async fn run(place: &Place, cell: Cell, way: Way, sessions: &[Session], taken: &mut Taken) -> Result<()> {
    let each = sessions.iter().map(|session| async move {
        match way {
            Way::Bare => place.bare(session).await,
            Way::Coupled => place.coupled(session).await,
            Way::Decoupled => place.decoupled(session).await,
        }
    });
    let first: Vec<f64> = stream::iter(each).buffer_unordered(cell.at_once).try_collect().await?;
    taken.first.extend(first);
    let started = place.containers()?;
    let needed = sessions.iter().filter(|session| session.needs(Need::Container)).count();
    if way == Way::Decoupled {
        ensure!(started >= needed, "{needed} sessions needed a container, and {started} were started");
        taken.idle += started - needed;
    }
    taken.containers += started;
    if way != Way::Bare {
        place.forget(sessions).await?;
    }
    Ok(())
}

impl Cell {
    /// The `n`th session of `of`. The needs are spread evenly, and so is how long the model thinks.
    fn session(self, n: usize, of: usize) -> Session {
        let mut needs = Vec::new();
        if n % BLOCK < self.containers {
            needs.push(Need::Container);
        }
        if n % BLOCK < self.repositories {
            needs.push(Need::Repository);
        }
        #[expect(clippy::cast_precision_loss, reason = "some hundred sessions")]
        let place = (n * 17 % of) as f64 / of as f64;
        // Most think little and a few for long.
        Session { name: format!("seed-{n}"), needs, thought: THOUGHT_MAX.mul_f64(place * place) }
    }

    fn rows(self, [mut bare, mut coupled, mut decoupled]: [Taken; 3]) -> Vec<Row> {
        let mut rows = Vec::new();
        for (share, percent, most, published) in
            [(0.5, "p50", 1.10, PUBLISHED[0]), (0.95, "p95", 1.20, PUBLISHED[1])]
        {
            let at = |taken: &mut Taken| percentile(&mut taken.first, share);
            let (bare, coupled, ours) = (at(&mut bare), at(&mut coupled), at(&mut decoupled));
            rows.push(Row {
                what: self.name(&format!("first token {percent} / bare")),
                value: ours / bare,
                must: Bound::AtMost(most),
                aim: Bound::AtMost(1.05),
                unit: "x",
                detail: format!("{:.0} ms / {:.0} ms", ours * 1e3, bare * 1e3),
            });
            rows.push(Row {
                what: self.name(&format!("{percent} from coupled")),
                value: (ours / coupled - 1.0) * 100.0,
                must: Bound::None,
                aim: Bound::None,
                unit: "%",
                detail: format!("{:.0} ms → {:.0} ms; published {published}", coupled * 1e3, ours * 1e3),
            });
        }
        #[expect(clippy::cast_precision_loss, reason = "some hundred containers")]
        let idle = decoupled.idle as f64;
        rows.push(Row {
            what: self.name("containers without a call"),
            value: idle,
            must: Bound::AtMost(0.0),
            aim: Bound::AtMost(0.0),
            unit: "",
            detail: format!(
                "{} started for {} sessions; coupled {}",
                decoupled.containers,
                decoupled.first.len(),
                coupled.containers
            ),
        });
        rows
    }

    fn name(self, what: &str) -> &'static str {
        let Self { containers, repositories, at_once } = self;
        let mix = format!("{}/{} % box/repo, {at_once} at once", containers * 10, repositories * 10);
        // A row's name lives as long as the run.
        Box::leak(format!("{mix}: {what}").into_boxed_str())
    }
}
