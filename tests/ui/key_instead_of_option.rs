//! The closure returns a key where it has to say whether there is one.

use axum::extract::Request;
use tollgate::{Key, Limit, RateLimitLayer, Rule};

fn main() {
    let _ = RateLimitLayer::new([Rule::new("path", Limit::per_second(10), |request: &Request| {
        Key::from(request.uri().path())
    })]);
}
