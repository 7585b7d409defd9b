//! Requests that are asked at one moment: one call of a script decides them, each as if it had been asked alone.

use std::task::{Context, Poll, Waker};

use futures_util::future::join_all;
use tollgate::{
    Decision, Key, Limit, Limiter, Rule,
    bucket::FixedWindow,
    charge::Verdicts,
    store::{RedisStore, Reply, Store},
    time::{ManualClock, Nanos},
};

use super::{Duration, by_the_clock, secret, server::Server};
use crate::engine::remaining_of;

/// How often the server has run a script by its digest or by its text, and how often it has read a key.
fn calls(server: &Server) -> [u64; 2] {
    let stats: String = server.run(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:calls=")));
        line.map_or(0, |line| line.split(['=', ',']).nth(1).unwrap().parse().unwrap())
    };
    [calls("evalsha"), calls("get") + calls("mget")]
}

async fn store(server: &Server) -> RedisStore {
    let patient = Duration::from_secs(5);
    RedisStore::builder(&server.url(), secret()).deadline(patient).connect_timeout(patient).connect().await.unwrap()
}

fn by_user(store: &RedisStore, permits: u64) -> Limiter<u64> {
    let rule = Rule::new("user", Limit::per_day(permits), |id: &u64| Some(Key::from(*id)));
    Limiter::builder([rule]).store(store.clone()).build().unwrap()
}

fn left(decision: &Decision) -> u64 {
    decision.tightest().unwrap().verdict.remaining
}

#[tokio::test]
async fn what_waits_at_one_moment_is_one_call() {
    let server = Server::start();
    let store = store(&server).await;
    let limiter = by_user(&store, 1_000);
    // The server learns the script, and the buckets are there.
    let asked: Vec<u64> = (0..32).collect();
    join_all(asked.iter().map(|id| limiter.check(id))).await;
    let before = calls(&server);
    let decisions = join_all(asked.iter().map(|id| limiter.check(id))).await;
    assert!(decisions.iter().all(|decision| decision.as_ref().unwrap().is_allowed()));
    let after = calls(&server);
    assert_eq!([after[0] - before[0], after[1] - before[1]], [1, 1], "calls of scripts and reads of keys");
    // More than that is more calls: nobody else is served while a script runs.
    join_all((0..100).map(|_| limiter.check(&7))).await;
    assert_eq!(calls(&server)[0] - after[0], 4);
}

#[tokio::test]
async fn those_who_ask_together_for_one_bucket_get_what_is_in_it_and_no_more() {
    let server = Server::start();
    let store = store(&server).await;
    let limiter = by_user(&store, 10);
    let decisions = join_all((0..25).map(|_| limiter.check(&7))).await;
    let allowed: Vec<_> = decisions.iter().map(|decision| decision.as_ref().unwrap().is_allowed()).collect();
    assert_eq!(allowed, [[true; 10].as_slice(), &[false; 15]].concat(), "in the order in which they asked");
    let left: Vec<_> = decisions.iter().map(|decision| left(decision.as_ref().unwrap())).collect();
    assert_eq!(left[..10], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
}

#[tokio::test]
async fn those_who_ask_together_for_places_get_as_many_as_there_are() {
    let server = Server::start();
    let store = store(&server).await;
    let rules = [
        Rule::global("place", Limit::in_flight(10)),
        Rule::new("rate", Limit::per_day(30), |_: &u64| Some(Key::from("all"))),
    ];
    let limiter = Limiter::builder(rules).store(store.clone()).build().unwrap();
    for served in [10, 20, 30] {
        let before = calls(&server);
        let replies = join_all((0..25).map(|_| limiter.reserve(&7))).await;
        let passed = replies.iter().filter(|reply| reply.as_ref().unwrap().0.is_allowed()).count();
        assert_eq!((passed, calls(&server)[0] - before[0]), (10, 1), "in one call");
        drop(replies);
        store.flush().await.unwrap();
        assert_eq!(remaining_of(&limiter.peek(&7).await.unwrap(), "rate"), 30 - served);
    }
}

#[tokio::test]
async fn a_question_about_nothing_is_answered_without_the_server() {
    let mut server = Server::start();
    let store = store(&server).await;
    server.kill();
    let mut verdicts = Verdicts::new();
    assert!(matches!(store.decide(Nanos::SECOND, &[], &mut verdicts), Reply::Ready(Ok(()))));
    assert_eq!(verdicts.iter().len(), 0);
}

#[tokio::test]
async fn a_request_that_is_refused_leaves_what_others_of_its_call_are_charged() {
    let server = Server::start();
    let store = store(&server).await;
    // One is in both rules, and whoever it is about is refused by the second.
    let rules = [
        Rule::new("many", Limit::per_day(100), |_: &u64| Some(Key::from("all"))),
        Rule::new("odd", Limit::per_day(1), |id: &u64| (id % 2 == 1).then(|| Key::from(1_u64))),
    ];
    let limiter = Limiter::builder(rules).store(store.clone()).build().unwrap();
    let asked: Vec<u64> = (0..20).collect();
    let decisions = join_all(asked.iter().map(|id| limiter.check(id))).await;
    let allowed = decisions.iter().filter(|decision| decision.as_ref().unwrap().is_allowed()).count();
    assert_eq!(allowed, 11, "ten even ones and the first odd one");
    assert_eq!(remaining_of(&limiter.peek(&0).await.unwrap(), "many"), 100 - 11);
}

#[tokio::test]
async fn what_another_program_left_in_a_key_is_the_error_of_those_alone_who_ask_for_it() {
    let server = Server::start();
    let patient = Duration::from_secs(5);
    let builder = RedisStore::builder(&server.url(), secret()).deadline(patient).connect_timeout(patient);
    let store = builder.keys_in_plain().connect().await.unwrap();
    let token = Rule::new("user", Limit::per_day(5), |id: &u64| Some(Key::from(*id)));
    let window = Rule::new("window", Limit::per_day(5), |id: &u64| Some(Key::from(*id))).algorithm(FixedWindow);
    let limiter = Limiter::builder([token, window]).store(store).build().unwrap();
    server.run::<u64>(&["RPUSH", "tg1:{tollgate}:user:t:number:1", "a list"]);
    server.run::<()>(&["SET", "tg1:{tollgate}:window:f:number:2", "a text"]);
    let asked: Vec<u64> = (0..12).map(|at| at % 4).collect();
    for _ in 0..2 {
        let decisions = join_all(asked.iter().map(|id| limiter.check(id))).await;
        for (id, decision) in asked.iter().zip(decisions) {
            match decision {
                Ok(_) => assert!([0, 3].contains(id), "{id}"),
                Err(error) => {
                    let why = std::error::Error::source(&error).unwrap().to_string();
                    assert!([1, 2].contains(id) && why.contains("refused"), "{id}: {why}");
                }
            }
        }
    }
    assert_eq!(left(&limiter.peek(&0).await.unwrap()), 0);
    // Nothing was charged beside what could not be.
    assert_eq!(server.run::<u64>(&["EXISTS", "tg1:{tollgate}:window:f:number:1", "tg1:{tollgate}:user:t:number:2"]), 0);
    assert_eq!(server.run::<String>(&["TYPE", "tg1:{tollgate}:user:t:number:1"]), "list");
}

#[tokio::test]
async fn whoever_goes_before_the_question_is_sent_is_not_in_the_call() {
    let server = Server::start();
    let store = store(&server).await;
    let limiter = by_user(&store, 10);
    assert_eq!(left(&limiter.check(&1).await.unwrap()), 9);
    let before = calls(&server);
    {
        // Polled once, and dropped before the connection's task has had its turn.
        let mut asking: Vec<_> = (0..5).map(|_| Box::pin(limiter.check(&1))).collect();
        for asking in &mut asking {
            let polled = asking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Pending));
        }
    }
    let decision = limiter.check(&1).await.unwrap();
    assert_eq!(left(&decision), 8);
    assert_eq!(calls(&server)[0] - before[0], 1, "one call, for the one who stayed");
    store.flush().await.unwrap();
    assert_eq!(calls(&server)[0] - before[0], 1, "and nothing to give back");
}

#[tokio::test]
async fn a_call_that_the_server_refuses_is_asked_again_for_each_alone() {
    let server = Server::start();
    // A user who may not touch one rule's keys: the whole call is refused.
    server.run::<()>(&["ACL", "SETUSER", "some", "on", ">word", "+@all", "~tg1:{tollgate}:mine:*"]);
    let url = server.url().replace("redis://", "redis://some:word@");
    let patient = Duration::from_secs(5);
    let store = RedisStore::builder(&url, secret()).deadline(patient).connect_timeout(patient).connect().await.unwrap();
    let rules = [
        Rule::new("mine", Limit::per_day(100), |id: &u64| (*id < 10).then(|| Key::from(*id))),
        Rule::new("yours", Limit::per_day(100), |id: &u64| (*id >= 10).then(|| Key::from(*id))),
    ];
    let limiter = Limiter::builder(rules).store(store).build().unwrap();
    let asked: Vec<u64> = (5..15).collect();
    let decisions = join_all(asked.iter().map(|id| limiter.check(id))).await;
    for (id, decision) in asked.iter().zip(&decisions) {
        assert_eq!(decision.is_ok(), *id < 10, "{id}: {decision:?}");
    }
    assert_eq!(left(&limiter.peek(&7).await.unwrap()), 99);
}

#[tokio::test]
async fn requests_of_one_call_are_judged_at_their_own_times() {
    let server = Server::start();
    let store = by_the_clock(&server.url()).connect().await.unwrap();
    let clock = ManualClock::at(Nanos::SECOND);
    let rule = Rule::new("one", Limit::per_second(1), |_: &()| Some(Key::from(1_u64)));
    let limiter = Limiter::builder([rule]).store(store).clock(clock.clone()).build().unwrap();
    let mut asking = Vec::new();
    for _ in 0..6 {
        let mut one = Box::pin(limiter.check(&()));
        assert!(one.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        asking.push(one);
        clock.advance(Duration::from_millis(500));
    }
    let allowed: Vec<_> =
        join_all(asking).await.iter().map(|decision| decision.as_ref().unwrap().is_allowed()).collect();
    assert_eq!(allowed, [true, false, true, false, true, false]);
}
