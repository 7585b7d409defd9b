//! Rules that change while others hold on to them.

use std::{convert::Infallible, sync::Weak, task::Poll};

use http::Response;
use tokio_test::{assert_pending, task};
use tollgate::{RateLimitLayer, key, response::Headers};
use tower::{Layer, ServiceExt, service_fn};

use super::*;
use crate::soon::ends;

/// Who waits keeps its turn when the line gets longer or shorter, or more patient.
#[test]
fn a_reload_of_the_queue_lets_nobody_overtake_those_who_wait() {
    let clock = ManualClock::new();
    let places = |most, secs| {
        Rule::new("places", Limit::in_flight(1), |id: &u64| Some(Key::from(*id))).queue(most, Duration::from_secs(secs))
    };
    let limiter = Limiter::builder([places(9, 30)]).clock(clock).build().unwrap();
    let (_, held) = limiter.reserve_now(&1).unwrap();
    let mut first = task::spawn(limiter.acquire_receipt(&1));
    assert_pending!(first.poll());
    limiter.reload([places(8, 60)]).unwrap();
    assert_eq!(limiter.waiting("places"), Some(1));
    let mut second = task::spawn(limiter.acquire_receipt(&1));
    assert_pending!(second.poll());
    drop(held);
    assert!(first.is_woken() && !second.is_woken());
    assert!(!limiter.reserve_now(&1).unwrap().0.is_allowed(), "others wait");
    assert_pending!(second.poll());
    let Poll::Ready(Ok((_, held))) = first.poll() else { panic!("it is its turn") };
    drop(held);
    assert!(second.is_woken() && second.poll().is_ready());
}

/// Two who need both places come under rules in one order and the other: neither may wait for the other at the head of
/// a line.
#[test]
fn a_reload_that_changes_the_order_of_rules_lets_nobody_wait_for_each_other() {
    let clock = ManualClock::new();
    let rule = |name: &'static str| {
        let rule = Rule::global(name, Limit::in_flight(1)).when(move |who: &&str| who.contains(name));
        rule.queue(9, Duration::from_secs(30))
    };
    let limiter = Limiter::builder([rule("a"), rule("b")]).clock(clock.clone()).build().unwrap();
    let (_, held) = limiter.reserve_now(&"a").unwrap();
    let acquire = || {
        let limiter = limiter.clone();
        task::spawn(async move { limiter.acquire_receipt(&"ab").await.unwrap() })
    };
    let mut waiting = vec![acquire()];
    assert_pending!(waiting[0].poll());
    limiter.reload([rule("b"), rule("a")]).unwrap();
    waiting.push(acquire());
    assert_pending!(waiting[1].poll());
    drop(held);
    for _ in 0..2 {
        waiting.retain_mut(|one| one.poll().is_pending());
        clock.advance(Duration::from_millis(100)); // who is first asks again
    }
    waiting.retain_mut(|one| one.poll().is_pending());
    assert!(waiting.is_empty(), "both places are free");
}

#[test]
fn clients_are_told_the_policies_in_force() {
    let user = |limit| Rule::<Request<String>>::new("user", limit, key::header("x-user"));
    let layer = RateLimitLayer::new([user(Limit::per_minute(10))]).headers(Headers::Ietf);
    let service = layer.layer(service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new()))));
    let told = || {
        let request = Request::builder().header("x-user", "ana").body(String::new()).unwrap();
        let response = tokio_test::block_on(service.clone().oneshot(request)).unwrap();
        response.headers()["ratelimit-policy"].to_str().unwrap().to_owned()
    };
    assert_eq!([told(), told()], [r#""user";q=10;w=60"#, r#""user";q=10;w=60"#]);
    layer.limiter().reload([user(Limit::per_minute(20))]).unwrap();
    assert_eq!([told(), told()], [r#""user";q=20;w=60"#, r#""user";q=20;w=60"#]);
    layer.limiter().reload([user(Limit::per_minute(20)), user(Limit::in_flight(3)).named("at-once")]).unwrap();
    assert_eq!(told(), r#""user";q=20;w=60, "at-once";q=3;qu="concurrent-requests""#);
}

/// What a closure of a rule owns, which loads other rules when it is dropped.
struct Reloads(Weak<OnceLock<Limiter<u64>>>);

impl Drop for Reloads {
    fn drop(&mut self) {
        if let Some(limiter) = self.0.upgrade() {
            limiter.get().unwrap().reload([Rule::global("dropped", Limit::per_minute(1))]).unwrap();
        }
    }
}

#[test]
fn what_a_closure_owns_may_reload_when_it_is_dropped() {
    let limiter: Arc<OnceLock<Limiter<u64>>> = Arc::default();
    limiter.set(Limiter::new([])).unwrap();
    let rule = |limit| {
        let owned = Reloads(Arc::downgrade(&limiter));
        Rule::new("user", limit, move |id: &u64| {
            let _ = &owned;
            Some(Key::from(*id))
        })
    };
    let (good, replaced) = (rule(Limit::per_minute(1)), Rule::global("last", Limit::per_minute(1)));
    let refused = [rule(Limit::per_minute(0)), rule(Limit::per_minute(1))];
    let shared = Arc::clone(&limiter);
    let reloaded = ends("deadlock: rules were dropped in another's turn", move || {
        let limiter = shared.get().unwrap();
        limiter.reload([good]).unwrap();
        limiter.reload([replaced]).unwrap();
        for rule in refused {
            // Two rules of one name, if nothing else is wrong.
            assert!(limiter.reload([rule.clone(), rule]).is_err());
        }
        limiter.reloads().reloaded
    });
    assert_eq!(reloaded, 5, "two, and one for each of the three that were dropped");
    drop(limiter);
}

/// A path that the router cannot hold is an error like others.
#[cfg(feature = "config")]
#[test]
fn a_path_of_endlessly_many_parameters_is_an_error() {
    use tollgate::config::Rules;
    let file = |parameters: usize| {
        let path: String = (0..parameters).map(|number| format!("/{{p{number}}}")).collect();
        Rules::from_toml(&format!(
            "[[policies]]\nid = \"a\"\nkey = \"global\"\nmatch = {{ path = \"{path}\" }}\nlimit = \"1/1s\"\n"
        ))
    };
    assert!(file(25).is_ok());
    for parameters in [26, 60_000] {
        let problems = file(parameters).unwrap_err().to_string();
        assert!(problems.contains("more than 25 parameters"), "{}", problems.get(..200).unwrap_or(&problems));
    }
}
