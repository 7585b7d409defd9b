//! Metrics, through the facade of the `metrics` crate.
//!
//! A [`Counter`] is asked of the recorder once and kept, since asking costs a look into a map. A recorder may be
//! installed after the limiter was made: until there is one, each decision asks again, which costs next to nothing
//! then.

use std::{
    borrow::Cow,
    sync::{
        OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit, with_recorder};

use super::{RuleOutcome, Steps, Turn};

/// The names, which are part of the API.
mod names {
    pub(super) const DECISIONS: &str = "tollgate_decisions_total";
    pub(super) const DECISION_SECONDS: &str = "tollgate_decision_seconds";
    pub(super) const WAITING: &str = "tollgate_waiting";
    pub(super) const STORE_ERRORS: &str = "tollgate_store_errors_total";
    pub(super) const RELOADS: &str = "tollgate_reloads_total";
    pub(super) const CIRCUIT_OPENED: &str = "tollgate_circuit_opened_total";
    pub(super) const TRACKED_KEYS: &str = "tollgate_tracked_keys";
    pub(super) const EVICTED_KEYS: &str = "tollgate_evicted_keys_total";
    pub(super) const OVERFLOW_DECISIONS: &str = "tollgate_overflow_decisions_total";
}

static METADATA: Metadata<'static> = Metadata::new("tollgate", Level::INFO, Some("tollgate"));

/// How often what a store holds is told without being asked for, at most.
const PUBLISH_EVERY_NANOS: u64 = 10_000_000_000;

/// Whether a recorder keeps something. The one that stands in where none is installed is of no size; another one that
/// is would only be asked each time.
fn keeps(recorder: &dyn Recorder) -> bool {
    size_of_val(recorder) > 0
}

fn of_rule(name: &'static str, rule: Cow<'static, str>) -> Key {
    Key::from_parts(name, vec![Label::new("rule", rule)])
}

/// The series of one limiter: of each rule, and of all.
#[derive(Debug)]
pub(super) struct Metrics {
    rules: Box<[RuleKeys]>,
    handles: OnceLock<Handles>,
    /// When the store publishes next. Relaxed: it publishes nothing but itself.
    publish_at: AtomicU64,
}

#[derive(Debug)]
struct RuleKeys {
    decisions: [Key; RuleOutcome::ALL.len()],
    waiting: Key,
}

#[derive(Debug)]
struct Handles {
    rules: Box<[RuleHandles]>,
    seconds: Histogram,
}

#[derive(Debug)]
struct RuleHandles {
    decisions: [Counter; RuleOutcome::ALL.len()],
    waiting: Gauge,
}

impl RuleKeys {
    fn new(rule: Cow<'static, str>) -> Self {
        let decisions = RuleOutcome::ALL.map(|outcome| {
            let labels = vec![Label::new("rule", rule.clone()), Label::from_static_parts("outcome", outcome.label())];
            Key::from_parts(names::DECISIONS, labels)
        });
        Self { decisions, waiting: of_rule(names::WAITING, rule) }
    }
}

impl Metrics {
    pub(super) fn new(rules: impl Iterator<Item = Cow<'static, str>>) -> Self {
        let metrics =
            Self { rules: rules.map(RuleKeys::new).collect(), handles: OnceLock::new(), publish_at: AtomicU64::new(0) };
        with_recorder(|recorder| {
            metrics.register(recorder);
        });
        metrics
    }

    /// Asks for all series at once, so that each is there, at zero, before it counts.
    fn register(&self, recorder: &dyn Recorder) -> Option<&Handles> {
        keeps(recorder).then(|| {
            self.handles.get_or_init(|| {
                describe(recorder);
                let register = |keys: &RuleKeys| RuleHandles {
                    decisions: keys.decisions.each_ref().map(|key| recorder.register_counter(key, &METADATA)),
                    waiting: recorder.register_gauge(&keys.waiting, &METADATA),
                };
                for name in [names::STORE_ERRORS, names::CIRCUIT_OPENED] {
                    let _ = recorder.register_counter(&Key::from_static_name(name), &METADATA);
                }
                for outcome in ["reloaded", "failed"] {
                    let _ = recorder.register_counter(&reloads(outcome), &METADATA);
                }
                Handles {
                    rules: self.rules.iter().map(register).collect(),
                    seconds: recorder.register_histogram(&Key::from_static_name(names::DECISION_SECONDS), &METADATA),
                }
            })
        })
    }

    #[inline]
    pub(super) fn decided(&self, outcomes: impl Iterator<Item = (usize, RuleOutcome)>) {
        match self.handles.get() {
            Some(handles) => handles.decided(outcomes),
            None => self.decided_unregistered(outcomes),
        }
    }

    #[cold]
    fn decided_unregistered(&self, outcomes: impl Iterator<Item = (usize, RuleOutcome)>) {
        with_recorder(|recorder| match self.register(recorder) {
            Some(handles) => handles.decided(outcomes),
            None => {
                for (rule, outcome) in outcomes {
                    if let Some(key) = self.rules.get(rule).and_then(|rule| rule.decisions.get(outcome as usize)) {
                        recorder.register_counter(key, &METADATA).increment(1);
                    }
                }
            }
        });
    }

    /// Whether the decision of the instant `at` is one of those that are timed: one in 64, by a hash of its time.
    #[inline]
    pub(super) fn times(&self, at: u64) -> bool {
        self.handles.get().is_some() && is_sample(at)
    }

    pub(super) fn took(&self, time: Duration) {
        if let Some(handles) = self.handles.get() {
            handles.seconds.record(time.as_secs_f64());
        }
    }

    /// Whether the store should say what it holds, at `now`: not more than once in ten seconds.
    #[inline]
    pub(super) fn publishes(&self, now: u64) -> bool {
        let at = self.publish_at.load(Ordering::Relaxed);
        // One that is further away than it can be was set by a clock that has been set back since.
        (now >= at || at - now > PUBLISH_EVERY_NANOS) && self.handles.get().is_some() && {
            let next = now.saturating_add(PUBLISH_EVERY_NANOS);
            self.publish_at.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        }
    }

    /// Counts one more request of `rule` that waits, until what is returned is dropped.
    pub(super) fn waits(&self, rule: usize) -> Waits {
        let rule = self.handles.get().and_then(|handles| handles.rules.get(rule));
        if let Some(rule) = rule {
            rule.waiting.increment(1.0);
        }
        Waits(rule.map(|rule| rule.waiting.clone()))
    }

    /// The same, until `turn` has come or is dropped.
    pub(super) fn waits_until(&self, turn: Turn, rule: usize) -> Turn {
        let waits = self.waits(rule);
        if waits.0.is_none() {
            return turn;
        }
        Box::pin(async move {
            turn.await;
            drop(waits);
        })
    }
}

impl Handles {
    #[inline]
    fn decided(&self, outcomes: impl Iterator<Item = (usize, RuleOutcome)>) {
        for (rule, outcome) in outcomes {
            if let Some(counter) = self.rules.get(rule).and_then(|rule| rule.decisions.get(outcome as usize)) {
                counter.increment(1);
            }
        }
    }
}

#[inline]
fn is_sample(at: u64) -> bool {
    // Fibonacci hashing: its upper bits depend on all of the time's.
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58 == 0
}

/// A request that waits. Without a gauge it came before there was a recorder, and is not counted.
pub(crate) struct Waits(Option<Gauge>);

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some(gauge) = &self.0 {
            gauge.decrement(1.0);
        }
    }
}

/// What a store holds of one rule's keys. What was told is taken back when it is dropped, and several of one name add
/// up.
#[derive(Debug)]
pub(crate) struct Held {
    keys: HeldKeys,
    gauge: OnceLock<Gauge>,
    /// What was told. Relaxed: each difference is told once, in any order.
    tracked: AtomicUsize,
}

#[derive(Debug)]
struct HeldKeys {
    tracked: Key,
    evicted: Key,
    overflowed: Key,
}

impl Held {
    pub(crate) fn new(rule: Cow<'static, str>) -> Self {
        let keys = HeldKeys {
            tracked: of_rule(names::TRACKED_KEYS, rule.clone()),
            evicted: of_rule(names::EVICTED_KEYS, rule.clone()),
            overflowed: of_rule(names::OVERFLOW_DECISIONS, rule),
        };
        Self { keys, gauge: OnceLock::new(), tracked: AtomicUsize::new(0) }
    }

    /// Tells how many keys have a bucket, and how many more than before were dropped or had no place.
    pub(crate) fn publish(&self, tracked: usize, evicted: &Steps, overflowed: &Steps) {
        with_recorder(|recorder| {
            recorder.register_counter(&self.keys.evicted, &METADATA).increment(evicted.untold());
            recorder.register_counter(&self.keys.overflowed, &METADATA).increment(overflowed.untold());
            if keeps(recorder) {
                let gauge = self.gauge.get_or_init(|| recorder.register_gauge(&self.keys.tracked, &METADATA));
                change(gauge, self.tracked.swap(tracked, Ordering::Relaxed), tracked);
            }
        });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(gauge) = self.gauge.get() {
            change(gauge, *self.tracked.get_mut(), 0);
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "exact up to 2^53 keys")]
fn change(gauge: &Gauge, from: usize, to: usize) {
    gauge.increment(to as f64 - from as f64);
}

impl Steps {
    /// What was not told yet, which is told now.
    fn untold(&self) -> u64 {
        let count = self.get();
        count.saturating_sub(self.told.fetch_max(count, Ordering::Relaxed))
    }
}

/// A store failed a question. Rare enough to ask for the counter each time.
pub(super) fn store_failed() {
    count(names::STORE_ERRORS);
}

/// A store was given up until a probe succeeds.
pub(super) fn circuit_opened() {
    count(names::CIRCUIT_OPENED);
}

/// Rules were reloaded, or that failed.
pub(super) fn reloaded(outcome: &'static str) {
    with_recorder(|recorder| recorder.register_counter(&reloads(outcome), &METADATA)).increment(1);
}

fn reloads(outcome: &'static str) -> Key {
    Key::from_parts(names::RELOADS, vec![Label::from_static_parts("outcome", outcome)])
}

fn count(name: &'static str) {
    with_recorder(|recorder| recorder.register_counter(&Key::from_static_name(name), &METADATA)).increment(1);
}

fn describe(recorder: &dyn Recorder) {
    for (name, about) in [
        (names::DECISIONS, "Decisions by rule and outcome."),
        (names::EVICTED_KEYS, "Buckets in memory that were dropped because they answered as fresh ones, by rule."),
        (names::OVERFLOW_DECISIONS, "Decisions on keys for which there was no place in memory, by rule."),
        (names::STORE_ERRORS, "Questions to a store that it failed, or did not answer in time."),
        (names::RELOADS, "Reloads of a limiter's rules, by outcome."),
        (names::CIRCUIT_OPENED, "How often a store was given up until a probe succeeds."),
    ] {
        recorder.describe_counter(name.into(), Some(Unit::Count), about.into());
    }
    for (name, about) in [
        (names::TRACKED_KEYS, "Keys that have a bucket in memory, by rule."),
        (names::WAITING, "Requests that wait for their turn or for a place, by rule."),
    ] {
        recorder.describe_gauge(name.into(), Some(Unit::Count), about.into());
    }
    recorder.describe_histogram(
        names::DECISION_SECONDS.into(),
        Some(Unit::Seconds),
        "Time from reading the clock to the answer, of one decision in 64.".into(),
    );
}
