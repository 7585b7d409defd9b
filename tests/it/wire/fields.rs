//! `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-11), and the fields from before it.

use tollgate::{decision::Wait, response::Headers};

use super::*;

const PASS: Outcome = Outcome::Pass;

fn refuse(millis: u64) -> Outcome {
    Outcome::Refuse(Wait::For(ms(millis)))
}

fn ietf(rules: Vec<Rule<Request>>) -> Answer {
    get(&over(layer(rules, &ManualClock::new()).headers(Headers::Ietf), hello()))
}

/// One rule's state, byte for byte.
#[test]
fn one_rule_is_written_as_one_item_of_each_list() {
    let minute = Limit::per_minute(100);
    let of = |permits, millis| Limit::new(permits, Duration::from_millis(millis));
    let most = Limit::new(u64::MAX, Duration::from_nanos(1));
    const ROWS: usize = 16;
    let rows: [(Limit, Outcome, u64, Option<Nanos>, &str, &str); ROWS] = [
        (minute, PASS, 50, Some(ms(30_000)), r#""p";q=100;w=60"#, r#""p";r=50;t=30"#),
        // RFC 9651, 3.3.1: an integer has 15 digits at most; more make the whole field unreadable.
        (most, PASS, u64::MAX, Some(ms(1)), r#""p";q=999999999999999;w=1"#, r#""p";r=999999999999999;t=1"#),
        // Draft 11, 3.1.3: no windows under a second, and none of zero.
        (of(3, 250), PASS, 3, Some(ms(250)), r#""p";q=3;w=1"#, r#""p";r=3;t=1"#),
        (of(3, 1_500), PASS, 3, Some(ms(1_500)), r#""p";q=3;w=2"#, r#""p";r=3;t=2"#),
        (minute, refuse(200), 0, None, r#""p";q=100;w=60"#, r#""p";r=0;t=1"#),
        (minute, refuse(5_000), 0, None, r#""p";q=100;w=60"#, r#""p";r=0;t=5"#),
        (minute, refuse(5_001), 0, None, r#""p";q=100;w=60"#, r#""p";r=0;t=6"#),
        (minute, Outcome::Refuse(Wait::For(Nanos::new(5_000_000_001))), 0, None, r#""p";q=100;w=60"#, r#""p";r=0;t=6"#),
        (minute, refuse(0), 0, None, r#""p";q=100;w=60"#, r#""p";r=0;t=1"#),
        // What is left is not enough for this request, and so nothing for it to use until then.
        (minute, refuse(5_000), 7, Some(ms(60_000)), r#""p";q=100;w=60"#, r#""p";r=0;t=5"#),
        // Draft 11, 4.2: no `t` where time alone does not tell.
        (minute, Outcome::Refuse(Wait::Unknown), 0, None, r#""p";q=100;w=60"#, r#""p";r=0"#),
        (minute, PASS, 3, None, r#""p";q=100;w=60"#, r#""p";r=3"#),
        (minute, PASS, 0, Some(ms(0)), r#""p";q=100;w=60"#, r#""p";r=0;t=1"#),
        (minute, Outcome::Refuse(Wait::Never), 100, Some(ms(60_000)), r#""p";q=100;w=60"#, r#""p";r=100;t=60"#),
        // A bucket's window is the time it takes to fill.
        (minute.burst(10), PASS, 9, Some(ms(5_400)), r#""p";q=10;w=6"#, r#""p";r=9;t=6"#),
        (minute.burst(200), PASS, 9, Some(ms(5_400)), r#""p";q=200;w=120"#, r#""p";r=9;t=6"#),
    ];
    assert_eq!(rows.len(), ROWS);
    for (limit, outcome, remaining, window, policy, told) in rows {
        let answer = ietf(vec![says("p", limit, outcome, remaining, window)]);
        let row = format!("{limit} {outcome:?} {remaining} {window:?}");
        assert_eq!(answer.field("ratelimit-policy").as_deref(), Some(policy), "{row}");
        assert_eq!(answer.field("ratelimit").as_deref(), Some(told), "{row}");
        let (policies, limits) = answer.limits();
        assert_eq!((policies.len(), limits.len()), (1, 1), "{row}");
        assert!(policies[0].secs.is_some_and(|window| window > 0), "{row}");
    }
}

#[test]
fn several_rules_are_one_list_in_the_order_of_the_rules() {
    let (burst, daily) = (Limit::per_minute(100), Limit::new(1_000, secs(86_400)));
    let both = r#""burst";q=100;w=60, "daily";q=1000;w=86400"#;
    const ROWS: usize = 6;
    let rows: [(Outcome, Outcome, &str, Option<&str>); ROWS] = [
        (PASS, PASS, r#""burst";r=7;t=50, "daily";r=7;t=50"#, None),
        (refuse(3_000), PASS, r#""burst";r=0;t=3"#, Some("3")),
        (PASS, refuse(40_000), r#""daily";r=0;t=40"#, Some("40")),
        (refuse(3_000), refuse(40_000), r#""burst";r=0;t=3, "daily";r=0;t=40"#, Some("40")),
        (Outcome::Refuse(Wait::Unknown), PASS, r#""burst";r=0"#, Some("1")),
        (Outcome::Refuse(Wait::Never), refuse(3_000), r#""burst";r=7;t=50, "daily";r=0;t=3"#, None),
    ];
    assert_eq!(rows.len(), ROWS);
    for (one, other, told, retry_after) in rows {
        let state = |name, limit, outcome| says(name, limit, outcome, 7, Some(ms(50_000)));
        let answer = ietf(vec![state("burst", burst, one), state("daily", daily, other)]);
        assert_eq!(answer.field("ratelimit-policy").as_deref(), Some(both), "{one:?} {other:?}");
        assert_eq!(answer.field("ratelimit").as_deref(), Some(told), "{one:?} {other:?}");
        assert_eq!(answer.field("retry-after").as_deref(), retry_after, "{one:?} {other:?}");
    }
}

#[test]
fn no_rule_no_field() {
    let never = || Rule::global("never", Limit::per_minute(1)).when(|_: &Request| false);
    for headers in [Headers::Ietf, Headers::Both, Headers::XRateLimit, Headers::XRateLimitEpoch, Headers::None] {
        for rules in [vec![], vec![never()]] {
            let answer = get(&over(layer(rules, &ManualClock::new()).headers(headers.clone()), hello()));
            let told = answer.headers.keys().any(|name| name.as_str().contains("ratelimit"));
            assert!(!told && answer.limits() == (vec![], vec![]), "{headers:?}: {:?}", answer.headers);
        }
    }
}

/// Draft 11, 3.1.1 and 3.1.3: a quota may be zero, a window may not. `t` is absent, since no time helps.
#[test]
fn a_limit_that_cannot_be_run_is_told_as_a_quota_of_nothing() {
    let rule = Rule::global("p", Limit::per_minute(1)).limit_for(|_: &Request| Limit::per_second(0));
    let answer = ietf(vec![rule]);
    assert_eq!((answer.status, answer.field("retry-after")), (429, None));
    assert_eq!(answer.field("ratelimit-policy").as_deref(), Some(r#""p";q=0;w=1"#));
    assert_eq!(answer.field("ratelimit").as_deref(), Some(r#""p";r=0"#));
}

/// What would need escaping, or could not be told at all, is no rule's name.
#[test]
fn names_that_cannot_be_told_are_refused_when_rules_are_put_together() {
    const ROWS: usize = 8;
    let rows: [&str; ROWS] = ["a\"b\\c", "caf\u{e9}", "a\nb", "", "a b", "Default", "a;r=0", "a,b"];
    assert_eq!(rows.len(), ROWS);
    for name in rows {
        let rule: Rule<Request> = Rule::global(name.to_owned(), Limit::per_minute(1));
        assert_eq!(Limiter::builder([rule]).build().unwrap_err().field(), "name", "{name:?}");
    }
}

/// Ten a second with three left for 0.7 s, a thousand an hour with nine hundred left for 2,400 s.
#[test]
fn one_state_is_told_in_every_style() {
    const ROWS: usize = 5;
    let policy = Some(r#""burst";q=10;w=1, "hour";q=1000;w=3600"#);
    let limits = Some(r#""burst";r=3;t=1, "hour";r=900;t=2400"#);
    let rows: [(Headers, [Option<&str>; 5]); ROWS] = [
        (Headers::Ietf, [policy, limits, None, None, None]),
        (Headers::XRateLimit, [None, None, Some("10"), Some("3"), Some("1")]),
        // 1700000000.4 and 0.7 are 1700000001.1, rounded up once.
        (Headers::XRateLimitEpoch, [None, None, Some("10"), Some("3"), Some("1700000002")]),
        (Headers::Both, [policy, limits, Some("10"), Some("3"), Some("1")]),
        (Headers::None, [None; 5]),
    ];
    assert_eq!(rows.len(), ROWS);
    let names = ["ratelimit-policy", "ratelimit", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    let clock = ManualClock::at(ms(1_700_000_000_400));
    for (headers, right) in rows {
        let rules = [
            says("burst", Limit::per_second(10), PASS, 3, Some(ms(700))),
            says("hour", Limit::per_hour(1_000), PASS, 900, Some(ms(2_400_000))),
        ];
        let limit = layer(rules, &clock).headers(headers.clone());
        let exposed: Vec<_> = limit.expose_headers().iter().map(HeaderName::to_string).collect();
        let answer = get(&over(limit, hello()));
        for (name, right) in names.iter().zip(right) {
            assert_eq!(answer.field(name).as_deref(), right, "{headers:?} {name}");
            // What is told is what a browser has to be allowed to read.
            assert_eq!(exposed.iter().any(|exposed| exposed == name), right.is_some(), "{headers:?} {name}");
        }
        assert_eq!(exposed[0], "retry-after");
    }
}

#[test]
fn a_reset_in_unix_time_is_the_instant_rounded_up_and_never_sooner() {
    const ROWS: usize = 6;
    // now and reset, in milliseconds; what is told
    let rows: [(u64, u64, &str); ROWS] = [
        (1_700_000_000_000, 0, "1700000000"),
        (1_700_000_000_000, 1_000, "1700000001"),
        (1_700_000_000_400, 0, "1700000001"),
        (1_700_000_000_400, 600, "1700000001"),
        (1_700_000_000_400, 601, "1700000002"),
        (1_700_000_000_999, 1, "1700000001"),
    ];
    assert_eq!(rows.len(), ROWS);
    for (now, reset, right) in rows {
        let rule = says("p", Limit::per_minute(9), PASS, 3, Some(ms(reset)));
        let limit = layer([rule], &ManualClock::at(ms(now))).headers(Headers::XRateLimitEpoch);
        assert_eq!(get(&over(limit, hello())).field("x-ratelimit-reset").as_deref(), Some(right), "{now} {reset}");
    }
}

#[test]
fn a_reset_that_nobody_knows_is_not_told() {
    for headers in [Headers::XRateLimit, Headers::XRateLimitEpoch] {
        let rule = says("p", Limit::per_minute(9), Outcome::Refuse(Wait::Unknown), 0, None);
        let answer = get(&over(layer([rule], &ManualClock::new()).headers(headers), hello()));
        assert_eq!(answer.field("x-ratelimit-remaining").as_deref(), Some("0"));
        assert_eq!(answer.field("x-ratelimit-reset"), None);
        assert_eq!(answer.field("retry-after").as_deref(), Some("1"));
    }
}
