//! Deadline, circuit and probe.

use tollgate::{charge::Share, decision::Refusal};

use super::*;

fn rig(mode: Mode) -> Rig {
    Rig::new(mode, FailurePolicy::Refuse, [rule("r", Limit::per_minute(1_000))])
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_costs_five_deadlines_and_then_nothing() {
    let rig = rig(Mode::Hangs);
    for nth in 1..=100 {
        let (decision, took) = rig.timed(call(7)).await;
        assert_eq!(decision.refusal(), Some(Refusal::StoreFailed));
        if nth <= 5 {
            assert!(DEADLINE <= took, "{nth}: {took:?}");
        } else {
            assert_eq!(took, Duration::ZERO, "{nth}");
            assert!(rig.guarded.is_open());
        }
    }
    assert_eq!(rig.store.asked(), 5);
    let counts = rig.guarded.counts();
    assert_eq!((counts.asked, counts.failed, counts.degraded, counts.opened), (5, 5, 100, 1));
}

#[tokio::test(start_paused = true)]
async fn what_has_no_answer_for_one_request_opens_no_circuit_and_closes_an_open_one() {
    let rig = rig(Mode::Refuses);
    for _ in 0..20 {
        assert!(rig.check(call(7)).await.is_degraded());
    }
    let counts = rig.guarded.counts();
    assert_eq!((counts.asked, counts.failed, counts.degraded, counts.opened), (20, 20, 20, 0));
    rig.break_down().await;
    rig.store.turn(Mode::Refuses);
    sleep(Duration::from_millis(400)).await;
    assert!(!rig.guarded.is_open(), "the probe was answered, though not what it asked");
}

#[tokio::test(start_paused = true)]
async fn requests_that_come_together_do_not_wait_for_each_other() {
    let rig = Arc::new(rig(Mode::Hangs));
    let start = Instant::now();
    let tasks: Vec<_> = (0..64)
        .map(|who| {
            let rig = Arc::clone(&rig);
            tokio::spawn(async move { rig.check(call(who)).await })
        })
        .collect();
    for task in tasks {
        assert!(!task.await.unwrap().is_allowed());
    }
    assert!(start.elapsed() <= IN_TIME, "{:?}", start.elapsed());
    assert_eq!(rig.guarded.counts().opened, 1, "64 failures at once open it once");
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_that_is_in_time_is_left_alone() {
    let rig = rig(Mode::Slow(DEADLINE - Duration::from_millis(1)));
    for _ in 0..50 {
        let decision = rig.check(call(7)).await;
        assert!(decision.is_allowed() && !decision.is_degraded());
    }
    assert_eq!(rig.store.asked(), 50);
    assert_eq!(rig.guarded.counts().failed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_too_slow_is_not_waited_for() {
    let rig = Rig::built(
        Mode::Slow(Duration::from_millis(60)),
        FailurePolicy::Allow,
        [rule("r", Limit::per_minute(1_000))],
        |builder| builder.deadline(Duration::from_millis(50)).opens_after(2),
    );
    for took in [50, 50, 0, 0] {
        let start = Instant::now();
        let decision = rig.limiter.check(&call(7)).await.unwrap();
        assert!(decision.is_allowed() && decision.is_degraded());
        let allowed = Duration::from_millis(took)..=Duration::from_millis(took + 1);
        assert!(allowed.contains(&start.elapsed()), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn failures_that_are_not_in_a_row_do_not_open_it() {
    let rig = rig(Mode::Up);
    for _ in 0..20 {
        rig.store.turn(Mode::FailsLater);
        for _ in 0..4 {
            assert!(rig.check(call(7)).await.is_degraded());
        }
        rig.store.turn(Mode::Up);
        assert!(!rig.check(call(7)).await.is_degraded());
    }
    assert_eq!(rig.guarded.counts().opened, 0);
}

#[tokio::test(start_paused = true)]
async fn it_is_probed_one_at_a_time_ever_more_rarely_and_never_by_requests() {
    for mode in [Mode::Hangs, Mode::FailsAtOnce, Mode::FailsLater] {
        let rig = rig(mode);
        for _ in 0..10_000 {
            let _ = rig.check(call(7)).await;
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(rig.store.asked(), 5, "{mode:?}");
        // 10 s: 25, 50, 100, 200, then 350 ms each, less up to half of jitter, plus 100 ms where it hangs.
        let probes = rig.store.probes();
        assert!((20..=60).contains(&probes), "{mode:?}: {probes} probes");
        assert_eq!(rig.guarded.counts().probes as usize, probes);
        assert_eq!(rig.store.shared.most_probing.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn it_closes_within_half_a_second_of_the_store_with_no_request_to_help() {
    for mode in [Mode::Hangs, Mode::FailsAtOnce, Mode::FailsLater] {
        for outage in [0, 10, 100, 1_000, 10_000] {
            let rig = rig(mode);
            for _ in 0..5 {
                let _ = rig.check(call(7)).await;
            }
            assert!(rig.guarded.is_open());
            sleep(Duration::from_millis(outage)).await;
            rig.store.turn(Mode::Up);
            let start = Instant::now();
            while rig.guarded.is_open() {
                sleep(Duration::from_millis(1)).await;
            }
            // A probe that was on its way when the store came back may still have to fail.
            let took = start.elapsed();
            assert!(took <= Duration::from_millis(500), "{mode:?} {outage}: {took:?}");
            assert!(!rig.check(call(7)).await.is_degraded());
            let probes = rig.store.probes();
            sleep(Duration::from_secs(60)).await;
            assert_eq!(rig.store.probes(), probes, "a closed circuit is not probed");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_passes_probes_and_nothing_else_is_not_asked_over_and_over() {
    let rig = rig(Mode::PassesProbes);
    for _ in 0..10_000 {
        assert!(rig.check(call(7)).await.is_degraded());
        sleep(Duration::from_millis(1)).await;
    }
    let counts = rig.guarded.counts();
    assert!((10..=45).contains(&counts.opened), "{counts:?}");
    assert_eq!(counts.asked, counts.failed);
    assert!(counts.asked <= 5 * (counts.opened + 1), "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_before_the_circuit_changed_does_not_change_it_again() {
    let rig = Arc::new(rig(Mode::Hangs));
    let late: Vec<_> = (0..20)
        .map(|who| {
            let rig = Arc::clone(&rig);
            tokio::spawn(async move { rig.check(call(who)).await })
        })
        .collect();
    sleep(Duration::from_millis(20)).await;
    // Five more fail at once and open the circuit; it closes before the twenty are given up.
    rig.store.turn(Mode::FailsAtOnce);
    for _ in 0..5 {
        let _ = rig.check(call(100)).await;
    }
    assert!(rig.guarded.is_open());
    rig.store.turn(Mode::Up);
    for task in late {
        assert!(task.await.unwrap().is_degraded());
    }
    rig.recover().await;
    assert!(!rig.check(call(100)).await.is_degraded());
    assert_eq!(rig.guarded.counts().opened, 1);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_decision_says_nothing_of_the_store() {
    let rig = rig(Mode::Hangs);
    for _ in 0..50 {
        let mut decision = tokio_test::task::spawn(rig.limiter.check(&Call { who: 7, cost: 1 }));
        assert!(decision.poll().is_pending());
        drop(decision);
    }
    assert!(!rig.guarded.is_open());
    assert_eq!(rig.guarded.counts().failed, 0);
    rig.store.turn(Mode::Up);
    assert!(!rig.check(call(7)).await.is_degraded());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_incomplete_is_a_failure() {
    let rules = [rule("a", Limit::per_minute(10)), rule("b", Limit::per_minute(10))];
    let rig = Rig::new(Mode::Forgets, FailurePolicy::Allow, rules);
    for _ in 0..5 {
        let decision = rig.check(call(7)).await;
        assert!(decision.is_allowed() && decision.is_degraded());
    }
    assert!(rig.guarded.is_open());
}

#[tokio::test(start_paused = true)]
async fn a_reset_does_not_hang_either() {
    let rig = rig(Mode::Hangs);
    let start = Instant::now();
    let error = rig.limiter.reset("r", Key::from(7_u64)).await.unwrap_err();
    assert_eq!(error.kind(), tollgate::ErrorKind::Store);
    assert!(start.elapsed() <= IN_TIME);
}

/// The probe goes with its runtime; the next decision, on another one, starts a new one.
#[test]
fn a_probe_that_went_with_its_runtime_is_followed_by_another() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let rig = rig(Mode::FailsAtOnce);
    runtime().block_on(async {
        for _ in 0..5 {
            let _ = rig.check(call(7)).await;
        }
    });
    assert!(rig.guarded.is_open());
    runtime().block_on(async {
        assert!(rig.check(call(7)).await.is_degraded());
        rig.recover().await;
    });
}

/// Without a runtime there is nobody to probe, so the store is asked each time and the circuit stays closed.
#[test]
fn without_a_runtime_the_store_is_asked_every_time() {
    let rig = rig(Mode::FailsAtOnce);
    for asked in 1..=20 {
        assert!(rig.limiter.check_now(&call(7)).unwrap().is_degraded());
        assert_eq!(rig.store.asked(), asked);
    }
    assert!(!rig.guarded.is_open());
    // One that a runtime has opened is closed by the first answer.
    let over_memory = |memory: &MemoryStore| Guarded::builder(memory.clone(), FailurePolicy::Refuse).build();
    let guarded = over_memory(&MemoryStore::new());
    let limiter = Limiter::builder([rule("r", Limit::per_minute(1))]).store(guarded).build().unwrap();
    assert!(limiter.check_now(&call(7)).unwrap().is_allowed());
    assert!(!limiter.check_now(&call(7)).unwrap().is_allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_the_limit_passes_under_many_tasks_up_or_down() {
    const LIMIT: u64 = 500;
    let rules = || [rule("r", Limit::per_day(LIMIT)).on_store_failure(FailurePolicy::Fallback(Share::one_in(5)))];
    for (mode, expected) in [(Mode::Yields, LIMIT), (Mode::FailsAtOnce, LIMIT / 5)] {
        // Time is not paused here, and a deadline must not be missed on a busy machine.
        let set = |builder: GuardedBuilder| builder.deadline(Duration::from_secs(60));
        let rig = Arc::new(Rig::built(mode, FailurePolicy::Refuse, rules(), set));
        let tasks: Vec<_> = (0..64)
            .map(|_| {
                let rig = Arc::clone(&rig);
                tokio::spawn(async move {
                    let mut passed = 0;
                    for _ in 0..20 {
                        passed += u64::from(rig.limiter.check(&call(7)).await.unwrap().is_allowed());
                    }
                    passed
                })
            })
            .collect();
        let mut passed = 0;
        for task in tasks {
            passed += task.await.unwrap();
        }
        assert_eq!(passed, expected, "{mode:?}");
    }
}
