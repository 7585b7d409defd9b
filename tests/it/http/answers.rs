//! Statuses, fields and bodies of the built-in answers.

use axum::{
    extract::Request,
    http::{Method, StatusCode},
};
use serde_json::json;
use tollgate::{Key, Limit, MissingKey, RateLimitLayer, Rule, bucket::FixedWindow, key, response::Headers};

use super::*;

#[tokio::test]
async fn a_refused_client_is_told_everything_it_needs() {
    let clock = ManualClock::new();
    let app = app([Rule::global("spent", Limit::per_minute(2)), Rule::global("roomy", Limit::per_minute(9))], &clock);
    for _ in 0..2 {
        assert_eq!(get_root(&app).await.status, 200);
    }
    let answer = get_root(&app).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.retry_after(), 30);
    // RFC 6585, section 4: "Responses with the 429 status code MUST NOT be stored by a cache." Not every cache knows.
    assert_eq!(answer.field("cache-control"), "no-store");
    assert_eq!(answer.limit_fields(), [2, 0, 60]);
    assert_eq!(
        answer.problem(),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "status": 429,
            "detail": "The limit is used up; try again in 30 s.",
            "violated-policies": ["spent"],
        })
    );
    assert_eq!(digits(answer.field("content-length")), answer.body.len() as u64);
}

#[tokio::test]
async fn the_whole_is_to_blame_only_if_every_refusing_rule_says_so() {
    // (which rules are spent, whether each is an overload rule) -> status and violated policies
    for (spent, status, violated) in [
        ([true, false, false], 503, json!(["all"])),
        ([true, true, false], 503, json!(["all", "pool"])),
        ([false, false, true], 429, json!(["client"])),
        ([true, false, true], 429, json!(["all", "client"])),
        ([true, true, true], 429, json!(["all", "pool", "client"])),
    ] {
        let clock = ManualClock::new();
        let limit = |at: usize| Limit::per_minute(if spent[at] { 1 } else { 9 });
        let app = app(
            [
                Rule::global("all", limit(0)).overload(),
                Rule::global("pool", limit(1)).overload(),
                Rule::global("client", limit(2)),
            ],
            &clock,
        );
        assert_eq!(get_root(&app).await.status, 200);
        let answer = get_root(&app).await;
        assert_eq!(answer.status, status, "{spent:?}");
        assert_eq!(answer.retry_after(), 60);
        assert_eq!(answer.field("cache-control"), "no-store");
        assert_eq!(answer.limit_fields(), [1, 0, 60]);
        let problem = answer.problem();
        assert_eq!((&problem["status"], &problem["violated-policies"]), (&json!(status), &violated));
        let kind = if status == 503 { "#temporary-reduced-capacity" } else { "#quota-exceeded" };
        assert!(problem["type"].as_str().unwrap().ends_with(kind), "{problem}");
    }
}

#[tokio::test]
async fn a_peer_address_that_was_never_wired_is_a_500_with_the_fix() {
    let clock = ManualClock::new();
    let app = app(
        [Rule::global("all", Limit::per_minute(1)), Rule::new("address", Limit::per_minute(1), key::peer_addr())],
        &clock,
    );
    for _ in 0..3 {
        let answer = get_root(&app).await;
        assert_eq!(answer.status, 500);
        let problem = answer.problem();
        assert_eq!(problem["type"], "about:blank");
        assert_eq!(problem["title"], "Internal Server Error");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("into_make_service_with_connect_info::<SocketAddr>()"), "{detail}");
        assert!(detail.contains("MockConnectInfo"), "{detail}");
        // Waiting does not help, and no rule was asked; "all" stays uncharged, or the second answer would be a 429.
        assert!(!answer.has("retry-after") && !answer.has_limit_fields());
    }
}

#[tokio::test]
async fn a_missing_key_is_answered_as_the_rule_says() {
    let clock = ManualClock::new();
    let by_token = |missing| {
        let rule = Rule::new("token", Limit::per_minute(1), key::header("x-token"));
        match missing {
            Some(missing) => rule.on_missing_key(missing),
            None => rule,
        }
    };
    let token = |value| request(Method::GET, &[("x-token", value)]);

    // Not said, or said to skip: the rule does not apply.
    for missing in [None, Some(MissingKey::Skip)] {
        let app = app([by_token(missing)], &clock);
        for _ in 0..3 {
            let answer = get_root(&app).await;
            assert_eq!(answer.status, 200);
            assert!(!answer.has_limit_fields());
        }
    }

    // All without a key count together, and apart from those with one.
    let shared = app([by_token(Some(MissingKey::Share))], &clock);
    assert_eq!(get_root(&shared).await.status, 200);
    assert_eq!(send(&shared, token("")).await.status, 429, "an empty key is a missing one");
    assert_eq!(send(&shared, token("t")).await.status, 200);

    for status in [StatusCode::UNAUTHORIZED, StatusCode::BAD_REQUEST, StatusCode::FORBIDDEN] {
        let all = Rule::global("all", Limit::per_minute(1));
        let app = app([all, by_token(Some(MissingKey::Refuse(status)))], &clock);
        for _ in 0..3 {
            let answer = get_root(&app).await;
            assert_eq!(answer.status, status);
            assert_eq!(answer.problem()["status"], status.as_u16());
            assert_eq!(answer.problem()["title"], status.canonical_reason().unwrap());
            assert!(!answer.has("retry-after") && !answer.has_limit_fields());
        }
        assert_eq!(send(&app, token("t")).await.status, 200, "the refusals charged nothing");
    }

    // Also where the key cannot be had at all, which is a 500 only unless something was said.
    let rule = Rule::new("address", Limit::per_minute(1), key::peer_addr()).on_missing_key(MissingKey::Skip);
    assert_eq!(get_root(&app([rule], &clock)).await.status, 200);
}

#[tokio::test]
async fn a_reason_of_the_users_own_is_told_whatever_characters_it_has() {
    const REASON: &str = "no \"tenant\" \\ set:\n\tadd the tenant layer, caf\u{e9}";
    let clock = ManualClock::new();
    let rule = Rule::new("tenant", Limit::per_minute(1), |_: &Request| Some(Key::unavailable(REASON)));
    let answer = get_root(&app([rule], &clock)).await;
    assert_eq!(answer.status, 500);
    assert_eq!(answer.problem()["detail"], REASON);
}

#[tokio::test]
async fn retry_after_is_the_wait_in_whole_seconds_rounded_up_and_at_least_one() {
    // One per 10 s: at `used` nanoseconds after the only permit was taken.
    const WINDOW: u64 = 10_000_000_000;
    for (used, told) in [
        (0, 10),
        (1, 10),
        (999_999_999, 10),
        (1_000_000_000, 9),
        (1_000_000_001, 9),
        (8_999_999_999, 2),
        (9_000_000_000, 1),
        (9_000_000_001, 1),
        (WINDOW - 1, 1),
    ] {
        let clock = ManualClock::new();
        let app = app([Rule::global("all", Limit::new(1, SECOND * 10))], &clock);
        assert_eq!(get_root(&app).await.status, 200);
        clock.advance(Duration::from_nanos(used));
        let answer = get_root(&app).await;
        assert_eq!((answer.status, answer.retry_after()), (StatusCode::TOO_MANY_REQUESTS, told), "at {used} ns");
        clock.advance(Duration::from_nanos(WINDOW - used));
        assert_eq!(get_root(&app).await.status, 200);
    }
}

#[tokio::test]
async fn every_response_tells_the_tightest_rule() {
    let clock = ManualClock::new();
    let is_post = |request: &Request| request.method() == Method::POST;
    let app = app(
        [
            Rule::global("reads", Limit::per_minute(5)).algorithm(FixedWindow),
            Rule::global("writes", Limit::per_second(3).burst(3)).when(is_post),
        ],
        &clock,
    );
    let read = async || get_root(&app).await;
    let write = async || send(&app, request(Method::POST, &[])).await;
    assert_eq!(read().await.limit_fields(), [5, 4, 60]);
    assert_eq!(write().await.limit_fields(), [3, 2, 1], "two of three are less than three of five");
    assert_eq!(write().await.limit_fields(), [3, 1, 1]);
    assert_eq!(read().await.limit_fields(), [5, 1, 60], "the rule of writes has no part in a read");
    clock.advance(SECOND * 20);
    assert_eq!(write().await.limit_fields(), [5, 0, 40]);
    let refused = write().await;
    assert_eq!((refused.status, refused.limit_fields()), (StatusCode::TOO_MANY_REQUESTS, [5, 0, 40]));
    assert_eq!(refused.retry_after(), 40);
    clock.advance(SECOND * 40);
    assert_eq!(read().await.limit_fields(), [5, 4, 60]);
}

#[tokio::test]
async fn nothing_is_told_where_no_rule_applied() {
    let clock = ManualClock::new();
    let never = Rule::global("never", Limit::per_minute(1)).when(|_: &Request| false);
    for rules in [vec![], vec![never]] {
        let answer = get_root(&app(rules, &clock)).await;
        assert_eq!((answer.status, answer.body.as_str()), (StatusCode::OK, "hello"));
        assert!(!answer.has_limit_fields() && !answer.has("retry-after") && !answer.has("cache-control"));
    }
}

#[tokio::test]
async fn responses_that_pass_keep_their_own_status_fields_and_body() {
    let clock = ManualClock::new();
    let created = || async { (StatusCode::CREATED, [("cache-control", "max-age=60"), ("etag", "\"1\"")], "made") };
    let app = Router::new().route("/", get(created)).layer(layer([Rule::global("a", Limit::per_minute(2))], &clock));
    let answer = get_root(&app).await;
    assert_eq!((answer.status, answer.body.as_str()), (StatusCode::CREATED, "made"));
    assert_eq!((answer.field("cache-control"), answer.field("etag")), ("max-age=60", "\"1\""));
    assert_eq!(answer.limit_fields(), [2, 1, 30]);
    // Also those of routes that are not there: the request was made.
    let missing = send(&app, Request::builder().uri("/missing").body(Body::empty()).unwrap()).await;
    assert_eq!((missing.status, missing.limit_fields()), (StatusCode::NOT_FOUND, [2, 0, 60]));
}

#[tokio::test]
async fn told_numbers_can_be_switched_off_and_refusals_still_say_when() {
    let clock = ManualClock::new();
    let quiet = layer([Rule::global("all", Limit::per_minute(1))], &clock).headers(Headers::None);
    let app = hello().layer(quiet);
    assert!(!get_root(&app).await.has_limit_fields());
    let refused = get_root(&app).await;
    assert_eq!((refused.status, refused.retry_after()), (StatusCode::TOO_MANY_REQUESTS, 60));
    assert_eq!(refused.field("cache-control"), "no-store");
    assert!(!refused.has_limit_fields());
}

#[tokio::test]
async fn head_is_answered_with_the_fields_of_get_and_no_body() {
    let clock = ManualClock::new();
    let app = app([Rule::global("all", Limit::per_minute(1))], &clock);
    assert_eq!(send(&app, request(Method::HEAD, &[])).await.status, 200);
    let get = get_root(&app).await;
    let head = send(&app, request(Method::HEAD, &[])).await;
    assert_eq!((get.status, head.status), (StatusCode::TOO_MANY_REQUESTS, StatusCode::TOO_MANY_REQUESTS));
    assert!(!get.body.is_empty());
    assert_eq!(head.body, "");
    // RFC 9110, 8.6: "a server MUST NOT send Content-Length in such a response unless its field value equals the
    // decimal number of octets that would have been sent in the content of a response if the same request had used
    // the GET method."
    assert_eq!(head.headers, get.headers);
}

#[tokio::test]
async fn nested_layers_tell_the_tightest_rule_on_the_way() {
    for outer_is_tighter in [true, false] {
        let clock = ManualClock::new();
        let rule = |name, limit| -> RateLimitLayer<Request> { layer([Rule::global(name, limit)], &clock) };
        let (tight, roomy) = (Limit::per_minute(2), Limit::per_hour(100));
        let (outer, inner) = if outer_is_tighter { (tight, roomy) } else { (roomy, tight) };
        let app = hello().layer(rule("inner", inner)).layer(rule("outer", outer));
        assert_eq!(get_root(&app).await.limit_fields(), [2, 1, 30]);
        assert_eq!(get_root(&app).await.limit_fields(), [2, 0, 60]);
        let refused = get_root(&app).await;
        assert_eq!(refused.status, 429);
        assert_eq!(refused.limit_fields(), [2, 0, 60]);
        assert_eq!(refused.problem()["violated-policies"], json!([if outer_is_tighter { "outer" } else { "inner" }]));
    }
}

#[tokio::test]
async fn a_refusal_by_an_inner_layer_keeps_its_own_numbers() {
    // Five of the inner rule's eight are left, so more than the outer's; but what the client has to hear is why this
    // request was refused.
    let clock = ManualClock::new();
    let inner = layer([Rule::global("inner", Limit::per_minute(8)).cost(|_| 6)], &clock);
    let outer = layer([Rule::global("outer", Limit::per_hour(3))], &clock);
    let app = hello().layer(inner).layer(outer);
    assert_eq!(get_root(&app).await.status, 200);
    clock.advance(SECOND * 15);
    let refused = get_root(&app).await;
    assert_eq!((refused.status, refused.retry_after()), (StatusCode::TOO_MANY_REQUESTS, 15));
    assert_eq!(refused.limit_fields(), [8, 4, 30]);
}

#[tokio::test]
async fn fields_of_a_foreign_limit_are_left_alone_where_they_cannot_be_read() {
    let clock = ManualClock::new();
    let foreign = || async { ([("x-ratelimit-remaining", "plenty"), ("x-ratelimit-reset", "soon")], "hello") };
    let app = Router::new().route("/", get(foreign)).layer(layer([Rule::global("a", Limit::per_minute(2))], &clock));
    let answer = get_root(&app).await;
    assert_eq!((answer.field("x-ratelimit-remaining"), answer.field("x-ratelimit-reset")), ("plenty", "soon"));
    assert!(!answer.has("x-ratelimit-limit"));
}
