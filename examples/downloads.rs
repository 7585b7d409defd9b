//! Two downloads at a time for each user, counted until the last byte has gone out, and a cap on all of them.
//!
//! `cargo run --example downloads` starts a few, reads some of them, and prints what each was told.

use std::{convert::Infallible, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, Request},
    http::StatusCode,
    routing::get,
};
use futures_util::stream;
use tollgate::{Limit, MissingKey, RateLimitLayer, Rule, key};
use tower::ServiceExt;

fn app() -> Router {
    let downloads = RateLimitLayer::new([
        // A place is free when the body has ended, or the client has gone.
        Rule::new("downloads", Limit::in_flight(2), key::header("x-user"))
            .retry_after(Duration::from_secs(10)) // nobody knows how long the others take
            .on_missing_key(MissingKey::Refuse(StatusCode::UNAUTHORIZED)),
        Rule::global("capacity", Limit::in_flight(100)).overload(),
        // In the same step: what finds no place costs nothing of the rate either.
        Rule::new("starts", Limit::per_minute(30), key::header("x-user")),
    ]);
    Router::new().route("/files/{name}", get(download)).layer(downloads)
}

/// A file in eight pieces, each made when the one before it has gone out.
async fn download(Path(name): Path<String>) -> Body {
    let pieces = stream::unfold(0, move |piece| {
        let text = format!("{name}, piece {piece}\n");
        async move { (piece < 8).then(|| (Ok::<_, Infallible>(Bytes::from(text)), piece + 1)) }
    });
    Body::from_stream(pieces)
}

fn request(user: &str, name: &str) -> Result<Request, axum::http::Error> {
    Request::get(format!("/files/{name}")).header("x-user", user).body(Body::empty())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let app = app();
    let mut running = Vec::new();
    for (user, name) in [("ana", "one"), ("ana", "two"), ("ana", "three"), ("bob", "one"), ("ana", "three")] {
        let response = app.clone().oneshot(request(user, name)?).await?;
        let status = response.status();
        let wait = response.headers().get("retry-after").and_then(|value| value.to_str().ok()).unwrap_or("-");
        println!("{user} asks for {name}: {status} (retry after {wait})");
        if status == StatusCode::OK {
            running.push((user, name, response.into_body()));
        } else if let Some((user, name, body)) = running.pop() {
            let bytes = axum::body::to_bytes(body, usize::MAX).await?;
            println!("{user} has read all {} bytes of {name}", bytes.len());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use http_body_util::BodyExt;

    use super::*;

    async fn start(app: &Router, user: &str) -> (u16, Body) {
        let response = app.clone().oneshot(request(user, "file").unwrap()).await.unwrap();
        (response.status().as_u16(), response.into_body())
    }

    #[tokio::test]
    async fn the_third_download_waits_for_one_of_two_to_end() {
        let app = app();
        let ((one, first), (two, _second)) = (start(&app, "ana").await, start(&app, "ana").await);
        assert_eq!((one, two), (200, 200));
        assert_eq!(start(&app, "ana").await.0, 429);
        let (bob, _) = start(&app, "bob").await;
        assert_eq!(bob, 200, "another user has two of his own");
        assert_eq!(to_bytes(first, usize::MAX).await.unwrap().len(), 8 * "file, piece 0\n".len());
        assert_eq!(start(&app, "ana").await.0, 200);
    }

    #[tokio::test]
    async fn a_client_that_goes_away_in_the_middle_frees_its_place() {
        let app = app();
        for _ in 0..10 {
            let (status, mut body) = start(&app, "ana").await;
            assert_eq!(status, 200);
            assert!(body.frame().await.unwrap().unwrap().is_data());
            // Dropped with most of it unread.
        }
    }
}
