//! What is charged when a response future is dropped, at every point where it can be.
//!
//! "Dropped before the inner service is called, every charge is given back. After that, the charges stand."

use std::time::Duration;

use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};
use tollgate::{
    Limit, Limiter, RateLimit, Rule,
    bucket::{FixedWindow, LeakyBucket},
    response::RefuseWith,
    store::MemoryStore,
    time::ManualClock,
};
use tower_test::mock;

use super::{Name, NameLayer, SECOND, by_name, call, layer, layer_on, remaining, shaped};
use crate::support::Remote;

/// A rule that holds requests, and one whose count no time brings back during the test.
fn rules() -> [Rule<Name>; 2] {
    [shaped(), Rule::global("daily", Limit::per_day(9)).algorithm(FixedWindow)]
}

type Limited = RateLimit<mock::Mock<Name, Name>, Name, RefuseWith<Name, Name>>;

/// Everything a cancellation point needs to be reached.
struct Scene {
    clock: ManualClock,
    remote: Option<Remote>,
    limiter: Limiter<Name>,
    service: mock::Spawn<Limited>,
    inner: mock::Handle<Name, Name>,
}

impl Scene {
    fn new(late_store: bool) -> Self {
        let (clock, memory) = (ManualClock::new(), MemoryStore::new());
        let remote = late_store.then(|| Remote::over(&memory));
        let layer: NameLayer = match &remote {
            Some(remote) => layer_on(rules(), &clock, remote.clone()),
            None => layer_on(rules(), &clock, memory.clone()),
        };
        // A second limiter on the same memory sees the counts at once, whichever store the service asks.
        let limiter = Limiter::builder(rules()).clock(clock.clone()).store(memory).build().unwrap();
        let (service, mut inner) = mock::spawn_layer(layer);
        inner.allow(1_000);
        Self { clock, remote, limiter, service, inner }
    }

    fn answer(&self) {
        if let Some(remote) = &self.remote {
            remote.answer();
        }
    }

    /// A request that passes without a delay and is through.
    fn one_before(&mut self) {
        self.answer();
        let mut response = call(self.service.get_mut(), "ana");
        let _ = response.poll();
        let (_, answer) = assert_ready!(self.inner.poll_request()).expect("the service is alive");
        answer.send_response("ana");
        assert_ready_ok!(response.poll());
    }

    /// Stops being ready, so that whoever asks has to wait.
    fn busy(&mut self) {
        self.inner.allow(0);
    }

    fn remaining(&self) -> Vec<u64> {
        remaining(&self.limiter, "ana")
    }

    fn was_called(&mut self) -> bool {
        self.inner.poll_request().is_ready()
    }
}

/// Nothing used; one start used, a second ago or now.
const UNTOUCHED: [u64; 2] = [3, 9];
const ONE_NOW: [u64; 2] = [0, 8];
const ONE_LONG_AGO: [u64; 2] = [3, 8];

#[test]
fn dropped_before_the_store_answered_nothing_is_charged() {
    for polls in 0..3 {
        let mut scene = Scene::new(true);
        let mut response = call(scene.service.get_mut(), "ana");
        for _ in 0..polls {
            assert_pending!(response.poll());
        }
        drop(response);
        // This store charges when its future completes, and that future is gone. A store that charges as soon as it
        // is asked has charged: then nobody is left to give it back to.
        scene.answer();
        assert!(!scene.was_called());
        assert_eq!(scene.remaining(), UNTOUCHED);
    }
}

#[test]
fn dropped_between_the_stores_answer_and_the_next_poll_nothing_is_charged() {
    let mut scene = Scene::new(true);
    let mut response = call(scene.service.get_mut(), "ana");
    assert_pending!(response.poll());
    scene.answer();
    assert!(response.is_woken());
    drop(response);
    assert!(!scene.was_called());
    assert_eq!(scene.remaining(), UNTOUCHED);
}

#[test]
fn dropped_before_the_first_poll_the_charge_stands_once_call_has_called_the_inner_service() {
    let mut scene = Scene::new(false);
    drop(call(scene.service.get_mut(), "ana"));
    assert!(scene.was_called(), "a store that answers at once is asked in `call`");
    assert_eq!(scene.remaining(), ONE_NOW);
}

#[test]
fn dropped_while_it_waits_for_its_turn_every_charge_is_given_back() {
    for (late_store, polls) in [(false, 0), (false, 1), (false, 2), (true, 1), (true, 2)] {
        let mut scene = Scene::new(late_store);
        scene.one_before();
        scene.answer();
        let mut held = call(scene.service.get_mut(), "ana");
        for _ in 0..polls {
            assert_pending!(held.poll());
        }
        assert_eq!(scene.remaining(), [0, 7], "it is charged from the start: {late_store} {polls}");
        drop(held);
        assert!(!scene.was_called());
        assert_eq!(scene.remaining(), ONE_NOW, "{late_store} {polls}");
    }
}

#[test]
fn dropped_at_its_turn_while_the_inner_service_is_busy_every_charge_is_given_back() {
    for late_store in [false, true] {
        let mut scene = Scene::new(late_store);
        scene.one_before();
        scene.answer();
        let mut held = call(scene.service.get_mut(), "ana");
        assert_pending!(held.poll());
        scene.busy();
        scene.clock.advance(SECOND);
        assert_pending!(held.poll());
        drop(held);
        assert!(!scene.was_called());
        assert_eq!(scene.remaining(), ONE_LONG_AGO);
    }
}

#[test]
fn dropped_after_the_inner_call_the_charges_stand() {
    for (late_store, delayed) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut scene = Scene::new(late_store);
        if delayed {
            scene.one_before();
        }
        scene.answer();
        let mut response = call(scene.service.get_mut(), "ana");
        assert_pending!(response.poll());
        if delayed {
            scene.clock.advance(SECOND);
            assert_pending!(response.poll());
        }
        assert!(scene.was_called());
        drop(response);
        assert_eq!(scene.remaining(), if delayed { [0, 7] } else { ONE_NOW }, "{late_store} {delayed}");
    }
}

#[test]
fn acquire_gives_back_what_it_charged_until_it_returns() {
    let clock = ManualClock::new();
    let layer = layer(rules(), &clock);
    let limiter = layer.limiter().clone();
    let acquire = || task::spawn(limiter.acquire(&"ana"));

    drop(acquire());
    assert_eq!(remaining(&limiter, "ana"), UNTOUCHED, "an async function that was never polled has done nothing");

    assert!(assert_ready_ok!(acquire().poll()).is_allowed());
    let mut held = acquire();
    assert_pending!(held.poll());
    assert_eq!(remaining(&limiter, "ana"), [0, 7]);
    drop(held);
    assert_eq!(remaining(&limiter, "ana"), ONE_NOW);

    let mut held = acquire();
    assert_pending!(held.poll());
    clock.advance(SECOND);
    assert!(assert_ready_ok!(held.poll()).is_allowed());
    drop(held);
    assert_eq!(remaining(&limiter, "ana"), [0, 7]);
}

/// A request that has its turn after `delay`, or at once.
async fn turn(limiter: &Limiter<Name>) -> Duration {
    let decision = limiter.acquire(&"ana").await.unwrap();
    assert!(decision.is_allowed());
    decision.delay()
}

/// Rules that start one a second, in the two ways there are.
fn one_a_second() -> [Rule<Name>; 2] {
    [
        by_name(Limit::per_second(1).burst(5)).algorithm(LeakyBucket),
        by_name(Limit::per_second(1)).wait_up_to(SECOND * 4),
    ]
}

#[test]
fn a_cancelled_turn_is_free_for_the_next_in_line() {
    // B47 (b), dotnet/runtime#77180: a waiter that had been cancelled stayed in the way of those behind it. Shaping one
    // per second: X starts at 0, Y is due at 1 and cancelled at 0.5, Z comes at 0.6 and is due at 1.0, not at 2.
    for rule in one_a_second() {
        let clock = ManualClock::new();
        let layer = layer([rule], &clock);
        let limiter = layer.limiter();

        assert_eq!(assert_ready!(task::spawn(turn(limiter)).poll()), Duration::ZERO);
        let mut y = task::spawn(turn(limiter));
        assert_pending!(y.poll());
        clock.advance(SECOND / 2);
        assert_pending!(y.poll());
        drop(y);
        clock.advance(SECOND / 10);
        let mut z = task::spawn(turn(limiter));
        assert_pending!(z.poll());
        clock.advance(SECOND * 4 / 10 - Duration::from_nanos(1));
        assert_pending!(z.poll());
        clock.advance(Duration::from_nanos(1));
        assert_eq!(assert_ready!(z.poll()), SECOND * 4 / 10);
    }
}

#[test]
fn who_stands_behind_a_cancelled_turn_keeps_its_own() {
    for rule in one_a_second() {
        let clock = ManualClock::new();
        let layer = layer([rule], &clock);
        let limiter = layer.limiter();

        let _x = task::spawn(turn(limiter)).poll();
        let (mut y, mut z) = (task::spawn(turn(limiter)), task::spawn(turn(limiter)));
        assert_pending!(y.poll());
        assert_pending!(z.poll());
        drop(y);
        clock.advance(SECOND * 3 / 2);
        assert_pending!(z.poll(), "starts stay a second apart and promises are kept");
        clock.advance(SECOND / 2);
        assert_eq!(assert_ready!(z.poll()), SECOND * 2);
    }
}

#[test]
fn cancelling_and_queueing_again_ten_thousand_times_leaves_no_debt() {
    for rule in one_a_second() {
        let clock = ManualClock::new();
        let layer = layer([rule], &clock);
        let limiter = layer.limiter();

        let _first = task::spawn(turn(limiter)).poll();
        for _ in 0..10_000 {
            let mut waiter = task::spawn(turn(limiter));
            assert_pending!(waiter.poll());
            clock.advance(SECOND / 100_000);
        }
        clock.advance(SECOND - SECOND / 10);
        assert_eq!(
            assert_ready!(task::spawn(turn(limiter)).poll()),
            Duration::ZERO,
            "the next lone request runs at once"
        );
    }
}

#[test]
fn the_service_gives_cancelled_turns_back_too() {
    for rule in one_a_second() {
        let clock = ManualClock::new();
        let layer = layer([rule], &clock);
        let limiter = layer.limiter().clone();
        let (mut service, mut inner) = mock::spawn_layer::<Name, Name, _>(layer);
        inner.allow(1_000);
        let _first = call(service.get_mut(), "ana");
        let before = remaining(&limiter, "ana");
        for _ in 0..1_000 {
            let mut held = call(service.get_mut(), "ana");
            assert_pending!(held.poll());
        }
        assert_eq!(remaining(&limiter, "ana"), before);
        clock.advance(SECOND);
        let response = call(service.get_mut(), "ana");
        assert!(assert_ready!(inner.poll_request()).is_some());
        assert!(inner.poll_request().is_ready(), "no delay: it was called at once");
        drop(response);
    }
}
