//! What is written to the log while a store fails: its changes, and not every request.

use std::future::Future;

use axum::{Router, body::Body, extract::Request, routing::get};
use tollgate::RateLimitLayer;
use tower::ServiceExt;

use super::*;
use crate::support;

/// What is logged while `work` runs, on a runtime of one thread with paused time.
fn logged(level: tracing::Level, work: impl Future<Output = ()>) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    support::logged(level, || runtime.block_on(work))
}

#[test]
fn a_circuit_is_reported_when_it_opens_and_when_it_closes() {
    let lines = logged(tracing::Level::INFO, async {
        let rig = Rig::new(Mode::Up, FailurePolicy::Allow, [rule("r", Limit::per_minute(1_000))]);
        for _ in 0..2 {
            rig.break_down().await;
            assert_eq!(rig.passes(7, 100).await, 100);
            rig.recover().await;
            assert_eq!(rig.passes(7, 100).await, 100);
        }
    });
    assert_eq!(lines.len(), 4, "{lines:?}");
    for (at, line) in lines.iter().enumerate() {
        let (level, says) =
            if at % 2 == 0 { ("WARN", "connection reset") } else { ("INFO", "the store answers again") };
        assert!(line.starts_with(level) && line.contains(says), "{line}");
    }
    assert!(lines[1].contains("degraded=105") && lines[3].contains("degraded=210"), "{lines:?}");
}

#[test]
fn each_degraded_decision_can_be_seen_by_who_looks_closely() {
    let lines = logged(tracing::Level::DEBUG, async {
        let rig = Rig::new(Mode::FailsAtOnce, FailurePolicy::Allow, [rule("r", Limit::per_minute(1_000))]);
        assert_eq!(rig.passes(7, 12).await, 12);
    });
    assert_eq!(lines.iter().filter(|line| line.starts_with("DEBUG")).count(), 12, "{lines:?}");
}

/// Without a guard too a failing store is no line for each request, and the user's closures run once.
#[test]
fn a_store_without_a_guard_is_reported_once_per_change() {
    let asked = Arc::new(AtomicUsize::new(0));
    let lines = logged(tracing::Level::INFO, async {
        for mode in [Mode::FailsAtOnce, Mode::FailsLater] {
            let store = Faulty::new(mode);
            let counter = Arc::clone(&asked);
            let rule = Rule::new("r", Limit::per_minute(1_000), move |_: &Request| {
                counter.fetch_add(1, Ordering::Relaxed);
                Some(Key::from(7_u64))
            });
            let limiter =
                Limiter::builder([rule.on_store_failure(FailurePolicy::Allow)]).store(store.clone()).build().unwrap();
            let app = Router::new().route("/", get(|| async { "hello" })).layer(RateLimitLayer::from(limiter));
            for round in 0..40 {
                if round % 10 == 0 {
                    store.turn(if round % 20 == 0 { mode } else { Mode::Up });
                }
                let answer = app.clone().oneshot(Request::new(Body::empty())).await.unwrap();
                assert_eq!(answer.status(), 200);
            }
        }
    });
    assert_eq!(asked.load(Ordering::Relaxed), 80, "the key of each request is asked for once");
    let levels: Vec<_> = lines.iter().map(|line| &line[..4]).collect();
    assert_eq!(levels, ["WARN", "INFO", "WARN", "INFO", "WARN", "INFO", "WARN", "INFO"], "{lines:?}");
}
