//! It is `|request: &Request|`.

use axum::{Router, extract::Request, routing::get};
use tollgate::{Key, Limit, RateLimitLayer, Rule};

pub(crate) fn main() {
    let layer = RateLimitLayer::new([Rule::new("path", Limit::per_second(10), |request: &Request| {
        Some(Key::from(request.uri().path()))
    })]);
    let _: Router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
}
