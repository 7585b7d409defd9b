//! What is explained is what happens.

use std::{collections::VecDeque, task::Poll, time::Duration};

use http::StatusCode;
use tollgate::{
    Decision, Key, Limit, Limiter, MissingKey, Rule,
    bucket::{FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog},
    decision::Outcome,
    explain::{Application, Explanation},
    store::Receipt,
    time::{ManualClock, Nanos},
};

use crate::random::{Random, each_seed};

const TODAY: Nanos = Nanos::from_secs(1_700_000_000);

#[derive(Debug)]
struct Call {
    user: Option<u64>,
    path: u64,
    cost: u64,
    tier: u64,
}

fn random_call(random: &mut Random) -> Call {
    Call {
        user: (!random.one_in(5)).then(|| random.below(3)),
        path: random.below(3),
        cost: random.below(4),
        tier: random.below(4),
    }
}

fn random_rule(random: &mut Random, number: u64) -> Rule<Call> {
    let names = ["zero", "one", "two", "three", "four", "five"];
    let (name, permits) = (names[number as usize], 2 + random.below(8));
    let per_user = |limit| Rule::new(name, limit, |call: &Call| call.user.map(Key::from));
    let limit = Limit::per_second(permits);
    let rule = match random.below(7) {
        0 => per_user(limit.burst(1 + permits)),
        1 => per_user(limit).algorithm(FixedWindow),
        2 => per_user(limit).algorithm(SlidingWindowLog),
        3 => per_user(limit).algorithm(SlidingWindowCounter),
        4 => per_user(limit.burst(4)).algorithm(LeakyBucket),
        5 => per_user(limit).wait_up_to(Duration::from_millis(300)),
        _ => Rule::global(name, limit).overload(),
    };
    let rule = match random.below(3) {
        0 => rule.cost(|call| call.cost),
        1 => rule.fixed_cost(2),
        _ => rule,
    };
    let path = random.below(3);
    let rule = if random.one_in(2) { rule.when(|_| true).when(move |call| call.path >= path) } else { rule };
    // What none of them is said of does not apply without a key.
    let has_keys = format!("{rule:?}").contains("keyed: true");
    let rule = match random.below(8) {
        0 if has_keys => rule.on_missing_key(MissingKey::Share),
        1 if has_keys => rule.on_missing_key(MissingKey::Refuse(StatusCode::UNAUTHORIZED)),
        _ => rule,
    };
    let tier = random.below(6);
    let rule = match random.below(3) {
        // A tier whose limit cannot be run, now and then; the queue's need a depth.
        0 => rule.limit_for(move |call| if call.tier == tier { Limit::per_second(0) } else { limit.burst(5) }),
        _ => rule,
    };
    match random.below(6) {
        0 => rule.shadow(),
        1 => rule.warn(),
        _ => rule,
    }
}

/// Asks as the layer does, and holds nobody. `None` where the request would be held.
fn ask<Req>(limiter: &Limiter<Req>, request: &Req) -> Option<(Decision, Receipt)> {
    match tokio_test::task::spawn(limiter.acquire_receipt(request)).poll() {
        Poll::Ready(decision) => Some(decision.unwrap()),
        Poll::Pending => None,
    }
}

/// Explains, asks, and compares. Returns what ends with the request.
fn agree<Req: std::fmt::Debug>(limiter: &Limiter<Req>, request: &Req) -> Option<Receipt> {
    let explanation = limiter.explain_now(request).unwrap();
    let explained = &explanation.decision;
    let context = || format!("{request:?}\n{explanation}");
    let Some((decision, receipt)) = ask(limiter, request) else {
        assert!(explained.is_allowed() && explained.delay() > Duration::ZERO, "{}", context());
        return None;
    };
    assert_eq!(
        (explained.is_allowed(), explained.refusal()),
        (decision.is_allowed(), decision.refusal()),
        "{}",
        context()
    );
    assert_eq!((explained.status(), explained.delay()), (decision.status(), decision.delay()), "{}", context());
    assert_eq!(explained.retry_after(), decision.retry_after(), "{}", context());
    let asked: Vec<_> = explanation.rules.iter().filter(|rule| rule.verdict.is_some()).collect();
    for verdict in decision.rules() {
        let rule = asked.iter().find(|rule| rule.rule == verdict.rule).unwrap_or_else(|| panic!("{}", context()));
        let said = rule.verdict.unwrap();
        assert_eq!((rule.cost, rule.limit), (Some(verdict.cost), verdict.limit), "{}", context());
        if decision.is_allowed() {
            assert!(said.outcome.passes() && said.remaining >= verdict.verdict.remaining, "{}", context());
        } else {
            assert_eq!(said, verdict.verdict, "{}", context());
        }
    }
    let enforced = asked.iter().filter(|rule| rule.mode == tollgate::Mode::Enforce).count();
    assert_eq!(enforced, decision.rules().count(), "{}", context());
    check_reasons(&explanation);
    Some(receipt)
}

/// Whoever refuses is found in the explanation.
fn check_reasons(explanation: &Explanation) {
    let refuses = |rule: &tollgate::explain::ExplainedRule| match rule.application {
        Application::RefusedWithoutKey | Application::UnusableLimit | Application::Blocked => true,
        _ => rule.verdict.is_some_and(|verdict| matches!(verdict.outcome, Outcome::Refuse(_))),
    };
    let refused = explanation.rules.iter().any(|rule| rule.mode == tollgate::Mode::Enforce && refuses(rule));
    assert_eq!(refused, !explanation.decision.is_allowed(), "{explanation}");
}

#[test]
fn what_is_explained_of_random_requests_is_what_they_get() {
    each_seed(50, |random| {
        let clock = ManualClock::at(TODAY);
        let count = 1 + random.below(5);
        let rules: Vec<_> = (0..count).map(|number| random_rule(random, number)).collect();
        let limiter = Limiter::builder(rules).clock(clock.clone()).build().unwrap();
        for _ in 0..200 {
            clock.advance(Duration::from_millis(random.below(150)));
            drop(agree(&limiter, &random_call(random)));
        }
    });
}

/// 10,000 requests over the rule sets that large services have published.
#[cfg(feature = "config")]
#[test]
fn what_is_explained_under_published_rules_is_what_requests_get() {
    use crate::rules_as_data::published::{Account, rules};

    const PATHS: [&str; 15] = [
        "/",
        "/login",
        "/search",
        "/messages",
        "/reports/7",
        "/v1/charges",
        "/v1/files/f1",
        "/v1/customers/search",
        "/v1/billing/meter_events",
        "/acme/new-acct",
        "/acme/new-order",
        "/acme/chall/c1",
        "/admin/api/2026-01/graphql.json",
        "/admin/api/2026-01/products.json",
        "/v2/library/alpine/manifests/latest",
    ];
    // Some are on the lists of one set or another.
    const PEERS: [&str; 7] =
        ["192.0.2.1", "192.0.2.2", "192.0.2.10", "192.0.2.66", "192.0.2.99", "10.1.2.3", "2001:db8::1"];
    const HEADERS: [(&str, &[&str]); 10] = [
        ("x-number", &["555", "556"]),
        ("x-kind", &["marketing", "other"]),
        ("x-client-id", &["c1"]),
        ("x-api-key", &["k1", "k2"]),
        ("x-domain", &["a.example", "dyn.example"]),
        ("x-names", &["a", "a,b"]),
        ("x-identifier", &["a.example"]),
        ("x-customer", &["c"]),
        ("x-app", &["a1", "a2"]),
        ("x-shop", &["s1"]),
    ];
    let sets = ["dockerhub", "envoy", "kong", "letsencrypt", "nginx", "shopify", "stripe"];
    let [mut passed, mut refused, mut held] = [0; 3];
    let mut random = Random::new(4);
    let one_of = |random: &mut Random, texts: &[&'static str]| texts[random.below(texts.len() as u64) as usize];
    for set in sets {
        let clock = ManualClock::at(TODAY);
        let limiter = Limiter::builder(rules(set)).clock(clock.clone()).build().unwrap();
        // The last few requests are still being answered.
        let mut running = VecDeque::new();
        for _ in 0..10_000 / sets.len() + 1 {
            // So many that each set refuses some of them.
            clock.advance(Duration::from_millis(random.below(10)));
            let path = one_of(&mut random, &PATHS);
            let mut request = http::Request::builder()
                .uri(path)
                .method(one_of(&mut random, &["GET", "POST", "POST", "HEAD"]))
                .header("host", "api.example.com")
                .header("x-hits", random.below(5).to_string())
                .header("x-points", random.below(1_200).to_string())
                .body(())
                .unwrap();
            for (name, values) in HEADERS {
                if !random.one_in(3) {
                    request.headers_mut().insert(name, one_of(&mut random, values).parse().unwrap());
                }
            }
            if !random.one_in(50) {
                let peer: std::net::IpAddr = one_of(&mut random, &PEERS).parse().unwrap();
                request.extensions_mut().insert(peer);
            }
            let account = Account {
                name: one_of(&mut random, &["ana", "acme", "hosting"]),
                plan: one_of(&mut random, &["standard", "plus", "personal", "pro"]),
                mode: one_of(&mut random, &["live", "test"]),
            };
            if !random.one_in(6) {
                request.extensions_mut().insert(account);
            }
            let explained = limiter.explain_now(&request).unwrap().decision;
            match (explained.is_allowed(), explained.delay().is_zero()) {
                (true, true) => passed += 1,
                (true, false) => held += 1,
                (false, _) => refused += 1,
            }
            running.push_back(agree(&limiter, &request));
            if running.len() > 12 {
                running.pop_front();
            }
        }
    }
    println!(
        "of {} requests {passed} passed, {held} were held and {refused} refused, each as explained",
        passed + held + refused
    );
    assert!(passed + held + refused >= 10_000 && passed.min(refused) > 500 && held > 0);
}

/// A request with axum's body cannot be shared between threads, so a handler may await nothing that holds a reference
/// to it.
#[tokio::test]
async fn a_handler_may_await_what_would_be_decided_and_why() {
    use axum::{Router, body::Body, extract::Request, routing::get};
    use tower::ServiceExt;

    let clock = ManualClock::at(TODAY);
    let memory = tollgate::store::MemoryStore::new();
    let remote = crate::support::Remote::over(&memory);
    remote.answers_always();
    let rule = Rule::new("user", Limit::per_minute(1), tollgate::key::header("x-user"));
    let limiter: Limiter<Request> = Limiter::builder([rule]).store(remote).clock(clock).build().unwrap();
    let asked = limiter.clone();
    let handler = async move |request: Request| {
        let explanation = asked.explain(&request).await.unwrap().to_string();
        let passes = asked.peek(&request).await.unwrap().is_allowed();
        drop(request);
        format!("{passes} {}", explanation.lines().nth(1).unwrap())
    };
    let app = Router::new().route("/", get(handler));
    let request = || Request::builder().header("x-user", "ana").body(Body::empty()).unwrap();
    let said = async || {
        let response = app.clone().oneshot(request()).await.unwrap();
        axum::body::to_bytes(response.into_body(), 1_000).await.unwrap()
    };
    assert_eq!(said().await, r#"true "user": 1/min by the token bucket, key (text), cost 1: passes; 1 of 1 left"#);
    assert!(limiter.check(&request()).await.unwrap().is_allowed());
    assert_eq!(
        said().await,
        r#"false "user": 1/min by the token bucket, key (text), cost 1: refused, passes in 60s; 0 of 1 left"#
    );
    // And it may be kept for longer than the request.
    let later = limiter.peek(&request());
    assert!(!later.await.unwrap().is_allowed());
}

#[test]
fn an_explanation_charges_nothing_and_shows_no_key_unless_asked() {
    let clock = ManualClock::at(TODAY);
    let rules = [
        Rule::new("user", Limit::per_hour(2), |user: &&str| Some(Key::from(*user))),
        Rule::new("token", Limit::per_hour(2), |user: &&str| Some(Key::fingerprint(user.as_bytes()))).shadow(),
        Rule::new("nobody", Limit::per_hour(2), |_: &&str| None),
        Rule::new("must", Limit::per_hour(2), |_: &&str| None)
            .when(|user| user.is_empty())
            .on_missing_key(MissingKey::Refuse(StatusCode::UNAUTHORIZED)),
        Rule::blocked("mallory").when(|user: &&str| *user == "mallory"),
    ];
    let limiter = Limiter::builder(rules).clock(clock).build().unwrap();
    for _ in 0..5 {
        let explanation = limiter.explain_now(&"zoe-7").unwrap();
        let text = explanation.to_string();
        assert!(explanation.decision.is_allowed(), "{text}");
        let debug = format!("{explanation:?}");
        assert!(!text.contains("zoe-7") && !debug.contains("zoe-7"), "{text}{debug}");
        assert_eq!(
            explanation.with_keys().to_string(),
            "passes\n\
             \"user\": 2/h by the token bucket, key zoe-7 (text), cost 1: passes; 2 of 2 left\n\
             \"nobody\": not asked, the request has no key for it\n\
             \"must\": not asked, condition 1 is false\n\
             \"mallory\": not asked, condition 1 is false\n\
             \"token\" (shadow): 2/h by the token bucket, key .. (fingerprint), cost 1: passes; 2 of 2 left\n"
        );
    }
    assert!(limiter.check_now(&"zoe-7").unwrap().is_allowed());
    let said = |user: &'static str| limiter.explain_now(&user).unwrap().to_string();
    assert!(said("mallory").starts_with("refused with 429\n"), "{}", said("mallory"));
    assert!(said("mallory").contains("\"mallory\": refused, as all that it applies to\n"));
    assert!(said("").starts_with("refused with 401\n"), "{}", said(""));
    assert!(said("").contains("\"must\": refused, the request has no key for it\n"));
}
