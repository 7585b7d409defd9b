//! What is counted.

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    net::{IpAddr, Ipv4Addr},
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{HeaderValue, Request, Response, StatusCode};
use tollgate::{
    Key, Limit, Limiter, RateLimitLayer, Rule,
    bucket::Algorithm,
    charge::{Charge, RuleSpec, Verdicts},
    key::{self, KeyId, Secret},
    response::Headers,
    store::{MemoryStore, Reply, Store},
    time::{BoxFuture, Clock, Nanos},
};
use tower_layer::Layer;
use tower_service::Service;

use crate::observed;

/// Does it once, and returns whether it came out as it should.
pub type Operation = Box<dyn FnMut() -> bool>;

/// One number.
pub struct Case {
    pub name: &'static str,
    pub make: fn() -> Operation,
    /// How often it is done before anything is counted.
    pub warm_up: usize,
    pub times: usize,
    /// The case whose count is taken off.
    pub over: Option<&'static str>,
    /// Among how many the rest is divided.
    pub shared_by: f64,
    /// Whether it is held to a limit; what is only taken off others is not.
    pub is_limited: bool,
    /// The features that it is counted with.
    pub with: Features,
}

/// A build of this program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Features {
    None,
    Tracing,
    Metrics,
}

impl Features {
    /// Those of this build.
    pub const HERE: Self = match (cfg!(feature = "metrics"), cfg!(feature = "tracing")) {
        (true, _) => Self::Metrics,
        (false, true) => Self::Tracing,
        (false, false) => Self::None,
    };
}

impl Case {
    const fn new(name: &'static str, make: fn() -> Operation) -> Self {
        // Below what a minute's limit holds, and enough for what happens once in many requests.
        Self {
            name,
            make,
            warm_up: 64,
            times: 512,
            over: None,
            shared_by: 1.0,
            is_limited: true,
            with: Features::Tracing,
        }
    }

    const fn over(mut self, name: &'static str) -> Self {
        self.over = Some(name);
        self
    }

    /// Makes a table grow from nothing.
    const fn growing(mut self) -> Self {
        (self.warm_up, self.times) = (0, NEW_KEYS);
        self
    }

    /// Counts it with other features than most users have.
    const fn with(mut self, features: Features) -> Self {
        self.with = features;
        self
    }

    const fn shared_by(mut self, number: f64) -> Self {
        self.shared_by = number;
        self
    }

    const fn unlimited(mut self) -> Self {
        self.is_limited = false;
        self
    }
}

/// Half a table full, about: what growing costs is spread over all.
const NEW_KEYS: usize = 50_000;
const FALSE_RULES: usize = 100;

pub const CASES: &[Case] = &[
    Case::new("decide_ready_key", || decide(MINUTE, true)),
    Case::new("decide_refused", || decide(ONE, false)),
    Case::new("decide_first_seen", decide_first_seen).growing(),
    Case::new("check_number", || check(vec![of_number()], true)),
    Case::new("check_address", || check(vec![Rule::new("one", MINUTE, by_address)], true)),
    Case::new("check_text_14", || check(vec![Rule::new("one", MINUTE, |call: &Call| text(call.text_14))], true)),
    Case::new("check_text_16", || check(vec![Rule::new("one", MINUTE, |call: &Call| text(call.text_16))], true)),
    Case::new("check_text_64", || check(vec![Rule::new("one", MINUTE, |call: &Call| text(call.text_64))], true)),
    Case::new("check_refused", || check(vec![Rule::new("one", ONE, by_number)], false)),
    Case::new("check_three_rules", || check(three(MINUTE), true)),
    Case::new("check_third_refuses", || check(three(ONE), false)),
    Case::new("false_condition", || check(with_false_conditions(), true))
        .over("check_number")
        .shared_by(FALSE_RULES as f64),
    Case::new("bare_service", || through(Inner, StatusCode::OK)).unlimited(),
    Case::new("layer_off", || through(layer(MINUTE, Headers::None), StatusCode::OK)).over("bare_service"),
    Case::new("layer_x", || through(layer(MINUTE, Headers::XRateLimit), StatusCode::OK)).over("bare_service"),
    Case::new("layer_ietf", || through(layer(MINUTE, Headers::Ietf), StatusCode::OK)).over("bare_service"),
    Case::new("layer_refused_off", || through(layer(ONE, Headers::None), REFUSED)).over("bare_service"),
    Case::new("layer_refused_x", || through(layer(ONE, Headers::XRateLimit), REFUSED)).over("bare_service"),
    Case::new("layer_refused_ietf", || through(layer(ONE, Headers::Ietf), REFUSED)).over("bare_service"),
    Case::new("check_logged", || observed::logged(|| check(vec![of_number()], true))),
    Case::new("check_refused_logged", || observed::logged(|| check(vec![Rule::new("one", ONE, by_number)], false))),
    Case::new("check_bare", || check(vec![of_number()], true)).with(Features::None),
    Case::new("check_refused_bare", || check(vec![Rule::new("one", ONE, by_number)], false)).with(Features::None),
    Case::new("check_unmeasured", || check(vec![of_number()], true)).with(Features::Metrics),
    Case::new("check_measured", || observed::measured(|| check(vec![of_number()], true))).with(Features::Metrics),
    Case::new("check_refused_measured", || observed::measured(|| check(vec![Rule::new("one", ONE, by_number)], false)))
        .with(Features::Metrics),
    Case::new("check_three_rules_measured", || observed::measured(|| check(three(MINUTE), true)))
        .with(Features::Metrics),
];

/// The cases of this build.
pub fn here() -> impl Iterator<Item = &'static Case> {
    CASES.iter().filter(|case| case.with == Features::HERE)
}

const REFUSED: StatusCode = StatusCode::TOO_MANY_REQUESTS;
const MINUTE: Limit = Limit::per_minute(1_000);
/// Used up by the first request of the warm-up.
const ONE: Limit = Limit::per_day(1);

/// A clock that costs nothing to read, and goes on by a microsecond each time, so that no two decisions are at one
/// instant.
struct Steps(AtomicU64);

impl Steps {
    fn new() -> Self {
        Self(AtomicU64::new(1_700_000_000_000_000_000))
    }
}

impl Clock for Steps {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.fetch_add(1_000, Ordering::Relaxed))
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(ready(()))
    }
}

fn store() -> MemoryStore {
    MemoryStore::builder().max_keys(2 * NEW_KEYS).secret(secret()).build()
}

fn limiter<Req: 'static>(rules: Vec<Rule<Req>>) -> Limiter<Req> {
    Limiter::builder(rules).store(store()).clock(Steps::new()).build().expect("rules that work")
}

fn secret() -> Secret {
    Secret::new([7; 16])
}

/// A store with one rule, asked for keys that are ready.
fn asked(limit: Limit, mut next_key: impl FnMut() -> KeyId + 'static, passes: bool) -> Operation {
    let (store, clock) = (store(), Steps::new());
    let slot = store.bind(&RuleSpec::new("one", Algorithm::TokenBucket, limit), None).expect("it can");
    Box::new(move || {
        let mut verdicts = Verdicts::new();
        let reply = store.decide(clock.now(), &[Charge::new(&slot, next_key(), limit, 1)], &mut verdicts);
        matches!(reply, Reply::Ready(Ok(())))
            && verdicts.iter().all(|judged| judged.verdict.outcome.passes() == passes && !judged.verdict.untracked)
    })
}

fn decide(limit: Limit, passes: bool) -> Operation {
    let key = Key::from(7_u64).id(&secret());
    asked(limit, move || key, passes)
}

/// The keys are numbers, which are made in a few instructions.
fn decide_first_seen() -> Operation {
    let (secret, mut last) = (secret(), 0_u64);
    let next = move || {
        last += 1;
        Key::from(last).id(&secret)
    };
    asked(MINUTE, next, true)
}

/// A request that every kind of key can be taken from.
struct Call {
    number: u64,
    address: IpAddr,
    text_14: &'static str,
    text_16: &'static str,
    text_64: &'static str,
    is_login: bool,
}

/// Texts of up to 15 bytes are kept as they are, longer ones hashed.
const CALL: Call = Call {
    number: 7,
    address: IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)),
    text_14: "client00000001",
    text_16: "client0000000001",
    text_64: "a-session-token-of-sixty-four-bytes-as-many-of-them-are-00000001",
    is_login: false,
};

fn text(text: &str) -> Option<Key<'_>> {
    Some(Key::from(text))
}

fn by_number(call: &Call) -> Option<Key<'_>> {
    Some(Key::from(call.number))
}

fn by_address(call: &Call) -> Option<Key<'_>> {
    Some(Key::from(call.address))
}

fn of_number() -> Rule<Call> {
    Rule::new("one", MINUTE, by_number)
}

/// A key, another one, and a count for all.
fn three(last: Limit) -> Vec<Rule<Call>> {
    vec![of_number(), Rule::new("two", MINUTE, by_address), Rule::global("all", last)]
}

fn with_false_conditions() -> Vec<Rule<Call>> {
    let no = |at| Rule::new(format!("no-{at}"), MINUTE, by_number).when(|call: &Call| call.is_login);
    (0..FALSE_RULES).map(no).chain([of_number()]).collect()
}

fn check(rules: Vec<Rule<Call>>, passes: bool) -> Operation {
    let limiter = limiter(rules);
    Box::new(move || {
        let call = std::hint::black_box(&CALL);
        limiter.check_now(call).is_ok_and(|decision| decision.is_allowed() == passes)
    })
}

/// A service that does nothing.
#[derive(Clone, Copy)]
struct Inner;

impl Service<Request<()>> for Inner {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(String::new())))
    }
}

/// The service with a layer around it, and its key in a field of 14 bytes.
fn layer(
    limit: Limit,
    headers: Headers,
) -> impl Service<Request<()>, Response = Response<impl Sized>, Error = Infallible> + 'static {
    let limiter = limiter(vec![Rule::new("one", limit, key::header("x-api-key"))]);
    RateLimitLayer::from(limiter).headers(headers).layer(Inner)
}

/// Makes a request, sends it through, and drops the response.
fn through<S, B>(mut service: S, status: StatusCode) -> Operation
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + 'static,
{
    Box::new(move || {
        let mut request = Request::new(());
        request.headers_mut().insert("x-api-key", HeaderValue::from_static("client00000001"));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(service.poll_ready(&mut cx).is_ready());
        match pin!(service.call(request)).poll(&mut cx) {
            Poll::Ready(Ok(response)) => response.status() == status,
            Poll::Pending => false,
        }
    })
}
