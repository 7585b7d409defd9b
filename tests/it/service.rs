//! The tower contract, polled by hand.

mod cancellation;
mod store_failure;

use std::{sync::atomic::Ordering, time::Duration};

use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tollgate::{
    Decision, Key, Limit, Limiter, RateLimitLayer, Rule,
    bucket::{FixedWindow, LeakyBucket},
    response::RefuseWith,
    store::{MemoryStore, Store},
    time::ManualClock,
};
use tower::{Layer, Service, limit::ConcurrencyLimit};
use tower_test::mock;

use crate::support::{Broken, Probe, Remote};

/// Requests are names and answers are names; a refusal says so.
type Name = &'static str;
type NameLayer = RateLimitLayer<Name, RefuseWith<Name, Name>>;

const SECOND: Duration = Duration::from_secs(1);

fn by_name(limit: Limit) -> Rule<Name> {
    Rule::new("name", limit, |name: &Name| Some(Key::from(*name)))
}

/// One start a second for each name, and two more may wait.
fn shaped() -> Rule<Name> {
    by_name(Limit::per_second(1).burst(3)).algorithm(LeakyBucket)
}

fn refused(_: &Name, _: &Decision) -> Name {
    "refused"
}

fn layer(rules: impl IntoIterator<Item = Rule<Name>>, clock: &ManualClock) -> NameLayer {
    layer_on(rules, clock, MemoryStore::new())
}

fn layer_on(rules: impl IntoIterator<Item = Rule<Name>>, clock: &ManualClock, store: impl Store) -> NameLayer {
    let limiter = Limiter::builder(rules).clock(clock.clone()).store(store).build().unwrap();
    RateLimitLayer::from(limiter).refuse_with(refused)
}

/// What each rule has left for `name`, in the order of the rules.
fn remaining(limiter: &Limiter<Name>, name: Name) -> Vec<u64> {
    limiter.peek_now(&name).unwrap().rules().map(|rule| rule.verdict.remaining).collect()
}

#[test]
fn readiness_is_the_inner_services_own() {
    let layer = layer([by_name(Limit::per_minute(1))], &ManualClock::new());
    let (mut service, mut inner) = mock::spawn_layer::<Name, Name, _>(layer);

    inner.allow(0);
    assert_pending!(service.poll_ready());
    inner.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.poll_ready());

    inner.send_error(Broken(7));
    let error = assert_ready_err!(service.poll_ready());
    assert_eq!(error.downcast_ref(), Some(&Broken(7)));
}

#[test]
fn a_spent_limit_does_not_touch_readiness() {
    // tower's own rate limit makes everybody wait in `poll_ready`; here one client's limit is nobody else's business.
    let layer = layer([by_name(Limit::per_minute(1))], &ManualClock::new());
    let (mut service, mut inner) = mock::spawn_layer::<Name, Name, _>(layer);
    inner.allow(9);
    assert_ready_ok!(service.poll_ready());
    let _first = service.call("ana");
    assert_ready_ok!(service.poll_ready());
    assert_ready_ok!(service.poll_ready());
}

#[test]
fn the_inner_service_is_called_for_a_pass_and_never_for_a_refusal() {
    let layer = layer([by_name(Limit::per_minute(1))], &ManualClock::new());
    let (mut service, mut inner) = mock::spawn_layer::<Name, Name, _>(layer);
    inner.allow(9);

    assert_ready_ok!(service.poll_ready());
    let mut passed = task::spawn(service.call("ana"));
    let (request, answer) = assert_ready!(inner.poll_request()).expect("the service is alive");
    assert_eq!(request, "ana");
    assert_pending!(passed.poll());
    answer.send_response("hello ana");
    assert_eq!(assert_ready_ok!(passed.poll()), "hello ana");

    assert_ready_ok!(service.poll_ready());
    let mut second = task::spawn(service.call("ana"));
    assert_eq!(assert_ready_ok!(second.poll()), "refused");
    assert_pending!(inner.poll_request());

    // The readiness that the refusal did not use is still there for the next request.
    let mut other = task::spawn(service.call("bob"));
    assert_pending!(other.poll());
    assert_eq!(assert_ready!(inner.poll_request()).expect("the service is alive").0, "bob");
}

#[test]
fn the_inner_service_waits_for_the_stores_answer() {
    let (clock, memory) = (ManualClock::new(), MemoryStore::new());
    let remote = Remote::over(&memory);
    let layer = layer_on([by_name(Limit::per_minute(1))], &clock, remote.clone());
    let (mut service, mut inner) = mock::spawn_layer::<Name, Name, _>(layer);
    inner.allow(9);

    assert_ready_ok!(service.poll_ready());
    let mut first = task::spawn(service.call("ana"));
    assert_pending!(first.poll());
    assert_pending!(inner.poll_request());
    remote.answer();
    assert!(first.is_woken());
    assert_pending!(first.poll());
    assert_eq!(assert_ready!(inner.poll_request()).expect("the service is alive").0, "ana");

    assert_ready_ok!(service.poll_ready());
    let mut second = task::spawn(service.call("ana"));
    remote.answer();
    assert_eq!(assert_ready_ok!(second.poll()), "refused");
    assert_pending!(inner.poll_request());
}

#[test]
fn errors_of_the_inner_service_come_out_as_they_went_in() {
    let clock = ManualClock::new();
    let layer = layer([by_name(Limit::per_minute(5))], &clock);
    let limiter = layer.limiter().clone();
    let (mut service, mut inner) = mock::spawn_layer::<Name, Name, _>(layer);
    inner.allow(9);
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call("ana"));
    assert_ready!(inner.poll_request()).expect("the service is alive").1.send_error(Broken(3));
    let error = assert_ready_err!(response.poll());
    assert_eq!(error.downcast_ref(), Some(&Broken(3)));
    // The work was asked for and may have been done, so the charge stands.
    assert_eq!(remaining(&limiter, "ana"), [4]);
}

/// Calls a service that is ready at once.
fn call<S>(service: &mut S, name: Name) -> task::Spawn<S::Future>
where
    S: Service<Name, Response = Name>,
    S::Error: std::fmt::Debug,
{
    assert_ready_ok!(task::spawn(()).enter(|cx, _| service.poll_ready(cx)));
    task::spawn(service.call(name))
}

#[test]
fn only_an_instance_that_was_made_ready_is_called() {
    for late_store in [false, true] {
        for rule in [by_name(Limit::per_minute(3)), shaped(), by_name(Limit::per_second(1)).wait_up_to(SECOND * 5)] {
            let (clock, memory, probe) = (ManualClock::new(), MemoryStore::new(), Probe::new());
            let (remote, calls) = (Remote::over(&memory), probe.calls());
            let layer = match late_store {
                true => layer_on([rule], &clock, remote.clone()),
                false => layer_on([rule], &clock, memory),
            };
            let mut service = layer.layer(probe);
            for round in 1..=3 {
                remote.answer();
                let mut response = call(&mut service, "ana");
                // The first starts at once; the later ones of a rule that delays have their turn a second later.
                let answer = response.poll();
                if answer.is_pending() {
                    clock.advance(SECOND);
                    assert!(response.is_woken());
                    assert_eq!(assert_ready_ok!(response.poll()), "ana");
                } else {
                    assert_eq!(assert_ready_ok!(answer), "ana");
                }
                assert_eq!(calls.load(Ordering::Relaxed), round);
            }
        }
    }
}

/// Answers the one request that is at the inner service.
fn finish<F>(inner: &mut mock::Handle<Name, Name>, mut response: task::Spawn<F>, name: Name)
where
    F: Future<Output = Result<Name, tower::BoxError>>,
{
    let (request, answer) = assert_ready!(inner.poll_request()).expect("the service is alive");
    assert_eq!(request, name);
    answer.send_response(name);
    assert_eq!(assert_ready_ok!(response.poll()), name);
}

#[test]
fn a_request_that_waits_holds_no_readiness() {
    for late_store in [false, true] {
        let (clock, memory) = (ManualClock::new(), MemoryStore::new());
        let remote = Remote::over(&memory);
        let layer = match late_store {
            true => layer_on([shaped()], &clock, remote.clone()),
            false => layer_on([shaped()], &clock, memory),
        };
        // One at a time: whoever kept a place here while it waits would block everybody else.
        let (mut service, mut inner) =
            mock::spawn_with::<Name, Name, _, _>(|mock| layer.layer(ConcurrencyLimit::new(mock, 1)));
        inner.allow(9);
        let mut start = |name| {
            remote.answer();
            assert_ready_ok!(service.poll_ready(), "no place is taken");
            let mut response = task::spawn(service.call(name));
            assert_pending!(response.poll());
            response
        };

        let first = start("ana");
        finish(&mut inner, first, "ana");
        let mut held = start("ana"); // her next turn is in a second
        let other = start("bob"); // meanwhile the one place is his
        clock.advance(SECOND);
        assert!(held.is_woken());
        assert_pending!(held.poll(), "her turn has come, and the place is taken");
        finish(&mut inner, other, "bob");
        assert!(held.is_woken(), "the clone was asked again and waits like anybody else");
        assert_pending!(held.poll());
        finish(&mut inner, held, "ana");
    }
}

#[test]
fn a_service_that_fails_at_the_requests_turn_gives_every_charge_back() {
    let clock = ManualClock::new();
    let rules = [shaped(), Rule::global("daily", Limit::per_day(9)).algorithm(FixedWindow)];
    let layer = layer(rules, &clock);
    let limiter = layer.limiter().clone();
    let (mut service, mut inner) = mock::spawn_layer::<Name, Name, _>(layer);
    inner.allow(9);

    let _first = call(service.get_mut(), "ana");
    let mut held = call(service.get_mut(), "ana");
    assert_pending!(held.poll());
    assert_eq!(remaining(&limiter, "ana"), [0, 7]);

    clock.advance(SECOND);
    inner.send_error(Broken(5));
    let error = assert_ready_err!(held.poll());
    assert_eq!(error.downcast_ref(), Some(&Broken(5)));
    drop(held);
    assert_eq!(remaining(&limiter, "ana"), [3, 8]);
}

#[test]
fn a_rule_list_that_is_empty_lets_everything_through_unchanged() {
    let layer = layer([], &ManualClock::new());
    let probe = Probe::new();
    let calls = probe.calls();
    let mut service = layer.layer(probe);
    for _ in 0..100 {
        assert_eq!(assert_ready_ok!(call(&mut service, "ana").poll()), "ana");
    }
    assert_eq!(calls.load(Ordering::Relaxed), 100);
}

#[test]
fn the_inner_service_can_be_seen_and_taken_back() {
    let mut service = layer([], &ManualClock::new()).layer(7);
    assert_eq!(*service.get_ref(), 7);
    *service.get_mut() = 8;
    assert_eq!(service.into_inner(), 8);
}
