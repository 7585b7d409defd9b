//! Another limit beside the one in force.

use tollgate::{
    FailurePolicy,
    store::{Guarded, MemoryStore},
};

use super::*;

type How = fn(Rule<Ask>) -> Rule<Ask>;

const ALGORITHMS: [How; 5] = [
    |rule| rule.algorithm(TokenBucket),
    |rule| rule.algorithm(FixedWindow),
    |rule| rule.algorithm(SlidingWindowLog),
    |rule| rule.algorithm(SlidingWindowCounter),
    |rule| rule.algorithm(LeakyBucket),
];

/// What is tried says, request by request, what a limiter with that limit alone says of the requests that all but the
/// live rule let pass.
#[test]
fn a_limit_that_is_tried_agrees_with_the_same_limit_alone_on_the_same_traffic() {
    each_seed(from_env("TOLLGATE_RUNS", 60), |random| {
        let clock = ManualClock::new();
        let at = random.below(5) as usize;
        let limit = Limit::new(1 + random.below(6), Duration::from_secs(1 + random.below(3)));
        let limit = if matches!(at, 0 | 4) { limit.burst(1 + random.below(8)) } else { limit };
        let mut rules = vec![
            any_rule("live", random),
            ALGORITHMS[at](Rule::shadow_of("live", limit).named("tried")),
            any_shadow("shadow", random),
        ];
        if random.one_in(2) {
            rules.push(any_rule("other", random).when(|ask: &Ask| ask.0 > 0));
        }
        rules.rotate_left(random.below(3) as usize);
        let builder = Limiter::builder(rules).clock(clock.clone());
        let beside = match random.below(2) {
            0 => builder.build().unwrap(),
            // It remembers refusals, and has to ask again for what is tried.
            _ => builder.store(Guarded::new(MemoryStore::new(), FailurePolicy::Allow)).build().unwrap(),
        };
        let alone = limiter(vec![ALGORITHMS[at](by_client("tried", limit))], &clock);
        let mut differences = [0, 0];
        for _ in 0..300 {
            let ask = (random.below(2), random.below(4));
            let decision = beside.check_now(&ask).unwrap();
            let tried = decision.shadows().find(|shadow| shadow.rule == "tried").unwrap();
            assert_eq!((tried.live, tried.mode), (Some("live"), Mode::Shadow));
            let passes =
                |name| decision.rules().find(|rule| rule.rule == name).map(|rule| rule.verdict.outcome.passes());
            if passes("other") == Some(false) {
                assert_eq!(tried.difference(), None, "it is refused anyway");
            } else {
                let would = alone.check_now(&ask).unwrap();
                assert_eq!(tried.verdict, would.rules().next().unwrap().verdict, "{ask:?} {decision:?}");
                let difference = match (passes("live").unwrap(), would.is_allowed()) {
                    (true, false) => Some(Difference::WouldRefuse),
                    (false, true) => Some(Difference::WouldPass),
                    _ => None,
                };
                assert_eq!(tried.difference(), difference);
                differences[0] += u64::from(difference == Some(Difference::WouldRefuse));
                differences[1] += u64::from(difference == Some(Difference::WouldPass));
            }
            clock.advance(Duration::from_millis(random.below(600)));
        }
        let counted = beside.differences("tried").unwrap();
        assert_eq!([counted.would_refuse, counted.would_pass], differences);
    });
}

#[test]
fn what_is_tried_takes_key_cost_and_condition_of_the_live_rule() {
    let clock = ManualClock::new();
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counts = std::sync::Arc::clone(&asked);
    let live = Rule::new("live", Limit::per_hour(10), move |ask: &Ask| {
        counts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Some(Key::from(ask.0))
    })
    .cost(|ask: &Ask| ask.1)
    .when(|ask: &Ask| ask.0 != 9)
    .limit_for(|ask: &Ask| Limit::per_hour(10 + ask.0));
    let tried = Rule::shadow_of("live", Limit::per_hour(6));
    let tiers =
        Rule::shadow_of("live", Limit::per_hour(6)).named("tiers").limit_for(|ask: &Ask| Limit::per_hour(6 + ask.0));
    let limiter = limiter(vec![tried, tiers, live], &clock);
    let left = |ask| {
        let decision = limiter.check_now(&ask).unwrap();
        decision.shadows().map(|shadow| (shadow.cost, shadow.verdict.remaining)).collect::<Vec<_>>()
    };
    assert_eq!(left((0, 2)), [(2, 4), (2, 4)]);
    assert_eq!(left((1, 3)), [(3, 3), (3, 4)], "another key");
    assert_eq!(left((9, 1)), [], "the live rule does not apply");
    assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 2, "the key is asked for once a request");
}

#[test]
fn places_in_the_shadow_are_held_by_requests_that_run_and_freed_with_them() {
    let clock = ManualClock::new();
    let places = |name, places| Rule::new(name, Limit::in_flight(places), |ask: &Ask| Some(Key::from(ask.0)));
    let three = Rule::shadow_of("live", Limit::in_flight(3)).named("three");
    let beside = limiter(vec![places("live", 2), places("one", 1).shadow(), three], &clock);
    let reserve = || {
        let (decision, receipt) = beside.reserve_now(&(7, 1)).unwrap();
        let differs: Vec<_> = decision.shadows().map(|shadow| shadow.difference()).collect();
        (decision.is_allowed(), differs, receipt)
    };
    let left = || {
        let decision = beside.peek_now(&(7, 1)).unwrap();
        decision.shadows().map(|shadow| shadow.verdict.remaining).collect::<Vec<_>>()
    };
    let (passed, differs, first) = reserve();
    assert_eq!((passed, differs), (true, vec![None, None]));
    let (passed, differs, second) = reserve();
    assert_eq!((passed, differs), (true, vec![Some(Difference::WouldRefuse), None]));
    let (passed, differs, _none) = reserve();
    assert_eq!((passed, differs), (false, vec![None, Some(Difference::WouldPass)]));
    assert_eq!(left(), [0, 1], "one that is refused does not run");
    drop((first, second));
    assert_eq!(left(), [1, 3]);
    // Who asks for no receipt is only looked at.
    let shadows = limiter(vec![places("one", 1).shadow()], &clock);
    for _ in 0..3 {
        assert_eq!(shadows.check_now(&(7, 1)).unwrap().shadows().filter(|shadow| shadow.would_refuse()).count(), 0);
    }
}
