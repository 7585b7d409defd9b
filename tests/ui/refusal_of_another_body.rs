//! A refusal with a body whose errors cannot become those of the service's own.

use std::convert::Infallible;

use axum::{
    extract::Request,
    http::{Response, StatusCode},
    response::IntoResponse,
};
use tollgate::{Limit, RateLimitLayer, Rule};
use tower::{Layer, Service, service_fn};

fn main() {
    let layer = RateLimitLayer::new([Rule::global("everyone", Limit::per_second(10))])
        .respond_with(|_: &Request, decision| refusal(decision.status()));
    serve(layer.layer(service_fn(|_: Request| async { Ok::<_, Infallible>("hello".into_response()) })));
}

fn refusal(status: StatusCode) -> Response<String> {
    let mut refusal = Response::new("later".to_owned());
    *refusal.status_mut() = status;
    refusal
}

/// What asks of a service what axum's router does.
fn serve(_: impl Service<Request, Response: IntoResponse>) {}
