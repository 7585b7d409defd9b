//! What every public type can do, as one table: who may be sent, shared, moved, cloned, copied and printed.
//!
//! It is part of the API: a type that loses one of these breaks its users, and one that gains `Copy` can never lose it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, and says where")]

use std::{fmt::Debug, fs, marker::PhantomData, path::Path};

use axum::{extract::Request, routing::Route};
#[cfg(feature = "config")]
use tollgate::config::{Code, Format, Problem, Problems, Registry, Rules};
#[cfg(feature = "redis")]
use tollgate::store::{RedisStore, RedisStoreBuilder};
#[cfg(feature = "testing")]
use tollgate::testing::conformance::{Clause, Conformance, Violation, Violations};
use tollgate::{
    ConfigError, Decision, Error, ErrorKind, Key, Limit, Limiter, LimiterBuilder, MissingKey, Mode, ParseLimitError,
    RateLimit, RateLimitLayer, ReloadCounts, Reloaded, ResponseBody, ResponseFuture, Rule, RuleStats, StoreError,
    Unsupported,
    bucket::{
        Algorithm, Ask, CustomBucket, CustomState, FixedWindow, FixedWindowState, GivenBack, InFlight, InFlightState,
        LeakyBucket, Mark, Schedule, SlidingWindowCounter, SlidingWindowCounterState, SlidingWindowLog,
        SlidingWindowLogState, TokenBucket, Used,
    },
    charge::{Charge, FailurePolicy, Judged, RuleSpec, Share, Slot, Take, Taken, Verdicts},
    decision::{Difference, Differences, Outcome, Refusal, RuleVerdict, ShadowVerdict, Source, Verdict, Wait},
    explain::{Application, ExplainedKey, ExplainedRule, Explanation},
    key::{KeyId, ParseNetError, Secret, TrustedProxies},
    response::{Headers, Http, RefusalBody, RefuseWith, RespondWith, Told, Writer},
    store::{
        Guarded, GuardedBuilder, GuardedCounts, HeldReceipt, MemoryCounts, MemoryStore, MemoryStoreBuilder, Overflow,
        Receipt, Reply,
    },
    time::{ManualClock, Nanos, SystemClock},
};

/// Asks whether `T` has a trait: the constant of the type itself goes before that of `Lacks`, where it is there.
struct Has<T: ?Sized>(PhantomData<T>);

#[allow(dead_code, reason = "every public type has some of them")]
trait Lacks {
    const SEND: &'static str = "";
    const SYNC: &'static str = "";
    const UNPIN: &'static str = "";
    const CLONE: &'static str = "";
    const COPY: &'static str = "";
    const DEBUG: &'static str = "";
}

impl<T: ?Sized> Lacks for Has<T> {}
impl<T: ?Sized + Send> Has<T> {
    const SEND: &'static str = "Send ";
}
impl<T: ?Sized + Sync> Has<T> {
    const SYNC: &'static str = "Sync ";
}
impl<T: ?Sized + Unpin> Has<T> {
    const UNPIN: &'static str = "Unpin ";
}
impl<T: Clone> Has<T> {
    const CLONE: &'static str = "Clone ";
}
impl<T: Copy> Has<T> {
    const COPY: &'static str = "Copy ";
}
impl<T: ?Sized + Debug> Has<T> {
    const DEBUG: &'static str = "Debug ";
}

macro_rules! table {
    ($($(#[$cfg:meta])* $type:ty: $($has:ident)+;)+) => {
        /// Type, what it has, what it should have.
        const TABLE: &[(&str, [&str; 6], &str)] = &[$($(#[$cfg])* (
            stringify!($type),
            [
                Has::<$type>::SEND, Has::<$type>::SYNC, Has::<$type>::UNPIN,
                Has::<$type>::CLONE, Has::<$type>::COPY, Has::<$type>::DEBUG,
            ],
            concat!($(stringify!($has), " "),+),
        )),+];
    };
}

/// Neither `Sync` (axum's body is not) nor anything else that the types around it could lean on.
type Req = Request;
type Service = RateLimit<Route, Req>;

table! {
    // What users write.
    Limit: Send Sync Unpin Clone Copy Debug;
    Rule<Req>: Send Sync Unpin Clone Debug;
    MissingKey: Send Sync Unpin Clone Copy Debug;
    Key<'static>: Send Sync Unpin Clone Debug;
    Limiter<Req>: Send Sync Unpin Clone Debug;
    LimiterBuilder<Req>: Send Sync Unpin Debug;
    RateLimitLayer<Req>: Send Sync Unpin Clone Debug;
    RateLimitLayer<Req, RespondWith<Req, RefusalBody>>: Send Sync Unpin Clone Debug;
    RateLimitLayer<String, RefuseWith<String, u32>>: Send Sync Unpin Clone Debug;

    // What servers run.
    Service: Send Sync Unpin Clone Debug;
    // A boxed future of the store or the clock may be in it, so it is not shared between threads while it runs.
    ResponseFuture<Route, Req, Http>: Send Unpin Debug;
    ResponseBody<axum::body::Body>: Send Unpin Debug;
    ResponseBody<http_body_util::Full<bytes::Bytes>>: Send Sync Unpin Clone Debug;

    // Answers.
    Decision: Send Sync Unpin Clone Debug;
    RuleVerdict<'static>: Send Sync Unpin Clone Copy Debug;
    ShadowVerdict<'static>: Send Sync Unpin Clone Copy Debug;
    Difference: Send Sync Unpin Clone Copy Debug;
    Differences: Send Sync Unpin Clone Copy Debug;
    Reloaded: Send Sync Unpin Clone Debug;
    ReloadCounts: Send Sync Unpin Clone Copy Debug;
    RuleStats: Send Sync Unpin Clone Copy Debug;
    Application: Send Sync Unpin Clone Copy Debug;
    ExplainedKey: Send Sync Unpin Clone Debug;
    ExplainedRule: Send Sync Unpin Clone Debug;
    Explanation: Send Sync Unpin Clone Debug;
    Mode: Send Sync Unpin Clone Copy Debug;
    Verdict: Send Sync Unpin Clone Copy Debug;
    Outcome: Send Sync Unpin Clone Copy Debug;
    Source: Send Sync Unpin Clone Copy Debug;
    Wait: Send Sync Unpin Clone Copy Debug;
    Refusal: Send Sync Unpin Clone Copy Debug;
    Http: Send Sync Unpin Clone Debug;
    RespondWith<Req, RefusalBody>: Send Sync Unpin Clone Debug;
    RefuseWith<String, u32>: Send Sync Unpin Clone Debug;
    RefusalBody: Send Sync Unpin Clone Debug;
    Headers: Send Sync Unpin Clone Debug;
    Told: Send Sync Unpin Debug;
    Writer: Send Sync Unpin Clone Debug;

    // Errors.
    ConfigError: Send Sync Unpin Clone Debug;
    ParseLimitError: Send Sync Unpin Clone Debug;
    Error: Send Sync Unpin Clone Debug;
    ErrorKind: Send Sync Unpin Clone Copy Debug;
    StoreError: Send Sync Unpin Clone Debug;
    Unsupported: Send Sync Unpin Clone Debug;

    // Rules from files.
    #[cfg(feature = "config")]
    Rules: Send Sync Unpin Clone Debug;
    #[cfg(feature = "config")]
    Format: Send Sync Unpin Clone Copy Debug;
    #[cfg(feature = "config")]
    Registry<axum::body::Body>: Send Sync Unpin Clone Debug;
    #[cfg(feature = "config")]
    Problem: Send Sync Unpin Clone Debug;
    #[cfg(feature = "config")]
    Problems: Send Sync Unpin Clone Debug;
    #[cfg(feature = "watch")]
    tollgate::config::Watch: Send Sync Unpin Debug;
    #[cfg(feature = "config")]
    Code: Send Sync Unpin Clone Copy Debug;

    // Stores. A receipt is for one charge, so it is not cloned.
    MemoryStore: Send Sync Unpin Clone Debug;
    MemoryStoreBuilder: Send Sync Unpin Clone Debug;
    MemoryCounts: Send Sync Unpin Clone Copy Debug;
    Guarded: Send Sync Unpin Clone Debug;
    GuardedBuilder: Send Sync Unpin Debug;
    GuardedCounts: Send Sync Unpin Clone Copy Debug;
    #[cfg(feature = "testing")]
    Conformance<MemoryStore>: Send Sync Unpin Debug;
    #[cfg(feature = "testing")]
    Clause: Send Sync Unpin Clone Copy Debug;
    #[cfg(feature = "testing")]
    Violation: Send Sync Unpin Clone Debug;
    #[cfg(feature = "testing")]
    Violations: Send Sync Unpin Clone Debug;
    Overflow: Send Sync Unpin Clone Copy Debug;
    #[cfg(feature = "redis")]
    RedisStore: Send Sync Unpin Clone Debug;
    #[cfg(feature = "redis")]
    RedisStoreBuilder: Send Sync Unpin Debug;
    Receipt: Send Sync Unpin Debug;
    HeldReceipt: Send Sync Unpin Clone Debug;
    Reply<(), Verdicts>: Send Unpin Debug;
    RuleSpec: Send Sync Unpin Clone Debug;
    FailurePolicy: Send Sync Unpin Clone Copy Debug;
    Share: Send Sync Unpin Clone Copy Debug;
    Slot: Send Sync Unpin Clone Debug;
    Take: Send Sync Unpin Clone Copy Debug;
    Charge<'static>: Send Sync Unpin Clone Copy Debug;
    Judged: Send Sync Unpin Clone Copy Debug;
    Verdicts: Send Sync Unpin Clone Debug;
    Taken: Send Sync Unpin Clone Debug;
    // Keys.
    TrustedProxies: Send Sync Unpin Clone Debug;
    ParseNetError: Send Sync Unpin Clone Debug;
    KeyId: Send Sync Unpin Clone Copy Debug;
    Secret: Send Sync Unpin Clone Debug;

    // Strategies and their states.
    Algorithm: Send Sync Unpin Clone Debug;
    TokenBucket: Send Sync Unpin Clone Copy Debug;
    LeakyBucket: Send Sync Unpin Clone Copy Debug;
    FixedWindow: Send Sync Unpin Clone Copy Debug;
    SlidingWindowLog: Send Sync Unpin Clone Copy Debug;
    SlidingWindowCounter: Send Sync Unpin Clone Copy Debug;
    InFlight: Send Sync Unpin Clone Copy Debug;
    CustomBucket: Send Sync Unpin Clone Debug;
    Schedule: Send Sync Unpin Clone Copy Debug;
    InFlightState: Send Sync Unpin Clone Copy Debug;
    FixedWindowState: Send Sync Unpin Clone Copy Debug;
    SlidingWindowLogState: Send Sync Unpin Clone Debug;
    SlidingWindowCounterState: Send Sync Unpin Clone Copy Debug;
    CustomState: Send Sync Unpin Clone Debug;
    Ask: Send Sync Unpin Clone Copy Debug;
    Mark: Send Sync Unpin Clone Copy Debug;
    GivenBack: Send Sync Unpin Clone Copy Debug;
    Used: Send Sync Unpin Clone Copy Debug;

    // Time.
    Nanos: Send Sync Unpin Clone Copy Debug;
    ManualClock: Send Sync Unpin Clone Debug;
    SystemClock: Send Sync Unpin Debug;
    #[cfg(feature = "quanta")]
    tollgate::time::QuantaClock: Send Sync Unpin Debug;
}

#[test]
fn every_public_type_has_the_traits_the_table_says() {
    let wrong: Vec<_> = TABLE.iter().filter(|(_, has, should)| has.concat() != *should).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_public_type_is_in_the_table() {
    let mut missing = Vec::new();
    let mut directories = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                // What another feature adds is not there without it.
                let known = (cfg!(feature = "testing") || !path.ends_with("testing"))
                    && (cfg!(feature = "redis") || !path.ends_with("store/redis"))
                    && (cfg!(feature = "config") || !path.ends_with("src/config"));
                if known {
                    directories.push(path);
                }
                continue;
            }
            if !cfg!(feature = "quanta") && path.ends_with("time/quanta.rs")
                || !cfg!(feature = "watch") && path.ends_with("config/watch.rs")
            {
                continue;
            }
            for line in fs::read_to_string(&path).unwrap().lines().map(str::trim_start) {
                let Some(rest) = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum ")) else {
                    continue;
                };
                let name: String = rest.chars().take_while(|char| char.is_alphanumeric()).collect();
                let listed = |text: &&str| text.split(|char: char| !char.is_alphanumeric()).any(|word| word == name);
                let is_alias = name == "RateLimit"; // `Service` above
                if !is_alias && !TABLE.iter().any(|(text, ..)| listed(text)) {
                    missing.push(format!("{name} in {}", path.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn errors_are_errors_that_can_be_boxed_and_sent() {
    fn is_error<T: std::error::Error + Send + Sync + 'static>() {}
    is_error::<ConfigError>();
    is_error::<ParseLimitError>();
    is_error::<ParseNetError>();
    is_error::<Error>();
    is_error::<StoreError>();
    is_error::<Unsupported>();
    #[cfg(feature = "config")]
    is_error::<Problems>();
    #[cfg(feature = "testing")]
    is_error::<Violations>();
}
