//! The closure's argument has no type, and nothing before it says which request it is.

use axum::{Router, routing::get};
use tollgate::{Key, Limit, RateLimitLayer, Rule};

fn main() {
    let layer = RateLimitLayer::new([Rule::new("path", Limit::per_second(10), |request| {
        Some(Key::from(request.uri().path()))
    })]);
    let _: Router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
}
