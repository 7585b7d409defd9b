//! Our own cases, side by side: what a decision costs, and what a layer adds to a service.
#![allow(missing_docs, reason = "criterion's macro makes an undocumented function")]

use std::{convert::Infallible, hint::black_box, time::Duration};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use http::{Request, Response};
#[cfg(feature = "quanta")]
use tollgate::time::QuantaClock;
use tollgate::{
    Key, Limit, Limiter, RateLimitLayer, Rule, key,
    response::Headers,
    store::MemoryStore,
    time::{Clock, ManualClock, SystemClock},
};
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

/// A limiter of numbers, with room for all that these benches ask for.
fn of_numbers(limit: Limit, clock: impl Clock) -> Limiter<u64> {
    let rule = Rule::new("one", limit, |client: &u64| Some(Key::from(*client)));
    let store = MemoryStore::builder().max_keys(2_000_000).build();
    Limiter::builder([rule]).store(store).clock(clock).build().unwrap_or_else(|error| panic!("{error}"))
}

/// Many keys: known ones, and such as nobody has seen before.
fn keys(criterion: &mut Criterion) {
    const MANY: u64 = 1_000_000;
    const NEW: u64 = 10_000;
    let mut group = criterion.benchmark_group("keys");
    // Each charge counts for ten seconds, so that no bucket is as good as absent meanwhile.
    let busy = Limit::new(1_000_000, Duration::from_secs(10_000_000));

    let million = of_numbers(busy, SystemClock::new());
    for client in 0..MANY {
        assert!(million.check_now(&client).is_ok_and(|decision| decision.is_allowed()));
    }
    let mut at = 0;
    group.bench_function("a million, in no order", |bench| {
        bench.iter(|| {
            // A step that shares no factor with the number of keys comes to each of them.
            at = (at + 618_033) % MANY;
            million.check_now(&at)
        });
    });
    drop(million);

    group.throughput(Throughput::Elements(NEW));
    group.sample_size(20);
    group.bench_function("first seen, the table growing from nothing", |bench| {
        let check_all = |limiter: Limiter<u64>| {
            for client in 0..NEW {
                let _ = black_box(limiter.check_now(&client));
            }
            limiter
        };
        bench.iter_batched(|| of_numbers(busy, SystemClock::new()), check_all, BatchSize::PerIteration);
    });

    // Every key is new, and as good as absent a tenth of a second later: 100,000 are alive at any time.
    let clock = ManualClock::new();
    let churning = of_numbers(Limit::per_second(10), clock.clone());
    let mut newest = 0;
    let mut churn = || {
        for _ in 0..NEW {
            clock.advance(Duration::from_micros(1));
            newest += 1;
            let _ = black_box(churning.check_now(&newest));
        }
    };
    for _ in 0..20 {
        churn();
    }
    group.bench_function("churn", |bench| bench.iter(&mut churn));
}

/// What reading the time costs, alone and as part of a decision.
fn clocks(criterion: &mut Criterion) {
    fn both<C: Clock>(criterion: &mut Criterion, name: &str, new: fn() -> C) {
        let mut group = criterion.benchmark_group("clock");
        let clock = new();
        group.bench_function(format!("{name}, read"), |bench| bench.iter(|| clock.now()));
        let limiter = of_numbers(Limit::per_second(PLENTY), clock);
        group.bench_function(format!("{name}, in a decision"), |bench| bench.iter(|| limiter.check_now(&7)));
    }
    both(criterion, "SystemClock", SystemClock::new);
    #[cfg(feature = "quanta")]
    both(criterion, "QuantaClock", QuantaClock::new);
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
    let mut ietf = layer(Limit::per_second(PLENTY)).headers(Headers::Ietf).layer(inner);
    group.bench_function("allowed, IETF fields", |bench| bench.iter(|| runtime.block_on(ietf.call(request()))));
    let mut refused = layer(Limit::per_day(1)).layer(inner);
    let _ = runtime.block_on(refused.call(request()));
    group.bench_function("refused", |bench| bench.iter(|| runtime.block_on(refused.call(request()))));
}

criterion_group!(benches, decisions, keys, clocks, layers);
criterion_main!(benches);
