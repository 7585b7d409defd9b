//! A store under test, and what is asked of it over and over.

use std::{sync::Arc, time::Duration};

use crate::{
    bucket::Algorithm,
    charge::{Charge, RuleSpec, Slot, Take, Taken, Verdicts},
    key::{Key, KeyId},
    limit::Limit,
    store::{Reply, Store},
    time::Nanos,
};

/// How often something that may happen later is looked for, a pause apart.
const LOOKS: usize = 200;
const PAUSE: Duration = Duration::from_millis(5);

pub(super) struct Bench {
    pub(super) store: Arc<dyn Store>,
    pub(super) algorithm: Algorithm,
    pub(super) now: Nanos,
    pub(super) tag: String,
    pub(super) given_time: bool,
    pub(super) tracked_keys: Option<Box<dyn Fn() -> usize + Send + Sync>>,
}

/// A rule that is bound.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) slot: Slot,
    pub(super) limit: Limit,
    pub(super) max_delay: Nanos,
}

/// Fails with what was found where `holds` is false.
pub(super) fn ensure(holds: bool, found: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(found()) }
}

impl Place {
    pub(super) fn charge(&self, key: KeyId, cost: u64) -> Charge<'_> {
        let mut charge = Charge::new(&self.slot, key, self.limit, cost);
        charge.max_delay = self.max_delay;
        charge
    }
}

/// So slow that no time matters, and such that the algorithm runs it.
fn limit_of(algorithm: &Algorithm, permits: u64) -> Limit {
    if algorithm.holds_places() {
        return Limit::in_flight(permits);
    }
    let limit = Limit::new(permits, Duration::from_secs(100 * 86_400));
    if algorithm.delays() { limit.burst(permits) } else { limit }
}

/// Whether every charge that votes passed.
pub(super) fn passed(charges: &[Charge<'_>], verdicts: &Verdicts) -> bool {
    charges.iter().zip(verdicts.iter()).all(|(charge, judged)| !charge.votes || judged.verdict.outcome.passes())
}

impl Bench {
    pub(super) fn limit(&self, permits: u64) -> Limit {
        limit_of(&self.algorithm, permits)
    }

    /// A rule of `permits` by `algorithm`, under a name of its own.
    pub(super) fn spec(&self, name: &str, algorithm: &Algorithm, permits: u64) -> RuleSpec {
        RuleSpec::new(self.full_name(name), algorithm.clone(), limit_of(algorithm, permits))
    }

    pub(super) fn full_name(&self, name: &str) -> String {
        format!("conformance.{}.{name}", self.tag)
    }

    /// Binds a rule of `permits` under a name of its own.
    pub(super) fn place(&self, name: &str, permits: u64) -> Result<Place, String> {
        self.bind(&self.spec(name, &self.algorithm, permits), None)
    }

    /// Binds a rule that replaces the one at `before`.
    pub(super) fn bind(&self, spec: &RuleSpec, before: Option<&Place>) -> Result<Place, String> {
        let slot = self.store.bind(spec, before.map(|before| &before.slot)).map_err(|why| format!("bind: {why}"))?;
        // A queue admits what it can hold in time, and that is what is looked at here.
        let max_delay = if spec.algorithm.delays() { Nanos::MAX } else { Nanos::ZERO };
        Ok(Place { slot, limit: spec.limit, max_delay })
    }

    pub(super) fn key(&self, number: u64) -> KeyId {
        Key::from(number).id(self.store.secret())
    }

    pub(super) async fn decide(&self, charges: &[Charge<'_>]) -> Result<Verdicts, String> {
        self.decide_at(self.now, charges).await
    }

    pub(super) async fn decide_at(&self, now: Nanos, charges: &[Charge<'_>]) -> Result<Verdicts, String> {
        let mut verdicts = Verdicts::new();
        let answer = match self.store.decide(now, charges, &mut verdicts) {
            Reply::Ready(answer) => answer.map(|()| verdicts),
            Reply::Pending(reply) => reply.await,
        };
        let verdicts = answer.map_err(|error| format!("decide: {error}"))?;
        let (answers, asked) = (verdicts.iter().len(), charges.len());
        ensure(answers == asked, || format!("{answers} answers to {asked} charges"))?;
        Ok(verdicts)
    }

    /// Whether the request passes.
    pub(super) async fn passes(&self, charges: &[Charge<'_>]) -> Result<bool, String> {
        Ok(passed(charges, &self.decide(charges).await?))
    }

    /// Fails unless the request passes, or does not.
    pub(super) async fn sees(&self, what: &str, charges: &[Charge<'_>], passes: bool) -> Result<(), String> {
        let found = self.passes(charges).await?;
        ensure(found == passes, || format!("{what} {}", if found { "passed" } else { "was refused" }))
    }

    /// The largest cost that would pass, found by looking.
    pub(super) async fn left(&self, place: &Place, key: KeyId) -> Result<u64, String> {
        for cost in (1..=place.limit.capacity()).rev() {
            if self.passes(&[Charge { take: Take::Never, ..place.charge(key, cost) }]).await? {
                return Ok(cost);
            }
        }
        Ok(0)
    }

    pub(super) async fn sees_left(&self, what: &str, place: &Place, key: KeyId, left: u64) -> Result<(), String> {
        let found = self.left(place, key).await?;
        ensure(found == left, || format!("{what}: {found} left instead of {left}"))
    }

    /// As [`sees_left`](Self::sees_left), where it may take a while.
    pub(super) async fn soon_left(&self, what: &str, place: &Place, key: KeyId, left: u64) -> Result<(), String> {
        for _ in 0..LOOKS {
            if self.left(place, key).await? == left {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.sees_left(what, place, key, left).await
    }

    /// What two rules have left of a key once nothing changes any more: late answers may still give back.
    pub(super) async fn settled(&self, one: &Place, other: &Place, key: KeyId) -> Result<(u64, u64), String> {
        let (mut before, mut same) = ((0, 0), 0);
        for _ in 0..LOOKS {
            let left = (self.left(one, key).await?, self.left(other, key).await?);
            same = if left == before { same + 1 } else { 0 };
            if same >= 4 && left.0 == left.1 {
                break;
            }
            before = left;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(before)
    }

    /// Charges `cost`, which has to pass.
    pub(super) async fn take(&self, place: &Place, key: KeyId, cost: u64) -> Result<Taken, String> {
        let charges = [place.charge(key, cost)];
        let verdicts = self.decide(&charges).await?;
        let taken = verdicts.iter().next().filter(|_| passed(&charges, &verdicts));
        let judged = taken.ok_or_else(|| format!("a charge of {cost} was refused"))?;
        let mark = judged.mark.ok_or_else(|| "a charge was taken without a mark".to_owned())?;
        let mut taken = Taken::new(place.slot.clone(), key, place.limit, cost, mark);
        (taken.stamp, taken.source) = (judged.stamp, judged.verdict.source);
        taken.delays = place.max_delay > Nanos::ZERO;
        taken.beside = verdicts.beside(0).map(|beside| Box::new(beside.clone()));
        Ok(taken)
    }

    pub(super) fn adjust(&self, taken: &mut Taken, cost: u64) {
        self.store.adjust(self.now, taken, cost);
    }

    pub(super) async fn reset(&self, place: &Place, key: KeyId) -> Result<(), String> {
        let answer = match self.store.reset(&place.slot, key) {
            Reply::Ready(answer) => answer,
            Reply::Pending(reply) => reply.await,
        };
        answer.map_err(|error| format!("reset: {error}"))
    }
}
