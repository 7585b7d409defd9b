//! A store that is gone leaves nothing behind in its runtime, and on its server only what stands.

use tokio::runtime::Handle;
use tollgate::{
    Key, Limit, Limiter, Rule,
    bucket::{Algorithm, Mark},
    charge::{RuleSpec, Taken},
    store::{RedisStore, Store},
    time::Nanos,
};

use super::{
    Duration, comes_to, secret,
    server::{Server, free_port},
};

/// Waits until nothing runs in the runtime but the test.
async fn nothing_runs() {
    comes_to("tasks that run on", 0, async || Handle::current().metrics().num_alive_tasks()).await;
}

#[tokio::test]
async fn without_a_connection_what_was_given_back_does_not_keep_a_task_running() {
    let store = RedisStore::builder(&format!("redis://127.0.0.1:{}", free_port()), secret()).build().unwrap();
    for (algorithm, limit) in [(Algorithm::TokenBucket, Limit::per_day(9)), (Algorithm::InFlight, Limit::in_flight(9))]
    {
        let slot = store.bind(&RuleSpec::new(algorithm.name(), algorithm.clone(), limit), None).unwrap();
        let mut taken = Taken::new(slot, Key::from(1_u64).id(store.secret()), limit, 2, Mark::default());
        for cost in [0, 3, 0] {
            store.adjust(Nanos::SECOND, &mut taken, cost);
        }
    }
    // The task has taken the first of them from the queue, and waits for a connection.
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert!(Handle::current().metrics().num_alive_tasks() > 0);
    drop(store);
    nothing_runs().await;
}

#[tokio::test]
async fn with_a_connection_what_was_given_back_arrives_first() {
    let server = Server::start();
    let patient = Duration::from_secs(5);
    let builder = RedisStore::builder(&server.url(), secret()).deadline(patient).connect_timeout(patient);
    let rules = [
        Rule::new("place", Limit::in_flight(9), |id: &u64| Some(Key::from(*id))),
        Rule::new("rate", Limit::per_day(9), |id: &u64| Some(Key::from(*id))),
    ];
    let limiter = Limiter::builder(rules).store(builder.connect().await.unwrap()).build().unwrap();
    let mut receipts = Vec::new();
    for id in 0..50 {
        receipts.push(limiter.reserve(&id).await.unwrap().1);
    }
    assert_eq!(server.run::<u64>(&["DBSIZE"]), 100);
    drop(limiter);
    drop(receipts);
    nothing_runs().await;
    assert_eq!(server.run::<Vec<String>>(&["KEYS", "*:place:*"]), [""; 0]);
}
