//! What comes back, what is charged in addition, and what is forgotten.

use std::{sync::Arc, sync::mpsc, thread, time::Duration};

use super::bench::{Bench, ensure, passed};
use crate::{
    bucket::Mark,
    charge::{Slot, Taken},
    time::Nanos,
};

pub(super) async fn back(bench: &Bench) -> Result<(), String> {
    let place = bench.place("a", 6)?;
    for (cost, stands) in [(4, 0), (4, 1), (6, 5), (1, 0)] {
        let key = bench.key(cost * 10 + stands);
        let mut taken = bench.take(&place, key, cost).await?;
        bench.sees_left("after a charge", &place, key, 6 - cost).await?;
        bench.adjust(&mut taken, stands);
        ensure(taken.cost == stands, || format!("a charge at {stands} says {}", taken.cost))?;
        bench.soon_left(&format!("{cost} set to {stands}"), &place, key, 6 - stands).await?;
        bench.adjust(&mut taken, 0);
        bench.soon_left(&format!("{cost} set to {stands} and to 0"), &place, key, 6).await?;
    }
    Ok(())
}

pub(super) async fn harmless(bench: &Bench) -> Result<(), String> {
    let place = bench.place("a", 6)?;
    let key = bench.key(1);
    let mut first = bench.take(&place, key, 2).await?;
    let mut last = bench.take(&place, key, 2).await?;
    for _ in 0..3 {
        bench.adjust(&mut last, 0);
    }
    bench.soon_left("2 of 4 given back, three times", &place, key, 4).await?;
    // A bucket that never was, and one of another store.
    let never = bench.key(2);
    let mut nothing = Taken::new(place.slot.clone(), never, place.limit, 3, Mark::default());
    bench.adjust(&mut nothing, 0);
    let mut foreign = Taken::new(Slot::new(()), key, place.limit, 2, first.mark);
    bench.adjust(&mut foreign, 0);
    bench.sees_left("a key of which nothing was charged", &place, never, 6).await?;
    bench.sees_left("after what another store gave back", &place, key, 4).await?;
    bench.adjust(&mut first, 0);
    bench.adjust(&mut first, 0);
    bench.soon_left("everything given back", &place, key, 6).await?;
    let over = bench.passes(&[place.charge(key, 7)]).await?;
    ensure(!over, || "more than the capacity after giving back".into())
}

pub(super) async fn more(bench: &Bench) -> Result<(), String> {
    let place = bench.place("a", 6)?;
    let key = bench.key(1);
    let mut taken = bench.take(&place, key, 2).await?;
    bench.adjust(&mut taken, 5);
    ensure(taken.cost == 5, || format!("a charge at 5 says {}", taken.cost))?;
    bench.soon_left("2 set to 5", &place, key, 1).await?;
    bench.adjust(&mut taken, 9);
    bench.soon_left("2 set to 9", &place, key, 0).await?;
    // What cost nothing may turn out to have cost something.
    let (place, key) = (bench.place("b", 6)?, bench.key(2));
    let verdicts = bench.decide(&[place.charge(key, 0)]).await?;
    let mut free = Taken::new(place.slot.clone(), key, place.limit, 0, Mark::default());
    free.source = verdicts.iter().next().map_or(free.source, |judged| judged.verdict.source);
    bench.adjust(&mut free, 2);
    bench.soon_left("0 set to 2", &place, key, 4).await
}

pub(super) async fn from_anywhere(bench: &Bench) -> Result<(), String> {
    let place = bench.place("a", 6)?;
    let key = bench.key(1);
    let mut taken = bench.take(&place, key, 4).await?;
    let (done, is_done) = mpsc::channel();
    let (store, now) = (Arc::clone(&bench.store), bench.now);
    // This thread is blocked meanwhile, so a store that waits for its runtime waits in vain.
    let thread = thread::spawn(move || {
        store.adjust(now, &mut taken, 0);
        let _ = done.send(());
    });
    match is_done.recv_timeout(Duration::from_secs(5)) {
        Ok(()) => {}
        Err(mpsc::RecvTimeoutError::Timeout) => return Err("it blocks".into()),
        Err(mpsc::RecvTimeoutError::Disconnected) => return Err("it panics outside of a runtime".into()),
    }
    thread.join().map_err(|_| "it panics outside of a runtime".to_owned())?;
    bench.soon_left("4 given back by a plain thread", &place, key, 6).await
}

pub(super) async fn reset(bench: &Bench) -> Result<(), String> {
    if bench.algorithm.holds_places() {
        return Ok(()); // What runs is not used up.
    }
    let (place, other_rule) = (bench.place("a", 6)?, bench.place("b", 6)?);
    let (key, other) = (bench.key(1), bench.key(2));
    let mut taken = bench.take(&place, key, 4).await?;
    bench.take(&place, other, 4).await?;
    bench.take(&other_rule, key, 4).await?;
    bench.reset(&place, bench.key(3)).await?;
    bench.sees_left("before its reset", &place, key, 2).await?;
    bench.reset(&place, key).await?;
    bench.sees_left("after its reset", &place, key, 6).await?;
    bench.sees_left("another key", &place, other, 2).await?;
    bench.sees_left("another rule", &other_rule, key, 2).await?;
    bench.take(&place, key, 5).await?;
    bench.adjust(&mut taken, 0);
    bench.sees_left("what was charged before a reset, given back after it", &place, key, 1).await
}

pub(super) async fn places(bench: &Bench) -> Result<(), String> {
    if !bench.algorithm.holds_places() {
        return Ok(());
    }
    let (place, key) = (bench.place("a", 6)?, bench.key(1));
    let (mut two, mut three) = (bench.take(&place, key, 2).await?, bench.take(&place, key, 3).await?);
    for _ in 0..2 {
        bench.reset(&place, key).await?;
        bench.sees_left("after a reset, while 5 run", &place, key, 1).await?;
    }
    for days in [1, 1_000, 0] {
        let then = bench.now.saturating_add(Nanos::from_secs(days * 86_400));
        let over = passed(&[place.charge(key, 2)], &bench.decide_at(then, &[place.charge(key, 2)]).await?);
        ensure(!over, || format!("one over the limit passed {days} days later"))?;
    }
    bench.adjust(&mut two, 0);
    bench.soon_left("2 of 5 ended", &place, key, 3).await?;
    bench.adjust(&mut two, 0);
    bench.adjust(&mut three, 1);
    bench.soon_left("2 of 5 ended, twice, and 2 of the others", &place, key, 5).await?;
    bench.adjust(&mut three, 0);
    bench.adjust(&mut three, 0);
    bench.soon_left("all ended", &place, key, 6).await?;
    bench.sees("as many as there are", &[place.charge(key, 6)], true).await?;
    bench.sees("one more", &[place.charge(key, 1)], false).await
}
