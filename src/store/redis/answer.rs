//! What the script says, read as verdicts: the numbers a client is told come from the same functions as in memory.

use super::{
    numbers::{Kind, Numbers, whole},
    question::Asked,
};
use crate::{
    bucket::{
        Ask, Bucket, FixedWindow, FixedWindowState, InFlight, InFlightState, LeakyBucket, Mark, Schedule,
        SlidingWindowCounter, SlidingWindowCounterState, TokenBucket,
    },
    charge::{Judged, Verdicts},
    decision::{Outcome, Verdict, Wait},
    error::StoreError,
    time::Nanos,
};

/// What came back from a decision.
#[allow(clippy::large_enum_variant, reason = "the large one is the usual one, and is taken apart at once")]
pub(super) enum Answer {
    /// All that was asked for, and the server's time where that was told.
    Judged(Verdicts, Option<u64>),
    /// It was too late to charge anything; and the server's time.
    TooLate(u64),
}

/// The doubles of a reply.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn next(&mut self) -> Result<f64, StoreError> {
        let (number, rest) =
            self.0.split_first_chunk().ok_or_else(|| StoreError::new("Redis sent too short a reply"))?;
        self.0 = rest;
        Ok(f64::from_le_bytes(*number))
    }
}

/// Microseconds since the epoch, as an instant.
fn instant(micros: f64) -> Nanos {
    Nanos::new(whole(micros).saturating_mul(1_000))
}

/// How many bytes a bucket's value has.
const VALUE: usize = 56;

/// Reads the reply to a decision, which was asked to be judged at the limiter's own time or at the server's.
pub(super) fn read(reply: &[u8], asked: &[Asked], by_clock: bool) -> Result<Answer, StoreError> {
    // What else is told is a multiple of 8 bytes long, and never this one.
    let values = VALUE * asked.len();
    if values > 0 && (reply.len() == values || reply.len() == values + 1) {
        return usual(reply, asked, reply.len() == values, by_clock);
    }
    let mut reply = Reader(reply);
    let (outcome, server, now) = (reply.next()?, whole(reply.next()?), instant(reply.next()?));
    if outcome < 0.0 {
        return Ok(Answer::TooLate(server));
    }
    let mut verdicts = Verdicts::new();
    for asked in asked {
        verdicts.push(judged(&mut reply, asked, now)?);
    }
    Ok(Answer::Judged(verdicts, Some(server)))
}

/// Reads the values of buckets with what they were charged, or would have been.
fn usual(reply: &[u8], asked: &[Asked], taken: bool, by_clock: bool) -> Result<Answer, StoreError> {
    let (mut verdicts, mut all, mut server) = (Verdicts::new(), true, None);
    for (value, asked) in reply.chunks(VALUE).zip(asked) {
        let mut value = Reader(value);
        let (life, seen, x, y) = (whole(value.next()?), value.next()?, whole(value.next()?), whole(value.next()?));
        let (judged_at, Asked { numbers, limit, ask, .. }) = (instant(seen), asked);
        let before = Schedule::using(limit, judged_at, x.saturating_sub(numbers.amount(ask.cost)), numbers.a);
        let verdict = match numbers.kind {
            Kind::LeakyBucket => told(LeakyBucket, before, asked, judged_at, taken),
            _ => told(TokenBucket, before, asked, judged_at, taken),
        };
        all &= verdict.outcome.passes();
        let mark = taken.then(|| mark(numbers, judged_at, y));
        verdicts.push(Judged::new(verdict, mark).stamped(life));
        server = (!by_clock).then(|| whole(seen));
    }
    if all != taken {
        return Err(StoreError::new("the script and the store judge a charge differently"));
    }
    Ok(Answer::Judged(verdicts, server))
}

fn judged(reply: &mut Reader<'_>, asked: &Asked, now: Nanos) -> Result<Judged, StoreError> {
    let (flags, judged_at, life) = (whole(reply.next()?), instant(reply.next()?), whole(reply.next()?));
    let (x, y) = (reply.next()?, reply.next()?);
    let (passes, taken) = (flags & 1 == 1, flags & 2 == 2);
    let Asked { numbers, limit, ask, .. } = asked;
    let used = whole(x);
    let verdict = match numbers.kind {
        Kind::TokenBucket => {
            told(TokenBucket, Schedule::using(limit, judged_at, used, numbers.a), asked, judged_at, taken)
        }
        Kind::LeakyBucket => {
            told(LeakyBucket, Schedule::using(limit, judged_at, used, numbers.a), asked, judged_at, taken)
        }
        Kind::FixedWindow => told(FixedWindow, FixedWindowState::new(judged_at, used), asked, judged_at, taken),
        Kind::SlidingWindowCounter => {
            let state = SlidingWindowCounterState::new(judged_at, whole(y), used);
            told(SlidingWindowCounter, state, asked, judged_at, taken)
        }
        Kind::InFlight => told(InFlight, InFlightState::new(used), asked, judged_at, taken),
        Kind::SlidingWindowLog => {
            let (oldest, newest) = (reply.next()?, reply.next()?);
            told_of_log(asked, judged_at, taken, &Log { passes, live: used, leaves: y, oldest, newest })
        }
    };
    if !taken && verdict.outcome.passes() != passes {
        let what = format!("the script and the store judge a charge of {} under {limit} differently", ask.cost);
        return Err(StoreError::new(what));
    }
    let verdict = verdict.seen_from_before(judged_at.saturating_sub(now));
    let mark = taken.then(|| mark(numbers, judged_at, whole(y)));
    Ok(Judged::new(verdict, mark).stamped(life))
}

fn told<B: Bucket>(bucket: B, mut state: B::State, asked: &Asked, at: Nanos, taken: bool) -> Verdict {
    if taken {
        bucket.take(&mut state, &asked.limit, at, asked.ask).0
    } else {
        bucket.look(&state, &asked.limit, at, asked.ask)
    }
}

/// Where a charge stands: the end of the schedule, `ahead` units from then; or the time of an entry or in a window.
fn mark(numbers: &Numbers, at: Nanos, ahead: u64) -> Mark {
    if !numbers.kind.is_bucket() {
        return Mark::new(at, 0);
    }
    let per_micro = numbers.b.max(1);
    Mark::new(at.saturating_add(Nanos::new((ahead / per_micro).saturating_mul(1_000))), ahead % per_micro)
}

/// A log before it was charged: what is in the window, and the times of the entry that has to leave for the request to
/// pass, of the oldest and of the newest; negative where there is none.
struct Log {
    passes: bool,
    live: u64,
    leaves: f64,
    oldest: f64,
    newest: f64,
}

fn told_of_log(asked: &Asked, at: Nanos, taken: bool, log: &Log) -> Verdict {
    let Asked { limit, ask, .. } = asked;
    let Ask { cost, keep, .. } = *ask;
    let period = Nanos::from(limit.period());
    let until_left = |entry: Nanos| entry.saturating_add(period).saturating_sub(at);
    let known = |micros: f64| (micros >= 0.0).then(|| instant(micros));
    let live = if taken { log.live.saturating_add(cost) } else { log.live };
    let newest = if taken { Some(at) } else { known(log.newest) };
    let oldest = known(log.oldest).or(taken.then_some(at));
    let outcome = match known(log.leaves) {
        _ if taken || log.passes => Outcome::Pass,
        Some(leaves) => Outcome::Refuse(Wait::For(until_left(leaves))),
        None => Outcome::Refuse(Wait::Never),
    };
    let remaining = limit.permits().saturating_sub(live).saturating_sub(keep);
    let reset = newest.map_or(Nanos::ZERO, until_left);
    Verdict::new(outcome, limit.permits(), remaining, Some(reset)).within(oldest.map_or(period, until_left))
}

/// Reads the reply to an adjustment: where what was charged in addition stands, and the life it was charged in.
pub(super) fn read_added(reply: &[u8]) -> Result<(Mark, u64), StoreError> {
    let mut reply = Reader(reply);
    let (at, fraction, life) = (instant(reply.next()?), whole(reply.next()?), whole(reply.next()?));
    Ok((Mark::new(at, fraction), life))
}
