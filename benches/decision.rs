//! Our own cases, side by side: what a decision costs, and what a layer adds to a service.
#![allow(missing_docs, reason = "criterion's macro makes an undocumented function")]

use std::convert::Infallible;

use criterion::{Criterion, criterion_group, criterion_main};
use http::{Request, Response};
use tollgate::{Key, Limit, Limiter, RateLimitLayer, Rule, key, response::Headers};
use tower::{Layer, Service, service_fn};

const PLENTY: u64 = 1_000_000_000;

fn rule(name: &'static str, limit: Limit) -> Rule<&'static str> {
    Rule::new(name, limit, |client: &&'static str| Some(Key::from(*client)))
}

fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decision");
    let plenty = Limit::per_second(PLENTY);
    let allowed = Limiter::new([rule("one", plenty)]);
    group.bench_function("one rule, allowed", |bench| bench.iter(|| allowed.check_now(&"203.0.113.7")));
    let refused = Limiter::new([rule("one", Limit::per_day(1))]);
    let _ = refused.check_now(&"203.0.113.7");
    group.bench_function("one rule, refused", |bench| bench.iter(|| refused.check_now(&"203.0.113.7")));
    let three = Limiter::new([rule("one", plenty), rule("two", plenty), Rule::global("all", plenty)]);
    group.bench_function("three rules, allowed", |bench| bench.iter(|| three.check_now(&"203.0.113.7")));
    let third = Limiter::new([rule("one", plenty), rule("two", plenty), Rule::global("all", Limit::per_day(1))]);
    let _ = third.check_now(&"203.0.113.7");
    group.bench_function("three rules, refused by the third", |bench| bench.iter(|| third.check_now(&"203.0.113.7")));
}

fn layers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("layer");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap_or_else(|error| panic!("{error}"));
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let request = || {
        let mut request = Request::new(());
        request.headers_mut().insert("x-api-key", http::HeaderValue::from_static("203.0.113.7"));
        request
    };
    let layer = |limit| RateLimitLayer::new([Rule::new("one", limit, key::header("x-api-key"))]);
    let mut bare = inner;
    group.bench_function("bare service", |bench| bench.iter(|| runtime.block_on(bare.call(request()))));
    let mut off = RateLimitLayer::new([]).layer(inner);
    group.bench_function("no rules", |bench| bench.iter(|| runtime.block_on(off.call(request()))));
    let mut quiet = layer(Limit::per_second(PLENTY)).headers(Headers::None).layer(inner);
    group.bench_function("allowed, no headers", |bench| bench.iter(|| runtime.block_on(quiet.call(request()))));
    let mut allowed = layer(Limit::per_second(PLENTY)).layer(inner);
    group.bench_function("allowed", |bench| bench.iter(|| runtime.block_on(allowed.call(request()))));
    let mut refused = layer(Limit::per_day(1)).layer(inner);
    let _ = runtime.block_on(refused.call(request()));
    group.bench_function("refused", |bench| bench.iter(|| runtime.block_on(refused.call(request()))));
}

criterion_group!(benches, decisions, layers);
criterion_main!(benches);
