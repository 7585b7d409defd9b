//! One decision after another.

use super::bench::{Bench, ensure, passed};
use crate::{
    bucket::Algorithm,
    charge::{Charge, Take, Verdicts},
    decision::{Outcome, Wait},
    store::Reply,
    time::Nanos,
};

pub(super) async fn order(bench: &Bench) -> Result<(), String> {
    let places = [bench.place("a", 2)?, bench.place("b", 4)?, bench.place("c", 6)?];
    for rotation in 0..6 {
        let mut places: Vec<_> = places.iter().collect();
        places.rotate_left(rotation % 3);
        if rotation >= 3 {
            places.reverse();
        }
        let charges: Vec<_> = places.iter().map(|place| place.charge(bench.key(rotation as u64), 1)).collect();
        let verdicts = bench.decide(&charges).await?;
        for (place, judged) in places.iter().zip(verdicts.iter()) {
            let (told, limit) = (judged.verdict.limit, place.limit.capacity());
            ensure(told == limit, || format!("a limit of {limit} was told as {told}"))?;
            ensure(judged.mark.is_some(), || "a charge that was taken has no mark".into())?;
        }
    }
    let place = &places[0];
    bench.sees("a whole limit", &[place.charge(bench.key(9), 2)], true).await?;
    for charge in [place.charge(bench.key(9), 1), Charge { take: Take::Never, ..place.charge(bench.key(10), 1) }] {
        let verdicts = bench.decide(&[charge]).await?;
        ensure(verdicts.iter().all(|judged| judged.mark.is_none()), || "a mark without a charge".into())?;
    }
    Ok(())
}

pub(super) async fn all_or_nothing(bench: &Bench) -> Result<(), String> {
    let (wide, narrow) = (bench.place("wide", 6)?, bench.place("narrow", 2)?);
    let key = bench.key(1);
    bench.sees("a request within both limits", &[wide.charge(key, 1), narrow.charge(key, 2)], true).await?;
    bench.sees_left("a request that passed is charged by both", &wide, key, 5).await?;
    bench.sees_left("a request that passed is charged by both", &narrow, key, 0).await?;
    for _ in 0..3 {
        bench.sees("one over a limit", &[wide.charge(key, 1), narrow.charge(key, 1)], false).await?;
        bench.sees("one over a limit", &[narrow.charge(key, 1), wide.charge(key, 1)], false).await?;
    }
    bench.sees_left("the rule that passed, after refusals by the other", &wide, key, 5).await
}

pub(super) async fn refusals(bench: &Bench) -> Result<(), String> {
    let (wide, narrow) = (bench.place("wide", 6)?, bench.place("narrow", 2)?);
    let key = bench.key(1);
    bench.sees("a request within the limit", &[narrow.charge(key, 2)], true).await?;
    bench.sees("a request within the limit", &[wide.charge(key, 4)], true).await?;
    let before = bench.tracked_keys.as_ref().map(|tracked_keys| tracked_keys());
    for other in 2..10 {
        bench.sees("one over the limit", &[wide.charge(key, 3)], false).await?;
        bench.sees("one over a limit", &[wide.charge(bench.key(other), 1), narrow.charge(key, 1)], false).await?;
        bench.sees("one over any capacity", &[narrow.charge(bench.key(other), 3)], false).await?;
    }
    bench.sees_left("after refusals", &wide, key, 2).await?;
    bench.sees_left("a key of refused requests", &wide, bench.key(2), 6).await?;
    let after = bench.tracked_keys.as_ref().map(|tracked_keys| tracked_keys());
    ensure(before == after, || format!("refusals created buckets: {before:?} before, {after:?} after"))
}

pub(super) async fn whose(bench: &Bench) -> Result<(), String> {
    let (one, other) = (bench.place("one", 3)?, bench.place("other", 3)?);
    for key in [1, 2] {
        let key = bench.key(key);
        bench.sees_left("a key that was never seen", &one, key, 3).await?;
        bench.sees("a whole limit", &[one.charge(key, 3)], true).await?;
        bench.sees("one more", &[one.charge(key, 1)], false).await?;
    }
    bench.sees_left("a rule of another name", &other, bench.key(1), 3).await?;
    if let Ok(again) = bench.place("one", 3) {
        bench.sees_left("a rule of the same name", &again, bench.key(1), 0).await?;
        bench.sees("one over the shared limit", &[again.charge(bench.key(1), 1)], false).await?;
    }
    Ok(())
}

pub(super) async fn costs(bench: &Bench) -> Result<(), String> {
    let place = bench.place("a", 3)?;
    let key = bench.key(1);
    for used in [0, 3] {
        if used > 0 {
            bench.sees("a whole limit", &[place.charge(key, used)], true).await?;
        }
        bench.sees("a cost of zero", &[place.charge(key, 0)], true).await?;
        bench.sees_left("after a cost of zero", &place, key, 3 - used).await?;
        for cost in [4, u64::MAX] {
            let verdicts = bench.decide(&[place.charge(key, cost)]).await?;
            let never = |outcome| outcome == Outcome::Refuse(Wait::Never);
            let outcomes: Vec<_> = verdicts.iter().map(|judged| judged.verdict.outcome).collect();
            ensure(outcomes.iter().all(|outcome| never(*outcome)), || format!("{cost} of 3: {outcomes:?}"))?;
        }
    }
    Ok(())
}

pub(super) async fn keep(bench: &Bench) -> Result<(), String> {
    let place = bench.place("a", 6)?;
    let key = bench.key(1);
    bench.sees("2 with 5 to be left of 6", &[Charge { keep: 5, ..place.charge(key, 2) }], false).await?;
    bench.sees_left("after that", &place, key, 6).await?;
    bench.sees("2 with 4 to be left of 6", &[Charge { keep: 4, ..place.charge(key, 2) }], true).await?;
    bench.sees_left("after that", &place, key, 4).await?;
    bench.sees("1 with 4 to be left of 4", &[Charge { keep: 4, ..place.charge(key, 1) }], false).await
}

pub(super) async fn limits(bench: &Bench) -> Result<(), String> {
    let small = bench.place("a", 4)?;
    let mut large = small.clone();
    large.limit = bench.limit(8);
    let key = bench.key(1);
    bench.sees("3 of 4", &[small.charge(key, 3)], true).await?;
    bench.sees_left("3 used, under a limit of 8", &large, key, 5).await?;
    bench.sees("4 of the 5 that a higher limit leaves", &[large.charge(key, 4)], true).await?;
    bench.sees_left("7 used of 8", &large, key, 1).await?;
    bench.sees("1 under a limit of 4 with 7 used", &[small.charge(key, 1)], false).await
}

pub(super) async fn waits(bench: &Bench) -> Result<(), String> {
    let place = bench.place("a", 3)?;
    let key = bench.key(1);
    bench.sees("a whole limit", &[place.charge(key, 3)], true).await?;
    for cost in 1..=3 {
        let charge = place.charge(key, cost);
        let verdicts = bench.decide(&[charge]).await?;
        let outcome = verdicts.iter().next().map(|judged| judged.verdict.outcome);
        if bench.algorithm.holds_places() {
            let unknown = outcome == Some(Outcome::Refuse(Wait::Unknown));
            ensure(unknown, || format!("nobody knows when a place is free, and {cost} over the limit: {outcome:?}"))?;
            continue;
        }
        let Some(Outcome::Refuse(Wait::For(wait))) = outcome else {
            return Err(format!("{cost} over the limit: {outcome:?}"));
        };
        // A window that slides may carry what was used into the next one.
        let longest = Nanos::from(place.limit.period() * 2);
        ensure(Nanos::ZERO < wait && wait <= longest, || format!("a wait of {wait:?}"))?;
        if !bench.given_time {
            continue;
        }
        let look = Charge { take: Take::Never, ..charge };
        let then = bench.now.saturating_add(wait);
        let (before, at) = (then.saturating_sub(Nanos::new(1_000)), then);
        let early = passed(&[look], &bench.decide_at(before, &[look]).await?);
        ensure(!early, || format!("{cost} passes a microsecond before its wait of {wait:?} ends"))?;
        let in_time = passed(&[look], &bench.decide_at(at, &[look]).await?);
        ensure(in_time, || format!("{cost} does not pass when its wait of {wait:?} ends"))?;
    }
    Ok(())
}

pub(super) async fn turns(bench: &Bench) -> Result<(), String> {
    if !matches!(bench.algorithm, Algorithm::LeakyBucket | Algorithm::TokenBucket) {
        return Ok(());
    }
    let mut place = bench.place("a", 2)?;
    let key = bench.key(1);
    let first = if bench.algorithm.delays() { 1 } else { 2 };
    place.max_delay = Nanos::ZERO;
    bench.sees("what is there at once", &[place.charge(key, first)], true).await?;
    bench.sees("one that would have to wait, and may not", &[place.charge(key, 1)], false).await?;
    place.max_delay = Nanos::MAX;
    let verdicts = bench.decide(&[place.charge(key, 1)]).await?;
    let outcome = verdicts.iter().next().map(|judged| judged.verdict.outcome);
    let held = matches!(outcome, Some(Outcome::Delay(delay)) if delay > Nanos::ZERO);
    ensure(held, || format!("one that has to wait, and may: {outcome:?}"))
}

pub(super) async fn secret(bench: &Bench) -> Result<(), String> {
    let id =
        || crate::key::Key::from("longer than fifteen bytes, so that it is fingerprinted").id(bench.store.secret());
    let first = id();
    let place = bench.place("a", 1)?;
    bench.sees("a request", &[place.charge(first, 1)], true).await?;
    ensure(id() == first, || "one key has two ids".into())
}

pub(super) async fn probe(bench: &Bench) -> Result<(), String> {
    let place = bench.place("a", 3)?;
    for (key, used) in [(1, 0), (2, 3)] {
        let key = bench.key(key);
        if used > 0 {
            bench.sees("a whole limit", &[place.charge(key, used)], true).await?;
        }
        for _ in 0..3 {
            let look = Charge { take: Take::Never, ..place.charge(key, 1) };
            let answer: Result<(), _> = match bench.store.probe(bench.now, look) {
                Reply::Ready(answer) => answer,
                Reply::Pending(reply) => reply.await.map(|_: Verdicts| ()),
            };
            answer.map_err(|error| format!("a probe while the store answers: {error}"))?;
        }
        bench.sees_left("after probes", &place, key, 3 - used).await?;
    }
    Ok(())
}
