//! Wrong passwords are counted, right ones are not: by account, so that nobody is guessed at from many addresses, and
//! by address, so that nobody tries one password on many accounts.
//!
//! `cargo run --example login` tries a few and prints what comes back.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Path, Request},
    http::{Response, StatusCode},
    routing::post,
};
use tollgate::{Limit, MissingKey, RateLimitLayer, Rule, bucket::SlidingWindowLog, key};
use tower::ServiceExt;

const QUARTER_OF_AN_HOUR: Duration = Duration::from_secs(900);

fn app() -> Router {
    let failed = |response: &Response<()>| response.status() == StatusCode::UNAUTHORIZED;
    let failures = RateLimitLayer::new([
        Rule::new("account", Limit::new(5, QUARTER_OF_AN_HOUR), key::path_param("/login/{account}", "account"))
            .algorithm(SlidingWindowLog)
            .on_missing_key(MissingKey::Refuse(StatusCode::BAD_REQUEST))
            .count_only_when(failed),
        Rule::new("address", Limit::new(20, QUARTER_OF_AN_HOUR), key::peer_addr())
            .algorithm(SlidingWindowLog)
            .count_only_when(failed),
    ]);
    Router::new().route("/login/{account}", post(login).layer(failures))
}

/// Real ones hash, compare in constant time, and take as long for accounts that there are not.
async fn login(Path(account): Path<String>, password: String) -> (StatusCode, String) {
    match password == format!("{account}'s secret") {
        true => (StatusCode::OK, format!("welcome, {account}")),
        false => (StatusCode::UNAUTHORIZED, "no such account and password".into()),
    }
}

/// What a server would be asked from `address`.
fn attempt(account: &str, password: &str, address: [u8; 4]) -> Result<Request, axum::http::Error> {
    Request::post(format!("/login/{account}"))
        .extension(ConnectInfo(SocketAddr::from((address, 4_711))))
        .body(Body::from(password.to_owned()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let app = app();
    let (home, elsewhere) = ([203, 0, 113, 7], [198, 51, 100, 9]);
    let attempts = [("ana", "ana's secret", home); 3].into_iter().chain([("ana", "a guess", home); 5]).chain([
        ("ana", "ana's secret", home),
        ("ana", "ana's secret", elsewhere),
        ("bob", "bob's secret", elsewhere),
    ]);
    for (account, password, address) in attempts {
        let response = app.clone().oneshot(attempt(account, password, address)?).await?;
        let wait = response.headers().get("retry-after").and_then(|value| value.to_str().ok()).unwrap_or("-");
        println!("{account}, \"{password}\" from {address:?}: {} (retry after {wait})", response.status());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn status(app: &Router, account: &str, password: &str, last_byte: u8) -> u16 {
        let request = attempt(account, password, [203, 0, 113, last_byte]).unwrap();
        app.clone().oneshot(request).await.unwrap().status().as_u16()
    }

    #[tokio::test]
    async fn five_wrong_passwords_lock_an_account_wherever_they_come_from() {
        let app = app();
        for address in 0..5 {
            assert_eq!(status(&app, "ana", "a guess", address).await, 401);
        }
        assert_eq!(status(&app, "ana", "a guess", 5).await, 429);
        assert_eq!(
            status(&app, "ana", "ana's secret", 6).await,
            429,
            "who guesses right is told no more than who does not"
        );
        assert_eq!(status(&app, "bob", "bob's secret", 5).await, 200, "others are not locked, nor is the address");
    }

    #[tokio::test]
    async fn twenty_wrong_passwords_lock_an_address_whatever_accounts_they_are_for() {
        let app = app();
        for account in ["ana", "bob", "cleo", "dan", "eva"].repeat(4) {
            assert_eq!(status(&app, account, "a guess", 1).await, 401);
        }
        assert_eq!(status(&app, "finn", "a guess", 1).await, 429);
        assert_eq!(status(&app, "finn", "finn's secret", 2).await, 200);
    }

    #[tokio::test]
    async fn right_passwords_are_not_counted() {
        let app = app();
        for _ in 0..100 {
            assert_eq!(status(&app, "ana", "ana's secret", 1).await, 200);
        }
        for _ in 0..5 {
            assert_eq!(status(&app, "ana", "a guess", 1).await, 401);
        }
    }
}
