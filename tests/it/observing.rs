//! What a scraper sees of a limiter, and what it never sees.

use std::{
    future::Future,
    task::{Context, Poll, Waker},
    time::Duration,
};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tollgate::{
    FailurePolicy, Key, Limit, Limiter, RateLimitLayer, Rule,
    bucket::LeakyBucket,
    charge::Share,
    store::{Guarded, MemoryStore, Overflow},
    time::ManualClock,
};
use tower::{Service, service_fn};

use crate::{prometheus::Page, support::Down};

const OUTCOMES: [&str; 10] = [
    "allowed",
    "refused",
    "overload",
    "refused_by_another",
    "degraded_open",
    "degraded_closed",
    "fallback",
    "fallback_refused",
    "missing_key",
    "would_refuse",
];

/// A recorder of this test alone.
struct Scrape {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl Scrape {
    fn new() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        Self { handle: recorder.handle(), recorder }
    }

    fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        metrics::with_local_recorder(&self.recorder, work)
    }

    fn page(&self) -> Page {
        let text = self.handle.render();
        Page::read(&text).unwrap_or_else(|why| panic!("{why}\n{text}"))
    }

    /// The outcomes that were counted of a rule, in the order of [`OUTCOMES`].
    fn counted(&self, rule: &str) -> Vec<(&'static str, u64)> {
        let page = self.page();
        let of = |outcome| {
            let labels = [("rule", rule), ("outcome", outcome)];
            (outcome, page.get("tollgate_decisions_total", &labels).unwrap_or(-1.0) as u64)
        };
        OUTCOMES.map(of).into_iter().filter(|(_, count)| *count > 0).collect()
    }

    fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.page().get(name, labels)
    }
}

fn per_minute(name: &'static str, permits: u64) -> Rule<u64> {
    Rule::new(name, Limit::per_minute(permits), |id: &u64| (*id > 0).then(|| Key::from(*id)))
}

fn ask(limiter: &Limiter<u64>, id: u64, times: usize) {
    for _ in 0..times {
        let _ = limiter.check_now(&id).unwrap();
    }
}

fn limiter(rules: impl IntoIterator<Item = Rule<u64>>) -> Limiter<u64> {
    Limiter::builder(rules).clock(ManualClock::new()).build().unwrap()
}

/// However often it asks while it waits.
#[test]
fn a_request_that_waits_for_a_place_counts_once() {
    let (scrape, clock) = (Scrape::new(), ManualClock::new());
    scrape.during(|| {
        let places = Rule::global("places", Limit::in_flight(1)).queue(9, Duration::from_secs(9));
        let limiter = Limiter::builder([per_minute("user", 1), places]).clock(clock.clone()).build().unwrap();
        let (_, held) = limiter.reserve_now(&0).unwrap(); // counted: nobody has this number
        let mut waits = [(); 2].map(|()| tokio_test::task::spawn(limiter.acquire_receipt(&0)));
        for _ in 0..5 {
            assert!(waits.iter_mut().all(|waits| waits.poll().is_pending()));
            clock.advance(Duration::from_millis(100));
        }
        drop(held);
        for mut waits in waits {
            assert!(waits.poll().is_ready());
        }
    });
    assert_eq!(scrape.counted("user"), [("missing_key", 3)]);
    assert_eq!(scrape.counted("places"), [("allowed", 3)]);
}

#[test]
fn each_rule_counts_what_became_of_its_requests() {
    let scrape = Scrape::new();
    scrape.during(|| {
        let limiter = limiter([per_minute("user", 2), per_minute("whole", 5).overload()]);
        ask(&limiter, 1, 3); // the third is refused by `user`
        ask(&limiter, 2, 2);
        ask(&limiter, 0, 4); // without a key
        assert_eq!(scrape.counted("user"), [("allowed", 4), ("refused", 1), ("missing_key", 4)]);
        assert_eq!(scrape.counted("whole"), [("allowed", 4), ("refused_by_another", 1), ("missing_key", 4)]);
    });
}

#[test]
fn an_overload_rule_counts_overload() {
    let scrape = Scrape::new();
    scrape.during(|| ask(&limiter([Rule::global("all", Limit::per_minute(2)).overload()]), 1, 5));
    assert_eq!(scrape.counted("all"), [("allowed", 2), ("overload", 3)]);
}

#[test]
fn a_rule_that_does_not_enforce_counts_what_it_would_have_refused() {
    let scrape = Scrape::new();
    scrape.during(|| {
        let tried = Rule::shadow_of("user", Limit::per_minute(2)).named("user-2");
        ask(&limiter([per_minute("user", 3), tried, per_minute("watched", 1).shadow()]), 1, 5);
    });
    assert_eq!(scrape.counted("user"), [("allowed", 3), ("refused", 2)]);
    assert_eq!(scrape.counted("user-2"), [("allowed", 2), ("refused_by_another", 2), ("would_refuse", 1)]);
    assert_eq!(scrape.counted("watched"), [("allowed", 1), ("refused_by_another", 2), ("would_refuse", 2)]);
}

#[test]
fn who_only_looks_is_not_counted() {
    let scrape = Scrape::new();
    scrape.during(|| {
        let limiter = limiter([per_minute("user", 2)]);
        for id in [0, 1] {
            let _ = limiter.peek_now(&id).unwrap();
        }
    });
    assert_eq!(scrape.counted("user"), []);
    assert!(scrape.page().get("tollgate_decisions_total", &[("rule", "user"), ("outcome", "allowed")]).is_some());
}

#[test]
fn a_request_without_a_key_that_is_refused_for_it_counts_as_such() {
    let scrape = Scrape::new();
    let refuses = per_minute("user", 2).on_missing_key(tollgate::MissingKey::Refuse(http::StatusCode::UNAUTHORIZED));
    scrape.during(|| ask(&limiter([refuses]), 0, 3));
    assert_eq!(scrape.counted("user"), [("missing_key", 3)]);
}

#[test]
fn a_guarded_store_that_is_down_counts_by_what_the_rules_say() {
    let scrape = Scrape::new();
    scrape.during(|| {
        let build = |rule: Rule<u64>| {
            let store = Guarded::new(Down::new(true), FailurePolicy::Refuse);
            Limiter::builder([rule]).store(store).clock(ManualClock::new()).build().unwrap()
        };
        ask(&build(per_minute("open", 9).on_store_failure(FailurePolicy::Allow)), 1, 3);
        ask(&build(per_minute("closed", 9).on_store_failure(FailurePolicy::Refuse)), 1, 4);
        let half = FailurePolicy::Fallback(Share::percent(50));
        ask(&build(per_minute("local", 4).on_store_failure(half)), 1, 5);
    });
    assert_eq!(scrape.counted("open"), [("degraded_open", 3)]);
    assert_eq!(scrape.counted("closed"), [("degraded_closed", 4)]);
    assert_eq!(scrape.counted("local"), [("fallback", 2), ("fallback_refused", 3)]);
    assert_eq!(scrape.value("tollgate_store_errors_total", &[]), Some(12.0));
}

#[test]
fn a_store_without_a_guard_counts_by_what_the_rules_say() {
    let scrape = Scrape::new();
    scrape.during(|| {
        for (name, policy) in [("open", FailurePolicy::Allow), ("closed", FailurePolicy::Refuse)] {
            for at_once in [true, false] {
                let rule = per_minute(name, 9).on_store_failure(policy);
                let limiter = Limiter::builder([rule]).store(Down::new(at_once)).build().unwrap();
                let layer = RateLimitLayer::from(limiter).refuse_with(|_, _| 0);
                let mut service = tower::ServiceBuilder::new()
                    .layer(layer)
                    .service(service_fn(|id| async move { Ok::<u64, ()>(id) }));
                let call = service.call(7);
                assert!(matches!(poll(&mut Box::pin(call)), Poll::Ready(Ok(_))));
            }
        }
    });
    assert_eq!(scrape.counted("open"), [("degraded_open", 2)]);
    assert_eq!(scrape.counted("closed"), [("degraded_closed", 2)]);
    assert_eq!(scrape.value("tollgate_store_errors_total", &[]), Some(4.0));
}

#[test]
fn a_circuit_that_opens_is_counted() {
    let scrape = Scrape::new();
    scrape.during(|| {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
            let store = Guarded::new(Down::new(true), FailurePolicy::Allow);
            let limiter = Limiter::builder([per_minute("user", 9)]).store(store).build().unwrap();
            ask(&limiter, 1, 20);
        });
    });
    assert_eq!(scrape.value("tollgate_circuit_opened_total", &[]), Some(1.0));
    assert_eq!(scrape.value("tollgate_store_errors_total", &[]), Some(5.0));
    assert_eq!(scrape.counted("user"), [("degraded_open", 20)]);
}

#[test]
fn reloads_count_by_what_came_of_them_and_rules_go_on_counting() {
    let scrape = Scrape::new();
    scrape.during(|| {
        let limiter = limiter([per_minute("user", 2)]);
        ask(&limiter, 1, 3);
        limiter.publish_metrics();
        let _ = limiter.reload([per_minute("user", 3), per_minute("other", 9)]).unwrap();
        let _ = limiter.reload([per_minute("user", 0)]).unwrap_err();
        ask(&limiter, 1, 2);
        limiter.publish_metrics();
        let tracked = |rule| scrape.value("tollgate_tracked_keys", &[("rule", rule)]);
        assert_eq!((tracked("user"), tracked("other")), (Some(1.0), Some(1.0)));
        let _ = limiter.reload([per_minute("other", 9)]).unwrap();
        limiter.publish_metrics();
        assert_eq!((tracked("user"), tracked("other")), (Some(0.0), Some(1.0)));
    });
    assert_eq!(scrape.counted("user"), [("allowed", 3), ("refused", 2)]);
    assert_eq!(scrape.value("tollgate_reloads_total", &[("outcome", "reloaded")]), Some(2.0));
    assert_eq!(scrape.value("tollgate_reloads_total", &[("outcome", "failed")]), Some(1.0));
}

#[test]
fn every_series_is_there_at_zero_from_the_beginning() {
    let scrape = Scrape::new();
    scrape.during(|| drop(limiter([per_minute("user", 2)])));
    let page = scrape.page();
    for outcome in OUTCOMES {
        let labels = [("rule", "user"), ("outcome", outcome)];
        assert_eq!(page.get("tollgate_decisions_total", &labels), Some(0.0), "{outcome}");
    }
    assert_eq!(page.get("tollgate_waiting", &[("rule", "user")]), Some(0.0));
    for name in ["tollgate_store_errors_total", "tollgate_circuit_opened_total"] {
        assert_eq!(page.get(name, &[]), Some(0.0), "{name}");
        assert_eq!(page.types[name], "counter");
    }
}

#[test]
fn a_recorder_that_comes_after_the_first_decisions_counts_those_after_it() {
    let limiter = limiter([per_minute("user", 2)]);
    ask(&limiter, 1, 1);
    let scrape = Scrape::new();
    scrape.during(|| ask(&limiter, 1, 2));
    assert_eq!(scrape.counted("user"), [("allowed", 1), ("refused", 1)]);
}

#[test]
fn a_recorder_of_no_size_is_told_too() {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNTED: AtomicU64 = AtomicU64::new(0);

    struct Adds;
    impl metrics::CounterFn for Adds {
        fn increment(&self, value: u64) {
            COUNTED.fetch_add(value, Ordering::Relaxed);
        }
        fn absolute(&self, _: u64) {}
    }
    struct Sizeless;
    impl metrics::Recorder for Sizeless {
        fn describe_counter(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
        fn describe_gauge(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
        fn describe_histogram(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
        fn register_counter(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
            metrics::Counter::from_arc(std::sync::Arc::new(Adds))
        }
        fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
            metrics::Gauge::noop()
        }
        fn register_histogram(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Histogram {
            metrics::Histogram::noop()
        }
    }
    metrics::with_local_recorder(&Sizeless, || ask(&limiter([per_minute("user", 2)]), 1, 5));
    assert_eq!(COUNTED.load(Ordering::Relaxed), 5);
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn who_waits_is_counted_until_the_turn_comes_or_the_caller_gives_up() {
    let scrape = Scrape::new();
    scrape.during(|| {
        let clock = ManualClock::new();
        let rule = Rule::global("paced", Limit::per_second(1).burst(5)).algorithm(LeakyBucket);
        let limiter = Limiter::builder([rule]).clock(clock.clone()).build().unwrap();
        let waiting = || scrape.value("tollgate_waiting", &[("rule", "paced")]).unwrap();
        let mut held: Vec<_> = (0..4).map(|_| Box::pin(limiter.acquire(&()))).collect();
        let pending = held.iter_mut().map(poll).filter(Poll::is_pending).count();
        assert_eq!((pending, waiting()), (3, 3.0));
        held.pop();
        assert_eq!(waiting(), 2.0);
        clock.advance(Duration::from_secs(1));
        assert!(poll(&mut held[1]).is_ready());
        assert_eq!(waiting(), 1.0);
        drop(held);
        assert_eq!(waiting(), 0.0);
    });
}

/// Under each rule in whose line they stand, as [`Limiter::waiting`] counts them, whatever ends it.
#[test]
fn who_waits_for_a_place_is_counted_until_it_has_one_or_leaves() {
    let scrape = Scrape::new();
    scrape.during(|| {
        let clock = ManualClock::new();
        let queued = |rule: Rule<u64>, most| rule.queue(most, Duration::from_secs(5));
        let places = Rule::new("places", Limit::in_flight(1), |id: &u64| Some(Key::from(*id)));
        let rules = || [queued(places.clone(), 4), queued(Rule::global("all", Limit::in_flight(2)), 9)];
        let limiter = Limiter::builder(rules()).clock(clock.clone()).build().unwrap();
        let gauge = |rule| scrape.value("tollgate_waiting", &[("rule", rule)]).unwrap() as usize;
        let waiting = || {
            let told = ["places", "all"].map(gauge);
            assert_eq!(["places", "all"].map(|rule| limiter.waiting(rule).unwrap()), told);
            told
        };
        let wait = |id: &'static u64| {
            let mut one = tokio_test::task::spawn(limiter.acquire_receipt(id));
            let ready = one.poll();
            (one, ready)
        };
        let (_, held) = limiter.reserve_now(&1).unwrap();
        let mut waits: Vec<_> = (0..4).map(|_| wait(&1).0).collect();
        assert_eq!(waiting(), [4, 0]);
        assert!(wait(&1).1.is_ready(), "the line is full");
        assert_eq!(waiting(), [4, 0]);

        drop(waits.pop()); // cancelled
        assert_eq!(waiting(), [3, 0]);

        drop(held);
        let Poll::Ready(Ok((_, held))) = waits[0].poll() else { panic!("it is its turn") };
        assert_eq!(waiting(), [2, 0], "one has its place");

        let (_, others) = limiter.reserve_now(&2).unwrap();
        let mut late = wait(&3).0;
        assert_eq!(waiting(), [3, 1], "one that stands in two lines");
        drop(others);
        assert!(late.poll().is_ready());
        assert_eq!(waiting(), [2, 0]);

        clock.advance(Duration::from_secs(5));
        assert!(waits[1].poll().is_ready(), "it has waited too long");
        assert_eq!(waiting(), [1, 0]);

        // Other rules: who stands in line is counted by those that it came under, and goes on.
        let _ = limiter.reload(rules()).unwrap();
        let behind = wait(&1).0;
        assert_eq!(waiting(), [2, 0]);
        drop((behind, waits, held));
        assert_eq!(waiting(), [0, 0]);
    });
}

/// Before that a limiter has nobody to tell, and what leaves later leaves nothing below zero.
#[test]
fn who_waits_since_before_there_was_a_recorder_is_not_counted() {
    let places = Rule::global("places", Limit::in_flight(1)).queue(9, Duration::from_secs(5));
    let limiter = limiter([places]);
    let (_, held) = limiter.reserve_now(&1).unwrap();
    let mut early = tokio_test::task::spawn(limiter.acquire_receipt(&1));
    assert!(early.poll().is_pending());
    let scrape = Scrape::new();
    scrape.during(|| {
        let _ = limiter.reserve_now(&1).unwrap();
        let mut late = tokio_test::task::spawn(limiter.acquire_receipt(&1));
        assert!(late.poll().is_pending());
        let waiting = || scrape.value("tollgate_waiting", &[("rule", "places")]);
        assert_eq!((limiter.waiting("places"), waiting()), (Some(2), Some(1.0)));
        drop(early);
        assert_eq!(waiting(), Some(1.0));
        drop((late, held));
        assert_eq!(waiting(), Some(0.0));
    });
}

/// Who does not wait, and comes while others do, is refused; a rule that has no key for it counts that all the same.
#[test]
fn a_request_without_a_key_counts_as_such_though_others_wait() {
    let scrape = Scrape::new();
    scrape.during(|| {
        let places = Rule::global("places", Limit::in_flight(1)).queue(9, Duration::from_secs(5));
        let limiter = limiter([per_minute("user", 9), places]);
        let (_, _held) = limiter.reserve_now(&1).unwrap();
        let mut waits = tokio_test::task::spawn(limiter.acquire_receipt(&1));
        assert!(waits.poll().is_pending());
        assert!(!limiter.reserve_now(&0).unwrap().0.is_allowed());
        assert_eq!(scrape.counted("user"), [("allowed", 1), ("missing_key", 1)]);
    });
}

#[test]
fn a_memory_store_says_what_it_holds_when_it_is_asked() {
    let scrape = Scrape::new();
    scrape.during(|| {
        let clock = ManualClock::new();
        let store = MemoryStore::builder().max_keys(100).overflow(Overflow::Refuse).build();
        let build = |name| {
            let rules = [per_minute(name, 2)];
            Limiter::builder(rules).store(store.clone()).clock(clock.clone()).build().unwrap()
        };
        let (user, other) = (build("user"), build("other"));
        (1..=150).for_each(|id| ask(&user, id, 1));
        ask(&other, 1, 1);
        user.publish_metrics();
        let of = |name: &str, rule| scrape.value(name, &[("rule", rule)]);
        assert_eq!(of("tollgate_tracked_keys", "user"), Some(100.0));
        assert_eq!(of("tollgate_tracked_keys", "other"), Some(1.0));
        assert_eq!(of("tollgate_overflow_decisions_total", "user"), Some(50.0));
        assert_eq!(of("tollgate_evicted_keys_total", "user"), Some(0.0));
        assert_eq!(scrape.counted("user"), [("allowed", 100), ("overload", 50)]);
        clock.advance(Duration::from_secs(60));
        (1_001..=1_100).for_each(|id| ask(&user, id, 1)); // each takes the place of one that is fresh by now
        user.publish_metrics();
        assert_eq!(of("tollgate_tracked_keys", "user"), Some(100.0));
        assert_eq!(of("tollgate_evicted_keys_total", "user"), Some(100.0));
        assert_eq!(store.counts().evicted_keys, 100);
    });
}

#[test]
fn keys_of_several_stores_add_up_and_go_with_their_limiters() {
    let scrape = Scrape::new();
    scrape.during(|| {
        let store = MemoryStore::new();
        let build = |store: &MemoryStore| {
            Limiter::builder([per_minute("user", 2)]).store(store.clone()).clock(ManualClock::new()).build().unwrap()
        };
        let (one, same, other) = (build(&store), build(&store), build(&MemoryStore::new()));
        let told = || scrape.value("tollgate_tracked_keys", &[("rule", "user")]);
        (1..=3).for_each(|id| ask(&one, id, 1));
        (3..=5).for_each(|id| ask(&same, id, 1));
        (1..=4).for_each(|id| ask(&other, id, 1));
        [&one, &same, &other].into_iter().for_each(Limiter::publish_metrics);
        assert_eq!(told(), Some(9.0));
        drop(other);
        assert_eq!(told(), Some(5.0));
        drop(same);
        one.publish_metrics();
        assert_eq!(told(), Some(5.0));
        drop(one);
        assert_eq!(told(), Some(0.0));
    });
}

#[test]
fn what_a_store_holds_is_told_along_with_decisions_once_in_ten_seconds() {
    let scrape = Scrape::new();
    scrape.during(|| {
        let clock = ManualClock::new();
        let limiter = Limiter::builder([per_minute("user", 2)]).clock(clock.clone()).build().unwrap();
        let told = || scrape.value("tollgate_tracked_keys", &[("rule", "user")]);
        ask(&limiter, 1, 1);
        assert_eq!(told(), Some(1.0));
        (2..=5).for_each(|id| ask(&limiter, id, 1));
        clock.advance(Duration::from_nanos(9_999_999_999));
        ask(&limiter, 6, 1);
        assert_eq!(told(), Some(1.0));
        clock.advance(Duration::from_nanos(1));
        ask(&limiter, 7, 1);
        assert_eq!(told(), Some(7.0));
        clock.set(tollgate::time::Nanos::ZERO); // set back
        clock.advance(Duration::from_nanos(1));
        ask(&limiter, 8, 1);
        assert_eq!(told(), Some(8.0));
    });
}

#[test]
fn about_one_decision_in_64_is_timed_whatever_the_clocks_grain() {
    for grain_nanos in [1, 41, 1_000, 1_000_000] {
        let scrape = Scrape::new();
        scrape.during(|| {
            let clock = ManualClock::new();
            let limiter = Limiter::builder([per_minute("user", 2)]).clock(clock.clone()).build().unwrap();
            for _ in 0..6_400 {
                ask(&limiter, 1, 1);
                clock.advance(Duration::from_nanos(grain_nanos));
            }
        });
        let timed = scrape.value("tollgate_decision_seconds_count", &[]).unwrap();
        assert!((60.0..160.0).contains(&timed), "{timed} at {grain_nanos} ns");
        assert_eq!(scrape.value("tollgate_decision_seconds_sum", &[]), Some(0.0));
    }
}

#[test]
fn neither_the_number_of_series_nor_their_labels_depend_on_keys() {
    let scrape = Scrape::new();
    scrape.during(|| {
        let rule = || Rule::new("user", Limit::per_minute(1), |name: &String| Some(Key::from(name)));
        let store = Guarded::new(MemoryStore::new(), FailurePolicy::Refuse);
        let limiter = Limiter::builder([rule()]).store(store).clock(ManualClock::new()).build().unwrap();
        let ask = |number: usize| limiter.check_now(&format!("sentinel-{number}")).unwrap().is_allowed();
        assert!(ask(0));
        limiter.publish_metrics();
        let before: Vec<_> = scrape.page().series.into_keys().collect();
        assert!(before.len() > 10, "{before:?}");
        for number in 0..100_000 {
            assert_eq!(ask(number), number > 0);
        }
        limiter.publish_metrics();
        let after: Vec<_> = scrape.page().series.into_keys().collect();
        assert_eq!(before, after);
        assert!(!scrape.handle.render().contains("sentinel"));
        assert_eq!(scrape.value("tollgate_tracked_keys", &[("rule", "user")]), Some(100_000.0));
        assert_eq!(scrape.counted("user"), [("allowed", 100_000), ("refused", 1)]);
    });
}
