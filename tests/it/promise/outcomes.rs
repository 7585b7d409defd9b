//! The promise, of a layer whose rules depend on how requests end: in any order of charges, answers, failures and
//! clients that leave, what is counted is what stands, and no bound is passed.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::task::noop_waker_ref;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::sync::oneshot;
use tollgate::{
    Limit, Limiter, RateLimitLayer, ResponseBody, Rule,
    bucket::{FixedWindow, SlidingWindowCounter, SlidingWindowLog, TokenBucket},
    time::{ManualClock, Nanos},
};
use tower::{Layer, Service, service_fn};

use super::{OPERATIONS_A_RUN, Promise, Start};
use crate::{
    random::{Random, each_seed, from_env},
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

struct Run {
    limits: [Limit; 3],
    layer: RateLimitLayer<Request<()>>,
    clock: ManualClock,
    now: u64,
    live: Vec<Live>,
    /// What stands of the rule that counts failures, and of the one that does not count who was not answered.
    stood: [Vec<Start>; 2],
}

impl Run {
    fn new<B: Promise>(random: &mut Random) -> Self {
        let limits = [
            Limit::in_flight(1 + random.below(5)),
            Limit::new(1 + random.below(6), Duration::from_nanos(1 + random.below(5_000))),
            Limit::new(1 + random.below(6), Duration::from_nanos(1 + random.below(5_000))),
        ];
        let failed = |response: &Response<()>| response.status() == StatusCode::UNAUTHORIZED;
        let rules = [
            Rule::global("place", limits[0]),
            Rule::global("failures", limits[1]).algorithm(B::THIS).count_only_when(failed),
            Rule::global("answered", limits[2]).algorithm(B::THIS).count_only_when(failed).give_back_unanswered(),
        ];
        let clock = ManualClock::at(Nanos::new(TODAY));
        let layer = Limiter::builder(rules).clock(clock.clone()).build().unwrap().into();
        Self { limits, layer, clock, now: TODAY, live: Vec::new(), stood: [Vec::new(), Vec::new()] }
    }

    fn used(&self) -> Vec<u64> {
        let decision = self.layer.limiter().peek_now(&Request::new(())).unwrap();
        decision.rules().map(|rule| rule.verdict.limit - rule.verdict.remaining).collect()
    }

    /// What is counted, if time stands still.
    fn should_be_used(&self) -> Vec<u64> {
        let calling = self.live.iter().filter(|live| matches!(live.stage, Stage::Calling(..))).count();
        let [failures, answered] = &self.stood;
        [self.live.len(), calling + failures.len(), calling + answered.len()].map(|used| used as u64).into()
    }

    /// Asks, and returns whether it passed.
    fn start(&mut self) -> bool {
        let (answer, answered) = oneshot::channel::<Answer>();
        let answered = Arc::new(Mutex::new(Some(answered)));
        let inner = service_fn(move |_: Request<()>| {
            let answered = answered.lock().unwrap().take().expect("called once");
            async move { answered.await.expect("answered, or dropped before") }
        });
        let mut calling: Calling = Box::pin(self.layer.layer(inner).call(Request::new(())));
        match calling.as_mut().poll(&mut Context::from_waker(noop_waker_ref())) {
            Poll::Ready(refused) => {
                assert_eq!(refused.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
                false
            }
            Poll::Pending => {
                self.live.push(Live { at: self.now, stage: Stage::Calling(calling, answer) });
                true
            }
        }
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
fn counts_what_stands<B: Promise>(exact: bool) {
    each_seed(runs(), |random| {
        let mut run = Run::new::<B>(random);
        for _ in 0..OPERATIONS_A_RUN {
            if run.live.is_empty() || random.one_in(2) {
                let room = run.should_be_used().iter().zip(&run.limits).all(|(used, limit)| *used < limit.permits());
                let passed = run.start();
                assert!(passed == room || !exact && !passed);
            } else {
                run.go_on(random);
            }
            let (used, should_be) = (run.used(), run.should_be_used());
            assert_eq!(used[0], should_be[0]);
            assert!(used == should_be || !exact && used.iter().zip(&should_be).all(|(used, least)| used >= least));
        }
        run.live.clear();
        assert_eq!(run.used()[0], 0, "nothing runs");
    });
}

fn keeps_its_bound<B: Promise>() {
    each_seed(runs(), |random| {
        let mut run = Run::new::<B>(random);
        for _ in 0..OPERATIONS_A_RUN {
            run.now += if random.one_in(3) { random.below(3_000) } else { 0 };
            run.clock.set(Nanos::new(run.now));
            if run.live.is_empty() || random.one_in(2) {
                run.start();
            } else {
                run.go_on(random);
            }
            assert_eq!(run.used()[0], run.live.len() as u64);
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
                counts_what_stands::<$bucket>($exact);
            }

            #[test]
            fn never_passes_more_than_the_limit_of_what_stands() {
                keeps_its_bound::<$bucket>();
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
