//! A limited axum service on the memory store: an outer limit per address, authentication, a limit per user, the
//! handler.
//!
//! `cargo run --example quickstart` serves on 127.0.0.1:3000 (`PORT` changes that) and prints what to try.

use std::net::SocketAddr;

use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use tollgate::{Key, Limit, RateLimitLayer, Rule, key};

/// Who authentication found the caller to be.
#[derive(Clone)]
struct User {
    name: String,
}

/// Accepts the tokens of two users. A real service would look in a session store or check a signature here.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let token = request.headers().get("authorization").map(|value| value.as_bytes());
    let name = match token {
        Some(b"Bearer ana-secret") => "ana",
        Some(b"Bearer bob-secret") => "bob",
        _ => return (StatusCode::UNAUTHORIZED, "who are you?\n").into_response(),
    };
    request.extensions_mut().insert(User { name: name.into() });
    next.run(request).await
}

/// The service. Layers that are added later are further out, so a request meets them from the bottom up.
fn app() -> Router {
    let per_user = RateLimitLayer::new([Rule::new("user", Limit::per_second(1).burst(3), |request: &Request| {
        request.extensions().get::<User>().map(|user| Key::from(&user.name))
    })]);
    let per_address = RateLimitLayer::new([Rule::new("address", Limit::per_minute(20), key::peer_addr())]);
    Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(per_user)
        .layer(middleware::from_fn(authenticate))
        .layer(per_address)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port: u16 = match std::env::var("PORT") {
        Ok(port) => port.parse().map_err(|_| format!("PORT={port}: not a number from 0 to 65535"))?,
        Err(_) => 3000,
    };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("127.0.0.1:{port}: {error}; set PORT to another port"))?;
    let url = format!("http://{}/", listener.local_addr()?);
    println!("serving on {url}, Ctrl-C ends it; try:\n");
    let ana = "-H 'authorization: Bearer ana-secret'";
    println!("  curl -i {ana} {url}   # three at once, then one a second");
    println!("  for i in 1 2 3 4 5; do curl -s -o /dev/null -w '%{{http_code}}\\n' {ana} {url}; done");
    println!("  curl -i {url}   # 401, and after 20 in a minute from your address 429\n");
    axum::serve(listener, app().into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::{body::Body, extract::connect_info::MockConnectInfo};
    use tower::ServiceExt;

    use super::*;

    fn request(token: &str) -> Request {
        Request::builder().header("authorization", format!("Bearer {token}")).body(Body::empty()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn limits_users_after_authentication_and_addresses_before() {
        let app = app().layer(MockConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4000))));
        let status = async |token| app.clone().oneshot(request(token)).await.unwrap().status();
        let (ana, bob, wrong) = ("ana-secret", "bob-secret", "guess");
        for _ in 0..3 {
            assert_eq!(status(ana).await, 200);
        }
        // Whoever waits as long as it was told is let in, and nobody who comes before.
        let refused = app.clone().oneshot(request(ana)).await.unwrap();
        assert_eq!(refused.status(), 429);
        assert_eq!(refused.headers()["retry-after"], "1");
        tokio::time::advance(Duration::from_millis(999)).await;
        assert_eq!(status(ana).await, 429);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(status(ana).await, 200);
        assert_eq!(status(bob).await, 200);
        for _ in 0..13 {
            assert_eq!(status(wrong).await, 401);
        }
        assert_eq!(status(wrong).await, 429);
        assert_eq!(status(ana).await, 429);
    }
}
