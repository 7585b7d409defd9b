//! Many decisions at once, and decisions that nobody waits for.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use super::bench::{Bench, Place, ensure, passed};
use crate::{
    charge::{Charge, Verdicts},
    key::KeyId,
    store::{Reply, Store},
    time::Nanos,
};

const TASKS: usize = 32;
const EACH: usize = 8;

async fn ask(store: &dyn Store, now: Nanos, charges: &[Charge<'_>]) -> Result<bool, String> {
    let mut verdicts = Verdicts::new();
    let answer = match store.decide(now, charges, &mut verdicts) {
        Reply::Ready(answer) => answer.map(|()| verdicts),
        Reply::Pending(reply) => reply.await,
    };
    answer.map(|verdicts| passed(charges, &verdicts)).map_err(|error| format!("decide: {error}"))
}

/// How many of many requests at once pass, each charged by all of `places`.
async fn passes(bench: &Bench, places: &[Place], key: KeyId) -> Result<usize, String> {
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let (store, now, mut places) = (Arc::clone(&bench.store), bench.now, places.to_vec());
        if task % 2 == 1 {
            places.reverse();
        }
        tasks.push(tokio::spawn(async move {
            let mut passed = 0;
            for _ in 0..EACH {
                let charges: Vec<_> = places.iter().map(|place| place.charge(key, 1)).collect();
                passed += usize::from(ask(&*store, now, &charges).await?);
                tokio::task::yield_now().await;
            }
            Ok::<_, String>(passed)
        }));
    }
    let mut passed = 0;
    for task in tasks {
        passed += task.await.map_err(|error| format!("a decision panicked: {error}"))??;
    }
    Ok(passed)
}

pub(super) async fn exactness(bench: &Bench) -> Result<(), String> {
    let requests = TASKS * EACH;
    let (narrow, wide) = (bench.place("narrow", 100)?, bench.place("wide", 120)?);
    let key = bench.key(1);
    let passed = passes(bench, &[wide.clone(), narrow.clone()], key).await?;
    ensure(passed == 100, || format!("{passed} of {requests} at once passed a limit of 100"))?;
    bench.sees_left("the wider limit of two", &wide, key, 20).await?;
    // And where one refuses each time.
    let untouched = bench.place("untouched", 10)?;
    let refused = passes(bench, &[untouched.clone(), narrow], key).await?;
    ensure(refused == 0, || format!("{refused} passed a limit that was used up"))?;
    bench.sees_left("a rule beside one that always refuses", &untouched, key, 10).await
}

pub(super) async fn dropped(bench: &Bench) -> Result<(), String> {
    let (one, other) = (bench.place("one", 40)?, bench.place("other", 40)?);
    let key = bench.key(1);
    for round in 0..24 {
        let mut verdicts = Verdicts::new();
        let charges = [one.charge(key, 1), other.charge(key, 1)];
        if let Reply::Pending(mut reply) = bench.store.decide(bench.now, &charges, &mut verdicts) {
            for _ in 0..round % 4 {
                if let Poll::Ready(_answer) = reply.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    }
    let (left, left_by_other) = bench.settled(&one, &other, key).await?;
    ensure(left == left_by_other, || format!("{left} left by one rule and {left_by_other} by the other"))?;
    ensure(left >= 16, || format!("24 dropped decisions charged {}", 40 - left))?;
    bench.sees("a request after those", &[one.charge(key, 1), other.charge(key, 1)], true).await?;
    bench.sees_left("after one more", &one, key, left - 1).await
}
