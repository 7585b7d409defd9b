//! The store keeps its contract, by the server's clock and by the limiter's, and so does a guard around it.

use tollgate::{
    FailurePolicy,
    charge::Share,
    store::{Guarded, Store},
    testing::conformance::Conformance,
};

use super::{Duration, RedisStore, by_the_clock, secret, server::Server};

/// Longer than a busy machine needs: nothing here is about being late.
const PATIENCE: Duration = Duration::from_secs(5);

async fn by_the_server(url: &str) -> RedisStore {
    RedisStore::builder(url, secret()).deadline(PATIENCE).connect_timeout(PATIENCE).connect().await.unwrap()
}

async fn passes<S: Store>(suite: Conformance<S>) {
    suite.check().await.unwrap_or_else(|violations| panic!("{violations}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_redis_store_conforms_by_the_clock_of_its_server() {
    let server = Server::start();
    let url = server.url();
    let connect = move || {
        let url = url.clone();
        async move { by_the_server(&url).await }
    };
    passes(Conformance::of(connect)).await;
    let without_end: Vec<String> = server
        .run::<Vec<String>>(&["KEYS", "*"])
        .into_iter()
        .filter(|key| server.run::<i64>(&["PTTL", key]) < 0)
        .filter(|key| server.run::<i64>(&["EXISTS", key]) == 1)
        .collect();
    assert_eq!(without_end, [""; 0], "keys that never end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_redis_store_conforms_by_the_clock_of_the_limiter() {
    let server = Server::start();
    let url = server.url();
    let connect = move || {
        let url = url.clone();
        async move { by_the_clock(&url).connect_timeout(PATIENCE).connect().await.unwrap() }
    };
    passes(Conformance::of(connect).given_time()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_around_the_redis_store_conform() {
    let server = Server::start();
    for policy in [FailurePolicy::Allow, FailurePolicy::Refuse, FailurePolicy::Fallback(Share::one_in(3))] {
        let url = server.url();
        let connect = move || {
            let url = url.clone();
            async move { Guarded::builder(by_the_server(&url).await, policy).deadline(PATIENCE).build() }
        };
        passes(Conformance::of(connect)).await;
    }
}
