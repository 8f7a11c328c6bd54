//! Rows: what was promised, what was measured, and whether the one holds against the other.

use std::fmt;

/// One line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    /// What was measured, in the words of the promise.
    pub(crate) what: &'static str,
    /// The measured value, in the unit of its bounds.
    pub(crate) value: f64,
    /// Breaking this fails the run.
    pub(crate) must: Bound,
    /// Breaking this does not.
    pub(crate) aim: Bound,
    /// The unit of all three: `x` for a ratio.
    pub(crate) unit: &'static str,
    /// The absolute numbers behind it.
    pub(crate) detail: String,
}

/// A limit from above or below.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    /// Not more than this.
    AtMost(f64),
    /// Not less than this.
    AtLeast(f64),
    /// Whatever it is: nothing was promised.
    None,
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
            Self::None => true,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(limit) => write!(formatter, "≤ {limit}"),
            Self::AtLeast(limit) => write!(formatter, "≥ {limit}"),
            Self::None => formatter.write_str("–"),
        }
    }
}

impl Row {
    /// Whether the promise is kept.
    pub(crate) fn must_holds(&self) -> bool {
        self.must.holds(self.value)
    }

    /// One line on standard output.
    pub(crate) fn print(&self) {
        let mark = match (self.must_holds(), self.aim.holds(self.value)) {
            (true, true) if matches!(self.must, Bound::None) => " ",
            (true, true) => "✓✓",
            (true, false) => "✓",
            (false, _) => "✗",
        };
        let measured = format!("{:.2} {}", self.value, self.unit);
        let (must, aim) = (self.must.to_string(), self.aim.to_string());
        println!("{mark:<2} {:<52} {measured:>10} {must:>8} {aim:>8}   {}", self.what, self.detail);
    }
}

/// The line above the rows.
pub(crate) fn heading() {
    println!("{:<2} {:<52} {:>10} {:>8} {:>8}", "", "", "measured", "must", "aim");
}

/// The value below which `share` (0 to 1) of the samples lie. Sorts them.
pub(crate) fn percentile(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index of a few thousand samples"
    )]
    let index = ((samples.len() - 1) as f64 * share).round() as usize;
    samples[index]
}
