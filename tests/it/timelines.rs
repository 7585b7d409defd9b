//! Runs the timelines of `tests/timelines`, each case in every way there is to ask.
//!
//! A case is a limit and rows: so many requests of a cost at a time, how many of them pass, and what the last of them
//! is told. What a row does not say of `remaining` and `reset` is not looked at; the wait of a refusal has to be said.

use std::{collections::BTreeSet, fs, path::PathBuf};

use serde::Deserialize;
use tollgate::{
    bucket::Ask,
    decision::{Outcome, Wait},
    time::Nanos,
};

use crate::engine::{Kind, grain, per, same};

mod time;
mod ways;

use time::Time;
use ways::WAYS;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    case: Vec<Case>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    permits: u64,
    period: Time,
    burst: Option<u64>,
    /// How long a token bucket may hold a request.
    wait_up_to: Option<Time>,
    /// Whether the caller of a leaky bucket waits for its turn.
    #[serde(default)]
    holds: bool,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    at: Time,
    #[serde(default = "one")]
    cost: u64,
    /// How many requests.
    #[serde(default = "one")]
    times: u64,
    allowed: Allowed,
    remaining: Option<u64>,
    reset: Option<Time>,
    /// How long the last request is held.
    delay: Option<Time>,
    retry_after: Option<Time>,
    #[serde(default)]
    never: bool,
}

/// All, none, or so many of a row's requests.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Allowed {
    All(bool),
    Of(u64),
}

const fn one() -> u64 {
    1
}

/// What a request was told, by whatever way it asked.
#[derive(Debug, Clone, Copy)]
struct Answer {
    outcome: Outcome,
    remaining: u64,
    reset: Option<Nanos>,
}

impl Case {
    fn limit(&self) -> tollgate::Limit {
        let limit = per(self.permits, self.period.nanos());
        self.burst.map_or(limit, |burst| limit.burst(burst))
    }

    /// Makes every time so many times as long, unless all are whole multiples of that already; returns false where that
    /// is longer than a store can count.
    fn stretch(&mut self, times: u64) -> bool {
        let of_rows = self.rows.iter_mut().flat_map(|row| {
            [Some(&mut row.at), row.reset.as_mut(), row.delay.as_mut(), row.retry_after.as_mut()].into_iter().flatten()
        });
        let mut all: Vec<_> = of_rows.chain([&mut self.period]).chain(&mut self.wait_up_to).collect();
        all.iter().all(|time| time.nanos().is_multiple_of(times)) || all.iter_mut().all(|time| time.stretch(times))
    }

    fn max_delay(&self) -> Nanos {
        if self.holds { Nanos::MAX } else { Nanos::new(self.wait_up_to.map_or(0, Time::nanos)) }
    }

    fn ask(&self, cost: u64) -> Ask {
        Ask::new(cost).max_delay(self.max_delay())
    }

    /// When each single request comes, and its cost.
    fn requests(&self) -> impl Iterator<Item = (u64, u64)> {
        self.rows.iter().flat_map(|row| (0..row.times).map(|_| (row.at.nanos(), row.cost)))
    }

    fn compare(&self, way: &str, answers: &[Answer]) {
        let mut answers = answers.iter();
        for row in &self.rows {
            let told = format!("{:?}, asked by {way}: {row:?}", self.name);
            let of_row: Vec<_> = answers.by_ref().take(usize::try_from(row.times).unwrap()).collect();
            let passed = of_row.iter().filter(|answer| answer.outcome.passes()).count() as u64;
            let expected = match row.allowed {
                Allowed::All(true) => row.times,
                Allowed::All(false) => 0,
                Allowed::Of(number) => number,
            };
            assert_eq!(passed, expected, "{told}");
            let last = of_row.last().unwrap_or_else(|| panic!("{told}: not asked"));
            row.compare(last, &told);
        }
        assert_eq!(answers.count(), 0, "{:?}, asked by {way}: more answers than requests", self.name);
    }
}

impl Row {
    fn compare(&self, last: &Answer, told: &str) {
        let nanos = |time: Option<Time>| Nanos::new(time.map_or(0, Time::nanos));
        let expected = match (self.never, self.retry_after, self.delay) {
            (true, None, None) => Outcome::Refuse(Wait::Never),
            (false, Some(wait), None) => Outcome::Refuse(Wait::For(Nanos::new(wait.nanos()))),
            (false, None, None) => Outcome::Pass,
            (false, None, delay @ Some(_)) => Outcome::Delay(nanos(delay)),
            _ => panic!("{told}: say one of never, retry_after and delay"),
        };
        let outcomes_agree = match (last.outcome, expected) {
            (Outcome::Refuse(Wait::For(one)), Outcome::Refuse(Wait::For(other)))
            | (Outcome::Delay(one), Outcome::Delay(other)) => same(one.get(), other.get()),
            (one, other) => one == other,
        };
        assert!(outcomes_agree, "{told}: {last:?}");
        if let Some(remaining) = self.remaining {
            assert_eq!(last.remaining, remaining, "{told}: {last:?}");
        }
        if self.reset.is_some() {
            assert!(last.reset.is_some_and(|reset| same(reset.get(), nanos(self.reset).get())), "{told}: {last:?}");
        }
    }
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/timelines")
}

fn cases(kind: Kind) -> Vec<Case> {
    let path = directory().join(kind.snake_case()).with_extension("toml");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    toml::from_str::<File>(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display())).case
}

/// Runs the cases of one strategy in every way that can run them, and returns the names of those that are too fine or
/// too long for the store.
pub(crate) fn run(kind: Kind) -> Vec<String> {
    let mut skipped = Vec::new();
    for mut case in cases(kind) {
        // What takes a nanosecond in memory takes a unit of the store, and everything else as much longer.
        if !case.stretch(grain()) || !ways::fits(kind, &case) {
            skipped.push(case.name);
            continue;
        }
        for way in WAYS {
            if way.cannot(kind, &case).is_none() {
                case.compare(way.name, &(way.run)(kind, &case));
            }
        }
    }
    skipped
}

#[test]
fn the_token_bucket_keeps_its_timelines() {
    assert!(run(Kind::TokenBucket).is_empty());
}

#[test]
fn the_fixed_window_keeps_its_timelines() {
    assert!(run(Kind::FixedWindow).is_empty());
}

#[test]
fn the_sliding_window_log_keeps_its_timelines() {
    assert!(run(Kind::SlidingWindowLog).is_empty());
}

#[test]
fn the_sliding_window_counter_keeps_its_timelines() {
    assert!(run(Kind::SlidingWindowCounter).is_empty());
}

#[test]
fn the_leaky_bucket_keeps_its_timelines() {
    assert!(run(Kind::LeakyBucket).is_empty());
}

/// The combinations that cannot run, each with its reason; every other one does.
#[test]
fn what_cannot_run_a_case_says_why() {
    let mut skipped = BTreeSet::new();
    for kind in Kind::ALL {
        for case in cases(kind) {
            assert!(WAYS.iter().filter(|way| way.cannot(kind, &case).is_none()).count() >= 2, "{:?}", case.name);
            let reasons = WAYS.iter().filter_map(|way| Some((kind.snake_case(), way.name, way.cannot(kind, &case)?)));
            skipped.extend(reasons);
        }
    }
    let expected = [
        ("leaky_bucket", "acquire", "it would hold what the case wants refused"),
        ("leaky_bucket", "check", "it refuses where the case wants the request held"),
        ("leaky_bucket", "check_now", "it refuses where the case wants the request held"),
        ("leaky_bucket", "peek and check", "it foretells acquire, not check"),
        ("leaky_bucket", "reserve_now", "it refuses where the case wants the request held"),
        ("token_bucket", "check", "it refuses where the case wants the request held"),
        ("token_bucket", "check_now", "it refuses where the case wants the request held"),
        ("token_bucket", "peek and check", "it foretells acquire, not check"),
        ("token_bucket", "reserve_now", "it refuses where the case wants the request held"),
    ];
    assert_eq!(skipped, BTreeSet::from(expected));
}

#[test]
fn every_strategy_has_a_file_of_at_least_eight_cases_with_names_of_their_own() {
    let files: BTreeSet<_> =
        fs::read_dir(directory()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(files, Kind::ALL.map(|kind| format!("{}.toml", kind.snake_case())).into());
    for kind in Kind::ALL {
        let cases = cases(kind);
        let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
        assert_eq!(names.len(), cases.len(), "{kind:?}: two cases have one name");
        assert!(cases.len() >= 8, "{kind:?}");
        for case in &cases {
            assert!(case.rows.iter().all(|row| row.times > 0), "{:?}", case.name);
            assert!(!case.holds || kind == Kind::LeakyBucket, "{:?}: say wait_up_to", case.name);
        }
    }
}
