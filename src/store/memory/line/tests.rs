use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use super::*;
use crate::{
    charge::{Slot, Take, Taken, Verdicts},
    decision::{Outcome, Verdict, Wait},
    key::{Key, KeyId},
    store::{MemoryStore, Reply, Store},
    time::Nanos,
};

const NOW: Nanos = Nanos::from_secs(1_700_000_000);
const SECOND: Nanos = Nanos::SECOND;

fn all() -> [Algorithm; 5] {
    use Algorithm::{FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket};
    [TokenBucket, FixedWindow, SlidingWindowLog, SlidingWindowCounter, LeakyBucket]
}

/// From each to each.
fn pairs() -> impl Iterator<Item = (Algorithm, Algorithm)> {
    all().into_iter().flat_map(|from| all().map(|to| (from.clone(), to)))
}

/// So slow that no time matters, and such that each algorithm runs it.
fn slow(algorithm: &Algorithm, permits: u64) -> Limit {
    let limit = Limit::per_day(permits);
    if *algorithm == Algorithm::LeakyBucket { limit.burst(permits) } else { limit }
}

fn spec(name: &'static str, algorithm: &Algorithm, permits: u64) -> RuleSpec {
    RuleSpec::new(name, algorithm.clone(), slow(algorithm, permits))
}

fn key(store: &MemoryStore, number: u64) -> KeyId {
    Key::from(number).id(store.secret())
}

fn decide(store: &MemoryStore, now: Nanos, charge: &Charge<'_>) -> crate::charge::Judged {
    let mut verdicts = Verdicts::new();
    assert!(matches!(store.decide(now, &[*charge], &mut verdicts), Reply::Ready(Ok(()))));
    *verdicts.iter().next().unwrap()
}

/// A rule that some limiter has.
struct Held {
    store: MemoryStore,
    slot: Slot,
    limit: Limit,
    max_delay: Nanos,
}

impl Held {
    fn at(store: &MemoryStore, slot: Slot, spec: &RuleSpec) -> Self {
        let max_delay = if spec.algorithm.delays() { Nanos::MAX } else { Nanos::ZERO };
        Self { store: store.clone(), slot, limit: spec.limit, max_delay }
    }

    fn new(store: &MemoryStore, spec: &RuleSpec) -> Self {
        Self::at(store, store.bind(spec, None).unwrap(), spec)
    }

    /// The rule that replaces this one.
    fn reloaded(&self, spec: &RuleSpec) -> Self {
        Self::at(&self.store, self.store.bind(spec, Some(&self.slot)).unwrap(), spec)
    }

    fn charge(&self, number: u64, cost: u64) -> Charge<'_> {
        let charge = Charge::new(&self.slot, key(&self.store, number), self.limit, cost);
        Charge { max_delay: self.max_delay, ..charge }
    }

    fn take(&self, now: Nanos, number: u64, cost: u64) -> bool {
        decide(&self.store, now, &self.charge(number, cost)).verdict.outcome.passes()
    }

    fn look(&self, now: Nanos, number: u64, cost: u64) -> Verdict {
        let charge = Charge { take: Take::Never, max_delay: Nanos::ZERO, ..self.charge(number, cost) };
        decide(&self.store, now, &charge).verdict
    }

    /// How many of one permit each pass.
    fn passes(&self, now: Nanos, number: u64) -> usize {
        (0..100).take_while(|_| self.take(now, number, 1)).count()
    }
}

#[test]
fn what_was_used_by_one_algorithm_is_used_by_the_next() {
    for (from, to) in pairs() {
        let store = MemoryStore::new();
        let one = Held::new(&store, &spec("r", &from, 10));
        assert!(one.take(NOW, 1, 6) && one.take(NOW, 2, 1));
        let other = one.reloaded(&spec("r", &to, 10));
        assert_eq!((other.passes(NOW, 1), other.passes(NOW, 3)), (4, 10), "{from:?} -> {to:?}");
        assert_eq!(other.passes(NOW, 2), 9, "{from:?} -> {to:?}");
        assert_eq!(store.tracked_keys(), 3);
    }
}

#[test]
fn what_was_used_stays_used_under_another_limit() {
    for algorithm in all() {
        let store = MemoryStore::new();
        let one = Held::new(&store, &spec("r", &algorithm, 10));
        assert!(one.take(NOW, 1, 6));
        let higher = one.reloaded(&spec("r", &algorithm, 30));
        assert_eq!(higher.passes(NOW, 1), 24, "{algorithm:?}");
        let lower = higher.reloaded(&spec("r", &algorithm, 3));
        assert_eq!(lower.passes(NOW, 1), 0, "{algorithm:?}");
        // What did not fit is forgiven, so the wait that is told is short, and true.
        let Outcome::Refuse(Wait::For(wait)) = lower.look(NOW, 1, 1).outcome else { panic!("{algorithm:?}") };
        assert!(wait <= Nanos::from_secs(86_400), "{algorithm:?}");
        assert!(lower.take(NOW.saturating_add(wait), 1, 1), "{algorithm:?}");
    }
}

#[test]
fn a_refusal_under_the_next_algorithm_is_true_to_the_wait_it_tells() {
    for (from, to) in pairs() {
        let store = MemoryStore::new();
        let one = Held::new(&store, &spec("r", &from, 10));
        assert!(one.take(NOW, 1, 10));
        let other = one.reloaded(&spec("r", &to, 10));
        let refused = decide(&store, NOW, &other.charge(1, 2)).verdict.outcome;
        let Outcome::Refuse(Wait::For(wait)) = refused else { panic!("{from:?} -> {to:?}: {refused:?}") };
        let at = NOW.saturating_add(wait);
        assert!(!other.take(at.saturating_sub(Nanos::new(1)), 1, 2), "{from:?} -> {to:?}");
        assert!(other.take(at, 1, 2), "{from:?} -> {to:?}");
    }
}

#[test]
fn who_only_looks_sees_what_is_used_and_moves_nothing() {
    for (from, to) in pairs() {
        let store = MemoryStore::new();
        let one = Held::new(&store, &spec("r", &from, 10));
        assert!(one.take(NOW, 1, 6));
        let other = one.reloaded(&spec("r", &to, 10));
        assert!(!other.look(NOW, 1, 5).outcome.passes(), "{from:?} -> {to:?}");
        // Nothing was decided by the new rule, so it has changed nothing.
        drop(other);
        assert_eq!(one.passes(NOW, 1), 4, "{from:?} -> {to:?}");
    }
}

#[test]
fn requests_that_began_under_the_old_rules_count_where_the_new_ones_do() {
    for (from, to) in pairs() {
        let store = MemoryStore::new();
        let mut old = Held::new(&store, &spec("r", &from, 10));
        assert!(old.take(NOW, 1, 2));
        let new = old.reloaded(&spec("r", &to, 10));
        assert!(new.take(NOW, 1, 2) && new.take(NOW, 2, 0), "{from:?} -> {to:?}");
        // Its requests may be held as long as those of the new one.
        old.max_delay = new.max_delay;
        assert!(old.take(NOW, 1, 2) && old.take(NOW, 2, 5), "{from:?} -> {to:?}");
        assert!(!old.look(NOW, 1, 5).outcome.passes(), "{from:?} -> {to:?}");
        assert_eq!((new.passes(NOW, 1), new.passes(NOW, 2)), (4, 5), "{from:?} -> {to:?}");
        assert_eq!((old.passes(NOW, 1), old.passes(NOW, 2)), (0, 0), "{from:?} -> {to:?}");
    }
}

#[test]
fn rules_that_were_bound_and_given_up_have_changed_nothing() {
    let store = MemoryStore::new();
    let held = Held::new(&store, &spec("r", &Algorithm::TokenBucket, 10));
    assert!(held.take(NOW, 1, 3));
    for algorithm in all() {
        let _ = held.reloaded(&spec("other", &algorithm, 1).was("r"));
        let _ = held.reloaded(&spec("r", &algorithm, 1));
    }
    assert_eq!(held.passes(NOW, 1), 7);
    assert_eq!(held.passes(NOW, 2), 10);
    // The name is free for no other rule, and for a limiter of the same one.
    assert!(store.bind(&spec("r", &Algorithm::FixedWindow, 10), None).is_err());
    assert_eq!(Held::new(&store, &spec("r", &Algorithm::TokenBucket, 10)).passes(NOW, 1), 0);
    assert_eq!(Held::new(&store, &spec("other", &Algorithm::FixedWindow, 10)).passes(NOW, 1), 10);
}

#[test]
fn a_rule_goes_on_under_its_new_name_and_leaves_the_old_one_free() {
    let store = MemoryStore::new();
    let old = Held::new(&store, &spec("old", &Algorithm::TokenBucket, 10));
    assert!(old.take(NOW, 1, 3));
    let new = old.reloaded(&spec("new", &Algorithm::TokenBucket, 10).was("old"));
    assert_eq!(new.passes(NOW, 1), 7);
    // While a request of the old rules is on its way, too.
    let other = Held::new(&store, &spec("old", &Algorithm::TokenBucket, 10));
    assert_eq!((other.passes(NOW, 1), old.passes(NOW, 1)), (10, 0));
    let charges = [new.charge(1, 1), other.charge(1, 1)];
    assert!(matches!(store.decide(NOW, &charges, &mut Verdicts::new()), Reply::Ready(Ok(()))));
    // A limiter that is built anew finds it under the name it had before.
    let again = Held::new(&store, &spec("newest", &Algorithm::TokenBucket, 10).was("new"));
    assert_eq!(again.passes(NOW, 1), 0);
}

#[test]
fn a_rule_that_nobody_has_any_more_is_forgotten() {
    let store = MemoryStore::new();
    let held = Held::new(&store, &spec("r", &Algorithm::TokenBucket, 10));
    assert_eq!(held.passes(NOW, 1), 10);
    let by_another = held.reloaded(&spec("r", &Algorithm::FixedWindow, 10));
    drop(held);
    assert_eq!((by_another.passes(NOW, 1), store.tracked_keys()), (0, 1));
    drop(by_another);
    assert_eq!(store.tracked_keys(), 0);
    assert_eq!(Held::new(&store, &spec("r", &Algorithm::TokenBucket, 10)).passes(NOW, 1), 10);
}

#[test]
fn what_was_charged_before_does_not_come_back_to_another_algorithm() {
    for (from, to) in pairs().filter(|(from, to)| from != to) {
        let store = MemoryStore::new();
        let old = Held::new(&store, &spec("r", &from, 10));
        let charge = old.charge(1, 5);
        let judged = decide(&store, NOW, &charge);
        let mut taken = Taken::new(old.slot.clone(), charge.key, charge.limit, 5, judged.mark.unwrap());
        taken.stamp = judged.stamp;
        let new = old.reloaded(&spec("r", &to, 10));
        assert!(new.take(NOW, 1, 5));
        store.adjust(NOW, &mut taken, 0);
        assert_eq!((new.passes(NOW, 1), taken.cost), (0, 0), "{from:?} -> {to:?}");
        // What is charged in addition counts, by whichever algorithm.
        let mut more = Taken::new(old.slot.clone(), key(&store, 2), charge.limit, 0, crate::bucket::Mark::default());
        store.adjust(NOW, &mut more, 7);
        assert_eq!(new.passes(NOW, 2), 3, "{from:?} -> {to:?}");
    }
}

#[test]
fn what_was_charged_under_the_next_algorithm_comes_back_whoever_charged_it() {
    for (from, to) in pairs().filter(|(from, to)| from != to) {
        let store = MemoryStore::new();
        let old = Held::new(&store, &spec("r", &from, 10));
        let new = old.reloaded(&spec("r", &to, 10));
        assert!(new.take(NOW, 2, 1));
        let charge = old.charge(1, 5);
        let judged = decide(&store, NOW, &charge);
        let mut taken = Taken::new(old.slot.clone(), charge.key, charge.limit, 5, judged.mark.unwrap());
        taken.stamp = judged.stamp;
        store.adjust(NOW, &mut taken, 0);
        assert_eq!(new.passes(NOW, 1), 10, "{from:?} -> {to:?}");
    }
}

#[test]
fn a_reset_forgets_what_was_used_by_any_algorithm() {
    for to in all() {
        let store = MemoryStore::new();
        let old = Held::new(&store, &spec("r", &Algorithm::TokenBucket, 10));
        let new = old.reloaded(&spec("r", &to, 10));
        assert!(old.take(NOW, 1, 10) && old.take(NOW, 2, 10));
        for (reset_by, number) in [(&old, 1), (&new, 2)] {
            let forget = || assert!(matches!(store.reset(&reset_by.slot, key(&store, number)), Reply::Ready(Ok(()))));
            forget();
            assert_eq!(new.passes(NOW, number), 10, "{to:?}");
            forget();
            assert!(old.take(NOW, number, 10), "{to:?}");
            assert_eq!(new.passes(NOW, number), 0, "{to:?}");
        }
    }
}

#[test]
fn tables_of_algorithms_before_go_when_their_keys_have() {
    for (from, to) in pairs().filter(|(from, to)| from != to) {
        let store = MemoryStore::builder().max_keys(10_000).build();
        let per_second = |algorithm: &Algorithm| {
            let limit = Limit::per_second(10);
            RuleSpec::new("r", algorithm.clone(), if algorithm.delays() { limit.burst(10) } else { limit })
        };
        let old = Held::new(&store, &per_second(&from));
        for number in 0..1_000 {
            assert!(old.take(NOW, number, 1));
        }
        let new = old.reloaded(&per_second(&to));
        let table = Arc::clone(&new.slot.get::<Place>().unwrap().table);
        drop(old);
        let later = NOW.saturating_add(Nanos::from_secs(10));
        assert!(new.take(later, 5_000, 1));
        assert!(table.line().has_before());
        for number in 5_000..7_000 {
            assert!(new.take(later, number, 1));
        }
        assert!(!table.line().has_before(), "{from:?} -> {to:?}");
        assert_eq!(store.tracked_keys(), 2_000);
        // A thread that comes late finds its bucket as it was when it went.
        assert!(new.take(later.saturating_sub(Nanos::new(1)), 1, 10));
    }
}

#[test]
fn however_often_the_algorithm_changes_few_tables_are_kept_and_nothing_is_forgotten() {
    let store = MemoryStore::new();
    let mut held = Held::new(&store, &spec("r", &Algorithm::TokenBucket, 10));
    for number in 0..50 {
        assert!(held.take(NOW, number, 8));
    }
    for (turn, algorithm) in (0..40).zip(all().into_iter().cycle()) {
        held = held.reloaded(&spec("r", &algorithm, 10));
        assert_eq!(held.passes(NOW, turn), 2, "{algorithm:?}");
        let mut tables = 0;
        held.slot.get::<Place>().unwrap().table.each(&mut |_| tables += 1);
        assert!(tables <= 3, "{tables}");
    }
    assert_eq!((40..50).map(|number| held.passes(NOW, number)).sum::<usize>(), 20);
    assert_eq!(store.tracked_keys(), 50);
}

#[test]
fn limiters_that_change_to_another_algorithm_one_after_the_other_share_its_counts() {
    let store = MemoryStore::new();
    let [one, other] = [(); 2].map(|()| Held::new(&store, &spec("r", &Algorithm::TokenBucket, 10)));
    assert!(one.take(NOW, 1, 1) && other.take(NOW, 1, 1));
    let [one_new, other_new] = [&one, &other].map(|held| held.reloaded(&spec("r", &Algorithm::FixedWindow, 10)));
    assert!(one_new.take(NOW, 1, 1) && other_new.take(NOW, 1, 1) && one.take(NOW, 1, 1) && other.take(NOW, 1, 1));
    let another = one.reloaded(&spec("r", &Algorithm::SlidingWindowLog, 10));
    assert!(another.take(NOW, 1, 1) && other_new.take(NOW, 1, 1));
    assert_eq!([&one, &other, &one_new, &other_new, &another].map(|held| held.look(NOW, 1, 1).remaining), [2; 5]);
    // Built anew, it is joined by its present algorithm only.
    assert_eq!(Held::new(&store, &spec("r", &Algorithm::SlidingWindowLog, 10)).look(NOW, 1, 1).remaining, 2);
    assert!(store.bind(&spec("r", &Algorithm::FixedWindow, 10), None).is_err());
}

#[test]
fn a_rule_that_gets_keys_or_loses_them_starts_afresh() {
    let store = MemoryStore::new();
    let keyed = spec("r", &Algorithm::TokenBucket, 10);
    let held = Held::new(&store, &keyed);
    assert_eq!(held.passes(NOW, 1), 10);
    let global = held.reloaded(&keyed.clone().global());
    let charge = Charge::new(&global.slot, KeyId::NONE, global.limit, 10);
    assert!(decide(&store, NOW, &charge).verdict.outcome.passes());
}

#[test]
fn keys_without_a_place_keep_what_they_shared() {
    let store = MemoryStore::builder().max_keys(1).build();
    let old = Held::new(&store, &spec("r", &Algorithm::TokenBucket, 10));
    assert!(old.take(NOW, 0, 10) && old.take(NOW, 1, 10));
    assert_eq!(old.passes(NOW, 1), 0);
    let new = old.reloaded(&spec("r", &Algorithm::SlidingWindowLog, 10));
    assert_eq!((new.passes(NOW, 0), new.passes(NOW, 1), store.tracked_keys()), (0, 0, 1));
}

/// Threads that decide by the old and the new rules at once pass no more than the limit, and no less.
#[test]
fn threads_by_the_old_and_the_new_rules_pass_the_limit_exactly() {
    const KEYS: u64 = 16;
    for (from, to) in pairs() {
        let (store, permits) = (MemoryStore::new(), 20);
        let old = Held::new(&store, &spec("r", &from, permits));
        let second = Held::new(&store, &spec("second", &from, KEYS * permits));
        let new = old.reloaded(&spec("r", &to, permits));
        let [old_charges, new_charges] = [&old, &new].map(|held| (held, &second));
        let (passed, start) = (AtomicU64::new(0), Barrier::new(4));
        thread::scope(|scope| {
            for ((held, second), turns) in [(old_charges, 0), (new_charges, 1), (old_charges, 2), (new_charges, 3)] {
                let (passed, start, store) = (&passed, &start, &store);
                scope.spawn(move || {
                    start.wait();
                    for turn in 0..KEYS * permits {
                        let charges = [held.charge((turn * (2 * turns + 1)) % KEYS, 1), second.charge(0, 1)];
                        let mut verdicts = Verdicts::new();
                        assert!(matches!(store.decide(NOW, &charges, &mut verdicts), Reply::Ready(Ok(()))));
                        if verdicts.iter().all(|judged| judged.verdict.outcome.passes()) {
                            passed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(passed.load(Ordering::Relaxed), KEYS * permits, "{from:?} -> {to:?}");
    }
}

#[test]
fn a_clock_that_was_set_back_between_two_algorithms_mints_nothing() {
    for (from, to) in pairs() {
        let store = MemoryStore::new();
        let old = Held::new(&store, &spec("r", &from, 10));
        assert!(old.take(NOW, 1, 10));
        let new = old.reloaded(&spec("r", &to, 10));
        let before = NOW.saturating_sub(Nanos::from_secs(3_600));
        assert!(!new.take(before, 1, 1), "{from:?} -> {to:?}");
        let late = NOW.saturating_sub(Nanos::new(SECOND.get() / 2));
        let old = Held::new(&store, &spec("late", &from, 10));
        assert!(old.take(NOW, 1, 10));
        assert!(!old.reloaded(&spec("late", &to, 10)).take(late, 1, 1), "{from:?} -> {to:?}");
    }
}
