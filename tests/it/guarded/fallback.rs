//! The buckets in this process: kept warm while the store answers, and used while it does not.

use tollgate::{bucket, charge::Share};

use super::*;

fn shared(share: Share) -> FailurePolicy {
    FailurePolicy::Fallback(share)
}

#[tokio::test(start_paused = true)]
async fn an_outage_gives_nobody_a_fresh_burst() {
    for algorithm in 0..4 {
        let limit = Limit::per_day(10);
        let rule = match algorithm {
            0 => rule("r", limit),
            1 => rule("r", limit).algorithm(bucket::FixedWindow),
            2 => rule("r", limit).algorithm(bucket::SlidingWindowLog),
            _ => rule("r", limit).algorithm(bucket::SlidingWindowCounter),
        };
        let rig = Rig::new(Mode::Up, shared(Share::WHOLE), [rule]);
        assert_eq!(rig.passes(1, 10).await, 10);
        assert_eq!(rig.passes(2, 7).await, 7);
        rig.break_down().await;
        assert_eq!(rig.passes(1, 10).await, 0, "{algorithm}");
        assert_eq!(rig.passes(2, 10).await, 3, "{algorithm}");
        assert_eq!(rig.passes(3, 20).await, 10, "{algorithm}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_share_is_rounded_up_and_kept_warm_as_far_as_it_reaches() {
    let rig = Rig::new(Mode::Up, shared(Share::one_in(4)), [rule("r", Limit::per_minute(10))]);
    assert_eq!(rig.passes(1, 10).await, 10); // far over the share of 3
    assert_eq!(rig.passes(2, 2).await, 2);
    rig.break_down().await;
    assert_eq!(rig.passes(1, 10).await, 0);
    assert_eq!(rig.passes(2, 10).await, 1);
    assert_eq!(rig.passes(3, 10).await, 3);
    // What it had over its share is no debt: a permit is there after the time of one, at the share's rate.
    rig.clock.advance(Duration::from_secs(20));
    assert_eq!(rig.passes(1, 10).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_charge_that_fits_only_in_part_is_kept_in_part() {
    let rig = Rig::new(Mode::Up, shared(Share::one_in(2)), [rule("r", Limit::per_day(10))]);
    assert!(rig.check(Call { who: 1, cost: 4 }).await.is_allowed());
    assert!(rig.check(Call { who: 1, cost: 4 }).await.is_allowed()); // 1 of the 5 is left here for it
    assert!(rig.check(Call { who: 2, cost: 9 }).await.is_allowed()); // more than the 5 there are
    rig.break_down().await;
    assert_eq!(rig.passes(1, 5).await, 0);
    assert_eq!(rig.passes(2, 5).await, 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_refused_or_only_looked_at_is_not_kept() {
    let everyone = Rule::global("all", Limit::per_day(1)).when(|call: &Call| call.who == 1);
    let rig = Rig::new(Mode::Up, shared(Share::WHOLE), [rule("r", Limit::per_day(5)), everyone]);
    assert_eq!(rig.passes(1, 10).await, 1);
    for _ in 0..10 {
        let _ = rig.limiter.peek(&call(2)).await.unwrap();
    }
    rig.store.turn(Mode::FailsLater);
    // One of five is used by 1, none by 2; "all" refuses 1 here too.
    let peek = rig.limiter.peek(&call(1)).await.unwrap();
    assert_eq!(peek.rules().map(|rule| rule.verdict.remaining).collect::<Vec<_>>(), [4, 0]);
    assert_eq!(rig.passes(2, 10).await, 5);
}

#[tokio::test(start_paused = true)]
async fn what_the_store_charged_comes_back_in_both_places() {
    let rig = Rig::new(Mode::Up, shared(Share::one_in(2)), [rule("r", Limit::per_day(10))]);
    let (decision, receipt) = rig.limiter.reserve(&Call { who: 1, cost: 4 }).await.unwrap();
    assert!(decision.is_allowed() && !decision.is_degraded());
    rig.break_down().await;
    assert_eq!(rig.limiter.peek(&call(1)).await.unwrap().tightest().unwrap().verdict.remaining, 1);
    receipt.settle(1);
    assert_eq!(rig.limiter.peek(&call(1)).await.unwrap().tightest().unwrap().verdict.remaining, 4);
    rig.recover().await;
    assert_eq!(rig.limiter.peek(&call(1)).await.unwrap().tightest().unwrap().verdict.remaining, 9);
}

#[tokio::test(start_paused = true)]
async fn what_is_charged_in_addition_is_charged_in_both_places_without_a_debt_here() {
    let rig = Rig::new(Mode::Up, shared(Share::one_in(2)), [rule("r", Limit::per_day(10))]);
    let (_, receipt) = rig.limiter.reserve(&Call { who: 1, cost: 2 }).await.unwrap();
    receipt.settle(9);
    let (_, free) = rig.limiter.reserve(&Call { who: 2, cost: 0 }).await.unwrap();
    free.settle(3); // nothing was charged before
    assert_eq!(rig.limiter.peek(&call(1)).await.unwrap().tightest().unwrap().verdict.remaining, 1);
    assert_eq!(rig.limiter.peek(&call(2)).await.unwrap().tightest().unwrap().verdict.remaining, 7);
    rig.break_down().await;
    assert_eq!(rig.passes(1, 5).await, 0);
    assert_eq!(rig.passes(2, 5).await, 2);
    rig.clock.advance(Duration::from_secs(86_400 / 5));
    assert_eq!(rig.passes(1, 5).await, 1);
}

#[tokio::test(start_paused = true)]
async fn what_the_fallback_charged_comes_back_to_the_fallback_alone() {
    let rig = Rig::new(Mode::Up, shared(Share::one_in(2)), [rule("r", Limit::per_day(10))]);
    assert_eq!(rig.passes(1, 2).await, 2);
    rig.break_down().await;
    let (decision, receipt) = rig.limiter.reserve(&Call { who: 1, cost: 3 }).await.unwrap();
    assert!(decision.is_allowed() && decision.is_degraded());
    assert_eq!(rig.passes(1, 5).await, 0);
    rig.recover().await;
    let in_store = async || rig.limiter.peek(&call(1)).await.unwrap().tightest().unwrap().verdict.remaining;
    assert_eq!(in_store().await, 8); // what was granted meanwhile is not told to it
    receipt.give_back();
    assert_eq!(in_store().await, 8); // and what comes back is not either
    rig.break_down().await;
    assert_eq!(rig.passes(1, 5).await, 3);
}

#[tokio::test(start_paused = true)]
async fn what_was_let_pass_by_policy_was_charged_to_nobody() {
    let rig = Rig::new(Mode::Up, FailurePolicy::Allow, [rule("r", Limit::per_day(10))]);
    assert_eq!(rig.passes(1, 2).await, 2);
    rig.break_down().await;
    let (decision, receipt) = rig.limiter.reserve(&Call { who: 1, cost: 3 }).await.unwrap();
    assert!(decision.is_allowed());
    receipt.give_back();
    let (_, free) = rig.limiter.reserve(&Call { who: 1, cost: 0 }).await.unwrap();
    free.settle(5);
    rig.recover().await;
    assert_eq!(rig.limiter.peek(&call(1)).await.unwrap().tightest().unwrap().verdict.remaining, 8);
}

#[tokio::test(start_paused = true)]
async fn a_reset_reaches_the_fallback_even_while_the_store_is_down() {
    let rig = Rig::new(Mode::Up, shared(Share::WHOLE), [rule("r", Limit::per_day(3))]);
    assert_eq!(rig.passes(1, 3).await, 3);
    rig.break_down().await;
    assert_eq!(rig.passes(1, 3).await, 0);
    assert!(rig.limiter.reset("r", Key::from(1_u64)).await.is_err());
    assert_eq!(rig.passes(1, 5).await, 3);
}

#[tokio::test(start_paused = true)]
async fn limiters_that_share_a_guard_share_its_fallback() {
    let rig = Rig::new(Mode::FailsAtOnce, shared(Share::WHOLE), [rule("r", Limit::per_day(3))]);
    let other = Limiter::builder([rule("r", Limit::per_day(3))])
        .store(rig.guarded.clone())
        .clock(rig.clock.clone())
        .build()
        .unwrap();
    assert_eq!(rig.passes(1, 2).await, 2);
    assert!(other.check(&call(1)).await.unwrap().is_allowed());
    assert!(!other.check(&call(1)).await.unwrap().is_allowed());
    assert_eq!(rig.passes(1, 2).await, 0);
}

#[tokio::test(start_paused = true)]
async fn the_fallback_holds_requests_for_their_turn_too() {
    let queue = Rule::global("q", Limit::per_second(2).burst(8)).algorithm(bucket::LeakyBucket);
    let rig = Rig::new(Mode::FailsAtOnce, shared(Share::one_in(2)), [queue]);
    let clock = rig.clock.clone();
    assert!(rig.check(call(1)).await.is_allowed());
    let mut second = tokio_test::task::spawn(rig.limiter.acquire(&Call { who: 1, cost: 1 }));
    assert!(second.poll().is_pending());
    clock.advance(Duration::from_millis(999));
    assert!(second.poll().is_pending());
    clock.advance(Duration::from_millis(1));
    let decision = tokio_test::assert_ready_ok!(second.poll());
    assert!(decision.is_allowed() && decision.is_degraded());
    // One that goes away gives its turn back.
    let mut third = tokio_test::task::spawn(rig.limiter.acquire(&Call { who: 1, cost: 1 }));
    assert!(third.poll().is_pending());
    let full = rig.limiter.peek(&call(1)).await.unwrap().delay();
    drop(third);
    assert!(rig.limiter.peek(&call(1)).await.unwrap().delay() < full);
}
