//! Trying a limit before it bites.
//!
//! 30 requests a minute are in force. Would 20 do? The stricter limit runs in the shadow of the live one, on the same
//! requests, and the difference is printed: whom it would have refused, and how often. A third rule already warns its
//! clients. `cargo run --example try_a_limit` sends five minutes of made-up traffic, with a clock that it moves itself.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{Router, body::Body, extract::Request, routing::get};
use tollgate::{Limit, Limiter, RateLimitLayer, Rule, decision::Difference, key, time::ManualClock};
use tower::ServiceExt;

/// Who would have been refused, and how often.
type Refused = Arc<std::sync::Mutex<BTreeMap<String, u32>>>;

fn limiter(clock: &ManualClock, refused: &Refused) -> Result<Limiter<Request>, tollgate::ConfigError> {
    let refused = Arc::clone(refused);
    Limiter::builder([
        Rule::new("key", Limit::per_minute(30), key::header("x-api-key")),
        // The same keys, costs and conditions, and another limit, counted as if it stood in the live one's place.
        Rule::shadow_of("key", Limit::per_minute(20)).named("key-20"),
        // Not in force yet either, but clients are told.
        Rule::new("hourly", Limit::per_hour(120), key::header("x-api-key")).warn(),
    ])
    .clock(clock.clone())
    .on_decision(move |request, decision| {
        let differs = |shadow: &tollgate::decision::ShadowVerdict<'_>| {
            shadow.rule == "key-20" && shadow.difference() == Some(Difference::WouldRefuse)
        };
        if decision.shadows().any(|shadow| differs(&shadow))
            && let Some(who) = request.headers().get("x-api-key").and_then(|who| who.to_str().ok())
            && let Ok(mut refused) = refused.lock()
        {
            *refused.entry(who.to_owned()).or_default() += 1;
        }
    })
    .build()
}

fn app(layer: RateLimitLayer<Request>) -> Router {
    Router::new().route("/", get(|| async { "hello" })).layer(layer)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (clock, refused) = (ManualClock::new(), Refused::default());
    let limiter = limiter(&clock, &refused)?;
    let app = app(limiter.clone().into());
    let mut warned = BTreeMap::new();
    for second in 0..300_u64 {
        // One client asks every 6 seconds, one every other second, and one 45 times in the first second of each minute.
        for (who, times) in [
            ("slow", u64::from(second % 6 == 0)),
            ("steady", u64::from(second % 2 == 0)),
            ("bursty", if second % 60 == 0 { 45 } else { 0 }),
        ] {
            for _ in 0..times {
                let request = Request::builder().header("x-api-key", who).body(Body::empty())?;
                let response = app.clone().oneshot(request).await?;
                if let Some(warning) = response.headers().get("x-ratelimit-warning") {
                    warned.entry(who).or_insert_with(|| warning.clone());
                }
            }
        }
        clock.advance(Duration::from_secs(1));
    }

    let seen = limiter.differences("key-20").ok_or("the rule is there")?;
    println!("30 a minute in force, 20 a minute tried beside it:");
    println!("  both let pass                 {:>4}", seen.both_pass);
    println!("  both refuse                   {:>4}", seen.both_refuse);
    println!("  only the stricter one refuses {:>4}", seen.would_refuse);
    println!("  only the live one refuses     {:>4}", seen.would_pass);
    println!("whom the stricter one would have refused: {:?}", refused.lock().map_err(|_| "poisoned")?);
    println!("first warnings by the hourly rule: {warned:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_stricter_limit_refuses_nobody_and_is_counted() {
        let (clock, refused) = (ManualClock::new(), Refused::default());
        let limiter = limiter(&clock, &refused).unwrap();
        let app = app(limiter.clone().into());
        let mut statuses = BTreeMap::new();
        for _ in 0..40 {
            let request = Request::builder().header("x-api-key", "ana").body(Body::empty()).unwrap();
            *statuses.entry(app.clone().oneshot(request).await.unwrap().status().as_u16()).or_insert(0) += 1;
        }
        assert_eq!(statuses, BTreeMap::from([(200, 30), (429, 10)]), "the live limit's");
        assert_eq!(refused.lock().unwrap()["ana"], 10);
        let seen = limiter.differences("key-20").unwrap();
        assert_eq!((seen.both_pass, seen.both_refuse, seen.would_refuse, seen.would_pass), (20, 10, 10, 0));
    }
}
