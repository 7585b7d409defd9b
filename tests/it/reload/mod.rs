//! Other rules while requests go on: what was used stays used, and a bad set changes nothing.

mod under_load;

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Request, Response, StatusCode};
use tokio_test::block_on;
use tollgate::{
    Key, Limit, Limiter, RateLimitLayer, ReloadCounts, Rule,
    bucket::{FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog},
    key,
    response::Headers,
    store::{Guarded, MemoryStore},
    time::{ManualClock, Nanos},
};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::Remote;

const TODAY: Nanos = Nanos::from_secs(1_700_000_000);

fn rule(name: &'static str, limit: Limit) -> Rule<u64> {
    Rule::new(name, limit, |key: &u64| Some(Key::from(*key)))
}

fn limiter(clock: &ManualClock, rules: impl IntoIterator<Item = Rule<u64>>) -> Limiter<u64> {
    Limiter::builder(rules).clock(clock.clone()).build().unwrap()
}

fn passes(limiter: &Limiter<u64>, key: u64) -> usize {
    (0..1_000).take_while(|_| limiter.check_now(&key).unwrap().is_allowed()).count()
}

/// B55: a client that asks all the time, while the same file is loaded again and again.
#[test]
fn the_same_rules_loaded_again_give_nobody_a_fresh_burst() {
    let clock = ManualClock::at(TODAY);
    let rules = || [rule("user", Limit::per_second(10)), rule("hour", Limit::per_hour(10_000))];
    let limiter = limiter(&clock, rules());
    let mut passed = passes(&limiter, 7);
    for milli in 1..=10_000 {
        clock.advance(Duration::from_millis(1));
        if milli % 100 == 0 {
            let reloaded = limiter.reload(rules()).unwrap();
            assert_eq!((reloaded.kept.len(), reloaded.changed.len()), (2, 0));
        }
        passed += passes(&limiter, 7);
    }
    assert_eq!(passed, 110);
    assert_eq!(limiter.reloads().reloaded, 100);
}

#[test]
fn a_changed_rule_takes_effect_for_the_next_request_and_a_removed_one_stops() {
    let clock = ManualClock::at(TODAY);
    let limiter = limiter(&clock, [rule("user", Limit::per_hour(5)), rule("other", Limit::per_hour(2))]);
    assert_eq!(passes(&limiter, 1), 2);
    let reloaded = limiter.reload([rule("user", Limit::per_hour(10))]).unwrap();
    assert_eq!((&*reloaded.changed, &*reloaded.removed), (&["user".to_owned()][..], &["other".to_owned()][..]));
    assert_eq!(passes(&limiter, 1), 8);
    assert_eq!(limiter.check_now(&1).unwrap().violated().collect::<Vec<_>>(), ["user"]);
}

#[test]
fn a_set_that_cannot_work_changes_nothing_and_is_counted() {
    let clock = ManualClock::at(TODAY);
    let limiter = limiter(&clock, [rule("user", Limit::per_hour(3)), rule("other", Limit::per_hour(9))]);
    assert_eq!(passes(&limiter, 1), 3);
    for (set, field) in [
        (vec![rule("user", Limit::per_hour(30)), rule("other", Limit::per_hour(0))], "limit"),
        (vec![rule("user", Limit::per_hour(30)), rule("user", Limit::per_hour(3))], "name"),
        (vec![rule("renamed", Limit::per_hour(30)).was("user"), rule("x", Limit::per_hour(3)).fixed_cost(4)], "cost"),
        (vec![rule("user", Limit::per_hour(30)).was("other"), rule("other", Limit::per_hour(3))], "was"),
    ] {
        let error = limiter.reload(set).unwrap_err();
        assert_eq!(error.field(), field, "{error}");
        assert_eq!(passes(&limiter, 1), 0);
        assert_eq!(limiter.check_now(&1).unwrap().rules().count(), 2);
    }
    let mut counts = ReloadCounts::default();
    counts.failed = 4;
    assert_eq!(limiter.reloads(), counts);
}

/// A store that cannot run the last rule of a set finds that out when the others were bound already.
#[test]
fn a_set_that_the_store_cannot_run_changes_nothing_either() {
    let (store, clock) = (MemoryStore::new(), ManualClock::at(TODAY));
    let build = |rules: Vec<Rule<u64>>| Limiter::builder(rules).store(store.clone()).clock(clock.clone()).build();
    let limiter = build(vec![rule("user", Limit::per_hour(3))]).unwrap();
    let _other = build(vec![rule("taken", Limit::per_hour(3))]).unwrap();
    assert_eq!(passes(&limiter, 1), 3);
    let set = [
        rule("user", Limit::per_hour(30)).algorithm(SlidingWindowLog),
        rule("taken", Limit::per_hour(3)).algorithm(FixedWindow),
    ];
    assert_eq!(limiter.reload(set).unwrap_err().field(), "store");
    let renamed =
        [rule("new", Limit::per_hour(30)).was("user"), rule("taken", Limit::per_hour(3)).algorithm(FixedWindow)];
    assert_eq!(limiter.reload(renamed).unwrap_err().field(), "store");
    assert_eq!((passes(&limiter, 1), passes(&limiter, 2)), (0, 3));
    let joined = build(vec![rule("user", Limit::per_hour(3))]).unwrap();
    assert_eq!((passes(&joined, 1), passes(&joined, 2)), (0, 0));
}

#[test]
fn order_and_other_rules_touch_no_counts_and_a_new_name_keeps_them() {
    let clock = ManualClock::at(TODAY);
    let limiter = limiter(&clock, [rule("a", Limit::per_hour(2)), rule("b", Limit::per_hour(5))]);
    assert_eq!(passes(&limiter, 1), 2);
    let reordered = [rule("c", Limit::per_hour(9)), rule("b", Limit::per_hour(5)), rule("a", Limit::per_hour(2))];
    limiter.reload(reordered).unwrap();
    assert_eq!(passes(&limiter, 1), 0);
    // As an operator would who renames a rule and leaves the note in the file.
    for _ in 0..2 {
        limiter.reload([rule("a-new", Limit::per_hour(2)).was("a"), rule("b", Limit::per_hour(5))]).unwrap();
        assert_eq!(passes(&limiter, 1), 0);
    }
    let reloaded = limiter.reload([rule("b", Limit::per_hour(5)), rule("a", Limit::per_hour(2))]).unwrap();
    assert_eq!((reloaded.added.len(), reloaded.removed.len()), (1, 1));
    assert_eq!(passes(&limiter, 1), 2, "another rule, though one of this name was there once");
}

#[test]
fn a_rule_that_was_removed_and_comes_back_starts_afresh() {
    let (store, clock) = (MemoryStore::new(), ManualClock::at(TODAY));
    let rules = [rule("a", Limit::per_hour(2)), rule("b", Limit::per_hour(9))];
    let limiter = Limiter::builder(rules).store(store.clone()).clock(clock).build().unwrap();
    assert_eq!((passes(&limiter, 1), store.tracked_keys()), (2, 2));
    limiter.reload([rule("b", Limit::per_hour(9))]).unwrap();
    assert_eq!(store.tracked_keys(), 1, "nothing is kept of it");
    limiter.reload([rule("a", Limit::per_hour(2)), rule("b", Limit::per_hour(9))]).unwrap();
    assert_eq!(passes(&limiter, 1), 2);
}

#[test]
fn another_algorithm_starts_with_what_the_old_one_says_was_used() {
    let clock = ManualClock::at(TODAY);
    let limiter = limiter(&clock, [rule("a", Limit::per_hour(10))]);
    assert!((0..7).all(|_| limiter.check_now(&1).unwrap().is_allowed()));
    limiter.reload([rule("a", Limit::per_hour(10)).algorithm(SlidingWindowLog)]).unwrap();
    assert_eq!(passes(&limiter, 1), 3);
    clock.advance(Duration::from_secs(1_800));
    assert_eq!(passes(&limiter, 1), 0, "a log refills nothing meanwhile");
    limiter.reload([rule("a", Limit::per_hour(10))]).unwrap();
    assert_eq!(passes(&limiter, 1), 0);
    clock.advance(Duration::from_secs(360));
    assert_eq!(passes(&limiter, 1), 1);
}

#[test]
fn who_waits_for_a_turn_keeps_it_and_the_next_ones_queue_behind() {
    let clock = ManualClock::at(TODAY);
    let queue = |limit: Limit| rule("queue", limit.burst(5)).algorithm(LeakyBucket);
    let limiter = limiter(&clock, [queue(Limit::per_second(1))]);
    let _ = block_on(limiter.acquire(&1)).unwrap();
    let mut waits = tokio_test::task::spawn(limiter.acquire(&1));
    assert!(waits.poll().is_pending());
    limiter.reload([queue(Limit::per_second(2))]).unwrap();
    let mut behind = tokio_test::task::spawn(limiter.acquire(&1));
    assert!(behind.poll().is_pending());
    clock.advance(Duration::from_millis(999));
    assert!(waits.poll().is_pending());
    clock.advance(Duration::from_millis(1));
    assert!(waits.poll().is_ready() && behind.poll().is_ready());
}

#[test]
fn who_waits_for_a_place_is_judged_by_the_rules_under_which_it_came() {
    let places = |count| rule("jobs", Limit::in_flight(count)).queue(9, Duration::from_secs(60));
    let limiter = limiter(&ManualClock::at(TODAY), [places(1)]);
    let (_, first) = block_on(limiter.acquire_receipt(&1)).unwrap();
    let mut waits = tokio_test::task::spawn(limiter.acquire_receipt(&1));
    assert!(waits.poll().is_pending());
    limiter.reload([places(3), rule("other", Limit::per_hour(9))]).unwrap();
    assert!(waits.poll().is_pending(), "one at a time was in force when it came");
    drop(first);
    assert!(waits.is_woken());
    let std::task::Poll::Ready(Ok((decision, _second))) = waits.poll() else { panic!("its turn has not come") };
    assert_eq!(decision.rules().map(|rule| rule.limit).collect::<Vec<_>>(), [Limit::in_flight(1)]);
    let (third, _third) = block_on(limiter.acquire_receipt(&1)).unwrap();
    assert_eq!((third.is_allowed(), third.rules().count()), (true, 2));
}

#[test]
fn a_request_ends_by_the_rules_it_began_with() {
    let (memory, clock) = (MemoryStore::new(), ManualClock::at(TODAY));
    let remote = Remote::over(&memory);
    let rules = [rule("first", Limit::per_hour(9)), rule("gone", Limit::per_hour(1))];
    let limiter = Limiter::builder(rules).store(remote.clone()).clock(clock).build().unwrap();
    let mut asked = tokio_test::task::spawn(limiter.check(&1));
    assert!(asked.poll().is_pending());
    limiter.reload([rule("other", Limit::per_hour(9))]).unwrap();
    remote.answer();
    let std::task::Poll::Ready(Ok(decision)) = asked.poll() else { panic!("not answered") };
    assert_eq!(decision.rules().map(|rule| rule.rule.to_owned()).collect::<Vec<_>>(), ["first", "gone"]);
}

#[test]
fn what_is_given_back_after_a_reload_comes_back_to_where_it_counts() {
    let clock = ManualClock::at(TODAY);
    let limiter = limiter(&clock, [rule("a", Limit::per_hour(10))]);
    let (_, receipt) = limiter.reserve_now(&1).unwrap();
    let (_, settled) = limiter.reserve_now(&1).unwrap();
    limiter.reload([rule("b", Limit::per_hour(10)).was("a")]).unwrap();
    receipt.give_back();
    settled.settle(4);
    assert_eq!(passes(&limiter, 1), 6);
}

async fn status<S>(service: &mut S) -> StatusCode
where
    S: Service<Request<String>, Response = Response<tollgate::ResponseBody<String>>, Error = Infallible>,
{
    let request = Request::builder().header("x-user", "ana").body(String::new()).unwrap();
    service.ready().await.unwrap().call(request).await.unwrap().status()
}

#[test]
fn every_clone_of_a_layer_and_its_services_has_the_new_rules() {
    let user = |permits| Rule::new("user", Limit::per_hour(permits), key::header("x-user"));
    let layer = RateLimitLayer::new([user(1)]);
    let inner = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let (mut one, mut other) = (layer.layer(inner), layer.clone().layer(inner));
    block_on(async {
        assert_eq!((status(&mut one).await, status(&mut other).await), (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS));
        layer.limiter().reload([user(3)]).unwrap();
        assert_eq!((status(&mut one).await, status(&mut other).await), (StatusCode::OK, StatusCode::OK));
        assert_eq!(status(&mut one.clone()).await, StatusCode::TOO_MANY_REQUESTS);
        layer.limiter().reload([]).unwrap();
        assert_eq!((status(&mut one).await, status(&mut other).await), (StatusCode::OK, StatusCode::OK));
    });
}

/// The fields' texts are written once for many responses, and the name of a rule may be one and the same text in every
/// set.
#[test]
fn responses_tell_of_the_rules_in_force_from_the_first_one_on() {
    let clock = ManualClock::at(TODAY);
    let user = |name, limit| Rule::new(name, limit, key::header("x-user"));
    let rules = Limiter::builder([user("user", Limit::per_hour(5))]).clock(clock.clone()).build().unwrap();
    let inner = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let mut service = RateLimitLayer::from(rules.clone()).headers(Headers::Ietf).layer(inner);
    let mut told = || {
        let request = Request::builder().header("x-user", "ana").body(String::new()).unwrap();
        let response = block_on(service.call(request)).unwrap();
        let field = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        (field("ratelimit-policy"), field("ratelimit"))
    };
    let both = |policies: &str, limits: &str| (policies.to_owned(), limits.to_owned());
    // Twice each: what is told first is written, and what is told next has been.
    assert_eq!(told(), both(r#""user";q=5;w=3600"#, r#""user";r=4;t=2880"#));
    assert_eq!(told(), both(r#""user";q=5;w=3600"#, r#""user";r=3;t=2160"#));
    rules.reload([user("user", Limit::per_hour(10))]).unwrap();
    assert_eq!(told(), both(r#""user";q=10;w=3600"#, r#""user";r=7;t=2520"#));
    assert_eq!(told(), both(r#""user";q=10;w=3600"#, r#""user";r=6;t=2160"#));
    rules.reload([user("other", Limit::per_hour(10))]).unwrap();
    assert_eq!(told(), both(r#""other";q=10;w=3600"#, r#""other";r=9;t=3240"#));
    rules.reload([user("other", Limit::per_hour(10)), Rule::global("all", Limit::per_hour(9))]).unwrap();
    assert_eq!(told(), both(r#""other";q=10;w=3600, "all";q=9;w=3600"#, r#""other";r=8;t=2880, "all";r=8;t=3200"#));
    rules.reload([user("other", Limit::per_hour(10)).when(|_| false)]).unwrap();
    let request = Request::builder().header("x-user", "ana").body(String::new()).unwrap();
    let response = block_on(service.call(request)).unwrap();
    assert!(response.headers().is_empty(), "{:?}", response.headers());
}

/// A layer that cannot tell how a request was answered would let such a charge stand for ever.
#[test]
fn rules_that_count_by_outcome_do_not_come_into_force_where_a_layer_cannot_judge_them() {
    let wrong = |rule: Rule<u64>| rule.count_only_when(|response| response.status() == StatusCode::UNAUTHORIZED);
    let first = limiter(&ManualClock::at(TODAY), [rule("a", Limit::per_hour(5))]);
    first.reload([wrong(rule("a", Limit::per_hour(5)))]).unwrap();
    first.reload([rule("a", Limit::per_hour(5))]).unwrap();
    let layer = RateLimitLayer::from(first.clone()).refuse_with(|_, _| "not now");
    let error = first.reload([rule("b", Limit::per_hour(5)), wrong(rule("a", Limit::per_hour(9)))]).unwrap_err();
    assert_eq!((error.rule(), error.field()), ("a", "count_only_when"));
    assert!(error.to_string().contains("refuse_with_outcome"), "{error}");
    let back = rule("a", Limit::per_hour(9)).give_back_when(|_| true);
    assert_eq!(layer.limiter().reload([back]).unwrap_err().field(), "give_back_when");
    assert_eq!((passes(&first, 1), first.reloads().failed), (5, 2));

    // One that can tell takes them.
    let other = limiter(&ManualClock::at(TODAY), [rule("a", Limit::per_hour(5))]);
    let _layer = RateLimitLayer::from(other.clone()).refuse_with_outcome(|_, _| "not now", |_| Response::new(()));
    other.reload([wrong(rule("a", Limit::per_hour(9)))]).unwrap();
}

#[test]
fn a_guarded_store_goes_on_too_and_forgets_whom_it_refused() {
    let clock = ManualClock::at(TODAY);
    let store = Guarded::new(MemoryStore::new(), tollgate::FailurePolicy::Refuse);
    let limiter = Limiter::builder([rule("a", Limit::per_hour(3))]).store(store.clone()).clock(clock).build().unwrap();
    assert_eq!((passes(&limiter, 1), store.remembered_refusals()), (3, 1));
    limiter.reload([rule("a", Limit::per_hour(5)).algorithm(FixedWindow)]).unwrap();
    assert_eq!(store.remembered_refusals(), 0);
    assert_eq!(passes(&limiter, 1), 2);
}

#[test]
fn what_a_shadow_has_counted_goes_on() {
    let limiter = limiter(&ManualClock::at(TODAY), [rule("a", Limit::per_hour(1)).shadow()]);
    let _ = (limiter.check_now(&1), limiter.check_now(&1));
    assert_eq!(limiter.differences("a").unwrap().would_refuse, 1);
    limiter.reload([rule("b", Limit::per_hour(1)), rule("c", Limit::per_hour(1)).shadow().was("a")]).unwrap();
    let _ = (limiter.check_now(&2), limiter.check_now(&1));
    assert_eq!(limiter.differences("c").unwrap().would_refuse, 2);
}

#[test]
fn nothing_of_old_rules_is_kept_when_no_request_needs_them() {
    let held = Arc::new(());
    let watched = Arc::clone(&held);
    let rule_of = rule("a", Limit::per_hour(1)).when(move |_| Arc::strong_count(&watched) > 0);
    let limiter = limiter(&ManualClock::at(TODAY), [rule_of]);
    assert_eq!((passes(&limiter, 1), Arc::strong_count(&held)), (1, 2));
    limiter.reload([rule("a", Limit::per_hour(1))]).unwrap();
    assert_eq!((passes(&limiter, 1), Arc::strong_count(&held)), (0, 1));
}

#[test]
fn places_in_flight_are_held_over_reloads_whatever_changes() {
    let clock = ManualClock::at(TODAY);
    let limiter = limiter(&clock, [rule("exports", Limit::in_flight(2))]);
    let hold = || {
        let (decision, receipt) = limiter.reserve_now(&1).unwrap();
        decision.is_allowed().then_some(receipt)
    };
    let (first, second) = (hold().unwrap(), hold().unwrap());
    assert!(hold().is_none());
    limiter.reload([rule("jobs", Limit::in_flight(3)).was("exports"), rule("other", Limit::per_hour(100))]).unwrap();
    let third = hold().unwrap();
    assert!(hold().is_none());
    limiter.reload([rule("jobs", Limit::in_flight(1))]).unwrap();
    drop((first, second));
    assert!(hold().is_none(), "the third still runs");
    // A rate in between knows nothing of places, and they are still held when it is gone again.
    limiter.reload([rule("jobs", Limit::per_hour(9))]).unwrap();
    assert_eq!(passes(&limiter, 1), 9);
    limiter.reload([rule("jobs", Limit::in_flight(1))]).unwrap();
    assert!(hold().is_none());
    drop(third);
    assert!(hold().is_some());
}

#[test]
fn a_look_and_a_reset_reach_what_another_limiter_of_the_store_counts_by_another_algorithm() {
    let (store, clock, rule) = (MemoryStore::new(), ManualClock::at(TODAY), || rule("r", Limit::per_minute(1)));
    let limiter = || Limiter::builder([rule()]).store(store.clone()).clock(clock.clone()).build().unwrap();
    let (one, other) = (limiter(), limiter());
    one.reload([rule().algorithm(FixedWindow)]).unwrap();
    other.reload([rule().algorithm(SlidingWindowCounter)]).unwrap();
    assert!(other.check_now(&1).unwrap().is_allowed());
    // Nobody has been decided by this one's new algorithm yet.
    assert!(!one.peek_now(&1).unwrap().is_allowed());
    assert!(other.peek_now(&2).unwrap().is_allowed());
    block_on(one.reset("r", Key::from(1_u64))).unwrap();
    assert!(one.check_now(&1).unwrap().is_allowed());
}
