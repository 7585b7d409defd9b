use tollgate::{
    Limit,
    bucket::{Ask, TokenBucket, Used},
    decision::{Outcome, Wait},
    time::Nanos,
};

use super::{Answer, Model, compare, time_for};
use crate::random::{bucket_limit, period};

/// A bucket in the literal sense: tokens drip in, and run over.
#[derive(Debug)]
struct Tokens {
    /// Parts of a token that drip in each nanosecond.
    drip: i128,
    /// Parts of a whole token.
    token: i128,
    /// Parts of a full bucket.
    full: i128,
    /// Parts there were `at` that time; below zero when in debt.
    level: i128,
    at: u64,
    /// Everything ever charged that still stands, in parts.
    history: Vec<(u64, i128)>,
    /// For the charges that can be given back exactly, the latest last: its number, and the level before it.
    undo: Vec<(usize, i128)>,
}

impl Tokens {
    fn dripped(&self, level: i128, nanos: u64) -> i128 {
        level.saturating_add(self.drip.saturating_mul(i128::from(nanos))).min(self.full)
    }

    fn level(&self, now: u64) -> i128 {
        self.dripped(self.level, now - self.at)
    }

    /// What the bucket would hold had only what still stands ever been charged.
    fn replayed(&self, now: u64) -> i128 {
        let (mut level, mut at) = (self.full, 0);
        for (then, parts) in &self.history {
            level = self.dripped(level, then - at) - parts;
            at = *then;
        }
        self.dripped(level, now - at)
    }
}

impl Model for Tokens {
    fn new(limit: &Limit) -> Self {
        let (drip, token) = (i128::from(limit.permits()), i128::from(period(limit)));
        let full = i128::from(limit.capacity()) * token;
        Self { drip, token, full, level: full, at: 0, history: Vec::new(), undo: Vec::new() }
    }

    fn answer(&self, now: u64, ask: Ask) -> Answer {
        let level = self.level(now);
        let needs = (i128::from(ask.cost) + i128::from(ask.keep)) * self.token;
        let wait = time_for(needs - level, self.drip);
        let longest = ask.max_delay.get();
        let outcome = if ask.cost == 0 {
            Outcome::Pass
        } else if needs > self.full {
            Outcome::Refuse(Wait::Never)
        } else if wait == 0 {
            Outcome::Pass
        } else if wait <= longest {
            Outcome::Delay(Nanos::new(wait))
        } else {
            Outcome::Refuse(Wait::For(Nanos::new(wait - longest)))
        };
        let whole = u64::try_from(level.max(0) / self.token).unwrap();
        Answer { outcome, remaining: whole.saturating_sub(ask.keep), reset: time_for(self.full - level, self.drip) }
    }

    fn after_take(&self, now: u64, ask: Ask, _before: &Answer) -> Answer {
        // A charge that was forced waits for its tokens too, where it may.
        let missing = i128::from(ask.keep) * self.token - self.level(now);
        let outcome = match time_for(missing, self.drip) {
            0 => Outcome::Pass,
            wait if ask.max_delay > Nanos::ZERO => Outcome::Delay(Nanos::new(wait)),
            _ => Outcome::Pass,
        };
        Answer { outcome, ..self.answer(now, Ask::new(0).keep(ask.keep)) }
    }

    fn take(&mut self, now: u64, cost: u64) {
        let (level, parts) = (self.level(now), i128::from(cost) * self.token);
        self.undo.push((self.history.len(), level));
        self.history.push((now, parts));
        (self.level, self.at) = (level - parts, now);
    }

    fn give_back(&mut self, now: u64, charge: usize, back: u64, held: Used) {
        let back = i128::from(back) * self.token;
        let (then, parts) = self.history[charge];
        self.history[charge] = (then, parts - back);
        let holds = self.full - i128::try_from(held.of(u64::try_from(self.token).unwrap())).unwrap();
        assert!(
            holds <= self.replayed(now),
            "{self:?} at {now}: charge {charge} gave back {back}: more than had it never happened: {holds}"
        );
        assert!(
            holds >= self.level(now),
            "{self:?} at {now}: charge {charge} gave back {back}, which took away: {holds}"
        );
        match self.undo.last() {
            Some((last, before)) if *last == charge => {
                let without = self.dripped(before - (parts - back), now - then);
                assert_eq!(
                    holds, without,
                    "{self:?} at {now}: charge {charge} gave back {back}: the last one comes back exactly"
                );
                self.undo.pop();
                if back < parts {
                    self.undo.clear();
                }
            }
            _ => self.undo.clear(),
        }
        (self.level, self.at) = (holds, now);
    }
}

#[test]
fn a_token_bucket_answers_as_one_that_drips() {
    compare::<_, Tokens>(TokenBucket, bucket_limit, |_, _| Nanos::ZERO);
}

#[test]
fn a_token_bucket_that_holds_requests_answers_as_one_that_drips() {
    compare::<_, Tokens>(TokenBucket, bucket_limit, |limit, random| {
        let to_fill = u128::from(limit.capacity()) * u128::from(period(limit)) / u128::from(limit.permits());
        Nanos::new(1 + random.up_to(u64::try_from(to_fill).unwrap()))
    });
}
