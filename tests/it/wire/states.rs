//! Each algorithm's own numbers in the fields. `RateLimit` tells what may be used within `t`, which falls together with
//! what is left (draft-ietf-httpapi-ratelimit-headers-11, 4.1.2 and 6).

use tollgate::{
    bucket::{FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog},
    response::Headers,
};

use super::*;

/// What a server does before it is looked at, and what it says then.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Milliseconds go by.
    Pass(u64),
    /// A request of this cost.
    Cost(u64),
}
use Step::{Cost, Pass};

fn cost_of(request: &Request) -> u64 {
    request.headers().get("x-cost").map_or(1, |cost| cost.to_str().unwrap().parse().unwrap())
}

/// The answer to the last request.
fn after(rule: Rule<Request>, steps: &[Step]) -> Answer {
    let clock = ManualClock::at(Nanos::from_secs(1_700_000_040)); // a whole minute
    let server = over(layer([rule.cost(cost_of)], &clock).headers(Headers::Ietf), hello());
    let mut last = None;
    for step in steps {
        match step {
            Pass(millis) => clock.advance(Duration::from_millis(*millis)),
            Cost(cost) => last = Some(send(&server, request(Method::GET, &[("x-cost", cost.to_string().as_bytes())]))),
        }
    }
    last.expect("a request")
}

#[test]
fn a_token_bucket_tells_the_time_its_tokens_take_to_come() {
    let api = Limit::per_second(1).burst(10);
    let minute = Limit::per_minute(100);
    const ROWS: usize = 11;
    let rows: [(Limit, &[Step], &str, Option<u64>); ROWS] = [
        (api, &[Cost(0)], r#""api";r=10;t=10"#, None),
        (api, &[Cost(1)], r#""api";r=9;t=9"#, None),
        (api, &[Cost(10), Pass(7_400), Cost(1)], r#""api";r=6;t=7"#, None), // 6.4 tokens
        (api, &[Cost(9)], r#""api";r=1;t=1"#, None),
        (api, &[Cost(10), Pass(1_500), Cost(1)], r#""api";r=0;t=1"#, None), // 0.5 tokens
        (api, &[Cost(10), Pass(300), Cost(1)], r#""api";r=0;t=1"#, Some(1)),
        (api, &[Cost(10), Pass(300), Cost(5)], r#""api";r=0;t=5"#, Some(5)), // 4.7 s
        (api, &[Cost(10), Pass(300), Cost(5), Cost(1)], r#""api";r=0;t=1"#, Some(1)),
        // More than it can hold: no wait helps, so none is told.
        (api, &[Cost(11)], r#""api";r=10;t=10"#, None),
        (api, &[Cost(10), Cost(11)], r#""api";r=0;t=1"#, None),
        (minute, &[Cost(50)], r#""api";r=50;t=30"#, None),
    ];
    assert_eq!(rows.len(), ROWS);
    for (limit, steps, told, retry_after) in rows {
        let answer = after(Rule::global("api", limit), steps);
        assert_eq!(answer.field("ratelimit").as_deref(), Some(told), "{steps:?}");
        assert_eq!(answer.number("retry-after"), retry_after, "{steps:?}");
        let policy = if limit == api { r#""api";q=10;w=10"# } else { r#""api";q=100;w=60"# };
        assert_eq!(answer.field("ratelimit-policy").as_deref(), Some(policy));
    }
}

#[test]
fn windows_and_queues_tell_their_own_times() {
    let fixed = || Rule::global("p", Limit::per_minute(10)).algorithm(FixedWindow);
    let log = || Rule::global("p", Limit::per_minute(10)).algorithm(SlidingWindowLog);
    let counter = || Rule::global("p", Limit::per_minute(10)).algorithm(SlidingWindowCounter);
    let queue = || Rule::global("p", Limit::per_second(1).burst(10)).algorithm(LeakyBucket);
    const ROWS: usize = 14;
    let rows: [(Rule<Request>, &[Step], &str, Option<u64>); ROWS] = [
        (fixed(), &[Cost(1)], r#""p";r=9;t=60"#, None),
        (fixed(), &[Cost(5), Pass(59_100), Cost(4)], r#""p";r=1;t=1"#, None),
        (fixed(), &[Cost(10), Pass(20_500), Cost(1)], r#""p";r=0;t=40"#, Some(40)), // 39.5 s
        (fixed(), &[Cost(10), Pass(59_999), Cost(1)], r#""p";r=0;t=1"#, Some(1)),
        (fixed(), &[Cost(11)], r#""p";r=10;t=60"#, None),
        // The oldest entry leaves a minute after it came.
        (log(), &[Cost(4), Pass(20_500), Cost(4)], r#""p";r=2;t=40"#, None),
        (log(), &[Cost(4), Pass(20_500), Cost(6), Cost(4)], r#""p";r=0;t=40"#, Some(40)),
        (log(), &[Cost(4), Pass(20_500), Cost(6), Cost(5)], r#""p";r=0;t=60"#, Some(60)),
        (log(), &[Cost(0)], r#""p";r=10;t=60"#, None),
        (counter(), &[Cost(4)], r#""p";r=6;t=60"#, None),
        // A quarter into the next window, ten of the last weigh 7.5.
        (counter(), &[Cost(10), Pass(75_000), Cost(1)], r#""p";r=1;t=45"#, None),
        (counter(), &[Cost(10), Pass(75_000), Cost(5)], r#""p";r=0;t=15"#, Some(15)),
        (queue(), &[Cost(0)], r#""p";r=10;t=10"#, None),
        (queue(), &[Cost(4)], r#""p";r=0;t=4"#, None),
    ];
    assert_eq!(rows.len(), ROWS);
    for (at, (rule, steps, told, retry_after)) in rows.into_iter().enumerate() {
        let answer = after(rule, steps);
        assert_eq!(answer.field("ratelimit").as_deref(), Some(told), "row {at}: {steps:?}");
        assert_eq!(answer.number("retry-after"), retry_after, "row {at}: {steps:?}");
    }
}

/// The draft's own example (B.3.1): fourteen hours into a day, 4,900 of 5,000 are used.
#[test]
fn a_day_ends_at_midnight() {
    let day = Rule::global("day", Limit::per_day(5_000)).algorithm(FixedWindow).cost(cost_of);
    let clock = ManualClock::at(Nanos::from_secs(1_700_006_400 - 86_400 + 14 * 3_600));
    let server = over(layer([day], &clock).headers(Headers::Ietf), hello());
    let answer = send(&server, request(Method::GET, &[("x-cost", b"4900")]));
    assert_eq!(answer.field("ratelimit").as_deref(), Some(r#""day";r=100;t=36000"#));
    assert_eq!(answer.field("ratelimit-policy").as_deref(), Some(r#""day";q=5000;w=86400"#));
}

/// What one rule refuses is not taken from another, and the fields show it.
#[test]
fn a_refusal_leaves_the_other_rules_as_they_were() {
    let clock = ManualClock::new();
    let rules = [Rule::global("a", Limit::per_minute(1)), Rule::global("b", Limit::per_minute(10))];
    let server = over(layer(rules, &clock).headers(Headers::Ietf), hello());
    assert_eq!(get(&server).field("ratelimit").as_deref(), Some(r#""a";r=0;t=60, "b";r=9;t=54"#));
    for _ in 0..3 {
        assert_eq!(get(&server).field("ratelimit").as_deref(), Some(r#""a";r=0;t=60"#));
    }
    clock.advance(secs(60));
    assert_eq!(get(&server).field("ratelimit").as_deref(), Some(r#""a";r=0;t=60, "b";r=9;t=54"#));
}
