//! What a decision allocates: nothing, on a known key with the memory store.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, and says where")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    convert::Infallible,
    future::Future,
    net::{IpAddr, Ipv4Addr},
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use tollgate::{
    Decision, Key, Limit, Limiter, RateLimitLayer, Rule,
    bucket::{FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog},
    key,
    response::{Headers, RefusalBody, Refuse},
    time::ManualClock,
};
use tower::{Layer, Service, service_fn};

/// The system's allocator, with a count of what each thread asks it for. Giving back is not counted.
struct Counting;

thread_local! {
    // Initialised without allocating and without a destructor, so it can be touched from within the allocator.
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

#[allow(unsafe_code, reason = "an allocator cannot be written without; all of it is handed on to the system's")]
// SAFETY: every method hands its arguments on unchanged, so the system allocator's own contract holds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.with(|asked| asked.set(asked.get() + 1));
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ASKED.with(|asked| asked.set(asked.get() + 1));
        // SAFETY: as above.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(old, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns how often `run` asked for memory, on this thread.
fn allocations<T>(run: impl FnOnce() -> T) -> (u64, T) {
    let before = ASKED.with(Cell::get);
    let result = run();
    (ASKED.with(Cell::get) - before, result)
}

/// Returns how often memory may be asked for, from the file that has the reasons too.
fn most(name: &str) -> u64 {
    let limits: toml::Table = include_str!("../benches/limits.toml").parse().unwrap();
    let limit = limits.get("allocations").and_then(|all| all.get(name)?.get("most")?.as_integer());
    limit.unwrap_or_else(|| panic!("{name} has no limit")).try_into().unwrap()
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(7)))).0, 1);
    assert_eq!(allocations(|| std::hint::black_box(7)).0, 0);
}

const SECOND: Duration = Duration::from_secs(1);

/// A request that any kind of key can be taken from.
struct Call {
    short: &'static str,
    long: &'static str,
}

const CALL: Call = Call { short: "ana", long: "a session token that is much longer than fits into the key itself" };

type KeyOf = for<'a> fn(&'a Call) -> Option<Key<'a>>;

const KEYS: [(&str, KeyOf); 7] = [
    ("short text", |call| Some(call.short.into())),
    ("long text", |call| Some(call.long.into())),
    ("number", |_| Some(7_u64.into())),
    ("address", |_| Some(IpAddr::V4(Ipv4Addr::LOCALHOST).into())),
    ("pair", |call| Some((call.short, 7_u64).into())),
    ("pair of long texts", |call| Some((call.long, call.long).into())),
    ("first of two", |call| key::first((key::from_fn(|_: &Call| None), key::from_fn(by_short)))(call)),
];

fn by_short(call: &Call) -> Option<Key<'_>> {
    Some(call.short.into())
}

/// Five at once, and five a second, counted in each way there is.
fn algorithms(name: &'static str, key: KeyOf) -> [Rule<Call>; 5] {
    let rule = |limit| Rule::new(name, limit, key);
    [
        rule(Limit::per_second(5)),
        rule(Limit::per_second(5)).algorithm(FixedWindow),
        rule(Limit::per_second(5)).algorithm(SlidingWindowLog),
        rule(Limit::per_second(5)).algorithm(SlidingWindowCounter),
        rule(Limit::per_second(5).burst(5)).algorithm(LeakyBucket),
    ]
}

/// Makes every key known, and then counts over a minute of passes and refusals.
fn asked_in_a_minute(rules: Vec<Rule<Call>>) -> u64 {
    let clock = ManualClock::new();
    let limiter = Limiter::builder(rules).clock(clock.clone()).build().unwrap();
    let burst = || {
        let (mut passed, mut refused) = (0_u32, 0_u32);
        for _ in 0..7 {
            clock.advance(SECOND / 1_000);
            let decision = limiter.check_now(&CALL).unwrap();
            if decision.is_allowed() { passed += 1 } else { refused += 1 }
        }
        (passed, refused)
    };
    // A log has to have been full once to have the room for what it may hold.
    burst();
    let (asked, (passed, refused)) = allocations(|| {
        (0..60).fold((0, 0), |(passed, refused), _| {
            clock.advance(SECOND * 2);
            let (more_passed, more_refused) = burst();
            (passed + more_passed, refused + more_refused)
        })
    });
    assert!(passed >= 60 && refused >= 60, "{passed} {refused}");
    asked
}

#[test]
fn a_decision_on_a_known_key_allocates_nothing() {
    let mut wrong = Vec::new();
    for (kind, key) in KEYS {
        for (at, rule) in algorithms("one", key).into_iter().enumerate() {
            let others =
                [Rule::global("all", Limit::per_second(1_000)), algorithms("other", key)[(at + 1) % 5].clone()];
            let three = [vec![rule.clone()], others.to_vec()].concat();
            for rules in [vec![rule], three] {
                let names = format!("{kind}, {rules:?}");
                match asked_in_a_minute(rules) {
                    0 => {}
                    asked => wrong.push(format!("{asked} allocations: {names}")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_key_of_three_parts_allocates_nothing_either() {
    let key: KeyOf = |call| Some((call.short, 7_u64, call.long).into());
    let checks = 60 * 7;
    assert_eq!(asked_in_a_minute(vec![Rule::new("triple", Limit::per_second(5), key)]), 0, "in {checks} decisions");
}

#[test]
fn a_fourth_rule_costs_a_fixed_number_of_allocations() {
    // There is room for three rules without; what a fourth needs is asked for once, by the list of a decision.
    let rules = ["a", "b", "c", "d"].map(|name| Rule::new(name, Limit::per_second(5), KEYS[0].1));
    let limiter = Limiter::builder(rules).clock(ManualClock::new()).build().unwrap();
    let decide = || limiter.check_now(&CALL).unwrap();
    assert!(decide().is_allowed());
    let (asked, decision) = allocations(decide);
    assert!(decision.is_allowed());
    assert_eq!(asked, most("fourth_rule"));
}

type Body = Empty<Bytes>;

/// Counts one request through a service with one rule, from `poll_ready` to the response.
fn asked_by_a_request<R, Res>(layer: &RateLimitLayer<Request<Body>, R>, passes: u64) -> Vec<(u64, u16)>
where
    RateLimitLayer<Request<Body>, R>: Clone,
    R: Refuse<Request<Body>, Response<Body>, Response = Response<Res>> + Clone,
{
    // An inner service that allocates nothing itself.
    let inner = service_fn(|_: Request<Body>| std::future::ready(Ok::<_, Infallible>(Response::new(Body::new()))));
    let mut service = layer.layer(inner);
    let request = || {
        let mut request = Request::new(Body::new());
        request.headers_mut().insert("x-key", http::HeaderValue::from_static("k"));
        request
    };
    let mut cx = Context::from_waker(Waker::noop());
    let mut counts = Vec::new();
    for _ in 0..passes {
        let request = request();
        let (asked, response) = allocations(|| {
            assert!(service.poll_ready(&mut cx).is_ready());
            match pin!(service.call(request)).poll(&mut cx) {
                Poll::Ready(Ok(response)) => response,
                other => panic!("{}", other.is_pending()),
            }
        });
        counts.push((asked, response.status().as_u16()));
    }
    counts
}

fn three_a_minute() -> RateLimitLayer<Request<Body>> {
    let rule = Rule::new("key", Limit::per_minute(3), key::header("x-key"));
    Limiter::builder([rule]).clock(ManualClock::new()).build().unwrap().into()
}

#[test]
fn a_service_allocates_nothing_for_a_request_that_passes() {
    let layer = three_a_minute().headers(Headers::None);
    // The first request makes the key known.
    assert_eq!(asked_by_a_request(&layer, 3)[1..], [(0, 200), (0, 200)]);
}

#[test]
fn the_fields_of_a_response_cost_a_fixed_number_of_allocations() {
    // Numbers up to 9,999 are written already.
    let (layer, most) = (three_a_minute(), most("layer_x"));
    assert_eq!(asked_by_a_request(&layer, 3)[1..], [(most, 200), (most, 200)]);
}

#[test]
fn the_ietf_fields_are_written_where_those_of_earlier_responses_were() {
    let rule = || Rule::new("key", Limit::per_minute(100_000), key::header("x-key"));
    let layer = |rules: Vec<Rule<Request<Body>>>| {
        let limiter = Limiter::builder(rules).clock(ManualClock::new()).build().unwrap();
        RateLimitLayer::from(limiter).headers(Headers::Ietf)
    };
    let most = most("layer_ietf");
    for rules in [vec![rule()], vec![rule(), Rule::global("all", Limit::per_minute(100_000))]] {
        // The first response makes the key known, the policies and the first block.
        let asked = asked_by_a_request(&layer(rules), 5_000);
        let others: Vec<_> = asked.iter().enumerate().skip(1).filter(|(_, asked)| **asked != (most, 200)).collect();
        assert!(others.is_empty(), "{others:?}");
    }
}

#[test]
fn a_refusal_costs_a_fixed_number_of_allocations() {
    // Of refusals that are alike the second is kept, once, for those that follow.
    let kept = most("refusal_kept");
    let (layer, off) = (three_a_minute().headers(Headers::None), most("layer_refused_off"));
    assert_eq!(asked_by_a_request(&layer, 7)[4..], [(off + kept, 429), (off, 429), (off, 429)]);
    let (layer, x) = (three_a_minute(), most("layer_refused_x"));
    assert_eq!(asked_by_a_request(&layer, 7)[4..], [(x + kept, 429), (x, 429), (x, 429)]);
    let answer = |_: &Request<Body>, _: &Decision| Response::new(RefusalBody::default());
    let (layer, own) = (three_a_minute().headers(Headers::None).respond_with(answer), most("layer_refused_own"));
    assert_eq!(asked_by_a_request(&layer, 5)[3..], [(own, 200), (own, 200)]);
}
