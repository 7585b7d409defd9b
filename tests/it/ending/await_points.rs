//! What a request holds and what of it stands, wherever it ends.

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::Context,
    time::Duration,
};

use futures_util::{FutureExt, task::noop_waker_ref};
use http_body_util::BodyExt;
use tokio::sync::oneshot;
use tollgate::{
    Limit, RateLimitLayer, ResponseBody,
    bucket::{FixedWindow, LeakyBucket},
    store::{HeldReceipt, Receipt},
};
use tower::{Layer, Service, service_fn};

use super::*;
use crate::support::Remote;

type Answer = Result<Answered, Broken>;

/// A rule of each kind that count the same requests, and two that make some of them wait.
fn rules() -> [Rule<Asked>; 7] {
    let failed = |response: &Response<()>| response.status() == StatusCode::UNAUTHORIZED;
    [
        Rule::global("place", Limit::in_flight(9)),
        Rule::global("head", Limit::in_flight(9)).until_head(),
        Rule::global("rate", Limit::per_minute(9)).algorithm(FixedWindow),
        Rule::global("failures", Limit::per_minute(9)).algorithm(FixedWindow).count_only_when(failed),
        Rule::global("answered", Limit::per_minute(9))
            .algorithm(FixedWindow)
            .count_only_when(failed)
            .give_back_unanswered(),
        Rule::global("one", Limit::in_flight(1))
            .queue(9, Duration::from_secs(9))
            .when(|asked: &Asked| asked.uri().path() == "/one"),
        Rule::global("turn", Limit::per_second(1).burst(9))
            .algorithm(LeakyBucket)
            .when(|asked: &Asked| asked.uri().path() == "/turn"),
    ]
}

fn asked(path: &'static str) -> Asked {
    Request::builder().uri(path).body(()).unwrap()
}

const ALL: [u64; 5] = [1; 5];
const NONE: [u64; 5] = [0; 5];
/// What stands of a request without an answer.
const UNANSWERED: [u64; 5] = [0, 0, 1, 1, 0];
/// What is held once the head of a good answer is there, and of a bad one.
const STREAMS: [u64; 5] = [1, 0, 1, 0, 0];
const STREAMS_FAILURE: [u64; 5] = [1, 0, 1, 1, 1];
/// What stands of a request with a good answer, and of one with a bad one.
const ANSWERED: [u64; 5] = [0, 0, 1, 0, 0];
const FAILED: [u64; 5] = [0, 0, 1, 1, 1];
/// What two hold that run.
const TWO: [u64; 5] = [2; 5];

/// A limited service whose answers come when they are sent.
struct Scene {
    seen: Limiter<Asked>,
    remote: Option<Remote>,
    clock: ManualClock,
    layer: RateLimitLayer<Asked>,
    /// Whether the inner service is ready when it is asked.
    ready: Arc<AtomicBool>,
    receipts: Arc<Mutex<Vec<Receipt>>>,
    /// Requests that run on.
    others: Mutex<Vec<Left>>,
}

type Pending = Pin<Box<dyn Future<Output = Result<Response<ResponseBody<Frames>>, Broken>>>>;
/// A request under way, and by what it is answered.
type Calling = (Pending, oneshot::Sender<Answer>);

/// Answers when it is sent an answer.
#[derive(Clone)]
struct Inner {
    ready: Arc<AtomicBool>,
    answered: Arc<Mutex<Option<oneshot::Receiver<Answer>>>>,
}

impl Service<Asked> for Inner {
    type Response = Answered;
    type Error = Broken;
    type Future = Pin<Box<dyn Future<Output = Answer>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        if self.ready.load(Ordering::Relaxed) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn call(&mut self, _: Asked) -> Self::Future {
        let answered = self.answered.lock().unwrap().take().expect("called once");
        Box::pin(async move { answered.await.expect("answered") })
    }
}

impl Scene {
    fn new(late_store: bool) -> Self {
        let (memory, clock) = (MemoryStore::new(), ManualClock::new());
        let remote = late_store.then(|| Remote::over(&memory));
        let build = |limiter: tollgate::LimiterBuilder<Asked>| limiter.clock(clock.clone()).build().unwrap();
        let layer = match &remote {
            Some(remote) => build(Limiter::builder(rules()).store(remote.clone())),
            None => build(Limiter::builder(rules()).store(memory.clone())),
        };
        let seen = build(Limiter::builder(rules()).store(memory));
        let (ready, receipts, others) = (Arc::new(AtomicBool::new(true)), Arc::default(), Mutex::default());
        Self { seen, remote, clock, layer: layer.into(), ready, receipts, others }
    }

    /// Lets the store answer the next question.
    fn store_answers(&self) {
        if let Some(remote) = &self.remote {
            remote.answer();
        }
    }

    fn used(&self) -> Vec<u64> {
        used(&self.seen, &Asked::default())
    }

    /// Calls the service, which answers when it is sent an answer.
    fn call(&self) -> Calling {
        self.call_for("/")
    }

    fn call_for(&self, path: &'static str) -> Calling {
        let (answer, answered) = oneshot::channel::<Answer>();
        let answered = Arc::new(Mutex::new(Some(answered)));
        let inner = Inner { ready: Arc::clone(&self.ready), answered };
        (Box::pin(self.layer.layer(inner).call(asked(path))), answer)
    }

    /// A request that runs, and another one behind it.
    fn two_for(&self, path: &'static str) -> Calling {
        let mut first = self.call_for(path);
        let _ = poll(&mut first.0);
        self.store_answers();
        assert!(poll(&mut first.0).is_none());
        assert_eq!(self.used(), ALL);
        self.others.lock().unwrap().push(Box::new(first));
        let mut second = self.call_for(path);
        let _ = poll(&mut second.0);
        // Who begins to wait asks once more.
        for _ in 0..2 {
            self.store_answers();
            assert!(poll(&mut second.0).is_none());
        }
        second
    }

    /// Calls the service and brings the answer's head.
    fn answered(&self, answer: Answered) -> Response<ResponseBody<Frames>> {
        let (mut response, send) = self.call();
        if let Some(remote) = &self.remote {
            assert!(poll(&mut response).is_none());
            remote.answer();
        }
        assert!(poll(&mut response).is_none());
        assert_eq!(self.used(), ALL);
        send.send(Ok(answer)).unwrap();
        poll(&mut response).expect("answered").unwrap()
    }
}

fn poll<T>(future: &mut Pin<Box<dyn Future<Output = T>>>) -> Option<T> {
    match future.as_mut().poll(&mut Context::from_waker(noop_waker_ref())) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

/// Polls a body so often, and returns it.
fn polled<B: Body + Unpin>(mut body: B, times: u32) -> B {
    for _ in 0..times {
        let _ = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).now_or_never();
    }
    body
}

/// What is left of a request at some point: dropped, it ends there.
type Left = Box<dyn Any>;

/// Where a request ends, how it gets there, what is used then, and what stands after it has ended.
type Row = (&'static str, fn(&Scene) -> Left, [u64; 5], [u64; 5]);

/// Where it ends before the inner service was called; with a store that answers late.
const BEFORE: &[Row] = &[
    ("nobody has polled it", |scene| Box::new(scene.call()), NONE, NONE),
    (
        "the store decides",
        |scene| {
            let mut asked = scene.call();
            assert!(poll(&mut asked.0).is_none());
            Box::new(asked)
        },
        NONE,
        NONE,
    ),
    (
        "the store has decided, and nobody has seen it",
        |scene| {
            let mut asked = scene.call();
            assert!(poll(&mut asked.0).is_none());
            scene.store_answers();
            Box::new(asked)
        },
        NONE,
        NONE,
    ),
];

/// Where it ends before the inner service was called, with any store: another one runs, and is not touched.
const WAITING: &[Row] = &[
    ("it waits for a place", |scene| Box::new(scene.two_for("/one")), ALL, ALL),
    (
        "its place is free, and it was not polled since",
        |scene| {
            let waits = scene.two_for("/one");
            scene.others.lock().unwrap().clear();
            Box::new(waits)
        },
        UNANSWERED,
        UNANSWERED,
    ),
    ("it is held until its turn", |scene| Box::new(scene.two_for("/turn")), TWO, ALL),
    (
        "its turn has come, and it was not polled since",
        |scene| {
            let held = scene.two_for("/turn");
            scene.clock.advance(Duration::from_secs(1));
            Box::new(held)
        },
        TWO,
        ALL,
    ),
    (
        "its turn has come, and the inner service is not ready",
        |scene| {
            let mut held = scene.two_for("/turn");
            scene.ready.store(false, Ordering::Relaxed);
            scene.clock.advance(Duration::from_secs(1));
            assert!(poll(&mut held.0).is_none());
            Box::new(held)
        },
        TWO,
        ALL,
    ),
    (
        "its turn has come, and the inner service is at it",
        |scene| {
            let mut held = scene.two_for("/turn");
            scene.clock.advance(Duration::from_secs(1));
            assert!(poll(&mut held.0).is_none());
            Box::new(held)
        },
        TWO,
        [1, 1, 2, 2, 1],
    ),
];

/// Where it ends once the inner service was called.
const ROWS: &[Row] = &[
    (
        "the inner service is at it",
        |scene| {
            let (mut response, send) = scene.call();
            if let Some(remote) = &scene.remote {
                assert!(poll(&mut response).is_none());
                remote.answer();
            }
            assert!(poll(&mut response).is_none());
            Box::new((response, send))
        },
        ALL,
        UNANSWERED,
    ),
    (
        "the inner service has failed",
        |scene| {
            let (mut response, send) = scene.call();
            scene.store_answers();
            send.send(Err(Broken(3))).unwrap();
            assert_eq!(poll(&mut response).unwrap().unwrap_err(), Broken(3));
            // The future is still there.
            Box::new(response)
        },
        UNANSWERED,
        UNANSWERED,
    ),
    (
        "the inner service panics while it is called",
        |scene| {
            let inner = service_fn(|_: Asked| -> std::future::Ready<Answer> { panic!("in call") });
            let mut service = scene.layer.layer(inner);
            let mut response: Option<Pending> = None;
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let mut called: Pending = Box::pin(service.call(Asked::default()));
                scene.remote.as_ref().expect("else it is called at once").answer();
                let _ = poll(&mut called);
                response = Some(called);
            }));
            assert!(panicked.is_err() && response.is_none());
            Box::new(())
        },
        UNANSWERED,
        UNANSWERED,
    ),
    (
        "the inner service panics while it is at it",
        |scene| {
            let inner = service_fn(|_: Asked| async { panic!("in poll") as Answer });
            let mut response: Pending = Box::pin(scene.layer.layer(inner).call(Asked::default()));
            scene.store_answers();
            assert!(catch_unwind(AssertUnwindSafe(|| poll(&mut response))).is_err());
            // Whoever catches panics drops the future then.
            Box::new(response)
        },
        ALL,
        UNANSWERED,
    ),
    ("nobody has read the body", |scene| Box::new(scene.answered(ok(Frames::default()))), STREAMS, ANSWERED),
    (
        "nobody has read the body of a failure",
        |scene| Box::new(scene.answered(unauthorized(Frames::default()))),
        STREAMS_FAILURE,
        FAILED,
    ),
    (
        "half of the body was read",
        |scene| Box::new(polled(scene.answered(ok(Frames::ending([data(), data()]))).into_body(), 1)),
        STREAMS,
        ANSWERED,
    ),
    (
        "the body has no more for now",
        |scene| Box::new(polled(scene.answered(ok(Frames::endless([data()]))).into_body(), 2)),
        STREAMS,
        ANSWERED,
    ),
    (
        "the last of the body was read, and nobody knows",
        |scene| Box::new(polled(scene.answered(ok(Frames::ending([data()]))).into_body(), 1)),
        STREAMS,
        ANSWERED,
    ),
    (
        "the body has said that there is no more",
        |scene| Box::new(polled(scene.answered(ok(Frames::ending([data()]))).into_body(), 2)),
        ANSWERED,
        ANSWERED,
    ),
    (
        "the last of the body was read, and it says so",
        |scene| Box::new(polled(scene.answered(ok(Frames::known([data()]))).into_body(), 1)),
        ANSWERED,
        ANSWERED,
    ),
    (
        "trailers were read",
        |scene| Box::new(polled(scene.answered(ok(Frames::endless([data(), trailers()]))).into_body(), 2)),
        ANSWERED,
        ANSWERED,
    ),
    (
        "the body has failed",
        |scene| Box::new(polled(scene.answered(ok(Frames::broken())).into_body(), 2)),
        ANSWERED,
        ANSWERED,
    ),
    (
        "it was upgraded, and a handler's task has the receipt",
        |scene| {
            let response = handled(scene, |request, receipts| {
                let held = request.extensions_mut().remove::<HeldReceipt>().expect("there is one");
                receipts.lock().unwrap().push(held.take().expect("nobody has taken it"));
            });
            drop(response);
            Box::new(scene.receipts.lock().unwrap().pop())
        },
        STREAMS,
        ANSWERED,
    ),
    (
        "a server has seen that the body is empty",
        |scene| {
            let response = scene.answered(ok(Frames::known([])));
            assert!(response.body().is_end_stream());
            Box::new(response)
        },
        ANSWERED,
        ANSWERED,
    ),
];

#[test]
fn wherever_a_request_ends_it_frees_its_places_and_what_else_it_took_stands_as_the_rules_say() {
    let at_once = "the inner service panics while it is called"; // See below.
    for late_store in [false, true] {
        let before = if late_store { BEFORE } else { &[] };
        for (place, run, then, after) in before.iter().chain(WAITING).chain(ROWS) {
            if !late_store && *place == at_once {
                continue;
            }
            let scene = Scene::new(late_store);
            let left = run(&scene);
            assert_eq!(scene.used(), then, "{place}, before it is dropped; late store: {late_store}");
            drop(left);
            assert_eq!(scene.used(), after, "{place}, after it is dropped; late store: {late_store}");
            // Who runs on loses nothing, and nothing is in anybody's way.
            scene.others.lock().unwrap().clear();
            assert_eq!(scene.used()[..2], [0, 0], "{place}, after all have ended; late store: {late_store}");
            assert_eq!(scene.layer.limiter().waiting("one"), Some(0), "{place}");
        }
    }
}

#[test]
fn dropped_before_it_is_polled_a_request_that_a_store_passed_at_once_has_started() {
    let scene = Scene::new(false);
    let asked = scene.call();
    assert_eq!(scene.used(), ALL);
    drop(asked);
    assert_eq!(scene.used(), UNANSWERED);
}

#[test]
fn an_inner_service_that_panics_at_once_frees_the_place() {
    let scene = Scene::new(false);
    let inner = service_fn(|_: Asked| -> std::future::Ready<Answer> { panic!("in call") });
    let mut service = scene.layer.layer(inner);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(service.call(Asked::default())))).is_err());
    assert_eq!(scene.used(), UNANSWERED);
}

#[test]
fn a_condition_that_panics_frees_the_place_and_the_charge_stands() {
    let rules = || {
        [
            Rule::global("place", Limit::in_flight(9)),
            Rule::global("rate", Limit::per_minute(9)).give_back_when(|_| panic!("in the condition")),
        ]
    };
    let limiter = limiter(rules());
    let layer = RateLimitLayer::from(limiter.clone());
    let mut service = layer.layer(service_fn(|_: Asked| async { Ok::<_, Broken>(ok(Frames::default())) }));
    let mut response: Pending = Box::pin(service.call(Asked::default()));
    assert!(catch_unwind(AssertUnwindSafe(|| poll(&mut response))).is_err());
    drop(response);
    assert_eq!(used(&limiter, &Asked::default()), [0, 1]);
}

/// Answers at once, after `handle` had the request.
fn handled(
    scene: &Scene,
    handle: impl Fn(&mut Asked, &Arc<Mutex<Vec<Receipt>>>) + Clone + 'static,
) -> Response<ResponseBody<Frames>> {
    let receipts = Arc::clone(&scene.receipts);
    let mut service = scene.layer.layer(service_fn(move |mut request: Asked| {
        handle(&mut request, &receipts);
        async { Ok::<_, Broken>(ok(Frames::ending([data()]))) }
    }));
    let mut response: Pending = Box::pin(service.call(Asked::default()));
    scene.store_answers();
    poll(&mut response).expect("at once").unwrap()
}

#[test]
fn a_handler_that_takes_the_receipt_holds_the_place_beyond_the_body() {
    let scene = Scene::new(false);
    let response = handled(&scene, |request, receipts| {
        let held = request.extensions_mut().remove::<HeldReceipt>().expect("there is one");
        let (receipt, twice) = (held.take().expect("nobody has taken it"), held.take());
        assert!(twice.is_none(), "there are two");
        receipts.lock().unwrap().push(receipt);
    });
    assert_eq!(scene.used(), STREAMS, "the outcome is judged by the head all the same");
    drop(response.into_body().collect().now_or_never().expect("it has ended").unwrap());
    assert_eq!(scene.used(), STREAMS, "the body has ended, and the handler's task goes on");
    scene.receipts.lock().unwrap().clear();
    assert_eq!(scene.used(), ANSWERED);
}

#[test]
fn a_handler_that_keeps_what_is_held_without_taking_the_receipt_keeps_nothing() {
    let scene = Scene::new(false);
    let kept = Arc::new(Mutex::new(None));
    let keeps = Arc::clone(&kept);
    let response = handled(&scene, move |request, _| {
        *keeps.lock().unwrap() = request.extensions().get::<HeldReceipt>().cloned();
    });
    assert_eq!(scene.used(), STREAMS);
    drop(response);
    assert_eq!(scene.used(), ANSWERED);
    assert!(kept.lock().unwrap().take().unwrap().take().is_none(), "what has ended can be taken");
}

#[test]
fn a_handler_gets_the_places_of_every_layer_it_is_behind() {
    let (outer, inner) = (
        limiter([Rule::global("outer", Limit::in_flight(9))]),
        limiter([Rule::global("inner", Limit::in_flight(9)), Rule::global("rate", Limit::per_minute(9))]),
    );
    let receipts = Arc::new(Mutex::new(Vec::new()));
    let takes = Arc::clone(&receipts);
    let service = service_fn(move |mut request: Asked| {
        takes.lock().unwrap().extend(request.extensions_mut().remove::<HeldReceipt>().unwrap().take());
        async { Ok::<_, Broken>(ok(Frames::ending([]))) }
    });
    let service = RateLimitLayer::from(inner.clone()).layer(service);
    let mut service = RateLimitLayer::from(outer.clone()).layer(service);
    let response = service.call(Asked::default()).now_or_never().unwrap().unwrap();
    drop(response);
    let both = || (used(&outer, &Asked::default()), used(&inner, &Asked::default()));
    assert_eq!(both(), (vec![1], vec![1, 1]));
    assert_eq!(receipts.lock().unwrap().len(), 1);
    receipts.lock().unwrap().clear();
    assert_eq!(both(), (vec![0], vec![0, 1]));
}

#[test]
fn two_layers_free_each_its_own_place() {
    let (outer, inner) =
        (limiter([Rule::global("outer", Limit::in_flight(2))]), limiter([Rule::global("inner", Limit::in_flight(2))]));
    let service = service_fn(|_: Asked| async { Ok::<_, Broken>(ok(Frames::ending([data()]))) });
    let service = RateLimitLayer::from(inner.clone()).layer(service);
    let mut service = RateLimitLayer::from(outer.clone()).layer(service);
    for _ in 0..5 {
        let response = service.call(Asked::default()).now_or_never().unwrap().unwrap();
        let both = || (used(&outer, &Asked::default()), used(&inner, &Asked::default()));
        assert_eq!(both(), (vec![1], vec![1]));
        drop(pin!(response.into_body().collect()).now_or_never().unwrap());
        assert_eq!(both(), (vec![0], vec![0]));
    }
}

#[test]
fn a_held_request_that_holds_a_place_frees_it_wherever_it_ends() {
    let rules = || {
        [
            Rule::global("turns", Limit::per_second(1).burst(5)).algorithm(LeakyBucket),
            Rule::global("place", Limit::in_flight(5)),
            Rule::global("daily", Limit::per_day(5)),
        ]
    };
    let clock = ManualClock::new();
    let limiter = Limiter::builder(rules()).clock(clock.clone()).build().unwrap();
    let layer = RateLimitLayer::from(limiter.clone());
    let mut service = layer.layer(service_fn(|_: Asked| async { Ok::<_, Broken>(ok(Frames::default())) }));
    let counted = || used(&limiter, &Asked::default())[1..].to_vec();
    let first = service.call(Asked::default()).now_or_never().unwrap().unwrap();
    let mut second: Pending = Box::pin(service.call(Asked::default()));
    assert!(poll(&mut second).is_none());
    assert_eq!(counted(), [2, 2], "who waits for its turn has a place");
    drop(second);
    assert_eq!(counted(), [1, 1], "it never started, so all is back");
    let mut third: Pending = Box::pin(service.call(Asked::default()));
    assert!(poll(&mut third).is_none());
    clock.advance(Duration::from_secs(1));
    let third = poll(&mut third).expect("its turn has come").unwrap();
    drop(first);
    assert_eq!(counted(), [1, 2]);
    drop(third);
    assert_eq!(counted(), [0, 2]);
}
