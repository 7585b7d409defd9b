//! A strategy of one's own: `n` per **calendar month** in UTC, which none of the built-in ones can do, since months
//! differ in length.
//!
//! `cargo run --example custom_bucket` shows the edge between January and February 2024.

use tollgate::{
    Key, Limit, Limiter, Rule,
    bucket::{Ask, Bucket, GivenBack, Mark, Used},
    decision::{Outcome, Verdict, Wait},
    time::{ManualClock, Nanos},
};

type Error = Box<dyn std::error::Error>;

/// Counts per calendar month in UTC. The limit's permits count; its period says nothing.
#[derive(Debug)]
struct CalendarMonth;

/// When the month's first count was, and the count.
#[derive(Debug, Clone, Copy, Default)]
struct Month {
    seen: Nanos,
    count: u64,
}

const DAY: u64 = 86_400;

/// The month that holds `now`, as a number that grows by one a month, and when it ends.
fn month(now: Nanos) -> (u64, Nanos) {
    let today = now.get() / Nanos::from_secs(DAY).get();
    let (mut year, mut first) = (1970, 0);
    loop {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        for (month, days) in (0..).zip(lengths) {
            if today < first + days {
                return (year * 12 + month, Nanos::from_secs((first + days) * DAY));
            }
            first += days;
        }
        year += 1;
    }
}

impl Month {
    fn count_at(self, now: Nanos) -> u64 {
        if month(self.seen).0 == month(now).0 { self.count } else { 0 }
    }
}

fn verdict(count: u64, limit: &Limit, now: Nanos, outcome: Outcome) -> Verdict {
    let until_end = month(now).1.saturating_sub(now);
    Verdict::new(outcome, limit.permits(), limit.permits().saturating_sub(count), Some(until_end))
}

impl Bucket for CalendarMonth {
    type State = Month;

    fn fresh(&self, _limit: &Limit, _now: Nanos) -> Month {
        Month::default()
    }

    fn look(&self, state: &Month, limit: &Limit, now: Nanos, ask: Ask) -> Verdict {
        let count = state.count_at(now);
        let needs = ask.cost.saturating_add(ask.keep);
        let outcome = if ask.cost == 0 || needs <= limit.permits().saturating_sub(count) {
            Outcome::Pass
        } else if needs > limit.permits() {
            Outcome::Refuse(Wait::Never)
        } else {
            Outcome::Refuse(Wait::For(month(now).1.saturating_sub(now)))
        };
        verdict(count, limit, now, outcome)
    }

    fn take(&self, state: &mut Month, limit: &Limit, now: Nanos, ask: Ask) -> (Verdict, Mark) {
        *state = Month { seen: now, count: state.count_at(now).saturating_add(ask.cost) };
        (verdict(state.count, limit, now, Outcome::Pass), Mark::new(now, 0))
    }

    fn give_back(&self, state: &mut Month, _limit: &Limit, _now: Nanos, charge: GivenBack) {
        if month(charge.mark.at).0 == month(state.seen).0 {
            state.count = state.count.saturating_sub(charge.cost);
        }
    }

    fn used(&self, state: &Month, _limit: &Limit, now: Nanos) -> Used {
        Used::whole(state.count_at(now))
    }

    fn with_used(&self, limit: &Limit, used: Used, now: Nanos) -> Month {
        Month { seen: now, count: used.ceil().min(limit.permits()) }
    }

    fn fresh_at(&self, state: &Month, _limit: &Limit) -> Nanos {
        month(state.seen).1
    }

    fn seen(&self, state: &Month) -> Nanos {
        state.seen
    }
}

/// Three exports a month for each account. The period only has to be a valid one.
fn app(clock: ManualClock) -> Result<Limiter<&'static str>, Error> {
    let exports = Rule::new("exports", Limit::per_day(3), |account: &&'static str| Some(Key::from(*account)))
        .algorithm(CalendarMonth);
    Ok(Limiter::builder([exports]).clock(clock).build()?)
}

/// 2024-01-01, 2024-01-31 one second past midnight, 2024-02-01; all UTC.
const TIMES: [(&str, u64); 3] = [
    ("2024-01-01T00:00:00Z", 1_704_067_200),
    ("2024-01-31T00:00:01Z", 1_706_659_201),
    ("2024-02-01T00:00:00Z", 1_706_745_600),
];

fn main() -> Result<(), Error> {
    let clock = ManualClock::new();
    let limiter = app(clock.clone())?;
    for (name, secs) in TIMES {
        clock.set(Nanos::from_secs(secs));
        for _ in 0..2 {
            let decision = limiter.check_now(&"acme")?;
            println!("{name}: allowed {}, retry after {:?}", decision.is_allowed(), decision.retry_after());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn counts_by_the_calendar() {
        let clock = ManualClock::new();
        let limiter = app(clock.clone()).unwrap();
        let check = |secs| {
            clock.set(Nanos::from_secs(secs));
            limiter.check_now(&"acme").unwrap()
        };
        let [(_, first), (_, last_day), (_, february)] = TIMES;
        assert!((0..3).all(|_| check(first).is_allowed()));
        assert_eq!(check(last_day).retry_after(), Some(Duration::from_secs(86_399)));
        assert!(check(february).is_allowed());
    }

    #[test]
    fn knows_how_long_months_are() {
        let end = |secs| month(Nanos::from_secs(secs)).1.get() / 1_000_000_000;
        assert_eq!(end(0), 31 * DAY);
        assert_eq!(end(951_782_400), 951_868_800); // 2000-02-29, a leap day, to 2000-03-01
        assert_eq!(end(4_107_542_399), 4_107_542_400); // 2100-02-28 23:59:59, the last second: no leap year
    }
}
