//! Waiting for a condition: a poll that says what is still missing. There is no bare sleep anywhere else.

use std::time::{Duration, Instant};

/// Between the first looks at a condition. Short, because every wait in a case adds to its time.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(25);
/// Between later looks: a wait for a repair loop must not keep a processor busy that other cases need.
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);
/// What a look may come late, as a part of the time waited so far.
const LATENESS: u32 = 40;

/// The time to the next look after this long.
fn interval(waited: Duration) -> Duration {
    (waited / LATENESS).clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL)
}

/// A condition that does not hold yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotYet {
    /// What is still missing, for the error of a wait that ran out.
    pub missing: String,
}

impl NotYet {
    /// A condition that lacks this.
    pub fn new(missing: impl Into<String>) -> Self {
        NotYet { missing: missing.into() }
    }
}

/// Looks until the condition holds or the time is over; always looks at least once.
///
/// # Errors
/// The condition did not hold in time; the error carries what was missing at the last look.
pub async fn until<T>(
    what: impl Into<String>,
    longest: Duration,
    mut look: impl AsyncFnMut() -> Result<T, NotYet>,
) -> Result<T, TimedOut> {
    let begin = Instant::now();
    loop {
        match look().await {
            Ok(value) => return Ok(value),
            Err(NotYet { missing }) if begin.elapsed() >= longest => {
                return Err(TimedOut { what: what.into(), waited: begin.elapsed(), missing });
            }
            Err(NotYet { .. }) => tokio::time::sleep(interval(begin.elapsed())).await,
        }
    }
}

/// The same for a condition of something that may end meanwhile: the wait is over at once when it is no longer alive.
///
/// # Errors
/// It is not alive any more, or the condition did not hold in time.
pub async fn until_or_gone<T, E>(
    what: impl Into<String>,
    longest: Duration,
    mut alive: impl AsyncFnMut() -> Result<(), E>,
    mut look: impl AsyncFnMut() -> Result<T, NotYet>,
) -> Result<T, Unmet<E>> {
    let waited = until(what, longest, async || match alive().await {
        Ok(()) => look().await.map(Ok),
        Err(gone) => Ok(Err(gone)),
    });
    match waited.await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(gone)) => Err(Unmet::Gone(gone)),
        Err(timed_out) => Err(Unmet::TimedOut(timed_out)),
    }
}

/// Why a wait for something that may end was in vain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unmet<E> {
    /// It is not alive any more.
    Gone(E),
    /// It lives, and the condition does not hold.
    TimedOut(TimedOut),
}

/// A condition that did not hold in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} not reached in {:.1} s; still missing: {missing}", waited.as_secs_f64())]
pub struct TimedOut {
    /// What was waited for.
    pub what: String,
    /// How long.
    pub waited: Duration,
    /// What was missing at the last look.
    pub missing: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_at_most_a_fortieth_of_the_wait_late_and_never_more_than_a_second() {
        for (waited, expected) in [(0, 25), (1_000, 25), (4_000, 100), (40_000, 1_000), (600_000, 1_000)] {
            assert_eq!(interval(Duration::from_millis(waited)), Duration::from_millis(expected));
        }
    }

    #[tokio::test]
    async fn a_wait_ends_with_the_value_as_soon_as_the_condition_holds() {
        let mut looks = 0;
        let value = until("three looks", Duration::from_secs(60), async || {
            looks += 1;
            if looks == 3 { Ok(looks) } else { Err(NotYet::new(format!("look {}", looks + 1))) }
        });
        assert_eq!(value.await, Ok(3));
    }

    #[tokio::test]
    async fn a_wait_for_what_has_ended_is_over_at_once() {
        let (mut looks, longest) = (0, Duration::from_secs(60));
        let alive = async || Err::<(), _>("it exited");
        let ended = until_or_gone("its end", longest, alive, async || {
            looks += 1;
            Err::<(), _>(NotYet::new("everything"))
        });
        assert_eq!(ended.await, Err(Unmet::Gone("it exited")));
        assert_eq!(looks, 0);
    }

    #[tokio::test]
    async fn a_wait_that_runs_out_says_what_was_missing() {
        let error = until("the impossible", Duration::ZERO, async || Err::<(), _>(NotYet::new("everything"))).await;
        let text = error.unwrap_err().to_string();
        assert!(
            text.starts_with("the impossible not reached in") && text.ends_with("still missing: everything"),
            "{text}"
        );
    }
}
