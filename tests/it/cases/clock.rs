//! Clocks that are set back, time zones, and calendars.

use std::process::Command;

use tollgate::{Limit, bucket::Ask, decision::Wait};

use crate::engine::{Bench, Call, DAY, Kind, MS, S, per};

/// B29, restify/node-restify#34, sethvargo/go-limiter#41: refused until the clock had caught up with the old mark.
#[test]
pub(crate) fn a_bucket_goes_on_refilling_after_the_clock_was_set_back_an_hour() {
    let bench = Bench::new(Kind::TokenBucket, per(10, S));
    assert_eq!(bench.admitted(3_600 * S, 10), 10);
    bench.refuses(0, 1, 100 * MS); // what was used stays used, and nothing more
    bench.passes(500 * MS, 1, 4);
    bench.passes(S, 1, 8);
    assert_eq!(bench.admitted(S, 50), 8);
    bench.refuses(S, 1, 100 * MS);
}

/// A ceiling on the stored time that was worked out afresh on each look moved along with the clock.
#[test]
pub(crate) fn a_bucket_that_is_only_looked_at_after_the_step_opens_in_time() {
    let bench = Bench::new(Kind::TokenBucket, per(10, S));
    assert_eq!(bench.admitted(3_600 * S, 10), 10);
    // Refusals, looks, and refusals again: none of them starts the wait anew.
    for now in [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 99] {
        assert!(!bench.check(now * MS, 1).is_allowed(), "{now}");
    }
    bench.passes(100 * MS, 1, 0);
}

#[test]
pub(crate) fn a_window_goes_on_after_the_clock_was_set_back_an_hour() {
    let bench = Bench::new(Kind::FixedWindow, per(10, 60 * S));
    assert_eq!(bench.admitted(3_600 * S, 10), 10);
    bench.refuses(0, 1, 60 * S);
    bench.refuses(500 * MS, 1, 59_500 * MS);
    bench.refuses(60 * S - 1, 1, 1);
    bench.passes(60 * S, 1, 9);
}

#[test]
pub(crate) fn no_strategy_waits_longer_after_a_step_than_from_empty() {
    for kind in Kind::ALL {
        for (before, after) in
            [(3_600 * S, 0), (3_600 * S, 3_599 * S), (DAY + 17, 86_399 * S), (40 * 365 * DAY, 7), (61 * S, 59 * S)]
        {
            for cost in [1, 4, 10] {
                // What a bucket that was emptied at `after` would tell.
                let mut emptied = kind.bucket(per(10, 60 * S));
                let _ = emptied.decide(after, Ask::new(10));
                let mut stepped = kind.bucket(per(10, 60 * S));
                let _ = stepped.decide(before, Ask::new(10));
                let (verdict, _) = stepped.decide(after, Ask::new(0));
                assert!(verdict.remaining <= 10);
                let (stepped, emptied) = (stepped.look(after, Ask::new(cost)), emptied.look(after, Ask::new(cost)));
                assert!(!stepped.outcome.passes(), "{kind:?} gave permits for the step {before} -> {after}");
                assert_eq!(stepped.outcome, emptied.outcome, "{kind:?} {before} -> {after}, cost {cost}");
            }
        }
    }
}

#[test]
pub(crate) fn a_step_of_the_clock_mints_nothing_under_any_strategy() {
    for kind in Kind::REFUSING {
        let bench = Bench::new(kind, per(10, 60 * S));
        assert_eq!(bench.admitted(3_600 * S, 4), 4);
        assert_eq!(bench.admitted(0, 50), 6, "{kind:?}: what was used stays used");
        assert_eq!(bench.admitted(1, 50), 0, "{kind:?}");
    }
}

/// Less than a second is a thread that came late: it is judged at the bucket's time.
#[test]
pub(crate) fn a_step_of_just_under_a_second_is_no_time_and_of_a_second_is_a_new_start() {
    let bench = Bench::new(Kind::TokenBucket, per(10, S));
    assert_eq!(bench.admitted(3_600 * S, 10), 10);
    let late = 3_600 * S - 999_999_999;
    let told = bench.check(late, 1).retry_after().unwrap();
    assert_eq!(told.as_nanos(), 1_099_999_999); // the token is there at 3600.1
    bench.passes(3_600_100 * MS, 1, 0);
    let bench = Bench::new(Kind::TokenBucket, per(10, S));
    assert_eq!(bench.admitted(3_600 * S, 10), 10);
    bench.refuses(3_599 * S, 1, 100 * MS);
    bench.passes(3_599_100 * MS, 1, 0);
}

#[test]
pub(crate) fn extreme_steps_do_not_panic_or_lock_anybody_out() {
    for kind in Kind::REFUSING {
        let bench = Bench::new(kind, per(10, S));
        for now in [u64::MAX, 0, u64::MAX, 1, S, u64::MAX / 2, 0] {
            let decision = bench.check(now, 1);
            assert!(matches!(decision.wait(), None | Some(Wait::For(_))), "{decision:?}");
        }
        assert!(bench.check(2 * S, 1).is_allowed(), "{kind:?}: two windows after the last step");
    }
}

/// 2021-10-31T01:00:00Z, when summer time ended in most of Europe.
const AUTUMN: u64 = 1_635_642_000 * S;

/// B29, apiman/apiman#1541: the hour that came twice was an hour of false refusals.
#[test]
pub(crate) fn windows_are_cut_in_utc() {
    let hourly = Bench::new(Kind::FixedWindow, Limit::per_hour(2));
    hourly.passes(AUTUMN - 1, 2, 0);
    hourly.refuses(AUTUMN - 1, 1, 1);
    hourly.passes(AUTUMN, 2, 0);
    hourly.refuses(AUTUMN, 1, 3_600 * S);
    hourly.passes(AUTUMN + 3_600 * S, 2, 0);
    let daily = Bench::new(Kind::FixedWindow, Limit::per_day(2));
    let midnight = AUTUMN - 3_600 * S; // 2021-10-31T00:00:00Z
    daily.passes(midnight - 1, 2, 0);
    daily.passes(midnight, 2, 0);
    daily.refuses(AUTUMN, 1, 23 * 3_600 * S); // the day has 24 hours
    for kind in [Kind::TokenBucket, Kind::SlidingWindowLog] {
        let bench = Bench::new(kind, per(1, 3_600 * S));
        bench.passes(AUTUMN - 1_800 * S, 1, 0);
        bench.refuses(AUTUMN, 1, 1_800 * S);
        bench.passes(AUTUMN + 1_800 * S, 1, 0);
    }
}

#[test]
pub(crate) fn the_time_zone_of_the_process_has_no_effect() {
    for zone in ["UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia", "XYZ-05:45"] {
        let run = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cases::clock::windows_are_cut_in_utc"])
            .env("TZ", zone)
            .output()
            .unwrap();
        let report = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && report.contains("1 passed"), "{zone}: {report}");
    }
}

/// B32, rack/rack-attack#230, mailgun/gubernator#161: the window's name was the minute, so yesterday counted.
#[test]
pub(crate) fn the_same_minute_of_another_day_is_another_window() {
    let (day_one, a_quarter_past_ten) = (19_723 * DAY, (10 * 3_600 + 15 * 60) * S);
    for kind in Kind::REFUSING {
        let bench = Bench::new(kind, per(2, 60 * S));
        bench.passes(day_one + a_quarter_past_ten, 2, 0);
        assert!(!bench.check(day_one + a_quarter_past_ten + 59 * S, 2).is_allowed(), "{kind:?}");
        bench.passes(day_one + DAY + a_quarter_past_ten, 1, 1);
        bench.passes(day_one + 8 * DAY + a_quarter_past_ten, 2, 0);
    }
}

/// B32, Kong/kong#2817, Kong/kong#9581: a month was thirty days, or was cut at odd days.
#[test]
pub(crate) fn a_month_is_an_error_that_names_days_as_the_way_out() {
    for text in ["3 per month", "3/month", "3 per months", "3/mo", "3 per year", "3/y", "3 per calendar month"] {
        let error = text.parse::<Limit>().unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    for text in ["3 per month", "3/month", "3 per year"] {
        let error = text.parse::<Limit>().unwrap_err().to_string();
        assert!(error.contains("no calendar windows") && error.contains("30 * 86_400"), "{error}");
    }
}

#[test]
pub(crate) fn thirty_days_are_exactly_2_592_000_seconds() {
    let limit = Limit::new(3, std::time::Duration::from_secs(30 * 86_400));
    assert_eq!(limit.period().as_secs(), 2_592_000);
    assert_eq!(limit.to_string(), "3 per 2592000s");
    let log = Bench::new(Kind::SlidingWindowLog, limit);
    log.passes(0, 3, 0);
    log.refuses(2_592_000 * S - 1, 1, 1);
    log.passes(2_592_000 * S, 3, 0);
    // Windows are cut every thirty days from the epoch, whatever the calendar says: 655 of them until 2023-10-20.
    let fixed = Bench::new(Kind::FixedWindow, limit);
    let new_year = 1_704_067_200 * S; // 2024-01-01T00:00:00Z, in window 657
    let edge = 658 * 2_592_000 * S;
    assert!(new_year < edge && edge < new_year + 31 * DAY);
    fixed.passes(new_year, 3, 0);
    fixed.refuses(new_year, 1, edge - new_year);
    fixed.passes(edge, 3, 0);
}

#[test]
pub(crate) fn giving_back_after_the_clock_was_set_back_mints_nothing() {
    for kind in Kind::REFUSING {
        let bench = Bench::new(kind, per(10, 60 * S));
        bench.set(3_600 * S);
        let (_, receipt) = bench.limiter.reserve_now(&Call { client: 0, cost: 4 }).unwrap();
        bench.passes(3_600 * S, 6, 0);
        bench.set(0);
        receipt.give_back();
        assert!(bench.remaining(0) <= 4, "{kind:?}");
        assert!(bench.remaining(120 * S) == 10, "{kind:?}");
    }
}
