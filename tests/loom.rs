//! The lock protocol of the memory store, and of those who wait for a place and free it, in every order in which their
//! threads can run. Each model makes one claim.
//!
//! ```text
//! RUSTFLAGS="--cfg tollgate_loom" cargo test --release --target-dir target/loom --test loom   # scripts/loom
//! ```
//!
//! What loom orders are the locks of the shards. The few atomics of a table are hints and counts that publish nothing;
//! loom does not see them, and takes each as it was at the last lock. Tables that are not sharded lock through another
//! crate's maps and are hammered by real threads instead, in `it/threads.rs`.

#![cfg(tollgate_loom)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed, which is its job")]

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::body::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body::Body;
use loom::{
    future::block_on,
    model,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};
use tollgate::{
    Key, Limit, Limiter, RateLimitLayer,
    bucket::Algorithm,
    charge::{Charge, Judged, RuleSpec, Slot, Take, Taken, Verdicts},
    decision::Outcome,
    key::{KeyId, Secret},
    store::{HeldReceipt, MemoryStore, Overflow, Receipt, Reply, Store},
    time::{BoxFuture, Clock, Nanos},
};
use tower::{Layer, Service, service_fn};

const TODAY: Nanos = Nanos::from_secs(1_700_000_000);
const TICK: Nanos = Nanos::new(1);

/// A store of one shard a rule. The secret is fixed, since a model has to do the same each time.
fn store() -> MemoryStore {
    MemoryStore::builder().max_keys(64).secret(Secret::new([7; 16])).build()
}

fn later(time: Nanos) -> Nanos {
    time.saturating_add(Nanos::SECOND)
}

/// A rule on a store, with a handle of its own for each thread.
#[derive(Clone)]
struct Rule {
    store: MemoryStore,
    slot: Slot,
    limit: Limit,
}

impl Rule {
    /// Binds a rule, and makes its table ready: loom does not see the standard library's `OnceLock`.
    fn new(store: &MemoryStore, name: &'static str, algorithm: Algorithm, limit: Limit) -> Self {
        let slot = store.bind(&RuleSpec::new(name, algorithm, limit), None).unwrap();
        let rule = Self { store: store.clone(), slot, limit };
        assert_eq!(rule.left(1, TODAY), limit.capacity());
        rule
    }

    fn tokens(store: &MemoryStore, name: &'static str, limit: Limit) -> Self {
        Self::new(store, name, Algorithm::TokenBucket, limit)
    }

    fn charge(&self, client: u64) -> Charge<'_> {
        Charge::new(&self.slot, self.key(client), self.limit, 1)
    }

    fn key(&self, client: u64) -> KeyId {
        Key::from(client).id(self.store.secret())
    }

    /// Takes one permit, if there is one.
    fn passes(&self, client: u64, now: Nanos) -> bool {
        passes(&decide(&self.store, now, &[self.charge(client)]))
    }

    /// How many permits there are, without taking one.
    fn left(&self, client: u64, now: Nanos) -> u64 {
        let mut charge = self.charge(client);
        charge.take = Take::Never;
        decide(&self.store, now, &[charge]).first().unwrap().verdict.remaining
    }

    /// Takes one permit that may be given back.
    fn take(&self, client: u64, now: Nanos) -> Taken {
        let judged = *decide(&self.store, now, &[self.charge(client)]).first().unwrap();
        let mut taken = Taken::new(self.slot.clone(), self.key(client), self.limit, 1, judged.mark.unwrap());
        taken.stamp = judged.stamp;
        taken
    }
}

fn decide(store: &MemoryStore, now: Nanos, charges: &[Charge<'_>]) -> Vec<Judged> {
    let mut verdicts = Verdicts::new();
    assert!(matches!(store.decide(now, charges, &mut verdicts), Reply::Ready(Ok(()))));
    verdicts.iter().copied().collect()
}

fn passes(judged: &[Judged]) -> bool {
    judged.iter().all(|judged| judged.verdict.outcome.passes())
}

#[test]
fn opposite_orders_do_not_wait_for_each_other_and_admit_the_limit() {
    model(|| {
        let store = store();
        let [a, b] = ["a", "b"].map(|name| Rule::tokens(&store, name, Limit::per_hour(1)));
        let other = thread::spawn({
            let (store, a, b) = (store.clone(), a.clone(), b.clone());
            move || passes(&decide(&store, TODAY, &[b.charge(1), a.charge(1)]))
        });
        let passed = passes(&decide(&store, TODAY, &[a.charge(1), b.charge(1)]));
        assert_ne!(passed, other.join().unwrap());
        assert_eq!((a.left(1, TODAY), b.left(1, TODAY)), (0, 0));
    });
}

#[test]
fn three_threads_in_a_circle_do_not_wait_for_each_other() {
    model(|| {
        let store = store();
        let [a, b, c] = ["a", "b", "c"].map(|name| Rule::tokens(&store, name, Limit::per_hour(2)));
        let asks = |one: &Rule, other: &Rule| {
            let (store, one, other) = (store.clone(), one.clone(), other.clone());
            move || passes(&decide(&store, TODAY, &[one.charge(1), other.charge(1)]))
        };
        let others = [thread::spawn(asks(&a, &b)), thread::spawn(asks(&b, &c))];
        assert!(asks(&c, &a)());
        assert!(others.map(|other| other.join().unwrap()).iter().all(|passed| *passed));
        assert_eq!([&a, &b, &c].map(|rule| rule.left(1, TODAY)), [0; 3]);
    });
}

#[test]
fn a_refusal_by_the_second_rule_leaves_the_first_untouched() {
    model(|| {
        let store = store();
        let [first, second] = ["first", "second"].map(|name| Rule::tokens(&store, name, Limit::per_hour(1)));
        let both = thread::spawn({
            let (store, first, second) = (store.clone(), first.clone(), second.clone());
            move || passes(&decide(&store, TODAY, &[first.charge(1), second.charge(1)]))
        });
        let seen_meanwhile = thread::spawn({
            let first = first.clone();
            move || first.left(1, TODAY)
        });
        let took_second = second.passes(1, TODAY);
        let (both, seen_meanwhile) = (both.join().unwrap(), seen_meanwhile.join().unwrap());
        assert_ne!(both, took_second);
        assert_eq!(first.left(1, TODAY), u64::from(!both));
        assert!(both || seen_meanwhile == 1, "a charge that did not stand was seen");
        assert_eq!(second.left(1, TODAY), 0);
    });
}

#[test]
fn what_is_given_back_is_taken_once() {
    model(|| {
        let rule = Rule::tokens(&store(), "rule", Limit::per_hour(1));
        let mut taken = rule.take(1, TODAY);
        let back = thread::spawn({
            let rule = rule.clone();
            move || rule.store.adjust(TODAY, &mut taken, 0)
        });
        let other = thread::spawn({
            let rule = rule.clone();
            move || rule.passes(1, TODAY)
        });
        let passed = rule.passes(1, TODAY);
        back.join().unwrap();
        let other = other.join().unwrap();
        assert!(!(passed && other), "one permit came back, and two were taken");
        assert_eq!(rule.left(1, TODAY), u64::from(!passed && !other));
    });
}

#[test]
fn a_charge_given_back_after_a_reset_is_not_another_ones() {
    model(|| {
        let rule = Rule::tokens(&store(), "rule", Limit::per_hour(1));
        let mut taken = rule.take(1, TODAY);
        let back = thread::spawn({
            let rule = rule.clone();
            move || rule.store.adjust(TODAY, &mut taken, 0)
        });
        assert!(matches!(rule.store.reset(&rule.slot, rule.key(1)), Reply::Ready(Ok(()))));
        assert!(rule.passes(1, TODAY));
        back.join().unwrap();
        assert_eq!(rule.left(1, TODAY), 0, "what came back was not what had been charged");
    });
}

/// One permit a second was used a second ago. Somebody sweeps the bucket away as fresh while a thread that read its
/// clock a moment before that comes with its charge.
fn swept_under_a_late_thread(algorithm: Algorithm) {
    model(move || {
        let rule = Rule::new(&store(), "rule", algorithm.clone(), Limit::per_second(1));
        let now = later(TODAY);
        assert!(rule.passes(1, TODAY));
        let sweeper = thread::spawn({
            let store = rule.store.clone();
            move || store.sweep(now)
        });
        let late = rule.passes(1, now.saturating_sub(TICK));
        assert_eq!(sweeper.join().unwrap(), 1);
        // It was judged in its own time and refused, or at the sweep's and has what there is from then on.
        assert_ne!(rule.passes(1, now), late);
        assert!(!rule.passes(1, later(now).saturating_sub(TICK)));
        assert!(rule.passes(1, later(now)));
    });
}

#[test]
fn a_late_thread_mints_no_token_from_a_bucket_that_was_swept() {
    swept_under_a_late_thread(Algorithm::TokenBucket);
}

#[test]
fn a_late_thread_gets_no_window_twice_from_a_bucket_that_was_swept() {
    swept_under_a_late_thread(Algorithm::FixedWindow);
}

#[test]
fn a_table_rebuilt_under_a_charge_loses_no_bucket_in_use() {
    model(|| {
        let rule = Rule::tokens(&store(), "rule", Limit::per_hour(1));
        // The next key makes the smallest table crowded.
        assert!(rule.passes(1, TODAY) && rule.passes(2, TODAY));
        let newcomer = thread::spawn({
            let rule = rule.clone();
            move || rule.passes(3, TODAY)
        });
        let another = thread::spawn({
            let rule = rule.clone();
            move || rule.passes(4, TODAY)
        });
        assert!(!rule.passes(1, TODAY));
        assert!(newcomer.join().unwrap() && another.join().unwrap());
        assert!((1..=4).all(|client| !rule.passes(client, TODAY)));
        assert_eq!(rule.store.tracked_keys(), 4);
    });
}

#[test]
fn one_place_in_a_full_table_goes_to_one_of_two_and_drops_nobody() {
    model(|| {
        let store = MemoryStore::builder().max_keys(2).overflow(Overflow::Refuse).secret(Secret::new([7; 16])).build();
        let rule = Rule::tokens(&store, "rule", Limit::per_second(1));
        // As long as a fresh bucket stays while there is no room: a fiftieth of what a spent one takes to fill.
        let now = later(TODAY).saturating_add(Nanos::new(20_000_000));
        // The one may go by now, and the other may not.
        assert!(rule.passes(1, TODAY) && rule.passes(2, now.saturating_sub(TICK)));
        let other = thread::spawn({
            let rule = rule.clone();
            move || rule.passes(3, now)
        });
        let passed = rule.passes(4, now);
        assert_ne!(passed, other.join().unwrap());
        assert!(!rule.passes(2, now), "a bucket in use went");
        assert_eq!(store.tracked_keys(), 2);
    });
}

#[test]
fn keys_without_a_place_share_one_limit() {
    model(|| {
        let store =
            MemoryStore::builder().max_keys(1).overflow(Overflow::Share(1)).secret(Secret::new([7; 16])).build();
        let rule = Rule::tokens(&store, "rule", Limit::per_hour(1));
        assert!(rule.passes(1, TODAY));
        let ask = |client| {
            let rule = rule.clone();
            move || decide(&rule.store, TODAY, &[rule.charge(client)])
        };
        let other = thread::spawn(ask(2));
        let answers = [ask(3)(), other.join().unwrap()];
        assert!(answers.iter().flatten().all(|judged| judged.verdict.untracked));
        assert_eq!(answers.iter().filter(|judged| passes(judged)).count(), 1);
        assert!(answers.iter().flatten().any(|judged| matches!(judged.verdict.outcome, Outcome::Refuse(_))));
        assert!(!rule.passes(1, TODAY), "a bucket in use went");
    });
}

/// A clock that stands still. Nobody who sleeps wakes up.
struct Still;

impl Clock for Still {
    fn now(&self) -> Nanos {
        TODAY
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

#[test]
fn limiters_with_opposite_orders_of_rules_do_not_wait_for_each_other_and_admit_the_limit() {
    model(|| {
        let store = store();
        let limiter = |names: [&'static str; 2]| {
            let rule = |name| tollgate::Rule::new(name, Limit::per_hour(2), |id: &u64| Some(Key::from(*id)));
            Limiter::builder(names.map(rule)).store(store.clone()).clock(Still).build().unwrap()
        };
        let (one, other) = (limiter(["a", "b"]), limiter(["b", "a"]));
        let passes = |limiter: &Limiter<u64>| limiter.check_now(&7).unwrap().is_allowed();
        // From here on the key is known to both rules, and decisions go the shortest way.
        assert!(passes(&one));
        let thread = thread::spawn(move || passes(&other));
        let passed = passes(&one);
        assert_ne!(passed, thread.join().unwrap());
        assert!(one.peek_now(&7).unwrap().rules().all(|rule| rule.verdict.remaining == 0));
    });
}

/// One place, for which up to two wait. Nobody asks again without being called.
fn one_place() -> Limiter<u64> {
    let rule = tollgate::Rule::new("place", Limit::in_flight(1), |id: &u64| Some(Key::from(*id)));
    let rule = rule.queue(2, Duration::from_secs(1));
    let limiter = Limiter::builder([rule]).store(store()).clock(Still).build().unwrap();
    // Makes its table ready.
    drop(limiter.reserve_now(&7).unwrap());
    limiter
}

/// Nobody waits, and the place is free: one has it, and not two.
fn all_have_ended(limiter: &Limiter<u64>) {
    assert_eq!(limiter.waiting("place"), Some(0));
    let (decision, _held) = limiter.reserve_now(&7).unwrap();
    assert!(decision.is_allowed());
    assert!(!limiter.reserve_now(&7).unwrap().0.is_allowed());
}

/// Waits for the place. Who is never called waits for ever, which the model finds.
fn waits(limiter: &Limiter<u64>) -> Receipt {
    let (decision, receipt) = block_on(limiter.acquire_receipt(&7)).unwrap();
    assert!(decision.is_allowed());
    receipt
}

#[test]
fn a_place_that_is_freed_while_somebody_begins_to_wait_is_not_missed() {
    model(|| {
        let limiter = one_place();
        let (_, held) = limiter.reserve_now(&7).unwrap();
        let waiter = thread::spawn({
            let limiter = limiter.clone();
            move || drop(waits(&limiter))
        });
        drop(held);
        waiter.join().unwrap();
        all_have_ended(&limiter);
    });
}

#[test]
fn a_place_that_is_freed_goes_to_one_of_those_who_wait_and_then_to_the_other() {
    model(|| {
        let limiter = one_place();
        let running = Arc::new(AtomicUsize::new(0));
        let waiters = [(); 2].map(|()| {
            let (limiter, running) = (limiter.clone(), Arc::clone(&running));
            thread::spawn(move || {
                let held = waits(&limiter);
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two have the place");
                running.fetch_sub(1, Ordering::SeqCst);
                drop(held);
            })
        });
        for waiter in waiters {
            waiter.join().unwrap();
        }
        all_have_ended(&limiter);
    });
}

#[test]
fn who_gives_up_while_it_is_called_passes_the_call_on() {
    model(|| {
        let limiter = one_place();
        let (_, held) = limiter.reserve_now(&7).unwrap();
        // Stands before the other one, and is dropped while the place is freed.
        let mut gives_up = Box::pin({
            let limiter = limiter.clone();
            async move { limiter.acquire_receipt(&7).await }
        });
        assert!(gives_up.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let frees = thread::spawn(move || drop(held));
        let waiter = thread::spawn({
            let limiter = limiter.clone();
            move || drop(waits(&limiter))
        });
        drop(gives_up);
        frees.join().unwrap();
        waiter.join().unwrap();
        all_have_ended(&limiter);
    });
}

/// What was given to somebody who is gone by then is free again.
#[test]
fn who_gives_up_while_it_is_given_the_place_gives_it_back() {
    model(|| {
        let limiter = one_place();
        let (_, held) = limiter.reserve_now(&7).unwrap();
        let gives_up = thread::spawn({
            let limiter = limiter.clone();
            move || {
                let mut asking = Box::pin(limiter.acquire_receipt(&7));
                for _ in 0..2 {
                    if asking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                        return;
                    }
                }
            }
        });
        drop(held);
        gives_up.join().unwrap();
        all_have_ended(&limiter);
    });
}

#[test]
fn a_place_is_either_held_still_or_free_for_who_comes_while_it_is_freed() {
    model(|| {
        let limiter = one_place();
        let (_, held) = limiter.reserve_now(&7).unwrap();
        let frees = thread::spawn(move || drop(held));
        let (decision, newcomer) = limiter.reserve_now(&7).unwrap();
        frees.join().unwrap();
        assert_ne!(limiter.reserve_now(&7).unwrap().0.is_allowed(), decision.is_allowed());
        drop(newcomer);
        all_have_ended(&limiter);
    });
}

/// A response's body of one piece, which says that there is no more.
#[derive(Clone)]
struct Piece(Option<Bytes>);

impl Body for Piece {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|piece| Ok(http_body::Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}

/// The body is read to its end, a copy of it is dropped, and the handler's task lets go of the receipt, all at once.
#[test]
fn a_place_that_is_freed_in_every_way_at_once_is_free_once() {
    model(|| {
        let rule = tollgate::Rule::global("place", Limit::in_flight(1));
        let limiter = Limiter::builder([rule]).store(store()).clock(Still).build().unwrap();
        let passes = |limiter: &Limiter<Request<()>>| limiter.reserve_now(&Request::new(())).unwrap();
        drop(passes(&limiter));
        let inner = service_fn(|mut request: Request<()>| {
            let mut response = Response::new(Piece(Some(Bytes::from_static(b"piece"))));
            response.extensions_mut().insert(request.extensions_mut().remove::<HeldReceipt>().unwrap());
            std::future::ready(Ok::<_, Infallible>(response))
        });
        let called = RateLimitLayer::from(limiter.clone()).layer(inner).call(Request::new(()));
        let mut response = called.now_or_never().unwrap().unwrap();
        let held = response.extensions_mut().remove::<HeldReceipt>().unwrap();
        let mut body = response.into_body();
        let copy = body.clone();
        let ends = [thread::spawn(move || drop(held.take())), thread::spawn(move || drop(copy))];
        let read = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(read, Poll::Ready(Some(Ok(_)))));
        let (decision, newcomer) = passes(&limiter);
        for end in ends {
            end.join().unwrap();
        }
        assert_ne!(passes(&limiter).0.is_allowed(), decision.is_allowed(), "the newcomer has it, or it is free");
        drop((newcomer, body));
        let (decision, _held) = passes(&limiter);
        assert!(decision.is_allowed() && !passes(&limiter).0.is_allowed());
    });
}
