//! Waiting for what another thread, process or machine does: until it is seen, and not for as long as it may take.

use std::{
    fmt::Debug,
    panic::{Location, resume_unwind},
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use tokio::time::{Instant, sleep};

/// How long a test waits for what has to happen. Far longer than it ever takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Looks again and again, until `wanted` is found.
#[track_caller]
pub(crate) fn comes_to<T: PartialEq + Debug>(
    what: &str,
    wanted: T,
    mut look: impl AsyncFnMut() -> T,
) -> impl Future<Output = ()> {
    let here = Location::caller();
    async move {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let found = look().await;
            if found == wanted {
                return;
            }
            assert!(Instant::now() < give_up, "{here}: {what}: {found:?} in vain, and not {wanted:?}");
            sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Looks again and again, until it `holds`.
#[track_caller]
pub(crate) fn until(what: &str, holds: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    comes_to(what, true, holds)
}

/// Returns what `run` does on a thread of its own, which has to come to an end.
#[track_caller]
pub(crate) fn ends<T: Send + 'static>(otherwise: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (running, ended) = channel::<()>();
    let thread = thread::spawn(move || {
        let _running = running;
        run()
    });
    assert_ne!(ended.recv_timeout(PATIENCE), Err(RecvTimeoutError::Timeout), "{otherwise}");
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the moon: 5 in vain, and not 6")]
async fn what_never_comes_fails_the_test_that_waits_for_it() {
    comes_to("the moon", 6, async || 5).await;
}

#[test]
#[should_panic(expected = "on its own thread")]
fn what_fails_on_a_thread_of_its_own_fails_the_test() {
    ends("it hangs", || panic!("on its own thread"));
}
