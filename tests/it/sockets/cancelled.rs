//! Clients that go away while they wait.

use axum::routing::get;
use tollgate::{Limit, bucket::LeakyBucket};

use super::*;
use crate::soon::until;

#[tokio::test]
async fn a_client_that_hangs_up_while_it_waits_for_its_turn_takes_nothing() {
    for version in BOTH {
        let clock = ManualClock::new();
        let rule = Rule::global("paced", Limit::per_second(1).burst(3)).algorithm(LeakyBucket);
        let limit = layer([rule], &clock);
        let limiter = limit.limiter().clone();
        let delay = || limiter.peek_now(&Request::new(Body::empty())).unwrap().delay();
        let called = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&called);
        let handler = get(move || async move {
            count.fetch_add(1, Ordering::Relaxed);
            "hello"
        });
        let server = Server::start(Router::new().route("/", handler).layer(limit)).await;

        assert_eq!(server.connect(version).await.ask(Method::GET).await.status, 200);
        assert_eq!(delay(), Duration::from_secs(1));
        let mut connection = server.connect(version).await;
        let waiting = tokio::spawn(async move { connection.ask(Method::GET).await.status });
        until("the charge", async || delay() == Duration::from_secs(2)).await;
        // Dropping the request resets its stream over HTTP/2, and closes the connection over HTTP/1.
        waiting.abort();
        until("the refund", async || delay() == Duration::from_secs(1)).await;
        clock.advance(Duration::from_secs(5));
        assert_eq!(server.connect(version).await.ask(Method::GET).await.status, 200);
        assert_eq!(called.load(Ordering::Relaxed), 2, "the one that hung up was never let in");
    }
}
