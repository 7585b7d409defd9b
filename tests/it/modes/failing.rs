//! A store that fails: only rules that enforce have a say in what happens then.

use tollgate::{
    FailurePolicy,
    charge::Share,
    decision::Source,
    store::{Guarded, MemoryStore},
};

use super::*;
use crate::support::Down;

fn over_down(rules: Vec<Rule<Ask>>, clock: &ManualClock) -> Limiter<Ask> {
    Limiter::builder(rules).clock(clock.clone()).store(Down::new(true)).build().unwrap()
}

#[test]
fn where_only_shadows_apply_a_store_that_fails_is_no_error() {
    let clock = ManualClock::new();
    let refuses = by_client("refuses", Limit::per_second(1)).on_store_failure(FailurePolicy::Refuse);
    let limiter =
        over_down(vec![refuses.shadow(), by_client("live", Limit::per_second(1)).when(|ask| ask.0 > 0)], &clock);
    let decision = limiter.check_now(&(0, 1)).unwrap();
    assert!(decision.is_allowed() && !decision.is_degraded(), "{decision:?}");
    let shadow = decision.shadows().next().unwrap();
    assert_eq!((shadow.verdict.source, shadow.would_refuse(), shadow.difference()), (Source::Policy, false, None));
    assert!(limiter.check_now(&(1, 1)).is_err(), "a rule that enforces applies");
    assert_eq!(limiter.differences("refuses").unwrap(), tollgate::decision::Differences::default());
}

#[test]
fn only_the_policies_of_rules_that_enforce_are_asked() {
    let clock = ManualClock::new();
    for (live, allowed) in [(FailurePolicy::Allow, true), (FailurePolicy::Refuse, false)] {
        for shadow in [FailurePolicy::Allow, FailurePolicy::Refuse, FailurePolicy::Fallback(Share::WHOLE)] {
            let rules = vec![
                by_client("shadow", Limit::per_second(1)).on_store_failure(shadow).shadow(),
                by_client("live", Limit::per_second(1)).on_store_failure(live),
            ];
            let store = Guarded::new(Down::new(true), FailurePolicy::Refuse);
            let limiter = Limiter::builder(rules).clock(clock.clone()).store(store).build().unwrap();
            for _ in 0..3 {
                let decision = limiter.check_now(&(7, 1)).unwrap();
                assert_eq!(decision.is_allowed(), allowed, "{live:?} beside {shadow:?}");
                assert!(decision.is_degraded());
            }
        }
    }
}

/// The rules that this process's memory judges are not all: what is tried still stands in its own live rule's place.
#[test]
fn a_fallback_tries_a_limit_in_the_place_of_the_live_one() {
    let clock = ManualClock::new();
    let falls_back = FailurePolicy::Fallback(Share::WHOLE);
    let rules = vec![
        by_client("open", Limit::per_hour(1)).on_store_failure(FailurePolicy::Allow),
        by_client("other", Limit::per_hour(4)).on_store_failure(falls_back),
        by_client("live", Limit::per_hour(2)).on_store_failure(falls_back),
        Rule::shadow_of("live", Limit::per_hour(3)).named("three"),
        Rule::shadow_of("open", Limit::per_hour(3)),
        Rule::shadow_of("other", Limit::per_hour(9)),
    ];
    let store = Guarded::new(Down::new(true), FailurePolicy::Refuse);
    let limiter = Limiter::builder(rules).clock(clock.clone()).store(store).build().unwrap();
    let three = || {
        let decision = limiter.check_now(&(7, 1)).unwrap();
        let three = decision.shadows().find(|shadow| shadow.rule == "three").unwrap();
        assert_eq!(three.verdict.source, Source::Fallback);
        (decision.is_allowed(), three.would_refuse(), three.difference())
    };
    let would_pass = Some(Difference::WouldPass);
    assert_eq!(
        [three(), three(), three(), three()],
        [(true, false, None), (true, false, None), (false, false, would_pass), (false, true, None),]
    );
}

#[test]
fn a_shadow_whose_table_is_full_refuses_nobody() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().max_keys(1).overflow(tollgate::store::Overflow::Refuse).build();
    let rules = vec![
        Rule::global("live", Limit::per_hour(9)),
        Rule::new("tried", Limit::per_hour(9), |ask: &Ask| Some(Key::from(ask.0))).shadow(),
    ];
    let limiter = Limiter::builder(rules).clock(clock.clone()).store(store).build().unwrap();
    for client in 0..9 {
        let decision = limiter.check_now(&(client, 1)).unwrap();
        assert!(decision.is_allowed(), "{decision:?}");
        assert_eq!(decision.shadows().next().unwrap().would_refuse(), client > 0);
        assert_eq!(decision.tightest().unwrap().verdict.remaining, 8 - client);
    }
}
