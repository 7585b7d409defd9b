//! A service that is not HTTP, and nothing says what a refusal is.

use std::convert::Infallible;

use tollgate::{Key, Limit, RateLimitLayer, Rule};
use tower::{Layer, Service, service_fn};

fn main() {
    let layer = RateLimitLayer::new([Rule::new("word", Limit::per_second(10), |word: &String| Some(Key::from(word)))]);
    serve(layer.layer(service_fn(|word: String| async move { Ok::<_, Infallible>(word.len()) })));
}

/// What runs services.
fn serve(_: impl Service<String>) {}
