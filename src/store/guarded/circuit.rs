//! Whether the store is asked: closed while it answers, open after several failures in a row.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

/// The shortest pause before a probe, and the longest; each probe that fails doubles it. The longest and a probe that
/// finds no answer are less than half a second together, so that this is how soon a store that is back is used.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(350);

/// The state is one word: in its upper half how often the circuit has changed (it is open while that is odd), in its
/// lower half the failures in a row. One atomic word, so that no decision waits for another one; relaxed is enough,
/// since it publishes nothing but itself.
pub(super) struct Circuit {
    state: AtomicU64,
    opens_after: u32,
    /// Whether a probe runs. Released by the probe that ends and acquired by the one that begins, so that there is only
    /// ever one and it sees what the last one did.
    probing: AtomicBool,
    /// The pause before the next probe, in milliseconds. Relaxed: only the one probe changes it, and a success that
    /// resets it at the same time costs one pause of another length.
    pause: AtomicU64,
}

/// The circuit's change at which a decision asked the store: what is learnt later says nothing of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(u32);

impl Ticket {
    pub(super) fn is_of_open_circuit(self) -> bool {
        self.0 % 2 == 1
    }
}

fn split(state: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = state.to_be_bytes();
    (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))
}

fn joined(changes: u32, failures: u32) -> u64 {
    u64::from(changes) << 32 | u64::from(failures)
}

impl Circuit {
    pub(super) fn new(opens_after: u32) -> Self {
        Self {
            state: AtomicU64::new(0),
            opens_after: opens_after.max(1),
            probing: AtomicBool::new(false),
            pause: AtomicU64::new(millis(FIRST_PAUSE)),
        }
    }

    pub(super) fn ticket(&self) -> Ticket {
        Ticket(split(self.state.load(Ordering::Relaxed)).0)
    }

    pub(super) fn is_open(&self) -> bool {
        self.ticket().is_of_open_circuit()
    }

    /// Changes the state, unless the circuit has changed since `ticket`; returns whether the circuit changed by this.
    fn change(&self, ticket: Ticket, to: impl Fn(u32, u32) -> (u32, u32)) -> bool {
        let changed = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |state| {
            let (changes, failures) = split(state);
            let (next, left) = to(changes, failures);
            (changes == ticket.0 && (next, left) != (changes, failures)).then(|| joined(next, left))
        });
        changed.is_ok_and(|before| to(ticket.0, split(before).1).0 != ticket.0)
    }

    /// The store answered. Returns whether that has closed the circuit.
    pub(super) fn succeeded(&self, ticket: Ticket) -> bool {
        if ticket.is_of_open_circuit() {
            return self.close(ticket);
        }
        self.change(ticket, |changes, _| (changes, 0));
        if self.pause.load(Ordering::Relaxed) != millis(FIRST_PAUSE) {
            // Only an answer to a request says that all is well: a store may pass every probe and no decision.
            self.pause.store(millis(FIRST_PAUSE), Ordering::Relaxed);
        }
        false
    }

    /// The store failed. Returns whether that has opened the circuit.
    pub(super) fn failed(&self, ticket: Ticket) -> bool {
        let opens_after = self.opens_after;
        !ticket.is_of_open_circuit()
            && self.change(ticket, |changes, failures| match failures.saturating_add(1) {
                failures if failures >= opens_after => (changes.wrapping_add(1), 0),
                failures => (changes, failures),
            })
    }

    /// Closes a circuit that was open at `ticket`; returns whether it did.
    pub(super) fn close(&self, ticket: Ticket) -> bool {
        self.change(ticket, |changes, _| (changes.wrapping_add(1), 0))
    }

    /// Returns true for the one that may probe, until it says [`ends_probing`](Self::ends_probing).
    pub(super) fn begins_probing(&self) -> bool {
        !self.probing.load(Ordering::Relaxed) && !self.probing.swap(true, Ordering::AcqRel)
    }

    pub(super) fn ends_probing(&self) {
        self.probing.store(false, Ordering::Release);
    }

    /// The pause before the next probe, with jitter: between half and all of what the doubling says.
    pub(super) fn next_pause(&self) -> Duration {
        let pause = self.pause.load(Ordering::Relaxed);
        self.pause.store(pause.saturating_mul(2).min(millis(LONGEST_PAUSE)), Ordering::Relaxed);
        let micros = pause.saturating_mul(1_000);
        let random = RandomState::new().build_hasher().finish();
        Duration::from_micros(micros / 2 + random % (micros / 2 + 1))
    }
}

const fn millis(duration: Duration) -> u64 {
    duration.as_secs() * 1_000 + duration.subsec_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_after_so_many_failures_in_a_row_and_closes_once() {
        let circuit = Circuit::new(3);
        let ticket = circuit.ticket();
        for _ in 0..10 {
            assert!(!circuit.failed(ticket) && !circuit.failed(ticket));
            assert!(!circuit.succeeded(ticket)); // not in a row
        }
        assert!(!circuit.failed(ticket) && !circuit.failed(ticket) && !circuit.is_open());
        assert!(circuit.failed(ticket) && circuit.is_open());
        let open = circuit.ticket();
        // Answers to what was asked before say nothing any more.
        assert!(!circuit.failed(ticket) && !circuit.succeeded(ticket) && circuit.is_open());
        assert!(circuit.close(open) && !circuit.is_open());
        assert!(!circuit.close(open) && !circuit.failed(ticket) && !circuit.failed(open));
        // And none of those counts after it has closed.
        let closed = circuit.ticket();
        assert!(!circuit.failed(closed) && !circuit.failed(closed) && circuit.failed(closed));
    }

    #[test]
    fn pauses_double_up_to_a_third_of_a_second_until_a_request_is_answered() {
        let circuit = Circuit::new(1);
        for expected in [25, 50, 100, 200, 350, 350] {
            let pause = circuit.next_pause();
            let longest = Duration::from_millis(expected);
            assert!(longest / 2 <= pause && pause <= longest, "{pause:?} of {longest:?}");
        }
        let ticket = circuit.ticket();
        assert!(circuit.failed(ticket));
        assert!(circuit.close(circuit.ticket()));
        assert!(circuit.next_pause() >= LONGEST_PAUSE / 2, "a passed probe proves little");
        circuit.succeeded(circuit.ticket());
        assert!(circuit.next_pause() <= FIRST_PAUSE);
    }

    #[test]
    fn one_of_many_threads_opens_it_and_one_probes() {
        let circuit = Circuit::new(64);
        let ticket = circuit.ticket();
        let (opened, probes) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        opened.fetch_add(u64::from(circuit.failed(ticket)), Ordering::Relaxed);
                        probes.fetch_add(u64::from(circuit.begins_probing()), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!((opened.into_inner(), probes.into_inner()), (1, 1));
        circuit.ends_probing();
        assert!(circuit.begins_probing());
    }
}
