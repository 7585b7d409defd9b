//! One request through one layer: ours, the peers', none; directly and in an axum router.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    num::NonZeroU32,
    task::{Context, Waker},
    time::Duration,
};

use axum::{Router, body::Body, routing::get};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use tollgate::{Limit, Limiter, RateLimitLayer, Rule, key, response::Headers, time::QuantaClock};
use tower::{Layer, Service, ServiceExt, layer::util::Identity};
use tower_governor::{GovernorError, GovernorLayer, governor::GovernorConfigBuilder, key_extractor::KeyExtractor};

use crate::subjects::{NEVER, Quota, at_once};

/// What answers where no layer refuses.
#[derive(Clone, Copy, PartialEq)]
pub enum Place {
    /// A service of one's own, called directly.
    Direct,
    /// The same, whose response has a field already.
    DirectWithField,
    /// A handler in an axum router, which is cloned for each request as axum's server does.
    Router,
}

impl Place {
    pub const ALL: [Self; 3] = [Self::Direct, Self::DirectWithField, Self::Router];

    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::DirectWithField => "direct_with_field",
            Self::Router => "router",
        }
    }
}

/// Sends one request through and returns the response's status.
pub type Sender = Box<dyn FnMut() -> u16>;

/// A layer's name, and what its stack does with each request.
pub struct Stack {
    pub name: &'static str,
    pub status: u16,
    make: fn(Place) -> Built,
}

/// A stack that is ready: for measurements in process, or as a router to serve.
pub enum Built {
    Sends(Sender),
    Serves(Router),
}

impl Stack {
    pub fn send(&self, place: Place) -> Sender {
        let mut send = match (self.make)(place) {
            Built::Sends(send) => send,
            Built::Serves(router) => through_router(router),
        };
        // The first request of each client makes it known, and uses up what a refusing layer grants.
        for _ in 0..2 * CLIENTS.len() {
            send();
        }
        assert_eq!(send(), self.status, "{} in {}", self.name, place.name());
        send
    }

    pub fn router(&self) -> Router {
        match (self.make)(Place::Router) {
            Built::Serves(router) => router,
            Built::Sends(_) => panic!("a router was asked for"),
        }
    }
}

pub fn by_name(name: &str) -> &'static Stack {
    ALL.iter().find(|stack| stack.name == name).unwrap_or_else(|| panic!("there is no stack {name}"))
}

/// The field the key is taken from.
pub const API_KEY_NAME: &str = "x-api-key";
static API_KEY: HeaderName = HeaderName::from_static(API_KEY_NAME);

/// Everybody who asks, in turn.
const CLIENTS: [&str; 8] = [
    "client00000001",
    "client00000002",
    "client00000003",
    "client00000004",
    "client00000005",
    "client00000006",
    "client00000007",
    "client00000008",
];

/// A request as a client sends it: four fields.
fn request(turn: &mut usize) -> Request<Body> {
    let client = CLIENTS[*turn % CLIENTS.len()];
    *turn += 1;
    let mut request = Request::new(Body::empty());
    let headers = request.headers_mut();
    headers.insert(http::header::HOST, HeaderValue::from_static("api.example.com"));
    headers.insert(http::header::USER_AGENT, HeaderValue::from_static("measurement/1.0"));
    headers.insert(http::header::ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert(API_KEY.clone(), HeaderValue::from_static(client));
    request
}

/// An inner service that does nothing.
#[derive(Clone, Copy)]
struct Inner {
    with_field: bool,
}

impl Service<Request<Body>> for Inner {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let mut response = Response::new(Body::empty());
        if self.with_field {
            response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        }
        ready(Ok(response))
    }
}

/// Polls a service by hand, once a request: everything here is ready at once.
fn through<S, B>(mut service: S) -> Sender
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + 'static,
{
    let mut turn = 0;
    Box::new(move || {
        let request = request(&mut turn);
        assert!(service.poll_ready(&mut Context::from_waker(Waker::noop())).is_ready());
        let Ok(response) = at_once(service.call(request));
        response.status().as_u16()
    })
}

fn through_router(router: Router) -> Sender {
    let mut turn = 0;
    Box::new(move || {
        let Ok(response) = at_once(router.clone().oneshot(request(&mut turn)));
        response.status().as_u16()
    })
}

/// The one handler of every router.
fn routes() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

/// What a client may do at once where nobody is refused: a number as real limits have them, refilled faster than
/// anybody here asks. tower-rate-tier cannot tell the two apart, and gets numbers of more digits.
const BURST: u64 = 5_000;

/// Puts a layer in its place.
macro_rules! stack {
    ($name:literal, $status:literal, $layer:expr) => {
        Stack {
            name: $name,
            status: $status,
            make: |place| match place {
                Place::Router => Built::Serves(routes().layer($layer)),
                place => {
                    let inner = Inner { with_field: place == Place::DirectWithField };
                    Built::Sends(through(Layer::layer(&$layer, inner)))
                }
            },
        }
    };
}

fn none(place: Place) -> Built {
    match place {
        Place::Router => Built::Serves(routes()),
        place => Built::Sends(through(Inner { with_field: place == Place::DirectWithField })),
    }
}

/// A handler that answers 429 itself: what a refusal would cost without a limiter.
fn own_429(place: Place) -> Built {
    let status = || async { StatusCode::TOO_MANY_REQUESTS };
    let service = tower::service_fn(|_: Request<Body>| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        ready(Ok::<_, Infallible>(response))
    });
    if place == Place::Router {
        Built::Serves(Router::new().route("/", get(status)))
    } else {
        Built::Sends(through(service))
    }
}

/// The same with what our refusals tell, said by hand: what those fields and the document cost whoever sends them.
fn own_429_alike(place: Place) -> Built {
    const FIELDS: [(&str, &str); 6] = [
        ("content-type", "application/problem+json"),
        ("retry-after", "3600"),
        ("cache-control", "no-store"),
        ("x-ratelimit-limit", "1"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "3600"),
    ];
    const DOCUMENT: &str = concat!(
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","#,
        r#""status":429,"detail":"The limit is used up; try again in 3600 s.","violated-policies":["client"]}"#
    );
    fn answer() -> Response<Body> {
        let mut response = Response::new(Body::from(DOCUMENT));
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        response.headers_mut().reserve(FIELDS.len());
        for (name, value) in FIELDS {
            response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        response
    }
    if place == Place::Router {
        Built::Serves(Router::new().route("/", get(|| async { answer() })))
    } else {
        Built::Sends(through(tower::service_fn(|_: Request<Body>| ready(Ok::<_, Infallible>(answer())))))
    }
}

/// A request that is made and sent nowhere: what of every number here is the measurement's own.
fn unsent(_: Place) -> Built {
    let mut turn = 0;
    Built::Sends(Box::new(move || {
        drop(std::hint::black_box(request(&mut turn)));
        200
    }))
}

pub const ALL: &[Stack] = &[
    Stack { name: "unsent", status: 200, make: unsent },
    Stack { name: "none", status: 200, make: none },
    stack!("identity", 200, Identity::new()),
    stack!("tollgate_off", 200, ours(Quota::PLENTY, Headers::None)),
    stack!("tollgate_x", 200, ours(Quota::PLENTY, Headers::XRateLimit)),
    stack!("tollgate_ietf", 200, ours(Quota::PLENTY, Headers::Ietf)),
    stack!("tower_governor", 200, governor(Quota::PLENTY)),
    stack!("tower_governor_headers", 200, governor_with_headers(Quota::PLENTY)),
    stack!("rate_net", 200, rate_net(1_000_000_000, false)),
    stack!("rate_net_headers", 200, rate_net(1_000_000_000, true)),
    stack!("axum_governor", 200, axum_governor(Quota::PLENTY)),
    stack!("tower_rate_tier", 200, tier(tower_rate_tier::Quota::per_second(1_000_000_000))),
    Stack { name: "own_429", status: 429, make: own_429 },
    Stack { name: "own_429_alike", status: 429, make: own_429_alike },
    stack!("refused_tollgate_off", 429, ours(Quota::ONE, Headers::None)),
    stack!("refused_tollgate_x", 429, ours(Quota::ONE, Headers::XRateLimit)),
    stack!("refused_tollgate_ietf", 429, ours(Quota::ONE, Headers::Ietf)),
    stack!("refused_tower_governor", 429, governor(Quota::ONE)),
    stack!("refused_tower_governor_headers", 429, governor_with_headers(Quota::ONE)),
    stack!("refused_rate_net", 429, rate_net(1, false)),
    stack!("refused_axum_governor", 429, axum_governor(Quota::ONE)),
    stack!("refused_tower_rate_tier", 429, tier(tower_rate_tier::Quota::per_hour(1))),
];

fn ours(quota: Quota, headers: Headers) -> RateLimitLayer<Request<Body>> {
    // An hour for refusals, so that the told wait has as many digits as a real one.
    let limit = if quota.is_one() { Limit::per_hour(1) } else { Limit::per_second(1_000_000_000).burst(BURST) };
    let rule = Rule::new("client", limit, key::header(API_KEY_NAME));
    let limiter = Limiter::builder([rule]).clock(QuantaClock::new()).build().expect("a valid rule");
    RateLimitLayer::from(limiter).headers(headers)
}

/// The key as tower_governor's users take it from a header: a text of its own for each request.
#[derive(Clone, Debug)]
pub struct ApiKey;

impl KeyExtractor for ApiKey {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        let value = request.headers().get(&API_KEY).and_then(|value| value.to_str().ok());
        value.map(str::to_owned).ok_or(GovernorError::UnableToExtractKey)
    }
}

macro_rules! governor_config {
    ($quota:expr) => {{
        let (period, burst) =
            if $quota.is_one() { (Duration::from_secs(3_600), 1) } else { (Duration::from_nanos(1), BURST as u32) };
        let mut builder = GovernorConfigBuilder::default().key_extractor(ApiKey);
        builder.period(period).burst_size(burst);
        builder
    }};
}

fn governor(
    quota: Quota,
) -> GovernorLayer<ApiKey, governor::middleware::NoOpMiddleware<governor::clock::QuantaInstant>, Body> {
    GovernorLayer::new(governor_config!(quota).finish().expect("valid for tower_governor"))
}

fn governor_with_headers(
    quota: Quota,
) -> GovernorLayer<ApiKey, governor::middleware::StateInformationMiddleware, Body> {
    GovernorLayer::new(governor_config!(quota).use_headers().finish().expect("valid for tower_governor"))
}

fn rate_net(per_second: u32, headers: bool) -> rate_net::tower::RateLimitLayer<impl rate_net::tower::KeyExtractor> {
    let quota = match per_second {
        1 => rate_net::Quota::rate(1, Duration::from_secs(3_600)).expect("valid for rate-net"),
        more => rate_net::Quota::per_second(more).with_burst(BURST as u32),
    };
    let by_key = |request: &rate_net::tower::RequestInfo<'_>| {
        request.headers().get(&API_KEY)?.to_str().ok().map(rate_net::Key::from)
    };
    let layer = rate_net::tower::RateLimitLayer::new(rate_net::RateLimiter::with_quota(quota), by_key);
    if headers { layer.with_policy("default").with_headers_on_success(true) } else { layer }
}

fn axum_governor(quota: Quota) -> axum_governor::GovernorLayer<String> {
    let quota = if quota.is_one() {
        governor::Quota::with_period(Duration::from_secs(3_600)).expect("not zero")
    } else {
        let burst = NonZeroU32::new(BURST as u32).expect("not zero");
        governor::Quota::with_period(Duration::from_nanos(1)).expect("not zero").allow_burst(burst)
    };
    let config = axum_governor::GovernorConfigBuilder::default()
        .with_extractor(axum_governor::extractor::Header(&API_KEY))
        .quota_default(quota.into())
        .gc_disable()
        .finish();
    axum_governor::GovernorLayer::new(config.expect("valid for axum-governor"))
}

fn tier(quota: tower_rate_tier::Quota) -> tower_rate_tier::TierLimitLayer {
    let tiers =
        tower_rate_tier::RateTier::builder().tier("free", quota).default_tier("free").gc_interval(NEVER).build();
    tower_rate_tier::TierLimitLayer::new(tiers).identifier_fn(|headers| {
        let key = headers.get(&API_KEY)?.to_str().ok()?.to_owned();
        Some(tower_rate_tier::TierIdentity::new(key, "free"))
    })
}
