//! Rules that do not enforce: they touch nothing, and say what they would have done.

mod failing;
mod http;
mod trying;

use std::time::Duration;

use tollgate::{
    Decision, Key, Limit, Limiter, MissingKey, Mode, Rule,
    bucket::{FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket},
    decision::{Difference, Outcome, Wait},
    time::ManualClock,
};

use crate::{
    random::{Random, each_seed, from_env},
    support::{limiter, logged},
};

/// A request: who asks, and for how much.
type Ask = (u64, u64);

fn by_client(name: &'static str, limit: Limit) -> Rule<Ask> {
    Rule::new(name, limit, |ask: &Ask| Some(Key::from(ask.0))).cost(|ask: &Ask| ask.1)
}

/// A rule of any algorithm, with a small limit.
fn any_rule(name: &'static str, random: &mut Random) -> Rule<Ask> {
    let limit = Limit::new(1 + random.below(6), Duration::from_secs(1 + random.below(3)));
    let burst = limit.burst(1 + random.below(8));
    match random.below(6) {
        0 => by_client(name, limit).algorithm(FixedWindow),
        1 => by_client(name, limit).algorithm(SlidingWindowLog),
        2 => by_client(name, limit).algorithm(SlidingWindowCounter),
        3 => by_client(name, burst).algorithm(LeakyBucket),
        4 => by_client(name, burst).wait_up_to(Duration::from_secs(1)),
        _ => by_client(name, burst),
    }
}

/// A rule that does not enforce, and has all the ways to refuse, to be held, or not to apply.
fn any_shadow(name: &'static str, random: &mut Random) -> Rule<Ask> {
    let rule = any_rule(name, random);
    let rule = match random.below(6) {
        0 => Rule::new(name, Limit::per_second(3), |ask: &Ask| (ask.0 > 1).then(|| Key::from(ask.0)))
            .on_missing_key(MissingKey::Refuse(http_status(401))),
        1 => Rule::new(name, Limit::per_second(3), |_: &Ask| Some(Key::unavailable("it is not there"))),
        2 => rule.limit_for(|ask: &Ask| if ask.1 == 2 { Limit::per_second(0) } else { Limit::per_second(2).burst(2) }),
        3 => Rule::global(name, Limit::per_second(2)).overload(),
        _ => rule,
    };
    if random.one_in(2) { rule.shadow() } else { rule.warn() }
}

fn http_status(code: u16) -> ::http::StatusCode {
    ::http::StatusCode::from_u16(code).unwrap()
}

/// All that a decision says, but for rules that do not enforce.
fn said(decision: &Decision) -> String {
    let rules: Vec<_> = decision.rules().collect();
    let violated: Vec<_> = decision.violated().collect();
    format!(
        "{:?} {} {:?} {:?} {:?} {} {:?} {rules:?} {violated:?} {}",
        decision.refusal(),
        decision.status(),
        decision.delay(),
        decision.wait(),
        decision.retry_after_secs(),
        decision.is_degraded(),
        decision.tightest(),
        decision.is_allowed(),
    )
}

#[test]
fn a_rule_that_does_not_enforce_changes_nothing_that_a_decision_says_of_others() {
    each_seed(from_env("TOLLGATE_RUNS", 30), |random| {
        let clock = ManualClock::new();
        let live: Vec<_> = ["one", "two"].map(|name| any_rule(name, random)).into();
        let mut beside = live.clone();
        for name in ["shadow-a", "shadow-b", "shadow-c"] {
            beside.insert(random.up_to(beside.len() as u64) as usize, any_shadow(name, random));
        }
        beside.push(Rule::shadow_of("one", Limit::per_second(2).burst(3)).algorithm(TokenBucket));
        let (live, beside) = (limiter(live, &clock), limiter(beside, &clock));
        for _ in 0..200 {
            let ask = (random.below(3), random.below(4));
            let answers = [&live, &beside].map(|limiter| match ask.0 + ask.1 {
                0 => limiter.peek_now(&ask).unwrap(),
                5 => {
                    let (decision, receipt) = limiter.reserve_now(&ask).unwrap();
                    receipt.settle(1);
                    decision
                }
                _ => limiter.check_now(&ask).unwrap(),
            });
            assert_eq!(said(&answers[0]), said(&answers[1]), "{ask:?}: {:?}", answers[1]);
            assert_eq!(answers[0].shadows().count(), 0);
            clock.advance(Duration::from_millis(random.below(600)));
        }
    });
}

/// A shadow is charged as if it enforced beside the others: so it says what it would say alone, had it been asked only
/// what the others let pass.
#[test]
fn a_shadow_says_what_the_rule_says_alone_of_what_the_others_let_pass() {
    each_seed(from_env("TOLLGATE_RUNS", 30), |random| {
        let clock = ManualClock::new();
        let (live, tried) = (any_rule("live", random), any_rule("tried", random));
        let alone = limiter(vec![tried.clone()], &clock);
        let beside = limiter(vec![tried.shadow(), live], &clock);
        for _ in 0..300 {
            let ask = (random.below(2), random.below(4));
            let decision = beside.check_now(&ask).unwrap();
            let shadow = decision.shadows().next().unwrap();
            assert_eq!((shadow.rule, shadow.mode, shadow.live), ("tried", Mode::Shadow, None));
            if decision.is_allowed() {
                let would = alone.check_now(&ask).unwrap();
                let verdict = would.rules().next().unwrap().verdict;
                assert_eq!(shadow.verdict, verdict, "{ask:?}");
                let differs = (!would.is_allowed()).then_some(Difference::WouldRefuse);
                assert_eq!(shadow.difference(), differs);
            } else {
                assert_eq!(shadow.difference(), None, "it is refused anyway");
            }
            clock.advance(Duration::from_millis(random.below(600)));
        }
    });
}

#[test]
fn a_shadow_that_would_delay_holds_nobody() {
    let clock = ManualClock::new();
    let queue = || by_client("queue", Limit::per_second(1).burst(3)).algorithm(LeakyBucket);
    let held = |decision: Decision| (decision.is_allowed(), decision.delay());
    let enforced = limiter(vec![queue()], &clock);
    let beside = limiter(vec![queue().shadow()], &clock);
    let (mut delays, mut waiting) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        // A look says how long somebody would be held who may be.
        let looked = beside.peek_now(&(7, 1)).unwrap();
        delays.push(looked.shadows().next().unwrap().verdict.outcome);
        assert_eq!(held(looked), (true, Duration::ZERO));
        let mut acquiring = tokio_test::task::spawn(beside.acquire(&(7, 1)));
        let decision = tokio_test::assert_ready!(acquiring.poll()).unwrap();
        assert_eq!(held(decision), (true, Duration::ZERO));
        let mut waits = tokio_test::task::spawn(enforced.acquire(&(7, 1)));
        let waits_for_turn = waits.poll().is_pending();
        assert_eq!(waits_for_turn, matches!(delays.last(), Some(Outcome::Delay(_))), "the same rule, enforced");
        waiting.push(waits);
    }
    let delay = |secs| Outcome::Delay(tollgate::time::Nanos::from_secs(secs));
    let full = Outcome::Refuse(Wait::For(tollgate::time::Nanos::from_secs(1)));
    assert_eq!(delays, [Outcome::Pass, delay(1), delay(2), full]);
}

/// Requests that were given back, or settled, are so in the shadow too.
#[test]
fn a_receipt_gives_back_what_shadows_were_charged() {
    let clock = ManualClock::new();
    let rule = |name| by_client(name, Limit::per_hour(10));
    let limiter =
        limiter(vec![rule("live"), rule("tried").shadow(), Rule::shadow_of("live", Limit::per_hour(8))], &clock);
    let used = || {
        let decision = limiter.peek_now(&(7, 0)).unwrap();
        let live = decision.tightest().unwrap().verdict.remaining;
        let mut left: Vec<_> = decision.shadows().map(|shadow| shadow.verdict.remaining).collect();
        left.insert(0, live);
        left
    };
    let reserve = || limiter.reserve_now(&(7, 3)).unwrap().1;
    assert_eq!(used(), [10, 10, 8]);
    let receipt = reserve();
    assert_eq!(used(), [7, 7, 5]);
    receipt.give_back();
    assert_eq!(used(), [10, 10, 8]);
    reserve().settle(1);
    assert_eq!(used(), [9, 9, 7]);
    let mut receipt = reserve();
    assert!(receipt.settle_rule("live", 2), "what is tried in its place is settled with it");
    assert_eq!(used(), [7, 6, 5]);
    assert!(receipt.settle_rule("tried", 1));
    assert_eq!(used(), [7, 8, 5]);
    receipt.keep();
    let key = Key::from(7_u64);
    let mut reset = tokio_test::task::spawn(limiter.reset("live", key));
    tokio_test::assert_ready!(reset.poll()).unwrap();
    assert_eq!(used(), [10, 8, 8], "what is tried in its place forgets with it");
}

#[test]
fn what_a_shadow_would_have_done_is_counted_logged_and_told_to_the_hook() {
    let clock = ManualClock::new();
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let hears = std::sync::Arc::clone(&told);
    let rules = [
        by_client("live", Limit::per_hour(4)),
        by_client("tried", Limit::per_hour(3)).shadow(),
        by_client("warns", Limit::per_hour(9)).warn(),
        Rule::shadow_of("live", Limit::per_hour(2)).named("two"),
        Rule::shadow_of("live", Limit::per_hour(5)).named("five"),
    ];
    let limiter = Limiter::builder(rules)
        .clock(clock.clone())
        .on_decision(move |_, decision: &Decision| {
            let differs = decision.shadows().filter_map(|shadow| Some((shadow.rule.to_owned(), shadow.difference()?)));
            hears.lock().unwrap().push((decision.is_allowed(), differs.collect::<Vec<_>>()));
        })
        .build()
        .unwrap();
    // What is logged for the first time while a subscriber is set up may be missed by it.
    for _ in 0..6 {
        let _ = limiter.check_now(&(8, 1)).unwrap();
    }
    told.lock().unwrap().clear();
    let lines = logged(tracing::Level::DEBUG, || {
        for _ in 0..6 {
            let _ = limiter.check_now(&(7, 1)).unwrap();
            let _ = limiter.peek_now(&(7, 1)).unwrap();
        }
    });
    let would_refuse = |name: &str| (name.to_owned(), Difference::WouldRefuse);
    let five = ("five".to_owned(), Difference::WouldPass);
    let expected = [
        (true, vec![]),
        (true, vec![]),
        (true, vec![would_refuse("two")]),
        (true, vec![would_refuse("tried"), would_refuse("two")]),
        (false, vec![five]),
        (false, vec![]),
    ];
    assert_eq!(*told.lock().unwrap(), expected, "and a look tells nobody");
    let counts = |name| {
        let counted = limiter.differences(name).unwrap();
        [counted.both_pass, counted.both_refuse, counted.would_refuse, counted.would_pass]
    };
    // Of two clients.
    assert_eq!(counts("tried"), [2 * 3, 0, 2, 0]);
    assert_eq!(counts("warns"), [2 * 4, 0, 0, 0]);
    assert_eq!(counts("two"), [2 * 2, 2 * 2, 2 * 2, 0]);
    assert_eq!(counts("five"), [2 * 4, 2, 0, 2]);
    assert!(limiter.differences("live").is_none(), "it enforces");
    assert!(limiter.differences("nobody").is_none());
    let with = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(with("would refuse"), 3, "{lines:#?}");
    assert_eq!(with("would pass"), 1, "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("would refuse") && line.contains("rule=\"tried\"")), "{lines:#?}");
}
