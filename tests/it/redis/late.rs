//! How late this machine itself is: the yardstick for decisions that have to be in time.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::asking::Asking;

const PLAIN: Duration = Duration::from_millis(25);

/// Plain timers on the same runtime, one every few milliseconds. What they are late, everything here is.
pub(crate) struct Lateness(Asking<Duration>);

impl Lateness {
    pub(crate) fn begin() -> Self {
        let timer = || {
            [async {
                let at = Instant::now();
                sleep(PLAIN).await;
                // Timers count in milliseconds.
                at.elapsed().saturating_sub(PLAIN + Duration::from_millis(1))
            }]
        };
        Self(Asking::begin(Duration::from_millis(2), |_| true, timer))
    }

    /// By how much one in a hundred was late, twice: a decision takes more than one turn on the processor.
    pub(crate) async fn end(self) -> Duration {
        let mut all = self.0.end().await;
        all.sort_unstable();
        all[all.len() * 99 / 100] * 2
    }
}
