//! What HTTP clients see, and where the layer fits.

mod answers;
mod bodies;
mod faults;
mod keys;
mod own_answers;
mod wiring;

use std::time::Duration;

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderMap, Method, StatusCode},
    routing::get,
};
use tollgate::{Rule, time::ManualClock};
use tower::ServiceExt;

use crate::support::layer;

const SECOND: Duration = Duration::from_secs(1);

/// A response, read to its end.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    /// The field's value; it is there once.
    #[track_caller]
    fn field(&self, name: &str) -> &str {
        let values: Vec<_> = self.headers.get_all(name).iter().collect();
        assert_eq!(values.len(), 1, "{name} in {:?}", self.headers);
        values[0].to_str().unwrap()
    }

    fn has(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }

    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    #[track_caller]
    fn limit_fields(&self) -> [u64; 3] {
        ["limit", "remaining", "reset"].map(|name| digits(self.field(&format!("x-ratelimit-{name}"))))
    }

    fn has_limit_fields(&self) -> bool {
        self.headers.keys().any(|name| name.as_str().contains("ratelimit"))
    }

    #[track_caller]
    fn retry_after(&self) -> u64 {
        digits(self.field("retry-after"))
    }

    fn problem(&self) -> serde_json::Value {
        assert_eq!(self.field("content-type"), "application/problem+json");
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// A number as RFC 9110 writes one: digits, no sign, no dot, no leading zero.
#[track_caller]
fn digits(text: &str) -> u64 {
    assert!(!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()), "{text:?}");
    assert!(text == "0" || !text.starts_with('0'), "{text:?}");
    text.parse().unwrap()
}

/// One route that says hello.
fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }).post(|| async { "done" }))
}

fn app(rules: impl IntoIterator<Item = Rule<Request>>, clock: &ManualClock) -> Router {
    hello().layer(layer(rules, clock))
}

fn request(method: Method, fields: &[(&str, &str)]) -> Request {
    let mut builder = Request::builder().method(method);
    for (name, value) in fields {
        builder = builder.header(*name, *value);
    }
    builder.body(Body::empty()).unwrap()
}

async fn send(app: &Router, request: Request) -> Answer {
    let (parts, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    Answer { status: parts.status, headers: parts.headers, body: String::from_utf8(body.to_vec()).unwrap() }
}

async fn get_root(app: &Router) -> Answer {
    send(app, request(Method::GET, &[])).await
}
