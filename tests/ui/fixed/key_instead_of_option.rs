//! `Some(key)`, or `None` where the rule does not apply.

use axum::extract::Request;
use tollgate::{Key, Limit, RateLimitLayer, Rule};

pub(crate) fn main() {
    let _ = RateLimitLayer::new([Rule::new("path", Limit::per_second(10), |request: &Request| {
        Some(Key::from(request.uri().path()))
    })]);
}
