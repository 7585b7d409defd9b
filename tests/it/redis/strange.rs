//! What is wrong with one request, one key or one server: whom it does not concern does not notice.

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
