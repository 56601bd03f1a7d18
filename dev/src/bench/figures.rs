//! What is said of many measurements.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds of one kind of call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// How many were measured.
    pub count: usize,
    /// The middle one.
    pub median_ms: f64,
    /// 99 of 100 were no longer than this.
    pub p99_ms: f64,
    /// The shortest.
    pub min_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Spread {
    /// Of `all`; zeros if there are none.
    #[must_use]
    pub fn of(all: &[Duration]) -> Self {
        let mut sorted: Vec<f64> = all.iter().map(|one| one.as_secs_f64() * 1000.0).collect();
        sorted.sort_by(f64::total_cmp);
        Self {
            count: sorted.len(),
            median_ms: percentile(&sorted, 50),
            p99_ms: percentile(&sorted, 99),
            min_ms: percentile(&sorted, 0),
            max_ms: percentile(&sorted, 100),
        }
    }
}

/// By the nearest rank: a figure that was measured, not one between two.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// `part` of `whole`; zero if there is no whole.
#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are small")]
pub(super) fn per(part: u64, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_of_what_was_measured() {
        let all: Vec<_> = (1..=200).rev().map(Duration::from_millis).collect();
        let spread = Spread::of(&all);
        assert_eq!(spread, Spread { count: 200, median_ms: 100.0, p99_ms: 198.0, min_ms: 1.0, max_ms: 200.0 });
        let one = Spread::of(&[Duration::from_millis(7)]);
        assert_eq!(one, Spread { count: 1, median_ms: 7.0, p99_ms: 7.0, min_ms: 7.0, max_ms: 7.0 });
        assert_eq!(Spread::of(&[]), Spread::default());
    }

    #[test]
    fn nothing_per_nothing_is_nothing() {
        assert_eq!([per(3, 2), per(3, 0)].map(|figure| figure.to_string()), ["1.5", "0"]);
    }
}
