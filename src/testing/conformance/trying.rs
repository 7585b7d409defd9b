//! Charges without a vote, and charges in the place of others.

use super::bench::{Bench, Place};
use crate::{
    charge::{Charge, Take},
    key::KeyId,
};

pub(super) async fn votes(bench: &Bench) -> Result<(), String> {
    let (full, free, penalty) = (bench.place("full", 2)?, bench.place("free", 6)?, bench.place("penalty", 6)?);
    let key = bench.key(1);
    bench.sees("a whole limit", &[full.charge(key, 2)], true).await?;
    let shadow = Charge { votes: false, ..full.charge(key, 1) };
    bench.sees("a request that only a rule without a vote refuses", &[shadow, free.charge(key, 1)], true).await?;
    bench.sees_left("the rule with a vote", &free, key, 5).await?;
    let tried = bench.place("tried", 6)?;
    let shadow = Charge { votes: false, ..tried.charge(key, 2) };
    bench.sees("a request over a limit", &[full.charge(key, 1), shadow], false).await?;
    bench.sees_left("a rule without a vote that would pass, after a refusal", &tried, key, 6).await?;
    for (used, cost) in [(0, 2), (2, 5), (2, 4), (6, 1), (6, 1)] {
        bench.sees_left("a rule without a vote", &tried, key, 6 - used).await?;
        let shadow = Charge { votes: false, ..tried.charge(key, cost) };
        bench.sees("a request that only a rule without a vote can refuse", &[shadow], true).await?;
    }
    let always = Charge { votes: false, take: Take::Always, ..penalty.charge(key, 1) };
    bench.sees("a request over a limit", &[always, full.charge(key, 1), free.charge(key, 1)], false).await?;
    bench.sees_left("what is always taken, after a refusal", &penalty, key, 5).await?;
    bench.sees_left("what is taken if passed, after a refusal", &free, key, 5).await?;
    bench.sees("a request within its limits", &[always, free.charge(key, 1)], true).await?;
    bench.sees_left("what is always taken, after a pass", &penalty, key, 4).await?;
    let look = Charge { take: Take::Never, ..free.charge(key, 2) };
    let looks_over = Charge { take: Take::Never, ..full.charge(key, 1) };
    for _ in 0..3 {
        bench.sees("a look within the limit", &[look], true).await?;
        bench.sees("a look over the limit", &[looks_over, free.charge(key, 1)], false).await?;
    }
    bench.sees_left("after looks", &free, key, 4).await
}

/// A charge that is tried in the place of charge number `at`.
fn tried(place: &Place, key: KeyId, at: usize) -> Charge<'_> {
    Charge { votes: false, in_place_of: Some(at), ..place.charge(key, 1) }
}

pub(super) async fn in_place_of(bench: &Bench) -> Result<(), String> {
    let (live, more, less) = (bench.place("live", 2)?, bench.place("more", 4)?, bench.place("less", 1)?);
    let (other, key) = (bench.place("other", 6)?, bench.key(1));
    for (round, passes) in [true, true, false, false, false].into_iter().enumerate() {
        let (live, other) = (live.charge(key, 1), other.charge(key, 1));
        let (more_of, less_of) = (|at| tried(&more, key, at), |at| tried(&less, key, at));
        // Wherever they stand among the charges, and whatever is beside them.
        let charges = match round {
            0 => vec![live, more_of(0), less_of(0)],
            1 => vec![more_of(1), live, less_of(1), other],
            2 => vec![other, less_of(3), more_of(3), live],
            3 => vec![more_of(2), less_of(2), live],
            _ => vec![other, live, less_of(1), more_of(1)],
        };
        bench.sees("a request beside limits that are tried", &charges, passes).await?;
        let left = 4_u64.saturating_sub(round as u64 + 1);
        bench.sees_left("a higher limit in the place of another", &more, key, left).await?;
        bench.sees_left("a lower limit in the place of another", &less, key, 0).await?;
    }
    bench.sees_left("the limit in whose place others stood", &live, key, 0).await?;
    bench.sees_left("another limit, after one pass", &other, key, 5).await?;
    // Where another one refuses, with or without the one in whose place it stands.
    bench.sees("what is left of the other limit", &[other.charge(key, 5)], true).await?;
    for key_of_live in [key, bench.key(2)] {
        let charges = [tried(&more, bench.key(3), 1), live.charge(key_of_live, 1), other.charge(key, 1)];
        bench.sees("a request that another limit refuses", &charges, false).await?;
        bench.sees_left("a limit that was tried where another refused", &more, bench.key(3), 4).await?;
    }
    Ok(())
}
