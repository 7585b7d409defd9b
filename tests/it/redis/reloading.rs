//! Other rules while requests go on, with buckets on a server.

use tollgate::{
    Key, Limit, Limiter, Rule,
    bucket::{FixedWindow, SlidingWindowLog},
    store::RedisStore,
};

use super::{Duration, secret, server::Server};

fn by_id(name: &'static str, permits: u64) -> Rule<u64> {
    Rule::new(name, Limit::per_day(permits), |id: &u64| Some(Key::from(*id)))
}

/// One process of several.
async fn process(server: &Server, rule: Rule<u64>) -> Limiter<u64> {
    let patient = Duration::from_secs(5);
    let builder = RedisStore::builder(&server.url(), secret()).deadline(patient).connect_timeout(patient);
    Limiter::builder([rule]).store(builder.connect().await.unwrap()).build().unwrap()
}

async fn passes(limiter: &Limiter<u64>, id: u64) -> usize {
    let mut passed = 0;
    while limiter.check(&id).await.unwrap().is_allowed() {
        passed += 1;
    }
    passed
}

#[tokio::test]
async fn what_was_used_stays_used_in_all_processes_whoever_reloads_first() {
    let server = Server::start();
    let (one, other) = (process(&server, by_id("a", 4)).await, process(&server, by_id("a", 4)).await);
    assert_eq!((passes(&one, 1).await, passes(&other, 1).await), (4, 0));
    assert_eq!(one.reload([by_id("a", 6)]).unwrap().changed, ["a"]);
    assert_eq!((passes(&one, 1).await, passes(&one, 1).await), (2, 0));
    assert_eq!(passes(&other, 1).await, 0, "by the rules of before it is over its limit");
    other.reload([by_id("b", 6).was("a"), Rule::global("all", Limit::per_second(900_000))]).unwrap();
    assert_eq!(passes(&other, 2).await, 6);
    // One by the old name and one by the new one count together.
    assert_eq!(passes(&one, 2).await, 0);
    one.reload([by_id("b", 8).was("a")]).unwrap();
    assert_eq!((passes(&one, 2).await, passes(&one, 3).await), (2, 8));
}

/// The limitations say why.
#[tokio::test]
async fn another_algorithm_is_refused_and_nothing_has_changed() {
    let server = Server::start();
    let limiter = process(&server, by_id("a", 4)).await;
    assert!(limiter.check(&1).await.unwrap().is_allowed());
    for rule in [by_id("a", 9).algorithm(FixedWindow), by_id("b", 9).algorithm(SlidingWindowLog).was("a")] {
        let error = limiter.reload([rule]).unwrap_err();
        assert_eq!(error.field(), "store");
        assert!(error.to_string().contains("give this one another name"), "{error}");
    }
    assert_eq!((limiter.reloads().failed, passes(&limiter, 1).await), (2, 3));
    // Under another name it starts afresh.
    limiter.reload([by_id("b", 9).algorithm(FixedWindow)]).unwrap();
    assert_eq!(passes(&limiter, 1).await, 9);
}
