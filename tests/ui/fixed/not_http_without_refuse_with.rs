//! `refuse_with` says it.

use std::convert::Infallible;

use tollgate::{Key, Limit, RateLimitLayer, Rule};
use tower::{Layer, Service, service_fn};

pub(crate) fn main() {
    let layer = RateLimitLayer::new([Rule::new("word", Limit::per_second(10), |word: &String| Some(Key::from(word)))])
        .refuse_with(|_word, _decision| usize::MAX);
    serve(layer.layer(service_fn(|word: String| async move { Ok::<_, Infallible>(word.len()) })));
}

/// What runs services.
fn serve(_: impl Service<String>) {}
