//! What is wrong with one request, one key or one server: whom it does not concern does not notice.

use std::error::Error;

use futures_util::future::join_all;
use tollgate::{
    FailurePolicy, Key, Limit, Limiter, Rule,
    bucket::{FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog},
    decision::{Outcome, Wait},
    store::{Guarded, RedisStore},
};

use super::{
    Duration, secret,
    server::{Server, free_port},
};
use crate::engine::remaining_of;

const PATIENT: Duration = Duration::from_secs(5);

async fn store(server: &Server) -> RedisStore {
    let builder = RedisStore::builder(&server.url(), secret()).deadline(PATIENT).connect_timeout(PATIENT);
    builder.keys_in_plain().connect().await.unwrap()
}

fn guard(store: &RedisStore) -> Guarded {
    Guarded::builder(store.clone(), FailurePolicy::Allow).deadline(PATIENT).build()
}

fn by_id(name: &'static str, limit: Limit) -> Rule<u64> {
    Rule::new(name, limit, |id: &u64| Some(Key::from(*id)))
}

#[tokio::test]
async fn a_limit_that_redis_cannot_count_by_refuses_for_good_and_harms_nobody_else() {
    let server = Server::start();
    let store = store(&server).await;
    let (day, odd) = (Limit::per_day(5), Limit::new(5, Duration::from_nanos(1_500)));
    let rules = [
        (by_id("token", day), Limit::per_day(1_000_003)),
        (by_id("queue", day.burst(5)).algorithm(LeakyBucket), Limit::per_day(1_000_003).burst(1_000_003)),
        (by_id("fixed", day).algorithm(FixedWindow), odd),
        (by_id("log", day).algorithm(SlidingWindowLog), odd),
        (by_id("counter", day).algorithm(SlidingWindowCounter), odd),
    ];
    for (rule, uncountable) in rules {
        let name = rule.name().to_owned();
        let own = if name == "queue" { day.burst(5) } else { day };
        let rule = rule.limit_for(move |id| if *id == 1 { uncountable } else { own });
        let guarded = guard(&store);
        let everyone = Rule::global("all", Limit::per_day(1_000));
        let limiter = Limiter::builder([rule, everyone]).store(guarded.clone()).build().unwrap();
        let left = remaining_of(&limiter.peek(&1).await.unwrap(), "all");
        let asked = [1, 1, 1, 1, 1, 1, 2, 1];
        for (id, decision) in asked.iter().zip(join_all(asked.iter().map(|id| limiter.check(id))).await) {
            let decision = decision.unwrap();
            assert!(!decision.is_degraded(), "{name}: {decision:?}");
            let says_never = decision.rules().any(|rule| rule.verdict.outcome == Outcome::Refuse(Wait::Never));
            assert_eq!((decision.is_allowed(), says_never), (*id == 2, *id == 1), "{name}: {decision:?}");
        }
        assert_eq!(remaining_of(&limiter.peek(&2).await.unwrap(), "all"), left - 1, "{name}");
        assert_eq!((guarded.is_open(), guarded.counts().failed), (false, 0), "{name}");
    }
}

#[tokio::test]
async fn a_key_that_cannot_be_read_opens_no_circuit() {
    let server = Server::start();
    let store = store(&server).await;
    let guarded = guard(&store);
    let limiter = Limiter::builder([by_id("user", Limit::per_day(50))]).store(guarded.clone()).build().unwrap();
    server.run::<u64>(&["RPUSH", "tg1:{tollgate}:user:t:number:1", "a list"]);
    server.run::<()>(&["SET", "tg1:{tollgate}:user:t:number:2", "a text"]);
    for _ in 0..6 {
        for id in [1, 2] {
            assert!(limiter.check(&id).await.unwrap().is_degraded(), "{id}");
        }
        for decision in join_all([1, 2, 1, 2].iter().map(|id| limiter.check(id))).await {
            assert!(decision.unwrap().is_degraded());
        }
    }
    assert_eq!((guarded.is_open(), guarded.counts().opened, store.is_connected()), (false, 0, true));
    assert!(!limiter.check(&3).await.unwrap().is_degraded());
}

#[tokio::test]
async fn a_server_that_has_become_a_replica_is_left_whatever_was_asked_together() {
    for rule in [by_id("token", Limit::per_day(5)), by_id("fixed", Limit::per_day(5)).algorithm(FixedWindow)] {
        let server = Server::start();
        let store = store(&server).await;
        let name = rule.name().to_owned();
        let limiter = Limiter::builder([rule]).store(store.clone()).build().unwrap();
        assert!(limiter.check(&1).await.unwrap().is_allowed());
        server.run::<()>(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
        let decisions = join_all([2, 3, 4].iter().map(|id| limiter.check(id))).await;
        assert!(decisions.iter().all(Result::is_err), "{name}: {decisions:?}");
        assert!(!store.is_connected(), "{name}");
    }
}

/// The URL of `server` for a user of it who may do what `may` says.
fn url_of_a_user(server: &Server, may: &[&str]) -> String {
    server.run::<()>(&[&["ACL", "SETUSER", "limits", "reset", "on", ">word", "~tg1:*"], may].concat());
    server.url().replace("redis://", "redis://limits:word@")
}

#[tokio::test]
async fn a_user_who_may_not_run_what_the_script_calls_opens_the_circuit() {
    const MOST: [&str; 6] = ["+eval", "+evalsha", "+get", "+mget", "+del", "+time"];
    let server = Server::start();
    let url = url_of_a_user(&server, &MOST);
    let builder = RedisStore::builder(&url, secret()).deadline(PATIENT).connect_timeout(PATIENT);
    let store = builder.connect().await.unwrap();
    let guarded = guard(&store);
    let limiter = Limiter::builder([by_id("user", Limit::per_day(50))]).store(guarded.clone()).build().unwrap();
    let error = Limiter::builder([by_id("user", Limit::per_day(50))]).store(store).build().unwrap();
    let error = error.check(&1).await.unwrap_err();
    assert!(error.source().unwrap().to_string().contains("lacks a permission: +eval"), "{error:?}");
    for id in 0..5 {
        assert!(limiter.check(&id).await.unwrap().is_degraded(), "{id}");
    }
    assert!(guarded.is_open(), "{:?}", guarded.counts());
}

#[tokio::test]
async fn what_the_page_says_a_user_needs_is_enough_for_each_algorithm() {
    const ALL: [&str; 16] = [
        "+eval",
        "+evalsha",
        "+get",
        "+mget",
        "+set",
        "+del",
        "+time",
        "+getrange",
        "+setrange",
        "+pexpire",
        "+zadd",
        "+zrem",
        "+zrange",
        "+zrangebyscore",
        "+zremrangebyscore",
        "+zrevrange",
    ];
    let server = Server::start();
    let url = url_of_a_user(&server, &ALL);
    let builder = RedisStore::builder(&url, secret()).deadline(PATIENT).connect_timeout(PATIENT);
    let store = builder.connect().await.unwrap();
    let limit = Limit::per_day(2).burst(2);
    let rules = [
        by_id("token", limit),
        by_id("queue", limit).algorithm(LeakyBucket),
        by_id("fixed", Limit::per_day(2)).algorithm(FixedWindow),
        by_id("log", Limit::per_day(2)).algorithm(SlidingWindowLog),
        by_id("counter", Limit::per_day(2)).algorithm(SlidingWindowCounter),
        by_id("places", Limit::in_flight(2)),
    ];
    for rule in rules {
        let name = rule.name().to_owned();
        let limiter = Limiter::builder([rule]).store(store.clone()).build().unwrap();
        for _ in 0..3 {
            let (decision, receipt) = limiter.reserve(&1).await.unwrap();
            assert!(decision.is_allowed(), "{name}");
            receipt.give_back();
            store.flush().await.unwrap();
        }
        limiter.reset(&name, Key::from(1_u64)).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_lets_nobody_in_says_what_to_change() {
    let server = Server::start();
    let connect = async |url: &str| {
        let builder = RedisStore::builder(url, secret()).deadline(PATIENT).connect_timeout(PATIENT);
        builder.connect().await.unwrap_err().to_string()
    };
    let url = url_of_a_user(&server, &["+get"]);
    let why = connect(&url).await;
    assert!(why.contains("lacks a permission: +eval"), "{why}");
    let why = connect(&url.replace("word", "another")).await;
    assert!(why.contains("redis://user:password@host") && !why.contains("another"), "{why}");
    server.run::<()>(&["CONFIG", "SET", "requirepass", "geheim"]);
    let why = connect(&server.url()).await;
    assert!(why.contains("redis://:password@host"), "{why}");
}
