//! axum makes a response of its own of whatever can become one.

use std::convert::Infallible;

use axum::{
    extract::Request,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use tollgate::{Limit, RateLimitLayer, Rule};
use tower::{Layer, Service, service_fn};

pub(crate) fn main() {
    let layer = RateLimitLayer::new([Rule::global("everyone", Limit::per_second(10))])
        .respond_with(|_: &Request, decision| refusal(decision.status()));
    serve(layer.layer(service_fn(|_: Request| async { Ok::<_, Infallible>("hello".into_response()) })));
}

fn refusal(status: StatusCode) -> Response {
    (status, "later").into_response()
}

/// What asks of a service what axum's router does.
fn serve(_: impl Service<Request, Response: IntoResponse>) {}
