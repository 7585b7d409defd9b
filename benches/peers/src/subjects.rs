//! What is asked for decisions, without any HTTP: ours at three depths, the peers, and a floor.

use std::{
    borrow::Cow,
    future::Future,
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    num::NonZeroU32,
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tollgate::{
    Key, Limit, Limiter, Rule,
    bucket::Algorithm,
    charge::{Charge, RuleSpec, Slot, Verdicts},
    key::{KeyId, Secret},
    store::{MemoryStore, Reply, Store},
    time::{Clock, QuantaClock},
};

use crate::{harness::fence, keys::Stream};

/// How much each client may do, alike for all.
#[derive(Clone, Copy)]
pub struct Quota {
    permits: u32,
    each: Duration,
}

impl Quota {
    /// Enough for the whole run, and every charge still counts ten seconds later, so that no store may drop what it has
    /// been told or skip writing it.
    pub const PLENTY: Self = Self { permits: 100_000_000, each: Duration::from_secs(10) };
    /// One, and then no more.
    pub const ONE: Self = Self { permits: 1, each: Duration::from_secs(1_000_000) };

    pub fn is_one(self) -> bool {
        self.permits == 1
    }

    pub fn ours(self) -> Limit {
        Limit::new(u64::from(self.permits), self.each * self.permits)
    }

    pub fn governors(self) -> governor::Quota {
        let burst = NonZeroU32::new(self.permits).expect("not zero");
        governor::Quota::with_period(self.each).expect("not zero").allow_burst(burst)
    }

    fn rate_nets(self) -> rate_net::Quota {
        rate_net::Quota::rate(self.permits, self.each * self.permits).expect("valid for rate-net")
    }

    fn tiers(self) -> tower_rate_tier::Quota {
        tower_rate_tier::Quota::with_window(self.permits, self.each * self.permits)
    }
}

/// Something that decides.
pub trait Subject: Send + Sync {
    fn name(&self) -> &'static str;
    /// Makes the stream's keys ready in the form it takes them.
    fn on<'a>(&'a self, stream: &'a Stream) -> Box<dyn Checks + 'a>;
}

/// A subject with a stream of keys.
pub trait Checks: Send + Sync {
    /// Checks `count` keys of the stream, starting with number `from` and beginning again at its end. Returns how many
    /// passed.
    fn run(&self, from: usize, count: usize, fenced: bool) -> usize;
}

struct Named<K, I, C> {
    name: &'static str,
    keys: I,
    check: C,
    of: std::marker::PhantomData<fn(&K)>,
}

struct Ready<'a, K: Clone, C> {
    keys: Cow<'a, [K]>,
    check: &'a C,
}

impl<K, I, C> Subject for Named<K, I, C>
where
    K: Clone + Send + Sync + 'static,
    I: for<'s> Fn(&'s Stream) -> Cow<'s, [K]> + Send + Sync,
    C: Fn(&K) -> bool + Send + Sync,
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn on<'a>(&'a self, stream: &'a Stream) -> Box<dyn Checks + 'a> {
        Box::new(Ready { keys: (self.keys)(stream), check: &self.check })
    }
}

impl<K: Clone + Send + Sync, C: Fn(&K) -> bool + Send + Sync> Checks for Ready<'_, K, C> {
    fn run(&self, from: usize, count: usize, fenced: bool) -> usize {
        let (keys, mut at, mut passed) = (&*self.keys, from % self.keys.len(), 0);
        for _ in 0..count {
            passed += usize::from((self.check)(&keys[at]));
            at += 1;
            if at == keys.len() {
                at = 0;
            }
            if fenced {
                fence();
            }
        }
        passed
    }
}

fn named<K: Clone + Send + Sync + 'static>(
    name: &'static str,
    keys: impl for<'s> Fn(&'s Stream) -> Cow<'s, [K]> + Send + Sync + 'static,
    check: impl Fn(&K) -> bool + Send + Sync + 'static,
) -> Box<dyn Subject> {
    Box::new(Named { name, keys, check, of: std::marker::PhantomData })
}

fn texts(stream: &Stream) -> Cow<'_, [String]> {
    Cow::Borrowed(&stream.texts)
}

fn addresses(stream: &Stream) -> Cow<'_, [IpAddr]> {
    Cow::Borrowed(&stream.addresses)
}

/// As many keys as most cases have, with room, so that none is turned away.
const MAX_KEYS: usize = 2_000_000;

/// As many keys as a memory store holds unless told otherwise, which decides how many shards it has.
const DEFAULT_MAX_KEYS: usize = 1_000_000;

/// A store with one rule, asked directly.
pub struct Direct {
    pub store: MemoryStore,
    pub clock: QuantaClock,
    pub slot: Slot,
    pub limit: Limit,
}

impl Direct {
    pub fn new(quota: Quota) -> Self {
        Self::of(quota, MAX_KEYS)
    }

    pub fn of(quota: Quota, max_keys: usize) -> Self {
        let store = MemoryStore::builder().max_keys(max_keys).build();
        let limit = quota.ours();
        let spec = RuleSpec::new("client", Algorithm::TokenBucket, limit);
        let slot = store.bind(&spec, None).expect("a memory store runs a token bucket");
        Self { store, clock: QuantaClock::new(), slot, limit }
    }

    #[inline(always)]
    pub fn decide(&self, key: KeyId) -> bool {
        let charges = [Charge::new(&self.slot, key, self.limit, 1)];
        let mut verdicts = Verdicts::new();
        match self.store.decide(self.clock.now(), &charges, &mut verdicts) {
            Reply::Ready(Ok(())) => verdicts.iter().all(|judged| judged.verdict.outcome.passes()),
            _ => panic!("a memory store answers at once"),
        }
    }
}

/// Our store with a key that is ready: what a check costs below the limiter.
pub fn ours_ready_text(quota: Quota) -> Box<dyn Subject> {
    ours_ready(quota, |stream, secret| stream.texts.iter().map(|text| Key::from(text).id(secret)).collect())
}

pub fn ours_ready_address(quota: Quota) -> Box<dyn Subject> {
    ours_ready(quota, |stream, secret| stream.addresses.iter().map(|one| Key::from(*one).id(secret)).collect())
}

fn ours_ready(quota: Quota, ids: fn(&Stream, &Secret) -> Vec<KeyId>) -> Box<dyn Subject> {
    let direct = Direct::new(quota);
    let secret = direct.store.secret().clone();
    let keys = move |stream: &Stream| ids(stream, &secret);
    named("tollgate decide, ready key", owned(keys), move |key: &KeyId| direct.decide(*key))
}

fn owned<K: Clone>(
    keys: impl Fn(&Stream) -> Vec<K> + Send + Sync,
) -> impl for<'s> Fn(&'s Stream) -> Cow<'s, [K]> + Send + Sync {
    move |stream: &Stream| Cow::Owned(keys(stream))
}

/// Our store, the key made of a text for each check.
pub fn ours_text(quota: Quota) -> Box<dyn Subject> {
    let direct = Direct::new(quota);
    named("tollgate decide, text", texts, move |text: &String| direct.decide(Key::from(text).id(direct.store.secret())))
}

/// Our store, the key made of an address for each check.
pub fn ours_address(quota: Quota) -> Box<dyn Subject> {
    let direct = Direct::new(quota);
    named("tollgate decide, address", addresses, move |address: &IpAddr| {
        direct.decide(Key::from(*address).id(direct.store.secret()))
    })
}

pub fn limiter<Req>(rules: impl IntoIterator<Item = Rule<Req>>) -> Limiter<Req> {
    let store = MemoryStore::builder().max_keys(DEFAULT_MAX_KEYS).build();
    Limiter::builder(rules).store(store).clock(QuantaClock::new()).build().expect("valid rules")
}

#[inline(always)]
pub fn passes<Req>(limiter: &Limiter<Req>, request: &Req) -> bool {
    limiter.check_now(request).expect("a memory store answers").is_allowed()
}

/// Our whole limiter: closure, key, store behind a pointer, decision.
pub fn ours_whole_text(quota: Quota) -> Box<dyn Subject> {
    let limiter = limiter([Rule::new("client", quota.ours(), |text: &String| Some(Key::from(text)))]);
    named("tollgate Limiter, text", texts, move |text: &String| passes(&limiter, text))
}

/// Our whole limiter by address.
pub fn ours_whole_address(quota: Quota) -> Box<dyn Subject> {
    let limiter = limiter([Rule::new("client", quota.ours(), |address: &IpAddr| Some(Key::from(*address)))]);
    named("tollgate Limiter, address", addresses, move |address: &IpAddr| passes(&limiter, address))
}

/// governor, asked with a text that is there already.
pub fn governor_text(quota: Quota) -> Box<dyn Subject> {
    let limiter = governor::DefaultKeyedRateLimiter::<String>::keyed(quota.governors());
    named("governor String", texts, move |text: &String| limiter.check_key(text).is_ok())
}

/// governor, asked with a text that is made for each check, as tower_governor's extractors do.
pub fn governor_built(quota: Quota) -> Box<dyn Subject> {
    let limiter = governor::DefaultKeyedRateLimiter::<String>::keyed(quota.governors());
    named("governor String, built", texts, move |text: &String| limiter.check_key(&text.clone()).is_ok())
}

pub fn governor_address(quota: Quota) -> Box<dyn Subject> {
    let limiter = governor::DefaultKeyedRateLimiter::<IpAddr>::keyed(quota.governors());
    named("governor IpAddr", addresses, move |address: &IpAddr| limiter.check_key(address).is_ok())
}

/// rate-net's limiter for as many keys as ours, since its default is fewer than the largest case has.
fn rate_net_limiter(quota: Quota) -> rate_net::RateLimiter {
    rate_net::RateLimiter::with_quota(quota.rate_nets()).with_eviction(rate_net::Eviction::capacity(MAX_KEYS))
}

pub fn rate_net_text(quota: Quota) -> Box<dyn Subject> {
    let limiter = rate_net_limiter(quota);
    named("rate-net, text", texts, move |text: &String| limiter.check_bytes(text).is_allow())
}

pub fn rate_net_address(quota: Quota) -> Box<dyn Subject> {
    let limiter = rate_net_limiter(quota);
    named("rate-net, address", addresses, move |address: &IpAddr| limiter.check(*address).is_allow())
}

/// tower-rate-tier, which answers by a future that is ready at once.
pub fn tier_text(quota: Quota) -> Box<dyn Subject> {
    let tiers = tower_rate_tier::RateTier::builder().tier("free", quota.tiers()).gc_interval(NEVER).build();
    named("tower-rate-tier, text", texts, move |text: &String| {
        at_once(tiers.check(text, "free", 1)).expect("its memory store answers").is_ok()
    })
}

/// Longer than any run: nothing is swept while we measure something else.
pub const NEVER: Duration = Duration::from_secs(1_000_000);

/// Returns what a future that is ready at once has.
#[inline(always)]
pub fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a future that was to be ready at once is not"),
    }
}

/// What nobody can do without: a hash, a clock, one line of memory read and written. No key is compared, so it may be
/// wrong.
pub struct Floor {
    lines: Box<[Line]>,
    clock: QuantaClock,
}

#[repr(align(64))]
#[derive(Default)]
struct Line(AtomicU64);

impl Floor {
    pub fn new(keys: usize) -> Self {
        Self { lines: (0..keys.max(1)).map(|_| Line::default()).collect(), clock: QuantaClock::new() }
    }

    /// Hashes 16 bytes by one folded multiplication.
    #[inline(always)]
    pub fn touch_bits(&self, bits: u128) -> bool {
        let (low, high) = (bits as u64 ^ 0x243f_6a88_85a3_08d3, (bits >> 64) as u64 ^ 0x9e37_79b9_7f4a_7c15);
        let product = u128::from(low) * u128::from(high);
        self.touch(product as u64 ^ (product >> 64) as u64)
    }

    #[inline(always)]
    fn touch(&self, hash: u64) -> bool {
        let at = ((u128::from(hash) * self.lines.len() as u128) >> 64) as usize;
        let (time, now) = (&self.lines[at].0, self.clock.now().get());
        let seen = time.load(Ordering::Relaxed);
        // Whoever loses the race has touched the line all the same.
        let _ = time.compare_exchange(seen, now.max(seen), Ordering::Relaxed, Ordering::Relaxed);
        true
    }
}

/// The floor under texts, with the standard library's hash.
pub fn floor_text(keys: usize) -> Box<dyn Subject> {
    let (floor, hash) = (Floor::new(keys), RandomState::new());
    named("floor, text", texts, move |text: &String| floor.touch(hash.hash_one(text.as_bytes())))
}

/// The floor under addresses.
pub fn floor_address(keys: usize) -> Box<dyn Subject> {
    let floor = Floor::new(keys);
    named("floor, address", addresses, move |address: &IpAddr| {
        floor.touch_bits(match address {
            IpAddr::V4(v4) => u128::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits(),
        })
    })
}
