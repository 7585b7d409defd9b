//! Limits per route and per tier.
//!
//! One layer over the whole API gives every caller a limit by tier and makes searches dearer; one layer over the
//! upload route alone adds a limit of its own. `cargo run --example per_route` sends a few requests and prints what
//! comes back.

use axum::{
    Router,
    body::Body,
    extract::Request,
    routing::{get, post},
};
use tollgate::{Limit, MissingKey, RateLimitLayer, Rule, key};
use tower::ServiceExt;

/// What an API key has been sold as. Real services look this up in authentication and leave it in the extensions.
fn tier(request: &Request) -> Limit {
    match request.headers().get("x-tier").map(|tier| tier.as_bytes()) {
        Some(b"pro") => Limit::per_minute(10_000),
        _ => Limit::per_minute(100).burst(10),
    }
}

fn app() -> Router {
    let everywhere = RateLimitLayer::new([
        // Two keys, two counts, one step: refused by one, neither is charged.
        Rule::new("key", Limit::per_minute(100), key::header("x-api-key"))
            .limit_for(tier)
            .cost(|request| if request.uri().path() == "/search" { 5 } else { 1 })
            .on_missing_key(MissingKey::Refuse(axum::http::StatusCode::UNAUTHORIZED)),
        Rule::global("everyone", Limit::per_second(5_000)).overload(),
    ]);
    let uploads = RateLimitLayer::new([Rule::new("uploads", Limit::per_minute(2), key::header("x-api-key"))]);
    Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/search", get(|| async { "found" }))
        .route("/upload", post(|| async { "stored" }).layer(uploads))
        .layer(everywhere)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let app = app();
    for (method, path, tier) in [
        ("GET", "/", "free"),
        ("GET", "/search", "free"),
        ("GET", "/search", "free"),
        ("GET", "/search", "pro"),
        ("POST", "/upload", "pro"),
        ("POST", "/upload", "pro"),
        ("POST", "/upload", "pro"),
    ] {
        let key = format!("{tier}-key");
        let request = Request::builder().method(method).uri(path).header("x-api-key", key).header("x-tier", tier);
        let response = app.clone().oneshot(request.body(Body::empty())?).await?;
        let told = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("-");
        println!(
            "{tier:<4} {method:<4} {path:<7} -> {} (limit {}, remaining {}, retry after {})",
            response.status().as_u16(),
            told("x-ratelimit-limit"),
            told("x-ratelimit-remaining"),
            told("retry-after"),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn status(app: &Router, method: &str, path: &str, tier: &str) -> u16 {
        let request = Request::builder().method(method).uri(path).header("x-api-key", tier).header("x-tier", tier);
        app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().status().as_u16()
    }

    #[tokio::test]
    async fn each_tier_has_its_limit_and_a_search_costs_five() {
        let app = app();
        assert_eq!(status(&app, "GET", "/search", "free").await, 200);
        assert_eq!(status(&app, "GET", "/search", "free").await, 200);
        assert_eq!(status(&app, "GET", "/", "free").await, 429);
        for _ in 0..20 {
            assert_eq!(status(&app, "GET", "/search", "pro").await, 200);
        }
    }

    #[tokio::test]
    async fn a_route_has_a_limit_of_its_own() {
        let app = app();
        assert_eq!(status(&app, "POST", "/upload", "pro").await, 200);
        assert_eq!(status(&app, "POST", "/upload", "pro").await, 200);
        assert_eq!(status(&app, "POST", "/upload", "pro").await, 429);
        assert_eq!(status(&app, "GET", "/", "pro").await, 200);
    }

    #[tokio::test]
    async fn a_request_without_a_key_is_refused() {
        let request = Request::builder().body(Body::empty()).unwrap();
        assert_eq!(app().oneshot(request).await.unwrap().status(), 401);
    }
}
