//! Charges that stand or come back by how a request was answered.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use tokio::sync::Semaphore;
use tollgate::{
    ErrorKind, Key, Limit, RateLimitLayer,
    bucket::{Algorithm, Bucket, FixedWindow, SlidingWindowCounter, SlidingWindowLog, TokenBucket},
};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::*;

/// The password is in the path.
fn attempt(password: &str) -> Asked {
    Request::builder().uri(format!("/{password}")).header("x-account", "ana").body(()).unwrap()
}

fn failures(limit: Limit) -> Rule<Asked> {
    Rule::new("login", limit, tollgate::key::header("x-account"))
        .count_only_when(|response| response.status() == StatusCode::UNAUTHORIZED)
}

const FIVE: Limit = Limit::per_minute(5);

/// Says whether the password is right, when it is let to.
async fn check(attempt: Asked, reached: Arc<AtomicUsize>, go: Arc<Semaphore>) -> Result<Answered, Broken> {
    if attempt.uri().path() != "/right" {
        reached.fetch_add(1, Ordering::Relaxed);
    }
    go.acquire().await.expect("never closed").forget();
    match attempt.uri().path() {
        "/right" => Ok(ok(Frames::known([]))),
        "/broken" => Err(Broken(1)),
        _ => Ok(unauthorized(Frames::known([]))),
    }
}

/// Sends all attempts at once, and lets passwords be checked only when all have been decided on. Returns the statuses.
fn at_once<'a>(layer: &RateLimitLayer<Asked>, attempts: impl Iterator<Item = &'a str>) -> (Vec<u16>, usize) {
    let (reached, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let statuses = runtime.block_on(async {
        let decided = Arc::new(Semaphore::new(0));
        let tasks: Vec<_> = attempts
            .map(|password| {
                let (reached, go, decided) = (Arc::clone(&reached), Arc::clone(&go), Arc::clone(&decided));
                let service = layer.layer(service_fn(move |attempt| check(attempt, reached.clone(), go.clone())));
                let attempt = attempt(password);
                tokio::spawn(async move {
                    let mut response = std::pin::pin!(service.oneshot(attempt));
                    let first = futures_util::poll!(&mut response);
                    decided.add_permits(1);
                    match first {
                        std::task::Poll::Ready(response) => response.unwrap().status().as_u16(),
                        std::task::Poll::Pending => response.await.unwrap().status().as_u16(),
                    }
                })
            })
            .collect();
        let all = u32::try_from(tasks.len()).unwrap();
        decided.acquire_many(all).await.unwrap().forget();
        go.add_permits(tasks.len());
        futures_util::future::join_all(tasks).await.into_iter().map(Result::unwrap).collect()
    });
    (statuses, reached.load(Ordering::Relaxed))
}

#[test]
fn of_a_thousand_wrong_passwords_at_once_five_reach_the_checker() {
    let quarter_of_an_hour = Duration::from_secs(900);
    for algorithm in [Algorithm::SlidingWindowLog, Algorithm::TokenBucket] {
        let rule = failures(Limit::new(5, quarter_of_an_hour));
        let rule = match algorithm {
            Algorithm::SlidingWindowLog => rule.algorithm(SlidingWindowLog),
            _ => rule,
        };
        let limiter = limiter([rule]);
        let layer = RateLimitLayer::from(limiter.clone());
        let (statuses, reached) = at_once(&layer, std::iter::repeat_n("wrong", 1_000));
        let count = |status| statuses.iter().filter(|other| **other == status).count();
        assert_eq!((reached, count(401), count(429)), (5, 5, 995), "{}", algorithm.name());
        assert_eq!(used(&limiter, &attempt("wrong")), [5]);
    }
}

#[test]
fn a_thousand_right_passwords_count_nothing() {
    let limiter = limiter([failures(FIVE).algorithm(SlidingWindowLog)]);
    let layer = RateLimitLayer::from(limiter.clone());
    for _ in 0..200 {
        // As many at once as there is room for; each of them comes back.
        let (statuses, _) = at_once(&layer, std::iter::repeat_n("right", 5));
        assert_eq!(statuses, [200; 5]);
        assert_eq!(used(&limiter, &attempt("right")), [0]);
    }
    let (_, reached) = at_once(&layer, std::iter::repeat_n("wrong", 9));
    assert_eq!(reached, 5);
}

#[test]
fn right_and_wrong_at_once_leave_the_wrong_counted() {
    let limiter = limiter([failures(FIVE).algorithm(SlidingWindowLog)]);
    let layer = RateLimitLayer::from(limiter.clone());
    let mut wrong = 0;
    while wrong < 5 {
        let (statuses, reached) = at_once(&layer, ["right", "wrong", "right"].into_iter().cycle().take(60));
        assert!(statuses.iter().all(|status| matches!(status, 200 | 401 | 429)));
        wrong += reached;
        assert_eq!(used(&limiter, &attempt("wrong")), [wrong as u64]);
    }
    assert_eq!(wrong, 5);
}

/// Calls a service that answers so, at once.
fn answered(limiter: &Limiter<Asked>, password: &str) -> Result<u16, Broken> {
    let (reached, go) = (Arc::default(), Arc::new(Semaphore::new(9)));
    let mut service = RateLimitLayer::from(limiter.clone())
        .layer(service_fn(move |attempt| check(attempt, Arc::clone(&reached), Arc::clone(&go))));
    let response = service.call(attempt(password)).now_or_never().expect("at once");
    response.map(|response| response.status().as_u16())
}

#[test]
fn what_comes_back_is_exact_under_every_strategy() {
    fn each<B: Bucket + Copy>(bucket: B) {
        let limiter = limiter([failures(FIVE).algorithm(bucket)]);
        for failed in 1..=5 {
            for _ in 0..9 {
                assert_eq!(answered(&limiter, "right").unwrap(), 200, "{bucket:?}");
            }
            assert_eq!(answered(&limiter, "wrong").unwrap(), 401, "{bucket:?}");
            assert_eq!(used(&limiter, &attempt("wrong")), [failed], "{bucket:?}");
        }
        assert_eq!(answered(&limiter, "right").unwrap(), 429, "{bucket:?}");
    }
    each(TokenBucket);
    each(FixedWindow);
    each(SlidingWindowLog);
    each(SlidingWindowCounter);
}

/// Cases C12: five failed checks of a name an hour and account, and one more each twelve minutes.
#[test]
fn failed_checks_of_a_name_count_and_come_back_one_by_one() {
    let attempt = |name: &str, password: &str| {
        let mut attempt = attempt(password);
        attempt.headers_mut().insert("x-name", name.parse().unwrap());
        attempt
    };
    let key = tollgate::key::all((tollgate::key::header("x-account"), tollgate::key::header("x-name")));
    let rule = Rule::new("failures", Limit::per_hour(5), key)
        .count_only_when(|response| response.status() == StatusCode::UNAUTHORIZED);
    let clock = ManualClock::new();
    let limiter = Limiter::builder([rule]).clock(clock.clone()).build().unwrap();
    let ask = |name: &str, password: &str| {
        let (reached, go) = (Arc::default(), Arc::new(Semaphore::new(9)));
        let mut service = RateLimitLayer::from(limiter.clone())
            .layer(service_fn(move |attempt| check(attempt, Arc::clone(&reached), Arc::clone(&go))));
        let response = service.call(attempt(name, password)).now_or_never().expect("at once").unwrap();
        let wait = response.headers().get("retry-after").map(|wait| wait.to_str().unwrap().to_owned());
        (response.status().as_u16(), wait)
    };
    for _ in 0..5 {
        assert_eq!(ask("a.example", "right"), (200, None));
        assert_eq!(ask("a.example", "wrong"), (401, None));
    }
    assert_eq!(ask("a.example", "right"), (429, Some("720".into())));
    assert_eq!(ask("b.example", "wrong"), (401, None));
    clock.advance(Duration::from_secs(720) - Duration::from_nanos(1));
    assert_eq!(ask("a.example", "right"), (429, Some("1".into())));
    clock.advance(Duration::from_nanos(1));
    assert_eq!(ask("a.example", "right"), (200, None), "which costs nothing");
    assert_eq!(ask("a.example", "wrong"), (401, None));
    assert_eq!(ask("a.example", "wrong"), (429, Some("720".into())));
}

#[test]
fn whom_nobody_answers_counts_unless_the_rule_says_otherwise() {
    for (rule, counted) in [(failures(FIVE), 1), (failures(FIVE).give_back_unanswered(), 0)] {
        let limiter = limiter([rule]);
        assert_eq!(answered(&limiter, "broken").unwrap_err(), Broken(1));
        assert_eq!(used(&limiter, &attempt("wrong")), [counted]);
    }
}

#[test]
fn give_back_when_is_the_other_way_round_and_any_of_several_is_enough() {
    let rule = Rule::global("calls", FIVE)
        .give_back_when(|response| response.status().is_server_error())
        .give_back_when(|response| response.headers().contains_key("x-cache-hit"));
    let limiter = limiter([rule]);
    let after = |response: Response<()>| {
        let (_, mut receipt) = limiter.reserve_now(&attempt("any")).unwrap();
        receipt.judge(&response);
        drop(receipt);
        used(&limiter, &attempt("any"))
    };
    assert_eq!(after(Response::builder().status(502).body(()).unwrap()), [0]);
    assert_eq!(after(Response::builder().header("x-cache-hit", "1").body(()).unwrap()), [0]);
    assert_eq!(after(Response::new(())), [1]);
}

#[test]
fn count_only_when_is_said_of_any_of_several() {
    let rule = Rule::global("calls", FIVE)
        .count_only_when(|response| response.status() == StatusCode::UNAUTHORIZED)
        .count_only_when(|response| response.status() == StatusCode::FORBIDDEN);
    let limiter = limiter([rule]);
    for (status, counted) in [(401, 1), (200, 1), (500, 1), (403, 2)] {
        let (_, mut receipt) = limiter.reserve_now(&attempt("any")).unwrap();
        receipt.judge(&Response::builder().status(status).body(()).unwrap());
        drop(receipt);
        assert_eq!(used(&limiter, &attempt("any")), [counted], "{status}");
    }
}

#[test]
fn a_receipt_is_judged_once_and_what_it_says_else_holds() {
    let limiter = limiter([failures(Limit::per_minute(9)), failures_too(), Rule::global("rate", Limit::per_minute(9))]);
    let reserve = || limiter.reserve_now(&attempt("any")).unwrap().1;
    let all = || used(&limiter, &attempt("any"));
    let (right, wrong) = (Response::new(()), unauthorized_head());

    let mut receipt = reserve();
    receipt.judge(&right);
    assert_eq!(all(), [0, 0, 1]);
    receipt.judge(&wrong);
    drop(receipt);
    assert_eq!(all(), [0, 0, 1], "once");

    let mut receipt = reserve();
    receipt.judge(&wrong);
    receipt.judge(&right);
    drop(receipt);
    assert_eq!(all(), [1, 1, 2], "once");

    drop(reserve());
    assert_eq!(all(), [2, 1, 3], "without an answer");
    reserve().keep();
    assert_eq!(all(), [3, 2, 4], "kept whatever the answer");
    reserve().give_back();
    assert_eq!(all(), [3, 2, 4]);
    reserve().settle(2);
    assert_eq!(all(), [5, 4, 6], "what is settled stands");
}

fn failures_too() -> Rule<Asked> {
    Rule::global("failures", Limit::per_minute(9))
        .count_only_when(|response| response.status() == StatusCode::UNAUTHORIZED)
        .give_back_unanswered()
}

fn unauthorized_head() -> Response<()> {
    Response::builder().status(401).body(()).unwrap()
}

#[test]
fn a_check_that_could_not_be_judged_is_an_error() {
    let limiter = limiter([failures(FIVE)]);
    assert_eq!(limiter.check_now(&attempt("any")).unwrap_err().kind(), ErrorKind::NeedsReceipt);
    assert_eq!(used(&limiter, &attempt("any")), [0]);
}

#[test]
fn a_service_whose_responses_cannot_be_read_is_an_error_when_it_is_put_together() {
    let rule = Rule::new("tries", FIVE, |name: &String| Some(Key::from(name))).give_back_when(|_| true);
    let put = catch_unwind(AssertUnwindSafe(|| RateLimitLayer::new([rule]).refuse_with(|_, _| "refused")));
    let text = *put.expect_err("it panics").downcast::<String>().unwrap();
    assert!(text.contains("rule \"tries\"") && text.contains("use refuse_with_outcome"), "{text}");
}

#[test]
fn a_service_that_is_not_http_frees_places_and_is_judged_by_what_its_answers_would_be() {
    let rules = || {
        [
            Rule::global("place", Limit::in_flight(2)),
            Rule::new("tries", FIVE, |name: &String| Some(Key::from(name)))
                .count_only_when(|response| response.status() == StatusCode::UNAUTHORIZED),
        ]
    };
    let limiter = limiter(rules());
    let layer = RateLimitLayer::from(limiter.clone()).refuse_with_outcome(
        |_, _| Err("refused"),
        |answer: &Result<u32, &str>| if answer.is_ok() { Response::new(()) } else { unauthorized_head() },
    );
    let mut service = layer.layer(service_fn(|name: String| {
        let answer: Box<dyn Future<Output = _> + Send + Unpin> = match name.as_str() {
            "slow" => Box::new(std::future::pending()),
            "right" => Box::new(std::future::ready(Ok::<_, Broken>(Ok(1)))),
            _ => Box::new(std::future::ready(Ok(Err("wrong")))),
        };
        answer
    }));
    let used = |name: &str| used(&limiter, &name.to_owned());
    let slow = [service.call("slow".into()), service.call("slow".into())].map(|mut call| {
        assert!((&mut call).now_or_never().is_none());
        call
    });
    assert_eq!(used("slow"), [2, 2]);
    let mut ask = |name: &str| service.call(name.into()).now_or_never().unwrap().unwrap();
    assert_eq!(ask("right"), Err("refused"));
    drop(slow);
    assert_eq!(used("slow"), [0, 2], "without an answer it counts");
    assert_eq!((ask("right"), ask("wrong")), (Ok(1), Err("wrong")));
    assert_eq!((used("right"), used("wrong")), (vec![0, 0], vec![0, 1]));
}
