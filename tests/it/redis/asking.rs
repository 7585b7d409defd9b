//! Questions that are asked on and on, while something goes wrong.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::sleep,
};

use super::{Duration, until};

/// Asks with every pause, whether or not earlier questions are answered.
pub(crate) struct Asking<A> {
    stop: oneshot::Sender<()>,
    asking: JoinHandle<Vec<A>>,
    well: Arc<AtomicUsize>,
}

impl<A: Send + 'static> Asking<A> {
    /// Begins to `ask`. An answer may be as it should be when all goes `well`.
    pub(crate) fn begin<F: Future<Output = A> + Send + 'static, const N: usize>(
        pause: Duration,
        well: fn(&A) -> bool,
        mut ask: impl FnMut() -> [F; N] + Send + 'static,
    ) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let went_well = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&went_well);
        let asking = tokio::spawn(async move {
            let (answers, mut answered) = mpsc::unbounded_channel();
            while stopped.try_recv().is_err() {
                for asked in ask() {
                    let (answers, counted) = (answers.clone(), Arc::clone(&counted));
                    tokio::spawn(async move {
                        let answer = asked.await;
                        counted.fetch_add(usize::from(well(&answer)), Ordering::Relaxed);
                        let _ = answers.send(answer);
                    });
                }
                sleep(pause).await;
            }
            drop(answers);
            let mut all = Vec::new();
            while let Some(answer) = answered.recv().await {
                all.push(answer);
            }
            all
        });
        Self { stop, asking, well: went_well }
    }

    /// Waits until so many more answers are as they should be.
    pub(crate) async fn goes_well(&self, more: usize) {
        let wanted = self.well.load(Ordering::Relaxed) + more;
        until("all goes well", async || self.well.load(Ordering::Relaxed) >= wanted).await;
    }

    /// All answers, when nothing more is asked.
    pub(crate) async fn end(self) -> Vec<A> {
        self.stop.send(()).unwrap();
        self.asking.await.unwrap()
    }
}
