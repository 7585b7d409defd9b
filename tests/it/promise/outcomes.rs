//! The promise, of a layer whose rules depend on how requests end: in any order of charges, answers, failures and
//! clients that leave, what is counted is what stands, and no bound is passed.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures_util::task::noop_waker_ref;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::sync::oneshot;
use tollgate::{
    Limit, Limiter, LimiterBuilder, RateLimitLayer, ResponseBody, Rule,
    bucket::{FixedWindow, SlidingWindowCounter, SlidingWindowLog, TokenBucket},
    time::{ManualClock, Nanos},
};
use tower::{Layer, Service, service_fn};

use super::{OPERATIONS_A_RUN, Promise, Start};
use crate::{
    random::{Random, each_seed, from_env},
    soon::PATIENCE,
    support::Broken,
};

const TODAY: u64 = 1_700_000_000_000_000_000;

type Body = ResponseBody<Full<bytes::Bytes>>;
type Calling = Pin<Box<dyn Future<Output = Result<Response<Body>, Broken>>>>;
type Answer = Result<Response<Full<bytes::Bytes>>, Broken>;

/// A request that passed, and what of it is left.
struct Live {
    at: u64,
    stage: Stage,
}

enum Stage {
    Calling(Calling, oneshot::Sender<Answer>),
    Streaming(Response<Body>),
}

/// The way to a run's store.
pub(crate) trait Wire {
    /// The builder of a limiter with the store.
    fn store(&self, builder: Builder) -> Builder;

    /// Polls as often as it takes.
    fn drive(&self, poll: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>);

    /// Waits for what is on its way back as far as it can; `None` where all of it has come.
    fn wait(&self) -> Option<()>;

    /// Whether a client may leave before the store has answered.
    fn is_long(&self) -> bool;
}

type Builder = LimiterBuilder<Request<()>>;

/// None: the store is in this process.
struct NoWire;

impl Wire for NoWire {
    fn store(&self, builder: Builder) -> Builder {
        builder
    }

    fn drive(&self, poll: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>) {
        assert!(poll(&mut Context::from_waker(noop_waker_ref())).is_ready(), "it answers at once");
    }

    fn wait(&self) -> Option<()> {
        None
    }

    fn is_long(&self) -> bool {
        false
    }
}

struct Run<'a> {
    wire: &'a dyn Wire,
    limits: [Limit; 3],
    layer: RateLimitLayer<Request<()>>,
    clock: ManualClock,
    now: u64,
    live: Vec<Live>,
    /// What stands of the rule that counts failures, and of the one that does not count who was not answered.
    stood: [Vec<Start>; 2],
}

impl<'a> Run<'a> {
    fn new<B: Promise>(wire: &'a dyn Wire, random: &mut Random) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let period = |random: &mut Random| Duration::from_micros(1 + random.below(5_000));
        let limits = [
            Limit::in_flight(1 + random.below(5)),
            Limit::new(1 + random.below(6), period(random)),
            Limit::new(1 + random.below(6), period(random)),
        ];
        let failed = |response: &Response<()>| response.status() == StatusCode::UNAUTHORIZED;
        // Names that no run before had on a store that others have too.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = |name: &str| format!("{name}-{number}");
        let rules = [
            Rule::global(name("place"), limits[0]),
            Rule::global(name("failures"), limits[1]).algorithm(B::THIS).count_only_when(failed),
            Rule::global(name("answered"), limits[2]).algorithm(B::THIS).count_only_when(failed).give_back_unanswered(),
        ];
        let clock = ManualClock::at(Nanos::new(TODAY));
        let layer = wire.store(Limiter::builder(rules).clock(clock.clone())).build().unwrap().into();
        Self { wire, limits, layer, clock, now: TODAY, live: Vec::new(), stood: [Vec::new(), Vec::new()] }
    }

    fn used(&self) -> Vec<u64> {
        let (request, mut found) = (Request::new(()), None);
        let mut peek = pin!(self.layer.limiter().peek(&request));
        self.wire.drive(&mut |cx| peek.as_mut().poll(cx).map(|decision| found = Some(decision.unwrap())));
        let decision = found.expect("it was driven to its end");
        decision.rules().map(|rule| rule.verdict.limit - rule.verdict.remaining).collect()
    }

    /// What is counted, once it is what `is_right` wants or nothing more comes back.
    fn used_once(&self, is_right: impl Fn(&[u64]) -> bool) -> Vec<u64> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let used = self.used();
            if is_right(&used) || self.wire.wait().is_none() || Instant::now() > give_up {
                return used;
            }
        }
    }

    /// Waits until all has come back that does.
    fn settle(&self) {
        let should_be = self.should_be_used();
        let used = self.used_once(|used| used[0] == should_be[0]);
        assert_eq!(used[0], should_be[0]);
    }

    /// What is counted, if time stands still.
    fn should_be_used(&self) -> Vec<u64> {
        let calling = self.live.iter().filter(|live| matches!(live.stage, Stage::Calling(..))).count();
        let [failures, answered] = &self.stood;
        [self.live.len(), calling + failures.len(), calling + answered.len()].map(|used| used as u64).into()
    }

    /// Asks, and returns whether it passed.
    fn start(&mut self) -> bool {
        let (mut calling, answer, called) = self.call();
        let mut answered = None;
        self.wire.drive(&mut |cx| match calling.as_mut().poll(cx) {
            Poll::Ready(response) => {
                answered = Some(response);
                Poll::Ready(())
            }
            Poll::Pending if called.load(Ordering::Relaxed) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        });
        match answered {
            Some(refused) => {
                assert_eq!(refused.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
                false
            }
            None => {
                self.live.push(Live { at: self.now, stage: Stage::Calling(calling, answer) });
                true
            }
        }
    }

    fn call(&self) -> (Calling, oneshot::Sender<Answer>, Arc<AtomicBool>) {
        let (answer, answered) = oneshot::channel::<Answer>();
        let (answered, called) = (Arc::new(Mutex::new(Some(answered))), Arc::new(AtomicBool::new(false)));
        let calls = Arc::clone(&called);
        let inner = service_fn(move |_: Request<()>| {
            calls.store(true, Ordering::Relaxed);
            let answered = answered.lock().unwrap().take().expect("called once");
            async move { answered.await.expect("answered, or dropped before") }
        });
        (Box::pin(self.layer.layer(inner).call(Request::new(()))), answer, called)
    }

    /// Asks, and leaves before there is an answer. What it was charged by then comes back.
    fn leave(&self, random: &mut Random) {
        let (mut calling, _, called) = self.call();
        if random.one_in(4) {
            return;
        }
        assert!(calling.as_mut().poll(&mut Context::from_waker(noop_waker_ref())).is_pending());
        // The question may be under way by then, or answered.
        let mut pauses = random.below(40);
        self.wire.drive(&mut |cx| {
            cx.waker().wake_by_ref();
            pauses = pauses.saturating_sub(1);
            if pauses == 0 { Poll::Ready(()) } else { Poll::Pending }
        });
        assert!(!called.load(Ordering::Relaxed));
    }

    /// Lets something happen to a request that runs.
    fn go_on(&mut self, random: &mut Random) {
        let at = random.below(self.live.len() as u64) as usize;
        let Live { at, stage } = self.live.swap_remove(at);
        let stands = Start { at, cost: 1 };
        match stage {
            Stage::Calling(mut calling, answer) => {
                let status = match random.below(4) {
                    0 => {
                        drop((calling, answer));
                        self.stood[0].push(stands);
                        return;
                    }
                    1 => Err(Broken(1)),
                    2 => Ok(StatusCode::UNAUTHORIZED),
                    _ => Ok(StatusCode::OK),
                };
                let response =
                    status.map(|status| Response::builder().status(status).body(Full::from("body")).unwrap());
                answer.send(response).expect("somebody waits for it");
                let answered = calling.as_mut().poll(&mut Context::from_waker(noop_waker_ref()));
                let Poll::Ready(answered) = answered else { panic!("it is answered") };
                match status {
                    Ok(StatusCode::UNAUTHORIZED) => self.stood.iter_mut().for_each(|stood| stood.push(stands)),
                    Ok(_) => {}
                    Err(_) => self.stood[0].push(stands),
                }
                if let Ok(response) = answered {
                    self.live.push(Live { at, stage: Stage::Streaming(response) });
                }
            }
            Stage::Streaming(mut response) => {
                if random.one_in(2) {
                    let polled = Pin::new(response.body_mut());
                    let frame = http_body::Body::poll_frame(polled, &mut Context::from_waker(noop_waker_ref()));
                    assert!(matches!(frame, Poll::Ready(Some(Ok(_)))), "its only piece, after which it has ended");
                }
                drop(response);
            }
        }
    }
}

/// Fewer than of what is cheaper to run, unless told how many.
fn runs() -> u64 {
    from_env("TOLLGATE_RUNS", 150)
}

/// With `exact`, whatever comes back comes back whole while time stands still. A token bucket may keep a little of what
/// comes back out of order.
pub(crate) fn counts_what_stands<B: Promise>(wire: &dyn Wire, runs: u64, exact: bool) {
    each_seed(runs, |random| {
        let mut run = Run::new::<B>(wire, random);
        for _ in 0..OPERATIONS_A_RUN {
            if wire.is_long() && random.one_in(5) {
                run.leave(random);
            } else if run.live.is_empty() || random.one_in(2) {
                let room = run.should_be_used().iter().zip(&run.limits).all(|(used, limit)| *used < limit.permits());
                let passed = run.start();
                assert!(passed == room || !exact && !passed);
            } else {
                run.go_on(random);
            }
            let should_be = run.should_be_used();
            let is_right = |used: &[u64]| {
                let stands =
                    used == should_be || !exact && used.iter().zip(&should_be).all(|(used, least)| used >= least);
                used[0] == should_be[0] && stands
            };
            let used = run.used_once(is_right);
            assert!(is_right(&used), "{used:?} of {should_be:?}");
        }
        run.live.clear();
        assert_eq!(run.used_once(|used| used[0] == 0)[0], 0, "nothing runs");
    });
}

pub(crate) fn keeps_its_bound<B: Promise>(wire: &dyn Wire, runs: u64) {
    each_seed(runs, |random| {
        let mut run = Run::new::<B>(wire, random);
        for _ in 0..OPERATIONS_A_RUN {
            run.now += if random.one_in(3) { random.below(3_000) * 1_000 } else { 0 };
            run.clock.set(Nanos::new(run.now));
            if wire.is_long() && random.one_in(5) {
                run.leave(random);
            } else if run.live.is_empty() || random.one_in(2) {
                run.start();
            } else {
                run.go_on(random);
            }
            run.settle();
            assert!(run.live.len() as u64 <= run.limits[0].permits());
        }
        // Of who was neither answered nor dropped nothing is known, and it counts.
        for (stood, limit) in run.stood.iter_mut().zip(&run.limits[1..]) {
            let calling = run.live.iter().filter(|live| matches!(live.stage, Stage::Calling(..)));
            stood.extend(calling.map(|live| Start { at: live.at, cost: 1 }));
            stood.sort_by_key(|start| start.at);
            B::bounds(limit, stood, false);
        }
    });
}

macro_rules! for_each_strategy {
    ($($module:ident: $bucket:ty, exact: $exact:literal;)+) => {$(
        mod $module {
            use super::*;

            #[test]
            fn counts_what_stands_of_any_order_of_ends() {
                counts_what_stands::<$bucket>(&NoWire, runs(), $exact);
            }

            #[test]
            fn never_passes_more_than_the_limit_of_what_stands() {
                keeps_its_bound::<$bucket>(&NoWire, runs());
            }
        }
    )+};
}

for_each_strategy! {
    token_bucket: TokenBucket, exact: false;
    fixed_window: FixedWindow, exact: true;
    sliding_window_log: SlidingWindowLog, exact: true;
    sliding_window_counter: SlidingWindowCounter, exact: true;
}
