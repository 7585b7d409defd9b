//! How late this machine itself is: the yardstick for decisions that have to be in time.

use std::time::{Duration, Instant};

use tokio::{sync::mpsc, task::JoinHandle, time::sleep};

const PLAIN: Duration = Duration::from_millis(25);

/// Plain timers on the same runtime, one every few milliseconds. What they are late, everything here is.
pub(crate) struct Lateness {
    stop: tokio::sync::oneshot::Sender<()>,
    timing: JoinHandle<Vec<Duration>>,
}

impl Lateness {
    pub(crate) fn begin() -> Self {
        let (stop, mut stopped) = tokio::sync::oneshot::channel();
        let timing = tokio::spawn(async move {
            let (late, mut all_late) = mpsc::unbounded_channel();
            while stopped.try_recv().is_err() {
                let late = late.clone();
                tokio::spawn(async move {
                    let at = Instant::now();
                    sleep(PLAIN).await;
                    // Timers count in milliseconds.
                    let _ = late.send(at.elapsed().saturating_sub(PLAIN + Duration::from_millis(1)));
                });
                sleep(Duration::from_millis(2)).await;
            }
            drop(late);
            let mut all = Vec::new();
            while let Some(late) = all_late.recv().await {
                all.push(late);
            }
            all
        });
        Self { stop, timing }
    }

    /// By how much one in a hundred was late, twice: a decision takes more than one turn on the processor.
    pub(crate) async fn end(self) -> Duration {
        self.stop.send(()).unwrap();
        let mut all = self.timing.await.unwrap();
        all.sort_unstable();
        all[all.len() * 99 / 100] * 2
    }
}
