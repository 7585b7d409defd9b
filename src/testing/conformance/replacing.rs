//! Rules that replace others.

use super::{
    ALGORITHMS,
    bench::{Bench, Place, ensure},
};
use crate::{bucket::Algorithm, charge::RuleSpec};

/// A key that has used 4 of 6.
async fn used(bench: &Bench, name: &str) -> Result<Place, String> {
    let place = bench.place(name, 6)?;
    bench.sees("4 of 6", &[place.charge(bench.key(1), 4)], true).await?;
    Ok(place)
}

fn renamed(spec: RuleSpec, was: String) -> RuleSpec {
    RuleSpec { was: Some(was.into()), ..spec }
}

pub(super) async fn goes_on(bench: &Bench) -> Result<(), String> {
    let key = bench.key(1);
    let old = used(bench, "a").await?;
    let more = bench.bind(&bench.spec("a", &bench.algorithm, 8), Some(&old))?;
    bench.sees_left("4 used, in a rule of 8 that replaces one of 6", &more, key, 4).await?;
    bench.sees("3 of the 4 that are left", &[more.charge(key, 3)], true).await?;
    let spec = renamed(bench.spec("b", &bench.algorithm, 8), bench.full_name("a"));
    let renamed = bench.bind(&spec, Some(&more))?;
    bench.sees_left("7 used of 8, under another name", &renamed, key, 1).await?;
    bench.sees("what is left", &[renamed.charge(key, 1)], true).await?;
    bench.sees("one more", &[renamed.charge(key, 1)], false).await?;
    bench.sees_left("a key that nobody has asked for", &renamed, bench.key(2), 8).await
}

pub(super) async fn by_another_algorithm(bench: &Bench) -> Result<(), String> {
    let key = bench.key(1);
    let alike = |other: &&Algorithm| other.holds_places() == bench.algorithm.holds_places();
    for other in ALGORITHMS.iter().filter(alike).filter(|other| **other != bench.algorithm) {
        let name = other.name().replace(' ', "-");
        let old = used(bench, &name).await?;
        // Or it is refused.
        let Ok(new) = bench.bind(&bench.spec(&name, other, 6), Some(&old)) else { continue };
        bench.sees_left(&format!("4 of 6 used, in a {} that replaces it", other.name()), &new, key, 2).await?;
        bench.sees("what is left", &[new.charge(key, 2)], true).await?;
        bench.sees("one more", &[new.charge(key, 1)], false).await?;
    }
    Ok(())
}

pub(super) async fn unused(bench: &Bench) -> Result<(), String> {
    let key = bench.key(1);
    let old = used(bench, "a").await?;
    for other in &ALGORITHMS {
        // Refused, or dropped before it was used.
        drop(bench.bind(&bench.spec("a", other, 12), Some(&old)));
        drop(bench.bind(&renamed(bench.spec("b", other, 12), bench.full_name("a")), Some(&old)));
        bench.sees_left("4 of 6 used, after rules that were bound in its place and dropped", &old, key, 2).await?;
    }
    let again = bench.place("a", 6)?;
    bench.sees_left("the same rule bound again", &again, key, 2).await?;
    bench.sees("what is left", &[old.charge(key, 2)], true).await?;
    let passes = bench.passes(&[again.charge(key, 1)]).await?;
    ensure(!passes, || "one over the limit passed by a rule that was bound twice".into())
}
