//! The memory of refusals: who keeps on does not reach the store, and nobody is refused for what is over.

use std::sync::atomic::AtomicBool;

use tollgate::{
    bucket,
    decision::{Source, Wait},
};

use super::*;

fn rig(limit: Limit) -> Rig {
    Rig::new(Mode::Up, FailurePolicy::Refuse, [rule("r", limit)])
}

fn is_remembered(decision: &Decision) -> bool {
    !decision.is_allowed() && decision.rules().any(|rule| rule.verdict.source == Source::Remembered)
}

#[tokio::test(start_paused = true)]
async fn a_flood_on_one_key_does_not_reach_the_store() {
    let rig = rig(Limit::per_minute(60));
    let (mut passed, mut last_wait) = (0, Duration::ZERO);
    for nth in 0..100_000_u32 {
        let decision = rig.check(call(7)).await;
        passed += u32::from(decision.is_allowed());
        if is_remembered(&decision) {
            assert!(!decision.is_degraded());
            assert_eq!(decision.violated().collect::<Vec<_>>(), ["r"]);
            last_wait = decision.retry_after().unwrap();
            assert!(Duration::ZERO < last_wait && last_wait <= Duration::from_secs(1));
        }
        if nth % 100 == 0 {
            rig.clock.advance(Duration::from_millis(10));
        }
    }
    assert!(last_wait > Duration::ZERO);
    // 60 at once and one for each of the ten seconds; the store saw each of them, and the first refusal after it.
    assert!((69..=70).contains(&passed), "{passed}");
    assert!(rig.store.asked() <= 141, "{}", rig.store.asked());
    assert_eq!(rig.guarded.counts().remembered, 100_000 - rig.store.asked() as u64);
}

#[tokio::test(start_paused = true)]
async fn a_remembered_wait_is_the_time_that_is_left_and_ends_when_it_ends() {
    for algorithm in 0..4 {
        let limit = Limit::per_minute(2);
        let rule = match algorithm {
            0 => rule("r", limit),
            1 => rule("r", limit).algorithm(bucket::FixedWindow),
            2 => rule("r", limit).algorithm(bucket::SlidingWindowLog),
            _ => rule("r", limit).algorithm(bucket::SlidingWindowCounter),
        };
        let rig = Rig::new(Mode::Up, FailurePolicy::Refuse, [rule]);
        assert_eq!(rig.passes(7, 2).await, 2);
        let told = rig.check(call(7)).await;
        assert!(!is_remembered(&told));
        let wait = told.retry_after().unwrap();
        rig.clock.advance(wait / 4);
        let again = rig.check(call(7)).await;
        assert!(is_remembered(&again), "{algorithm}");
        assert_eq!(again.retry_after().unwrap(), wait - wait / 4);
        let (one, other) = (told.tightest().unwrap().verdict, again.tightest().unwrap().verdict);
        assert_eq!((one.limit, one.remaining), (other.limit, other.remaining));
        assert_eq!(other.reset.unwrap().as_duration(), one.reset.unwrap().as_duration() - wait / 4);
        rig.clock.advance(wait - wait / 4 - Duration::from_nanos(1));
        assert!(is_remembered(&rig.check(call(7)).await));
        rig.clock.advance(Duration::from_nanos(1));
        assert!(rig.check(call(7)).await.is_allowed(), "{algorithm}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_less_asks_the_store_and_who_asks_for_more_does_not() {
    let rig = rig(Limit::per_minute(10));
    assert!(rig.check(Call { who: 7, cost: 6 }).await.is_allowed());
    assert!(!rig.check(Call { who: 7, cost: 5 }).await.is_allowed());
    let asked = rig.store.asked();
    for cost in [5, 6, 10, 11, u64::MAX] {
        let decision = rig.check(Call { who: 7, cost }).await;
        assert!(is_remembered(&decision), "{cost}");
        assert_eq!(decision.retry_after(), Some(Duration::from_secs(6)), "a lower bound");
    }
    assert_eq!(rig.store.asked(), asked);
    assert!(rig.check(Call { who: 7, cost: 4 }).await.is_allowed());
    assert!(rig.check(Call { who: 7, cost: 0 }).await.is_allowed());
    // What was refused later, for less, holds for more.
    assert!(!is_remembered(&rig.check(call(7)).await));
    assert!(is_remembered(&rig.check(Call { who: 7, cost: 2 }).await));
    // Others are others.
    assert!(rig.check(Call { who: 8, cost: 6 }).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn what_comes_back_is_noticed_at_once() {
    let rig = rig(Limit::per_day(3));
    for change in 0..3 {
        let (_, receipt) = rig.limiter.reserve(&Call { who: 7, cost: 3 }).await.unwrap();
        assert!(!rig.check(call(7)).await.is_allowed());
        assert!(is_remembered(&rig.check(call(7)).await));
        match change {
            0 => receipt.give_back(),
            1 => receipt.settle(2),
            _ => rig.limiter.reset("r", Key::from(7_u64)).await.unwrap(),
        }
        assert!(rig.check(call(7)).await.is_allowed(), "{change}");
        rig.limiter.reset("r", Key::from(7_u64)).await.unwrap();
    }
    // A charge that is settled to more opens nothing.
    let (_, receipt) = rig.limiter.reserve(&Call { who: 7, cost: 3 }).await.unwrap();
    assert!(!rig.check(call(7)).await.is_allowed());
    receipt.settle(4);
    assert!(is_remembered(&rig.check(call(7)).await));
}

#[tokio::test(start_paused = true)]
async fn what_comes_back_a_moment_later_is_noticed_within_a_second() {
    let rig = rig(Limit::per_day(3));
    for back in [0, 2] {
        rig.store.turn(Mode::GivesBackLater);
        let (_, receipt) = rig.limiter.reserve(&Call { who: 7, cost: 3 }).await.unwrap();
        receipt.settle(back);
        // It is on its way still.
        assert!(!rig.check(call(7)).await.is_allowed());
        assert!(is_remembered(&rig.check(call(7)).await), "a flood does not reach the store meanwhile");
        rig.store.turn(Mode::Up);
        rig.clock.advance(Duration::from_secs(1));
        assert!(rig.check(call(7)).await.is_allowed(), "{back}");
        rig.limiter.reset("r", Key::from(7_u64)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn rules_put_together_anew_and_a_store_that_comes_back_begin_without_it() {
    let rig = rig(Limit::per_day(1));
    let other = || {
        let builder = Limiter::builder([rule("r", Limit::per_day(1))]).store(rig.guarded.clone());
        builder.clock(rig.clock.clone()).build().unwrap()
    };
    assert_eq!(rig.passes(7, 3).await, 1);
    assert_eq!(rig.store.asked(), 2);
    let limiter = other();
    assert!(!is_remembered(&limiter.check(&call(7)).await.unwrap()));
    assert_eq!(rig.store.asked(), 3);
    // What one limiter learns, the other on the same guard knows.
    assert!(is_remembered(&rig.check(call(7)).await));
    // It holds while the store is down, and is forgotten when it is back, maybe empty.
    rig.break_down().await;
    let decision = rig.check(call(7)).await;
    assert!(is_remembered(&decision) && !decision.is_degraded());
    rig.recover().await;
    assert_eq!(rig.guarded.remembered_refusals(), 0);
    assert!(!is_remembered(&rig.check(call(7)).await));
}

#[tokio::test(start_paused = true)]
async fn a_remembered_rule_refuses_for_all_and_nobody_is_charged() {
    let rules = [rule("a", Limit::per_day(9)), rule("b", Limit::per_day(2)), rule("c", Limit::per_day(9))];
    let rig = Rig::new(Mode::Up, FailurePolicy::Refuse, rules);
    assert_eq!(rig.passes(7, 20).await, 2);
    assert_eq!(rig.store.asked(), 3);
    let decision = rig.check(call(7)).await;
    assert_eq!(decision.violated().collect::<Vec<_>>(), ["b"]);
    assert_eq!(decision.tightest().unwrap().rule, "b");
    let sources: Vec<_> = decision.rules().map(|rule| rule.verdict.source).collect();
    assert_eq!(sources, [Source::Unasked, Source::Remembered, Source::Unasked]);
    rig.limiter.reset("b", Key::from(7_u64)).await.unwrap();
    let left: Vec<_> = rig.limiter.peek(&call(7)).await.unwrap().rules().map(|rule| rule.verdict.remaining).collect();
    assert_eq!(left, [7, 2, 7]);
}

#[tokio::test(start_paused = true)]
async fn who_only_looks_asks_the_store() {
    let rig = rig(Limit::per_day(1));
    assert_eq!(rig.passes(7, 3).await, 1);
    let asked = rig.store.asked();
    for _ in 0..5 {
        let peek = rig.limiter.peek(&call(7)).await.unwrap();
        assert!(!peek.is_allowed() && !is_remembered(&peek));
    }
    assert_eq!(rig.store.asked(), asked + 5);
    assert!(is_remembered(&rig.check(call(7)).await));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_nobody_knows_is_not_remembered() {
    let rig = rig(Limit::per_day(2));
    for _ in 0..3 {
        let never = rig.check(Call { who: 7, cost: 3 }).await;
        assert_eq!(never.wait(), Some(Wait::Never));
        assert!(!is_remembered(&never));
    }
    assert_eq!((rig.store.asked(), rig.guarded.remembered_refusals()), (3, 0));
    // Nor is what was decided without the store.
    rig.store.turn(Mode::FailsLater);
    for _ in 0..3 {
        assert!(!rig.check(call(7)).await.is_allowed());
    }
    assert_eq!(rig.guarded.remembered_refusals(), 0);
    rig.store.turn(Mode::Up);
    assert!(rig.check(call(7)).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn another_limit_or_a_longer_wait_is_another_question() {
    let tiers = Rule::new("r", Limit::per_day(1), |_: &Call| Some(Key::from(7_u64)))
        .limit_for(|call| Limit::per_day(if call.who == 1 { 1 } else { 5 }));
    let rig = Rig::new(Mode::Up, FailurePolicy::Refuse, [tiers]);
    assert_eq!(rig.passes(1, 5).await, 1);
    assert!(is_remembered(&rig.check(call(1)).await));
    assert_eq!(rig.passes(2, 3).await, 3);
    assert!(!is_remembered(&rig.check(call(1)).await), "its bucket has changed since");

    let waits = rule("w", Limit::per_minute(1)).wait_up_to(Duration::from_secs(3_600));
    let rig = Rig::new(Mode::Up, FailurePolicy::Refuse, [waits]);
    assert_eq!(rig.passes(7, 3).await, 1);
    assert!(is_remembered(&rig.check(call(7)).await));
    let mut waiting = tokio_test::task::spawn(rig.limiter.acquire(&Call { who: 7, cost: 1 }));
    assert!(waiting.poll().is_pending());
    sleep(Duration::from_millis(2)).await;
    assert!(waiting.poll().is_pending(), "reserved, and held until its turn");
    drop(waiting);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_was_set_back_makes_nobody_wait_longer() {
    let rig = rig(Limit::per_minute(1));
    assert_eq!(rig.passes(7, 3).await, 1);
    rig.clock.set(Nanos::from_secs(999_000));
    let decision = rig.check(call(7)).await;
    assert!(!is_remembered(&decision));
    assert!(decision.retry_after().unwrap() <= Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn it_is_bounded_and_the_oldest_go() {
    let set = |builder: GuardedBuilder| builder.remember_refusals(1_000);
    let rig = Rig::built(Mode::Up, FailurePolicy::Refuse, [rule("r", Limit::per_day(1))], set);
    for who in 0..10_000 {
        assert_eq!(rig.passes(who, 2).await, 1);
        assert!(rig.guarded.remembered_refusals() <= 1_000);
    }
    assert!(rig.guarded.remembered_refusals() >= 500, "{}", rig.guarded.remembered_refusals());
    assert!(is_remembered(&rig.check(call(9_999)).await));
    assert!(!is_remembered(&rig.check(call(0)).await));
}

#[tokio::test(start_paused = true)]
async fn it_can_be_switched_off_and_cut_short() {
    for (size, remembered) in [(0, 0), (1, 0), (2, 1), (100, 1)] {
        let set = |builder: GuardedBuilder| builder.remember_refusals(size);
        let rig = Rig::built(Mode::Up, FailurePolicy::Refuse, [rule("r", Limit::per_day(1))], set);
        assert_eq!(rig.passes(7, 5).await, 1);
        assert_eq!(rig.guarded.remembered_refusals(), remembered);
        assert_eq!(rig.store.asked(), if remembered == 0 { 5 } else { 2 });
    }
    // A day's wait is remembered for a minute, so that what other processes give back is seen within that.
    let rig = rig(Limit::per_day(1));
    assert_eq!(rig.passes(7, 5).await, 1);
    rig.clock.advance(Duration::from_secs(60) - Duration::from_nanos(1));
    let last = rig.check(call(7)).await;
    assert!(is_remembered(&last) && last.retry_after().unwrap() > Duration::from_secs(86_000));
    rig.clock.advance(Duration::from_nanos(1));
    assert!(!is_remembered(&rig.check(call(7)).await));
}

/// A refusal that was on its way while a charge came back says nothing any more.
#[tokio::test(start_paused = true)]
async fn a_refusal_overtaken_by_what_came_back_is_not_remembered() {
    let rig = rig(Limit::per_day(1));
    let (_, receipt) = rig.limiter.reserve(&call(7)).await.unwrap();
    rig.store.turn(Mode::Slow(Duration::from_millis(10)));
    let late = tokio::spawn({
        let limiter = rig.limiter.clone();
        async move { limiter.check(&call(7)).await.unwrap() }
    });
    tokio::task::yield_now().await;
    receipt.give_back();
    // Somebody else takes it before the late one is judged.
    rig.store.turn(Mode::Up);
    let (taken, receipt) = rig.limiter.reserve(&call(7)).await.unwrap();
    assert!(taken.is_allowed());
    assert!(!late.await.unwrap().is_allowed());
    assert!(!is_remembered(&rig.check(call(7)).await));
    receipt.give_back();
    assert!(rig.check(call(7)).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_an_own_strategy_says_nothing_of_the_next() {
    /// Refuses where the test says so, however often it is looked at.
    #[derive(Debug)]
    struct Moody(Arc<AtomicBool>);
    impl bucket::Bucket for Moody {
        type State = ();
        fn fresh(&self, _: &Limit, _: Nanos) {}
        fn look(&self, (): &(), _: &Limit, _: Nanos, _: bucket::Ask) -> tollgate::decision::Verdict {
            let refuses = self.0.load(Ordering::Relaxed);
            let wait = tollgate::decision::Outcome::Refuse(Wait::For(Nanos::from_secs(10)));
            let outcome = if refuses { wait } else { tollgate::decision::Outcome::Pass };
            tollgate::decision::Verdict::new(outcome, 1, 1, None)
        }
        fn take(
            &self,
            (): &mut (),
            _: &Limit,
            _: Nanos,
            _: bucket::Ask,
        ) -> (tollgate::decision::Verdict, bucket::Mark) {
            let outcome = tollgate::decision::Outcome::Pass;
            (tollgate::decision::Verdict::new(outcome, 1, 1, None), bucket::Mark::default())
        }
        fn give_back(&self, (): &mut (), _: &Limit, _: Nanos, _: bucket::GivenBack) {}
        fn used(&self, (): &(), _: &Limit, _: Nanos) -> bucket::Used {
            bucket::Used::ZERO
        }
        fn with_used(&self, _: &Limit, _: bucket::Used, _: Nanos) {}
        fn fresh_at(&self, (): &(), _: &Limit) -> Nanos {
            Nanos::MAX
        }
    }
    let refuses = Arc::new(AtomicBool::new(true));
    let moody = rule("r", Limit::per_day(1)).algorithm(Moody(Arc::clone(&refuses)));
    let rig = Rig::new(Mode::Up, FailurePolicy::Refuse, [moody]);
    for nth in 0..6 {
        refuses.store(nth % 2 == 0, Ordering::Relaxed);
        assert_eq!(rig.check(call(7)).await.is_allowed(), nth % 2 == 1);
    }
    assert_eq!(rig.guarded.counts().remembered, 0);
}
