//! The ways to ask: the bucket alone, and every entrance of a limiter with a memory store.

use std::{task::Poll, time::Duration};

use futures_util::FutureExt;
use tokio_test::task::{self, Spawn};
use tollgate::{
    ConfigError, Decision, Error, Key, Limiter, Rule,
    decision::{Outcome, Wait},
    time::{ManualClock, Nanos},
};

use super::{Answer, Case};
use crate::engine::{Kind, at, stored};

/// One way to ask.
pub(super) struct Way {
    pub(super) name: &'static str,
    pub(super) run: fn(Kind, &Case) -> Vec<Answer>,
    asks: Asks,
}

/// What a way can ask for.
enum Asks {
    Anything,
    ToStartNow,
    WhatIsForetold,
    ToBeHeld,
}

pub(super) const WAYS: [Way; 6] = [
    Way { name: "bucket", run: bucket, asks: Asks::Anything },
    Way { name: "check_now", run: |kind, case| each(kind, case, check_now), asks: Asks::ToStartNow },
    Way { name: "check", run: |kind, case| each(kind, case, check), asks: Asks::ToStartNow },
    Way { name: "reserve_now", run: |kind, case| each(kind, case, reserve_now), asks: Asks::ToStartNow },
    Way { name: "peek and check", run: |kind, case| each(kind, case, peek_and_check), asks: Asks::WhatIsForetold },
    Way { name: "acquire", run: acquire, asks: Asks::ToBeHeld },
];

impl Way {
    /// Why the way cannot run the case, if it cannot.
    pub(super) fn cannot(&self, kind: Kind, case: &Case) -> Option<&'static str> {
        let held = case.max_delay() > Nanos::ZERO;
        match self.asks {
            Asks::ToStartNow if held => Some("it refuses where the case wants the request held"),
            Asks::WhatIsForetold if held || kind == Kind::LeakyBucket => Some("it foretells acquire, not check"),
            Asks::ToBeHeld if !held && kind == Kind::LeakyBucket => Some("it would hold what the case wants refused"),
            _ => None,
        }
    }
}

fn bucket(kind: Kind, case: &Case) -> Vec<Answer> {
    let mut bucket = kind.bucket(case.limit());
    let mut ask = |(now, cost)| {
        let (verdict, mark) = bucket.decide(now, case.ask(cost));
        assert_eq!(mark.is_some(), verdict.outcome.passes() && cost > 0);
        Answer { outcome: verdict.outcome, remaining: verdict.remaining, reset: verdict.reset }
    };
    case.requests().map(&mut ask).collect()
}

/// Whether the store can count what the case asks for.
pub(super) fn fits(kind: Kind, case: &Case) -> bool {
    try_limiter(kind, case).is_ok()
}

fn limiter(kind: Kind, case: &Case) -> (Limiter<u64>, ManualClock) {
    try_limiter(kind, case).unwrap()
}

/// The request is its cost.
fn try_limiter(kind: Kind, case: &Case) -> Result<(Limiter<u64>, ManualClock), ConfigError> {
    let clock = ManualClock::new();
    let rule = Rule::new("rule", kind.limit(case.limit()), |_: &u64| Some(Key::from("client"))).cost(|cost| *cost);
    let mut rule = kind.named(rule);
    if let Some(longest) = case.wait_up_to {
        rule = rule.wait_up_to(Duration::from_nanos(longest.nanos()));
    }
    Ok((stored(Limiter::builder([rule]).clock(clock.clone())).build()?, clock))
}

/// What a caller is told: by the decision as a whole, and not by its one verdict.
fn told(decision: &Decision) -> Answer {
    let verdict = decision.tightest().unwrap().verdict;
    let outcome = match (decision.is_allowed(), decision.wait(), decision.delay()) {
        (true, None, Duration::ZERO) => Outcome::Pass,
        (true, None, delay) => Outcome::Delay(delay.into()),
        (false, Some(wait), Duration::ZERO) => Outcome::Refuse(wait),
        mixed => panic!("{mixed:?}"),
    };
    let secs = match outcome {
        Outcome::Refuse(Wait::For(wait)) => Some(wait.as_secs_ceil().max(1)),
        _ => None,
    };
    assert_eq!(decision.retry_after_secs(), secs);
    Answer { outcome, remaining: verdict.remaining, reset: verdict.reset }
}

fn each(kind: Kind, case: &Case, ask: fn(&Limiter<u64>, u64) -> Result<Decision, Error>) -> Vec<Answer> {
    let (limiter, clock) = limiter(kind, case);
    let ask = |(now, cost)| {
        clock.set(at(now));
        told(&ask(&limiter, cost).unwrap())
    };
    case.requests().map(ask).collect()
}

fn check_now(limiter: &Limiter<u64>, cost: u64) -> Result<Decision, Error> {
    limiter.check_now(&cost)
}

fn check(limiter: &Limiter<u64>, cost: u64) -> Result<Decision, Error> {
    limiter.check(&cost).now_or_never().expect("the memory store answers at once")
}

fn reserve_now(limiter: &Limiter<u64>, cost: u64) -> Result<Decision, Error> {
    let (decision, receipt) = limiter.reserve_now(&cost)?;
    receipt.keep();
    Ok(decision)
}

fn peek_and_check(limiter: &Limiter<u64>, cost: u64) -> Result<Decision, Error> {
    let (one, other) = (limiter.peek_now(&cost)?, limiter.peek_now(&cost)?);
    let decision = limiter.check_now(&cost)?;
    for peek in [one, other] {
        assert_eq!((peek.is_allowed(), peek.wait()), (decision.is_allowed(), decision.wait()));
    }
    Ok(decision)
}

/// Requests that are held until their turn, and start exactly then.
fn acquire(kind: Kind, case: &Case) -> Vec<Answer> {
    let (limiter, clock) = limiter(kind, case);
    let requests: Vec<_> = case.requests().collect();
    let mut answers = vec![None; requests.len()];
    let mut held = Vec::new();
    for (&(now, cost), answer) in requests.iter().zip(&mut answers) {
        start_until(now, &clock, &mut held);
        clock.set(at(now));
        let foretold = told(&limiter.peek_now(&cost).unwrap()).outcome;
        let limiter = limiter.clone();
        let mut request = task::spawn(async move { limiter.acquire(&cost).await }.boxed());
        match (request.poll(), foretold) {
            (Poll::Ready(decision), Outcome::Pass | Outcome::Refuse(_)) => {
                let decision = told(&decision.unwrap());
                assert_eq!(decision.outcome, foretold);
                *answer = Some(decision);
            }
            (Poll::Pending, Outcome::Delay(delay)) => {
                held.push(Held { due: now + delay.get(), foretold, request, answer })
            }
            (polled, foretold) => panic!("{:?}: {foretold:?} was foretold, {polled:?}", case.name),
        }
    }
    start_until(u64::MAX, &clock, &mut held);
    drop(held);
    answers.into_iter().map(|answer| answer.expect("every request was answered")).collect()
}

struct Held<'a> {
    due: u64,
    foretold: Outcome,
    request: Spawn<futures_util::future::BoxFuture<'static, Result<Decision, Error>>>,
    answer: &'a mut Option<Answer>,
}

/// Moves the clock through every turn up to `now`: nobody starts one nanosecond early.
fn start_until(now: u64, clock: &ManualClock, held: &mut Vec<Held<'_>>) {
    while let Some(due) = held.iter().map(|held| held.due).filter(|due| *due <= now).min() {
        clock.set(at(due - 1));
        assert!(held.iter_mut().all(|held| held.request.poll().is_pending()), "early for {due}");
        clock.set(at(due));
        held.retain_mut(|held| match held.request.poll() {
            Poll::Ready(decision) => {
                let decision = told(&decision.unwrap());
                assert_eq!((held.due, decision.outcome), (due, held.foretold));
                *held.answer = Some(decision);
                false
            }
            Poll::Pending => {
                assert!(held.due > due, "late for {due}");
                true
            }
        });
    }
}
