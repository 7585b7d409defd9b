//! Limits around limits, and around answers that already speak of waiting.

use tollgate::{decision::Wait, response::Headers};

use super::*;

/// What a layer tells; `wait` where it refuses.
#[derive(Debug, Clone, Copy)]
struct State {
    name: &'static str,
    remaining: u64,
    /// In seconds.
    window: u64,
    wait: Option<u64>,
}

fn state(name: &'static str, remaining: u64, window: u64, wait: Option<u64>) -> State {
    State { name, remaining, window, wait }
}

fn with(state: State, headers: &Headers, inner: Server) -> Server {
    let outcome = state.wait.map_or(Outcome::Pass, |wait| Outcome::Refuse(Wait::For(Nanos::from_secs(wait))));
    let window = Some(Nanos::from_secs(state.window));
    let rule = says(state.name, Limit::per_minute(100), outcome, state.remaining, window);
    over(layer([rule], &ManualClock::new()).headers(headers.clone()), inner)
}

#[test]
fn each_layer_of_a_stack_appends_an_item_to_the_lists() {
    const ROWS: usize = 5;
    // outer, inner; policies, limits, Retry-After
    let rows: [(State, State, &str, &str, Option<&str>); ROWS] = [
        (
            state("outer", 7, 50, None),
            state("inner", 3, 20, None),
            r#""inner";q=100;w=60, "outer";q=100;w=60"#,
            r#""inner";r=3;t=20, "outer";r=7;t=50"#,
            None,
        ),
        // Draft 11, 6: `Retry-After` should not be earlier than the end of a window that is told beside it, so the
        // layer that passed keeps silent about its own where that is longer.
        (
            state("outer", 7, 50, None),
            state("inner", 0, 20, Some(3)),
            r#""inner";q=100;w=60, "outer";q=100;w=60"#,
            r#""inner";r=0;t=3"#,
            Some("3"),
        ),
        (
            state("outer", 7, 2, None),
            state("inner", 0, 20, Some(3)),
            r#""inner";q=100;w=60, "outer";q=100;w=60"#,
            r#""inner";r=0;t=3, "outer";r=7;t=2"#,
            Some("3"),
        ),
        (
            state("outer", 0, 50, Some(3)),
            state("inner", 3, 20, None),
            r#""outer";q=100;w=60"#,
            r#""outer";r=0;t=3"#,
            Some("3"),
        ),
        (
            state("outer", 0, 50, Some(9)),
            state("inner", 0, 20, Some(3)),
            r#""outer";q=100;w=60"#,
            r#""outer";r=0;t=9"#,
            Some("9"),
        ),
    ];
    assert_eq!(rows.len(), ROWS);
    for (outer, inner, policies, limits, retry_after) in rows {
        for headers in [Headers::Ietf, Headers::Both] {
            let answer = get(&with(outer, &headers, with(inner, &headers, hello())));
            assert_eq!(answer.field("ratelimit-policy").as_deref(), Some(policies), "{outer:?} {inner:?}");
            assert_eq!(answer.field("ratelimit").as_deref(), Some(limits), "{outer:?} {inner:?}");
            assert_eq!(answer.field("retry-after").as_deref(), retry_after, "{outer:?} {inner:?}");
            let _readable = answer.limits();
        }
    }
}

#[test]
fn of_two_layers_the_more_restrictive_is_told_where_only_one_can_be() {
    const ROWS: usize = 7;
    // outer, inner; remaining and reset
    let rows: [(State, State, [u64; 2]); ROWS] = [
        (state("o", 7, 50, None), state("i", 3, 20, None), [3, 20]),
        (state("o", 3, 20, None), state("i", 7, 50, None), [3, 20]),
        (state("o", 3, 20, None), state("i", 3, 50, None), [3, 50]),
        (state("o", 3, 50, None), state("i", 3, 20, None), [3, 50]),
        (state("o", 3, 50, None), state("i", 3, 50, None), [3, 50]),
        // The refusal is what the client has to understand.
        (state("o", 1, 50, None), state("i", 2, 20, Some(3)), [2, 20]),
        (state("o", 2, 50, Some(3)), state("i", 1, 20, None), [2, 50]),
    ];
    assert_eq!(rows.len(), ROWS);
    for (outer, inner, right) in rows {
        let answer = get(&with(outer, &Headers::XRateLimit, with(inner, &Headers::XRateLimit, hello())));
        for (name, right) in ["x-ratelimit-remaining", "x-ratelimit-reset"].into_iter().zip(right) {
            assert_eq!(answer.field(name), Some(right.to_string()), "{outer:?} {inner:?} {name}");
        }
        assert_eq!(answer.field("x-ratelimit-limit").as_deref(), Some("100"));
    }
}

/// An answer of the server's own that says when to come back is not touched, nor contradicted by a longer window.
#[test]
fn what_the_server_says_of_waiting_stands() {
    let told = Some(r#""p";r=7;t=50"#);
    const ROWS: usize = 7;
    let rows: [(u16, Option<&str>, Option<&str>); ROWS] = [
        (503, Some("120"), told),
        (503, Some("50"), told),
        (503, Some("49"), None),
        (503, Some("Sun, 06 Nov 1994 08:49:37 GMT"), None),
        (301, Some("7"), None),
        (503, None, told),
        (200, None, told),
    ];
    assert_eq!(rows.len(), ROWS);
    for (status, retry_after, limits) in rows {
        let inner = server(move || {
            let mut response = Response::builder().status(status);
            if let Some(retry_after) = retry_after {
                response = response.header("retry-after", retry_after);
            }
            response.body(Body::empty()).unwrap()
        });
        let answer = get(&with(state("p", 7, 50, None), &Headers::Ietf, inner));
        assert_eq!((answer.status, answer.field("retry-after").as_deref()), (status, retry_after));
        assert_eq!(answer.field("ratelimit").as_deref(), limits, "{status} {retry_after:?}");
        assert_eq!(answer.field("ratelimit-policy").as_deref(), Some(r#""p";q=100;w=60"#));
    }
}

/// Draft 11, 7.2: who stands in between may add its own limits, and leaves the others as they are.
#[test]
fn limits_of_an_origin_further_in_stay_as_they_are() {
    let origin = server(|| {
        Response::builder()
            .header("ratelimit-policy", r#""theirs";q=9;w=1"#)
            .header("ratelimit", r#""theirs";r=1;t=1;acme-x=?1"#)
            .body(Body::empty())
            .unwrap()
    });
    let answer = get(&with(state("ours", 7, 50, None), &Headers::Ietf, origin));
    assert_eq!(answer.field("ratelimit").as_deref(), Some(r#""theirs";r=1;t=1;acme-x=?1, "ours";r=7;t=50"#));
    let (policies, limits) = answer.limits();
    assert_eq!((policies.len(), limits.len()), (2, 2));
}
