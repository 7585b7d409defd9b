//! Refusals in the log: a client that keeps on must not fill it.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often a rule's refusals are told of at most.
const PAUSE_NANOS: u64 = 1_000_000_000;

/// Which of a rule's refusals are told of: the first, and then at most one a second. Relaxed is enough: it publishes
/// nothing but itself, and a refusal that is counted a little later is told of with the next.
#[derive(Debug, Default)]
pub(super) struct Sampled {
    /// When the next one may be told of.
    next: AtomicU64,
    untold: AtomicU64,
}

impl Sampled {
    /// Returns whether a refusal at `now` is told of, and how many were not since the last one that was.
    pub(super) fn tells(&self, now: u64) -> Option<u64> {
        let next = self.next.load(Ordering::Relaxed);
        // One that is further away than it can be was set by a clock that has been set back since.
        let is_due = now >= next || next - now > PAUSE_NANOS;
        let then = now.saturating_add(PAUSE_NANOS);
        if is_due && self.next.compare_exchange(next, then, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return Some(self.untold.swap(0, Ordering::Relaxed));
        }
        self.untold.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_of_and_then_one_a_second_with_the_number_between() {
        let sampled = Sampled::default();
        let told: Vec<_> =
            [0, 0, 999_999_999, 1_000_000_000, 1_000_000_001, 5_000_000_000, 5_999_999_999, 6_000_000_000]
                .map(|now| sampled.tells(now))
                .into();
        assert_eq!(told, [Some(0), None, None, Some(2), None, Some(1), None, Some(1)]);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_silence_it() {
        let sampled = Sampled::default();
        assert_eq!(sampled.tells(86_400_000_000_000), Some(0));
        assert_eq!(sampled.tells(5), Some(0));
        assert_eq!(sampled.tells(6), None);
    }

    #[test]
    fn none_is_told_of_twice_and_none_is_lost_among_threads() {
        let sampled = Sampled::default();
        let told: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| (0..1_000).filter_map(|_| sampled.tells(7)).map(|untold| untold + 1).sum::<u64>())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let rest = sampled.tells(2_000_000_000).unwrap();
        assert_eq!(told + rest, 4_000);
    }
}
