use super::*;
use crate::{
    charge::Slot,
    key::{Key, Secret},
};

const LIMIT: Limit = Limit::per_minute(10);

struct Rig {
    refusals: Refusals,
    slot: Slot,
    secret: Secret,
}

impl Rig {
    fn of(size: usize) -> Self {
        Self { refusals: Refusals::new(size, Nanos::MAX), slot: Slot::new(()), secret: Secret::random() }
    }

    fn charge(&self, who: u64) -> Charge<'_> {
        Charge::new(&self.slot, Key::from(who).id(&self.secret), LIMIT, 2)
    }

    /// The store refuses `charge` at `now` for ten seconds.
    fn is_told(&self, now: Nanos, charge: &Charge<'_>) {
        let refused = Outcome::Refuse(Wait::For(Nanos::from_secs(10)));
        let mut verdicts = Verdicts::new();
        let Recall::Ask(seen) = self.refusals.recall(now, &[(charge, Some(1))], &mut verdicts) else { return };
        verdicts.push(Judged::new(Verdict::new(refused, 10, 0, None), None));
        self.refusals.remember(now, &[(charge, Some(1))], &verdicts, &seen);
    }

    fn refuses(&self, now: Nanos, charges: &[Numbered<'_>]) -> bool {
        matches!(self.refusals.recall(now, charges, &mut Verdicts::new()), Recall::Refused)
    }
}

#[test]
fn refuses_only_what_is_as_much_of_the_same() {
    let (rig, start) = (Rig::of(100), Nanos::from_secs(100));
    let told = rig.charge(7);
    rig.is_told(start, &told);
    const ROWS: usize = 12;
    let rows: [(&str, Charge<'_>, bool); ROWS] = [
        ("the same", told, true),
        ("more", Charge { cost: 3, ..told }, true),
        ("less", Charge { cost: 1, ..told }, false),
        ("less, but so much must be left", Charge { cost: 1, keep: 1, ..told }, true),
        ("nothing, however much must be left", Charge { cost: 0, keep: 9, ..told }, false),
        ("one that may wait", Charge { max_delay: Nanos::new(1), ..told }, false),
        ("one that has no vote", Charge { votes: false, ..told }, false),
        ("one that is taken in any case", Charge { take: Take::Always, ..told }, false),
        ("one that only looks", Charge { take: Take::Never, ..told }, false),
        ("another key", rig.charge(8), false),
        (
            "one that only looks, under another limit",
            Charge { take: Take::Never, limit: LIMIT.burst(3), ..told },
            false,
        ),
        ("the same again", told, true),
    ];
    assert_eq!(rows.len(), ROWS);
    for (what, charge, refused) in &rows {
        assert_eq!(rig.refuses(start, &[(charge, Some(1))]), *refused, "{what}");
    }
    assert!(!rig.refuses(start, &[(&told, Some(2))]), "another rule");
    assert!(!rig.refuses(start, &[(&told, None)]), "a rule whose refusals say nothing");
    // Another limit is about to change the bucket, so nothing holds after it.
    assert!(!rig.refuses(start, &[(&Charge { limit: LIMIT.burst(3), ..told }, Some(1))]));
    assert!(!rig.refuses(start, &[(&told, Some(1))]));
}

#[test]
fn a_request_that_charges_in_any_case_reaches_the_store() {
    let (rig, start) = (Rig::of(100), Nanos::from_secs(100));
    let (told, other) = (rig.charge(7), rig.charge(8));
    rig.is_told(start, &told);
    let penalty = Charge { take: Take::Always, votes: false, ..other };
    assert!(rig.refuses(start, &[(&other, Some(2)), (&told, Some(1))]));
    assert!(!rig.refuses(start, &[(&penalty, Some(2)), (&told, Some(1))]));
    assert!(!rig.refuses(start, &[(&told, Some(1)), (&penalty, Some(2))]));
}

#[test]
fn a_request_that_tries_a_limit_in_the_place_of_the_refusing_one_reaches_the_store() {
    let (rig, start) = (Rig::of(100), Nanos::from_secs(100));
    let (told, passing) = (rig.charge(7), rig.charge(8));
    rig.is_told(start, &told);
    let tried = |at| Charge { votes: false, in_place_of: Some(at), ..rig.charge(9) };
    let beside = |other: &Charge<'_>, at| rig.refuses(start, &[(&told, Some(1)), (other, None), (&tried(at), Some(3))]);
    assert!(!beside(&passing, 0), "it would be charged");
    assert!(beside(&passing, 1), "it would not: another one is refused");
    let also = rig.charge(10);
    rig.is_told(start, &also);
    assert!(
        rig.refuses(start, &[(&told, Some(1)), (&also, Some(1)), (&tried(0), Some(3))]),
        "it would not: so is another"
    );
}

#[test]
fn remembers_nothing_of_charges_that_are_not_plain() {
    let (rig, start) = (Rig::of(100), Nanos::from_secs(100));
    let told = rig.charge(7);
    for charge in [
        Charge { votes: false, ..told },
        Charge { take: Take::Always, ..told },
        Charge { take: Take::Never, ..told },
        Charge { cost: 0, ..told },
    ] {
        rig.is_told(start, &charge);
        assert_eq!(rig.refusals.len(), 0, "{charge:?}");
    }
    for outcome in [Outcome::Pass, Outcome::Refuse(Wait::Never), Outcome::Refuse(Wait::Unknown)] {
        let mut verdicts = Verdicts::new();
        verdicts.push(Judged::new(Verdict::new(outcome, 10, 0, None), None));
        rig.refusals.remember(start, &[(&told, Some(1))], &verdicts, &[0]);
        assert_eq!(rig.refusals.len(), 0, "{outcome:?}");
    }
    // A key without a place of its own may get one.
    let mut verdict = Verdict::new(Outcome::Refuse(Wait::For(Nanos::SECOND)), 10, 0, None);
    verdict.untracked = true;
    let mut verdicts = Verdicts::new();
    verdicts.push(Judged::new(verdict, None));
    rig.refusals.remember(start, &[(&told, Some(1))], &verdicts, &[0]);
    assert_eq!(rig.refusals.len(), 0);
}

#[test]
fn holds_from_when_it_was_noted_until_its_end() {
    let rig = Rig::of(100);
    let (told, noted) = (rig.charge(7), Nanos::from_secs(100));
    rig.is_told(noted, &told);
    for (now, refused) in [(99_999_999_999, false), (100_000_000_000, true), (109_999_999_999, true)] {
        assert_eq!(rig.refuses(Nanos::new(now), &[(&told, Some(1))]), refused, "{now}");
    }
    assert!(!rig.refuses(Nanos::from_secs(110), &[(&told, Some(1))]));
    assert_eq!(rig.refusals.len(), 0, "what is over is dropped when it is found");
}

#[test]
fn what_was_asked_before_something_was_forgotten_is_not_remembered() {
    let (rig, now) = (Rig::of(100), Nanos::from_secs(100));
    let told = rig.charge(7);
    let refused = Outcome::Refuse(Wait::For(Nanos::from_secs(10)));
    for forget in [
        &(|| rig.refusals.forget(1, told.key)) as &dyn Fn(),
        &|| rig.refusals.clear(),
        &|| assert!(!rig.refuses(now, &[(&told, Some(1))])), // nothing is forgotten
    ] {
        let mut verdicts = Verdicts::new();
        let Recall::Ask(seen) = rig.refusals.recall(now, &[(&told, Some(1))], &mut verdicts) else {
            panic!("nothing is remembered yet");
        };
        forget();
        verdicts.push(Judged::new(Verdict::new(refused, 10, 0, None), None));
        rig.refusals.remember(now, &[(&told, Some(1))], &verdicts, &seen);
    }
    assert_eq!(rig.refusals.len(), 1);
}

#[test]
fn what_is_refused_while_something_comes_back_is_remembered_until_that_has_arrived() {
    let (rig, now) = (Rig::of(100), Nanos::from_secs(100));
    let told = rig.charge(7);
    let after = |millis: u64| now.saturating_add(Nanos::new(millis * 1_000_000));
    rig.refusals.comes_back(now, 1, told.key);
    for (asked, until, still) in [(0, 1_000, false), (999, 1_000, false), (1_000, 10_999, true)] {
        rig.is_told(after(asked), &told);
        assert!(rig.refuses(after(asked), &[(&told, Some(1))]), "{asked}");
        assert_eq!(rig.refuses(after(until), &[(&told, Some(1))]), still, "{asked}");
    }
}

#[test]
fn a_clock_that_was_set_back_brings_no_refusal_back_when_its_time_comes_again() {
    let rig = Rig::of(100);
    let (told, noted) = (rig.charge(7), Nanos::from_secs(100));
    rig.is_told(noted, &told);
    // A thread that comes late changes nothing.
    assert!(!rig.refuses(Nanos::new(99_000_000_001), &[(&told, Some(1))]));
    assert!(rig.refuses(noted, &[(&told, Some(1))]));
    assert!(!rig.refuses(Nanos::from_secs(99), &[(&told, Some(1))]));
    assert!(!rig.refuses(noted, &[(&told, Some(1))]));
}

#[test]
fn never_holds_more_than_it_may() {
    for size in [0, 1, 2, 3, 63, 64, 127, 128, 1_000] {
        let rig = Rig::of(size);
        for who in 0..3_000 {
            rig.is_told(Nanos::SECOND, &rig.charge(who));
            assert!(rig.refusals.len() <= size);
        }
        assert!(rig.refusals.len() >= size / 4, "{} of {size}", rig.refusals.len());
    }
}

#[test]
fn what_was_told_with_a_refusal_is_told_again_less_the_time_that_went_by() {
    let (rig, start) = (Rig::of(100), Nanos::from_secs(100));
    let told = rig.charge(7);
    let refused = Outcome::Refuse(Wait::For(Nanos::from_secs(6)));
    let both = Verdict::new(refused, 10, 0, Some(Nanos::from_secs(54))).within(Nanos::from_secs(6));
    for (verdict, reset, window) in [(both, Some(53), Some(5)), (Verdict::new(refused, 10, 0, None), None, None)] {
        let Recall::Ask(seen) = rig.refusals.recall(start, &[(&told, Some(1))], &mut Verdicts::new()) else { panic!() };
        let mut verdicts = Verdicts::new();
        verdicts.push(Judged::new(verdict, None));
        rig.refusals.remember(start, &[(&told, Some(1))], &verdicts, &seen);
        let (later, mut again) = (start.saturating_add(Nanos::SECOND), Verdicts::new());
        assert!(matches!(rig.refusals.recall(later, &[(&told, Some(1))], &mut again), Recall::Refused));
        let again = again.iter().next().unwrap().verdict;
        assert_eq!(again.outcome, Outcome::Refuse(Wait::For(Nanos::from_secs(5))));
        assert_eq!((again.reset, again.effective_window), (reset.map(Nanos::from_secs), window.map(Nanos::from_secs)));
        rig.refusals.forget(1, told.key);
    }
}
