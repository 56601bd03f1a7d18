//! How long to wait before trying again.

use std::time::Duration;

/// Doubles `first` with each failure up to `cap`, less up to a quarter, so that many objects do not come at once.
/// `seed` decides how much less; the same seed gives the same wait.
#[must_use]
pub fn grow(first: Duration, cap: Duration, failures: u32, seed: u64) -> Duration {
    let full = first.saturating_mul(2_u32.saturating_pow(failures.min(16))).min(cap);
    full.saturating_sub(spread(full / 4, seed ^ u64::from(failures)))
}

/// A part of `range`, by `seed`.
#[must_use]
pub fn spread(range: Duration, seed: u64) -> Duration {
    // One round of splitmix64: seeds that differ little give parts that differ much.
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let part = u32::try_from((mixed ^ (mixed >> 31)) >> 48).unwrap_or_default();
    range / 65_536 * part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_grows_to_its_cap_and_is_spread() {
        let wait = |n, seed| grow(Duration::from_secs(1), Duration::from_mins(1), n, seed);
        for seed in 0..100 {
            assert!((0.75..=1.0).contains(&wait(0, seed).as_secs_f64()));
            assert!((6.0..=8.0).contains(&wait(3, seed).as_secs_f64()));
            assert!((45.0..=60.0).contains(&wait(60, seed).as_secs_f64()));
        }
        assert_ne!(wait(3, 1), wait(3, 2));
    }
}
