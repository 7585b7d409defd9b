//! The HTTP surface, by tables: what goes in, and what the RFCs, drafts and protocols say has to come out.
//!
//! Each table is one loop over its rows and states how many there are, so that none is lost unseen.
#![allow(clippy::type_complexity, reason = "the type of a table is its columns")]

mod answers;
mod bytes_from_outside;
mod clients;
mod copies;
mod fields;
mod grpc;
#[cfg(feature = "tracing")]
mod logs;
mod preflights;
mod random_fields;
mod stacked;
mod states;
mod structured;

use std::{
    convert::Infallible,
    future::ready,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method},
    response::Response,
};
use futures_util::FutureExt;
use http_body::Body as _;
use http_body_util::BodyExt;
use tollgate::{
    Limit, Limiter, RateLimitLayer, Rule,
    bucket::{Ask, Bucket, GivenBack, Mark, Used},
    decision::{Outcome, Verdict},
    time::{ManualClock, Nanos},
};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneService};

use crate::support::layer;

type Server = BoxCloneService<Request, Response, Infallible>;

/// A bucket that always says the same, so that every state a rule can be in is one row of a table.
#[derive(Debug, Clone, Copy)]
struct Says(Verdict);

impl Bucket for Says {
    type State = ();

    fn fresh(&self, _: &Limit, _: Nanos) {}
    fn look(&self, (): &(), _: &Limit, _: Nanos, _: Ask) -> Verdict {
        self.0
    }
    fn take(&self, (): &mut (), _: &Limit, _: Nanos, _: Ask) -> (Verdict, Mark) {
        (self.0, Mark::default())
    }
    fn give_back(&self, (): &mut (), _: &Limit, _: Nanos, _: GivenBack) {}
    fn used(&self, (): &(), _: &Limit, _: Nanos) -> Used {
        Used::ZERO
    }
    fn with_used(&self, _: &Limit, _: Used, _: Nanos) {}
    fn fresh_at(&self, (): &(), _: &Limit) -> Nanos {
        Nanos::ZERO
    }
}

/// A rule that is in this state, whatever happens.
fn says(name: &'static str, limit: Limit, outcome: Outcome, remaining: u64, window: Option<Nanos>) -> Rule<Request> {
    Rule::global(name, limit).algorithm(Says(Verdict::new(outcome, limit.capacity(), remaining, window)))
}

/// Milliseconds.
fn ms(millis: u64) -> Nanos {
    Nanos::new(millis * 1_000_000)
}

/// A service that answers with what `respond` makes; no router around it that would add fields of its own.
fn server(respond: impl Fn() -> Response + Clone + Send + Sync + 'static) -> Server {
    BoxCloneService::new(service_fn(move |_: Request| ready(Ok(respond()))))
}

fn hello() -> Server {
    server(|| Response::new(Body::from("hello")))
}

/// Puts a limit in front of a server.
fn over(layer: RateLimitLayer<Request>, inner: Server) -> Server {
    BoxCloneService::new(layer.layer(inner).map_response(|response| response.map(Body::new)))
}

fn limited(rules: impl IntoIterator<Item = Rule<Request>>) -> Server {
    over(layer(rules, &ManualClock::new()), hello())
}

/// A response, read to its end.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
    /// Whether the head ended the stream.
    ended_at_once: bool,
}

impl Answer {
    /// The field's lines, joined as a recipient joins them; `None` where it is absent.
    fn field(&self, name: &str) -> Option<String> {
        let lines: Vec<_> = self.headers.get_all(name).iter().map(|line| line.to_str().unwrap()).collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.field(name).map(|digits| digits.parse().unwrap())
    }

    fn problem(&self) -> serde_json::Value {
        assert_eq!(self.field("content-type").as_deref(), Some("application/problem+json"));
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

fn request(method: Method, fields: &[(&'static str, &[u8])]) -> Request {
    let mut request = Request::builder().method(method).body(Body::empty()).unwrap();
    for (name, value) in fields {
        request.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
    }
    request
}

/// A request from this address, with these lines of a field.
fn from(peer: IpAddr, name: &'static str, lines: &[&str]) -> Request {
    let fields: Vec<_> = lines.iter().map(|line| (name, line.as_bytes())).collect();
    let mut request = request(Method::GET, &fields);
    request.extensions_mut().insert(SocketAddr::from((peer, 1_000)));
    request
}

/// The answer, or `None` where the request is held.
fn try_send(server: &Server, request: Request) -> Option<Answer> {
    let response = server.clone().oneshot(request).now_or_never()?.unwrap();
    let (parts, body) = response.into_parts();
    let ended_at_once = body.is_end_stream();
    let body = body.collect().now_or_never().expect("these bodies are never pending").unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    Some(Answer { status: parts.status.as_u16(), headers: parts.headers, body, ended_at_once })
}

fn send(server: &Server, request: Request) -> Answer {
    try_send(server, request).expect("nothing is held")
}

fn get(server: &Server) -> Answer {
    send(server, request(Method::GET, &[]))
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
