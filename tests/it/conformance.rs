//! Every store of ours passes the suite, and a store that breaks one sentence of the contract does not.

use std::{
    future::ready,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tollgate::{
    FailurePolicy, Limit, Unsupported,
    bucket::Algorithm,
    charge::{Charge, Judged, RuleSpec, Share, Slot, Take, Taken, Verdicts},
    decision::{Outcome, Wait},
    key::{KeyId, Secret},
    store::{Guarded, MemoryStore, Reply, Store},
    testing::conformance::{Conformance, Violations, clauses},
    time::Nanos,
};

use crate::support::{OwnedCharge, Remote};

#[track_caller]
fn passes(checked: Result<(), Violations>) {
    checked.unwrap_or_else(|violations| panic!("{violations}"));
}

#[tokio::test(start_paused = true)]
async fn the_memory_store_conforms() {
    let suite = Conformance::of(async || MemoryStore::new()).given_time().tracked_keys(MemoryStore::tracked_keys);
    passes(suite.check().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_memory_store_conforms_on_many_threads() {
    passes(Conformance::of(async || MemoryStore::new()).given_time().check().await);
}

/// A memory store that is asked over a wire, which always answers.
fn remote() -> Remote {
    let remote = Remote::over(&MemoryStore::new());
    remote.answers_always();
    remote
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_later_conforms() {
    passes(Conformance::of(async || remote()).given_time().check().await);
}

#[tokio::test(start_paused = true)]
async fn guarded_stores_conform() {
    for policy in [FailurePolicy::Allow, FailurePolicy::Refuse, FailurePolicy::Fallback(Share::one_in(3))] {
        passes(Conformance::of(move || ready(Guarded::new(MemoryStore::new(), policy))).given_time().check().await);
        passes(Conformance::of(move || ready(Guarded::new(remote(), policy))).given_time().check().await);
    }
}

/// A guard whose store is always down, with the whole limit as its fallback, is a memory store.
#[tokio::test(start_paused = true)]
async fn a_fallback_conforms() {
    let down = || Broken::new(Fault::Down);
    let guarded = move || ready(Guarded::new(down(), FailurePolicy::Fallback(Share::WHOLE)));
    passes(Conformance::of(guarded).given_time().check().await);
}

#[test]
fn the_sentences_are_numbered_and_all_of_them_are_checked() {
    let numbers: Vec<_> = clauses().map(|clause| clause.number).collect();
    assert_eq!(numbers, (1..=FAULTS.len()).collect::<Vec<_>>());
    assert!(clauses().all(|clause| clause.says.contains("MUST")));
}

/// One way to break each sentence of the contract, in their order.
const FAULTS: [Fault; 24] = [
    Fault::AnswersBackwards,
    Fault::OneAfterTheOther,
    Fault::ChargesRefusals,
    Fault::OneKeyForAll,
    Fault::NeverIsForNow,
    Fault::EverybodyVotes,
    Fault::KeepsNothing,
    Fault::LooksThenTakes,
    Fault::GivesNothingBack,
    Fault::GivesAllBack,
    Fault::ChargesNoMore,
    Fault::AdjustsInTheRuntime,
    Fault::ForgetsNothing,
    Fault::TakesInSteps,
    Fault::OneLimitForAll,
    Fault::TellsHalfTheWait,
    Fault::HoldsNobody,
    Fault::ChangesItsSecret,
    Fault::ChargesProbes,
    Fault::NobodyStandsIn,
    Fault::BeginsAfresh,
    Fault::ForgetsOtherAlgorithms,
    Fault::ForgetsWhenBound,
    Fault::PlacesAreAWindow,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Down,
    AnswersBackwards,
    OneAfterTheOther,
    ChargesRefusals,
    OneKeyForAll,
    NeverIsForNow,
    EverybodyVotes,
    KeepsNothing,
    LooksThenTakes,
    GivesNothingBack,
    GivesAllBack,
    ChargesNoMore,
    AdjustsInTheRuntime,
    ForgetsNothing,
    TakesInSteps,
    OneLimitForAll,
    TellsHalfTheWait,
    HoldsNobody,
    ChangesItsSecret,
    ChargesProbes,
    NobodyStandsIn,
    BeginsAfresh,
    ForgetsOtherAlgorithms,
    ForgetsWhenBound,
    PlacesAreAWindow,
}

/// A memory store with one fault.
#[derive(Clone)]
struct Broken {
    fault: Fault,
    memory: MemoryStore,
    limit: Arc<OnceLock<Limit>>,
    secrets: Arc<[Secret; 2]>,
    asked: Arc<AtomicUsize>,
    bound_anew: Arc<AtomicBool>,
}

impl Broken {
    fn new(fault: Fault) -> Self {
        let secrets = Arc::new([Secret::random(), Secret::random()]);
        Self {
            fault,
            memory: MemoryStore::new(),
            limit: Arc::default(),
            secrets,
            asked: Arc::default(),
            bound_anew: Arc::default(),
        }
    }

    fn now(&self, now: Nanos, charges: &[Charge<'_>]) -> Vec<Judged> {
        let mut verdicts = Verdicts::new();
        match self.memory.decide(now, charges, &mut verdicts) {
            Reply::Ready(answer) => answer.unwrap(),
            Reply::Pending(_) => unreachable!("a memory store answers at once"),
        }
        verdicts.iter().copied().collect()
    }

    /// The charge as this store takes it.
    fn misread(&self, charge: &mut OwnedCharge, nobody: KeyId) {
        match self.fault {
            Fault::OneKeyForAll => charge.key = nobody,
            Fault::EverybodyVotes => charge.votes = true,
            Fault::KeepsNothing => charge.keep = 0,
            Fault::NobodyStandsIn => charge.in_place_of = None,
            Fault::HoldsNobody => charge.max_delay = Nanos::ZERO,
            Fault::PlacesAreAWindow if charge.limit.is_in_flight() => charge.limit = a_day(charge.limit),
            Fault::OneLimitForAll => charge.limit = *self.limit.get_or_init(|| charge.limit),
            _ => {}
        }
    }

    /// The answer as this store gives it.
    fn misspeak(&self, verdicts: &mut [Judged]) {
        for judged in verdicts.iter_mut() {
            let outcome = &mut judged.verdict.outcome;
            match (self.fault, *outcome) {
                (Fault::NeverIsForNow, Outcome::Refuse(Wait::Never)) => *outcome = Outcome::Refuse(Wait::Unknown),
                (Fault::TellsHalfTheWait, Outcome::Refuse(Wait::For(wait))) => {
                    *outcome = Outcome::Refuse(Wait::For(Nanos::new(wait.get() / 2)));
                }
                _ => {}
            }
        }
        if self.fault == Fault::AnswersBackwards {
            verdicts.reverse();
        }
    }
}

/// As many a day as there are places.
fn a_day(limit: Limit) -> Limit {
    Limit::per_day(limit.permits())
}

/// The charge, taken when `take` says.
fn taken(mut charge: Charge<'_>, take: Take) -> Charge<'_> {
    charge.take = take;
    charge
}

fn all_pass(verdicts: &[Judged]) -> bool {
    verdicts.iter().all(|judged| judged.verdict.outcome.passes())
}

impl Store for Broken {
    fn secret(&self) -> &Secret {
        let at = self.asked.fetch_add(1, Ordering::Relaxed);
        &self.secrets[if self.fault == Fault::ChangesItsSecret { at % 2 } else { 0 }]
    }

    fn bind(&self, spec: &RuleSpec, before: Option<&Slot>) -> Result<Slot, Unsupported> {
        if self.fault == Fault::PlacesAreAWindow && spec.limit.is_in_flight() {
            let mut spec = spec.clone();
            (spec.algorithm, spec.limit) = (Algorithm::FixedWindow, a_day(spec.limit));
            return self.memory.bind(&spec, before);
        }
        let afresh = || {
            let number = self.asked.fetch_add(1, Ordering::Relaxed);
            let mut renamed = spec.clone();
            renamed.name = format!("{}.{number}", spec.name).into();
            self.memory.bind(&renamed, None)
        };
        match (self.fault, before) {
            (Fault::BeginsAfresh, Some(_)) => afresh(),
            (Fault::ForgetsOtherAlgorithms, Some(_)) => self.memory.bind(spec, None).or_else(|_| afresh()),
            _ => {
                self.bound_anew.fetch_or(before.is_some(), Ordering::Relaxed);
                self.memory.bind(spec, before)
            }
        }
    }

    fn decide(&self, now: Nanos, charges: &[Charge<'_>], verdicts: &mut Verdicts) -> Reply<(), Verdicts> {
        if self.fault == Fault::ForgetsWhenBound && self.bound_anew.swap(false, Ordering::Relaxed) {
            charges.iter().for_each(|charge| drop(self.memory.reset(charge.slot, charge.key)));
        }
        let mut owned: Vec<_> = charges.iter().map(OwnedCharge::of).collect();
        owned.iter_mut().for_each(|charge| self.misread(charge, KeyId::NONE));
        let charges: Vec<_> = owned.iter().map(OwnedCharge::borrowed).collect();
        let mut answer = match self.fault {
            Fault::Down => return Reply::Ready(Err(tollgate::StoreError::new("down"))),
            Fault::OneAfterTheOther => charges.iter().flat_map(|charge| self.now(now, &[*charge])).collect(),
            Fault::ChargesRefusals => {
                let answer = self.now(now, &charges);
                if !all_pass(&answer) && charges.iter().all(|charge| charge.take == Take::IfPassed) {
                    let first = taken(charges[0], Take::Always);
                    self.now(now, &[first]);
                }
                answer
            }
            Fault::LooksThenTakes | Fault::TakesInSteps => {
                drop(charges);
                let store = self.clone();
                return Reply::Pending(Box::pin(async move {
                    let charges: Vec<_> = owned.iter().map(OwnedCharge::borrowed).collect();
                    let looks: Vec<_> = charges.iter().map(|charge| taken(*charge, Take::Never)).collect();
                    let mut answer = store.now(now, &looks);
                    if store.fault == Fault::LooksThenTakes {
                        tokio::task::yield_now().await;
                    }
                    let votes =
                        |(charge, judged): (&Charge<'_>, &Judged)| !charge.votes || judged.verdict.outcome.passes();
                    let passed = charges.iter().zip(&answer).all(votes);
                    for (charge, judged) in charges.iter().zip(&mut answer) {
                        let takes = match charge.take {
                            Take::IfPassed => passed && judged.verdict.outcome.passes(),
                            take => take == Take::Always,
                        };
                        if takes {
                            *judged = store.now(now, &[taken(*charge, Take::Always)])[0];
                        }
                        if store.fault == Fault::TakesInSteps && charge.take != Take::Never {
                            tokio::task::yield_now().await;
                        }
                    }
                    let mut verdicts = Verdicts::new();
                    answer.into_iter().for_each(|judged| verdicts.push(judged));
                    Ok(verdicts)
                }));
            }
            _ => self.now(now, &charges),
        };
        self.misspeak(&mut answer);
        answer.into_iter().for_each(|judged| verdicts.push(judged));
        Reply::Ready(Ok(()))
    }

    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64) {
        match self.fault {
            Fault::GivesNothingBack if cost < taken.cost => taken.cost = cost,
            Fault::ChargesNoMore if cost > taken.cost => taken.cost = cost,
            Fault::GivesAllBack if cost == 0 => {
                taken.cost = 0;
                drop(self.memory.reset(&taken.slot, taken.key));
            }
            Fault::AdjustsInTheRuntime => {
                let _needs_one = tokio::runtime::Handle::current();
                self.memory.adjust(now, taken, cost);
            }
            _ => self.memory.adjust(now, taken, cost),
        }
    }

    fn reset(&self, slot: &Slot, key: KeyId) -> Reply<()> {
        match self.fault {
            Fault::ForgetsNothing => Reply::Ready(Ok(())),
            _ => self.memory.reset(slot, key),
        }
    }

    fn probe(&self, now: Nanos, charge: Charge<'_>) -> Reply<(), Verdicts> {
        let take = if self.fault == Fault::ChargesProbes { Take::IfPassed } else { charge.take };
        self.decide(now, &[taken(charge, take)], &mut Verdicts::new())
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_breaks_a_sentence_fails_it() {
    for (at, fault) in FAULTS.into_iter().enumerate() {
        let checked = Conformance::of(move || ready(Broken::new(fault))).given_time().check().await;
        let violations = checked.expect_err(&format!("{fault:?} was not found"));
        let found = violations.iter().any(|violation| violation.clause.number == at + 1);
        assert!(found, "{fault:?} breaks sentence {}:\n{violations}", at + 1);
        let text = violations.to_string();
        assert!(text.contains("MUST") && text.contains(violations.iter().next().unwrap().algorithm), "{text}");
    }
}

/// A refusal that creates a bucket is found where buckets can be counted.
#[tokio::test(start_paused = true)]
async fn buckets_that_refusals_create_are_found() {
    static CREATED: AtomicUsize = AtomicUsize::new(0);
    let ever_more = |_: &MemoryStore| CREATED.fetch_add(1, Ordering::Relaxed);
    let checked = Conformance::of(async || MemoryStore::new()).tracked_keys(ever_more).check().await;
    assert!(checked.unwrap_err().iter().all(|violation| violation.clause.number == 3));
}

/// A store that can run nothing has not passed.
#[tokio::test]
async fn a_store_that_binds_nothing_does_not_conform() {
    struct Unable(Secret);
    impl Store for Unable {
        fn secret(&self) -> &Secret {
            &self.0
        }
        fn bind(&self, _: &RuleSpec, _: Option<&Slot>) -> Result<Slot, Unsupported> {
            Err(Unsupported::new("it runs nothing"))
        }
        fn decide(&self, _: Nanos, _: &[Charge<'_>], _: &mut Verdicts) -> Reply<(), Verdicts> {
            unreachable!("nothing is bound")
        }
        fn adjust(&self, _: Nanos, _: &mut Taken, _: u64) {}
        fn reset(&self, _: &Slot, _: KeyId) -> Reply<()> {
            Reply::Ready(Ok(()))
        }
    }
    let checked = Conformance::of(async || Unable(Secret::random())).check().await;
    assert!(checked.unwrap_err().to_string().contains("no algorithm could be bound"));
}
