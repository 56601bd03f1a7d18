//! Waiting for a condition, within a limit, with a name for what was awaited.

use std::time::{Duration, Instant};

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// The condition did not come true in time.
#[derive(Debug, thiserror::Error)]
#[error("waited {} s in vain for {what}", limit.as_secs_f32())]
pub struct TimedOut {
    /// What was awaited.
    pub what: String,
    /// For how long.
    pub limit: Duration,
}

/// Calls `check` until it gives something, at most for `limit`; a call that hangs counts too.
///
/// # Errors
/// When the limit is over.
pub async fn until<T>(
    what: impl Into<String>,
    limit: Duration,
    mut check: impl AsyncFnMut() -> Option<T>,
) -> Result<T, TimedOut> {
    let start = Instant::now();
    loop {
        let left = limit.saturating_sub(start.elapsed());
        match tokio::time::timeout(left, check()).await {
            Ok(Some(found)) => return Ok(found),
            // A check that never waits for anything is not ended by a limit of none.
            Ok(None) if !left.is_zero() => tokio::time::sleep(LOOK).await,
            Ok(None) | Err(_) => return Err(TimedOut { what: what.into(), limit }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_check_that_waits_for_nothing_has_a_limit_too() {
        assert_eq!(until("x", LOOK, async || Some(1)).await.unwrap(), 1);
        assert!(until::<()>("x", LOOK, async || None).await.is_err());
    }
}
