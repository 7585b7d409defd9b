//! The Redis store and the memory store, asked the same at the same times, have to say the same.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::runtime::Runtime;
use tollgate::{
    Key, Limit,
    bucket::Algorithm,
    charge::{Charge, Judged, RuleSpec, Slot, Take, Taken, Verdicts},
    decision::{Outcome, Wait},
    key::KeyId,
    store::{MemoryStore, RedisStore, Reply, Store},
    time::Nanos,
};

use super::{LONGER, by_the_clock, lua, secret, server::Server};
use crate::random::{Random, from_env};

const SECOND: u64 = 1_000_000_000;

/// A rule as the test has it: what it may be asked under, and how long it may hold a request.
struct Rule {
    name: &'static str,
    limits: Vec<Limit>,
    max_delay: Nanos,
    /// Units too fine for Redis are rounded when something comes back from the middle of the schedule.
    gives_back: bool,
    memory: Slot,
    redis: Slot,
}

/// What was charged in both stores, and what has happened to its rule by then.
struct Charged {
    rule: usize,
    memory: Taken,
    redis: Taken,
    disturbed: u64,
}

/// One rule's part of a request: the rule, key, limit, cost, keep, longest delay, vote, and when it is taken.
type Part = (usize, KeyId, Limit, u64, u64, Nanos, bool, Take, Option<usize>);

struct Pair<'a> {
    runtime: &'a Runtime,
    memory: MemoryStore,
    redis: RedisStore,
    rules: Vec<Rule>,
    charged: Vec<Charged>,
    /// For each rule, how often a limit changed or a bucket was forgotten or turned back.
    disturbed: Vec<u64>,
    now: u64,
    told: u64,
    /// The latest time at which the memory store dropped a bucket that answered as a fresh one, and how many went so
    /// far.
    dropped: u64,
    evicted: u64,
    operations: u64,
    /// What was done last, for whoever has to find out why the stores disagree.
    trail: VecDeque<String>,
}

fn secs(permits: u64, secs: u64) -> Limit {
    Limit::new(permits, Duration::from_secs(secs))
}

fn rules() -> Vec<(&'static str, Algorithm, Vec<Limit>, u64, bool)> {
    let ten = Limit::per_second(10);
    let millis = |permits, millis| Limit::new(permits, Duration::from_millis(millis));
    use Algorithm::{FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket};
    vec![
        ("token", TokenBucket, vec![ten, ten.burst(25), Limit::per_second(20).burst(7)], 0, true),
        ("third", TokenBucket, vec![Limit::per_second(3).burst(5)], 0, true),
        ("odd", TokenBucket, vec![Limit::new(7, Duration::from_micros(13_001)).burst(30)], 0, true),
        ("nanos", TokenBucket, vec![Limit::new(5, Duration::from_nanos(13))], 0, true),
        ("waits", TokenBucket, vec![Limit::per_second(7).burst(3)], SECOND, true),
        ("year", TokenBucket, vec![secs(12, 365 * 86_400)], 0, true),
        ("hour", TokenBucket, vec![Limit::per_hour(1_009)], 0, false),
        ("queue", LeakyBucket, vec![Limit::per_second(5).burst(5)], u64::MAX, true),
        ("short", LeakyBucket, vec![Limit::per_second(9).burst(20)], SECOND / 3, true),
        ("fixed", FixedWindow, vec![millis(7, 700), millis(4, 700), millis(9, 1_300)], 0, true),
        ("day", FixedWindow, vec![Limit::per_day(40)], 0, true),
        ("counter", SlidingWindowCounter, vec![millis(8, 700), millis(3, 700), millis(11, 900)], 0, true),
        ("minute", SlidingWindowCounter, vec![Limit::per_minute(50)], 0, true),
        ("log", SlidingWindowLog, vec![millis(7, 700), millis(3, 700), millis(12, 1_900)], 0, true),
        ("long", SlidingWindowLog, vec![secs(400, 3)], 0, true),
    ]
}

impl<'a> Pair<'a> {
    fn new(runtime: &'a Runtime, url: &str) -> Self {
        // So many shards that hardly ever two of the few keys share one: to a late thread, a bucket's time is its
        // shard's.
        let memory = MemoryStore::builder().secret(secret()).max_keys(50_000_000).build();
        let redis = runtime.block_on(by_the_clock(url).connect()).unwrap();
        let rules: Vec<_> = rules()
            .into_iter()
            .map(|(name, algorithm, limits, max_delay, gives_back)| {
                let spec = RuleSpec::new(name, algorithm, limits[0]);
                let (memory, redis) = (memory.bind(&spec, None).unwrap(), redis.bind(&spec, None).unwrap());
                Rule { name, limits, max_delay: Nanos::new(max_delay), gives_back, memory, redis }
            })
            .collect();
        let disturbed = vec![0; rules.len()];
        let now = 1_700_000_000 * SECOND;
        let (charged, trail) = (Vec::new(), VecDeque::new());
        let (told, dropped, evicted, operations) = (0, 0, 0, 0);
        Self { runtime, memory, redis, rules, charged, disturbed, now, told, dropped, evicted, operations, trail }
    }

    fn now(&self) -> Nanos {
        Nanos::new(self.now)
    }

    fn note(&mut self, rule: usize, what: &dyn std::fmt::Debug) {
        if self.trail.len() >= 200 {
            self.trail.pop_front();
        }
        self.trail.push_back(format!("{} at {}: {}: {what:?}", self.operations, self.now, self.rules[rule].name));
    }

    /// What was done last under a rule, a line each.
    fn trail(&self, rule: usize) -> String {
        let of = format!(": {}: ", self.rules[rule].name);
        self.trail.iter().filter(|line| line.contains(&of)).map(|line| format!("\n{line}")).collect()
    }

    /// Moves the time, in whole microseconds: not at all, a little, to where something was told to happen or just
    /// beside it, far; or back a little, as threads that come late see it, or far, as a clock that was set. Not behind
    /// the time at which memory dropped a bucket as good as new: that time is all it knows of the key, while Redis
    /// still has the bucket.
    fn idle(&mut self, random: &mut Random) {
        let micro = 1_000;
        // What is told in hours is waited for now and then.
        let told = if self.told > 5 * SECOND && !random.one_in(12) { SECOND } else { self.told };
        let forward = match random.below(24) {
            0..=5 => 0,
            6 | 7 => random.below(5) * micro,
            8..=11 => random.below(SECOND / 10),
            12 | 13 => told,
            14 => told.saturating_sub(micro),
            15 => told + micro,
            16 | 17 => random.below(SECOND),
            18 => random.below(4 * SECOND),
            19 if random.one_in(30) => random.below(3 * 86_400 * SECOND),
            20 if random.one_in(4) => {
                self.go_back(random.below(SECOND) / micro * micro);
                return;
            }
            21 if random.one_in(40) => {
                self.go_back(SECOND + random.below(40 * SECOND) / micro * micro);
                self.disturbed.iter_mut().for_each(|disturbed| *disturbed += 1);
                return;
            }
            _ => random.below(SECOND / 50),
        };
        self.now += forward.min(400 * 86_400 * SECOND).div_ceil(micro) * micro;
    }

    fn go_back(&mut self, by: u64) {
        self.now = (self.now - by).max(self.dropped);
    }

    fn operate(&mut self, random: &mut Random) {
        self.idle(random);
        self.operations += 1;
        self.do_something(random);
        let evicted = self.memory.counts().evicted_keys;
        if evicted > self.evicted {
            (self.evicted, self.dropped) = (evicted, self.dropped.max(self.now));
        }
    }

    fn do_something(&mut self, random: &mut Random) {
        match random.below(10) {
            0 | 1 => self.adjust(random),
            2 if random.one_in(8) => self.reset(random),
            3 | 4 => {
                let together = 2 + random.below(5);
                let asked: Vec<_> = (0..together).map(|_| self.request(random)).collect();
                self.decide(random, &asked);
            }
            _ => {
                let asked = self.request(random);
                self.decide(random, &[asked]);
            }
        }
    }

    /// One request of several rules.
    fn request(&self, random: &mut Random) -> Vec<Part> {
        let mut asked: Vec<Part> = Vec::new();
        for _ in 0..1 + random.below(4) {
            let rule = random.below(self.rules.len() as u64) as usize;
            if asked.iter().any(|(other, ..)| *other == rule) {
                continue;
            }
            let of = &self.rules[rule];
            let limit = if random.one_in(12) { random.below(of.limits.len() as u64) as usize } else { 0 };
            let limit = of.limits[limit];
            let capacity = limit.capacity();
            let cost = match random.below(16) {
                0 => 0,
                1 => capacity,
                2 => capacity + 1,
                3 => 1 + random.below(capacity),
                4 if random.one_in(8) => u64::MAX - 1,
                _ => 1 + random.below(3.min(capacity)),
            };
            let keep = if random.one_in(8) { random.below(3) } else { 0 };
            let max_delay = if random.one_in(3) { Nanos::ZERO } else { of.max_delay };
            let votes = !random.one_in(8);
            let take = match random.below(16) {
                0 => Take::Never,
                // What fits in no bucket is a debt for as long as the store can tell.
                1 if cost <= capacity + 1 => Take::Always,
                _ => Take::IfPassed,
            };
            let key = Key::from(random.below(3)).id(self.redis.secret());
            // Any of the others, itself, or none that is there.
            let in_place_of = random.one_in(4).then(|| random.below(4) as usize);
            asked.push((rule, key, limit, cost, keep, max_delay, votes, take, in_place_of));
        }
        asked
    }

    fn charges<'c>(&'c self, asked: &[Part], slot: fn(&Rule) -> &Slot) -> Vec<Charge<'c>> {
        asked
            .iter()
            .map(|(rule, key, limit, cost, keep, max_delay, votes, take, in_place_of)| {
                let mut charge = Charge::new(slot(&self.rules[*rule]), *key, *limit, *cost);
                (charge.keep, charge.max_delay, charge.votes, charge.take) = (*keep, *max_delay, *votes, *take);
                charge.in_place_of = *in_place_of;
                charge
            })
            .collect()
    }

    /// Asks the server for all requests together, and the memory store for one after the other.
    fn decide(&mut self, random: &mut Random, requests: &[Vec<Part>]) {
        let replies = requests.iter().map(|asked| {
            match self.redis.decide(self.now(), &self.charges(asked, |rule| &rule.redis), &mut Verdicts::new()) {
                Reply::Pending(reply) => reply,
                Reply::Ready(other) => panic!("{other:?} without asking the server"),
            }
        });
        let replies = self.runtime.block_on(futures_util::future::join_all(replies));
        for (asked, redis) in requests.iter().zip(replies) {
            let redis = redis.unwrap_or_else(|error| panic!("{error}: {:?}", std::error::Error::source(&error)));
            self.compare(asked, &redis);
        }
        while self.charged.len() > 60 {
            self.charged.remove(random.below(30) as usize);
        }
    }

    fn compare(&mut self, asked: &[Part], redis: &Verdicts) {
        let mut memory = Verdicts::new();
        let charges = self.charges(asked, |rule| &rule.memory);
        let Reply::Ready(Ok(())) = self.memory.decide(self.now(), &charges, &mut memory) else {
            panic!("the memory store answers at once");
        };
        assert_eq!(redis.iter().len(), asked.len());
        for (asked, (one, other)) in asked.iter().zip(memory.iter().zip(redis.iter())) {
            let at = (self.operations, self.rules[asked.0].name, asked);
            assert_eq!(one.verdict, other.verdict, "memory and redis: {at:?}, after {}", self.trail(asked.0));
            self.note(asked.0, &(asked, one.verdict.outcome, one.verdict.remaining, one.mark));
            assert_eq!(one.mark.is_some(), other.mark.is_some(), "{at:?}");
            if let Outcome::Refuse(Wait::For(wait)) | Outcome::Delay(wait) = one.verdict.outcome {
                self.told = wait.get();
            }
        }
        for ((rule, key, limit, cost, _, max_delay, ..), (one, other)) in
            asked.iter().zip(memory.iter().zip(redis.iter()))
        {
            let of = &self.rules[*rule];
            let taken = |slot: &Slot, judged: &Judged| {
                let mut taken = Taken::new(slot.clone(), *key, *limit, *cost, judged.mark?);
                (taken.stamp, taken.delays) = (judged.stamp, *max_delay > Nanos::ZERO);
                Some(taken)
            };
            if let (true, Some(memory), Some(redis)) = (of.gives_back, taken(&of.memory, one), taken(&of.redis, other))
            {
                self.charged.push(Charged { rule: *rule, memory, redis, disturbed: self.disturbed[*rule] });
            }
        }
    }

    fn adjust(&mut self, random: &mut Random) {
        let Some(last) = self.charged.len().checked_sub(1) else { return };
        let place = if random.one_in(2) { last } else { random.up_to(last as u64) as usize };
        let mut charged = self.charged.swap_remove(place);
        let standing = charged.memory.cost;
        let cost = match random.below(6) {
            0 | 1 => 0,
            2 => standing,
            3 if standing < 1_000 => standing + 1 + random.below(4),
            _ => random.up_to(standing),
        };
        self.note(charged.rule, &("adjust", standing, cost, charged.memory.mark));
        self.memory.adjust(self.now(), &mut charged.memory, cost);
        self.redis.adjust(self.now(), &mut charged.redis, cost);
        self.runtime.block_on(self.redis.flush()).unwrap();
        // What is charged in addition after a limit changed comes back in Redis, which knows where it stands; in memory
        // it does not.
        let is_known = charged.memory.added.is_empty()
            || self.rules[charged.rule].limits.len() == 1 && charged.disturbed == self.disturbed[charged.rule];
        if cost > 0 && is_known {
            self.charged.push(charged);
        }
    }

    fn reset(&mut self, random: &mut Random) {
        let rule = random.below(self.rules.len() as u64) as usize;
        let key = Key::from(random.below(3)).id(self.redis.secret());
        self.disturbed[rule] += 1;
        self.note(rule, &"reset");
        let Reply::Ready(Ok(())) = self.memory.reset(&self.rules[rule].memory, key) else { panic!("at once") };
        match self.redis.reset(&self.rules[rule].redis, key) {
            Reply::Pending(reply) => self.runtime.block_on(reply).unwrap(),
            Reply::Ready(reply) => reply.unwrap(),
        }
    }
}

/// A key on the server: its value, and its time to live in milliseconds.
type Held = HashMap<Vec<u8>, (Vec<u8>, i64)>;

/// How many milliseconds a bucket has until it is as good as new, read from its value as the script describes it.
fn lives(name: &[u8], value: &[u8], now: u64) -> f64 {
    let number = |at: usize| f64::from_le_bytes(value[at * 8..at * 8 + 8].try_into().unwrap());
    let (seen, x, y, a, b) = (number(1), number(2), number(3), number(4), number(5));
    let window_ends = (seen / a).floor() * a + a;
    let kind = name.split(|byte| *byte == b':').nth(3).unwrap()[0];
    let fresh_at = match kind {
        b't' | b'q' => seen + y / b,
        b'f' if x > 0.0 => window_ends,
        b'c' if x > 0.0 => window_ends + a,
        b'c' if y > 0.0 => window_ends,
        b'l' => {
            let entries = number(6) as usize;
            assert_eq!(value.len(), 56 + 16 * entries, "entries and their number");
            if entries as f64 > y { number(7 + 2 * (entries - 1)) + a } else { 0.0 }
        }
        _ => 0.0,
    };
    ((fresh_at - (now / 1_000) as f64) / 1_000.0).max(0.0)
}

/// Every key has a time to live, and what was just written has the right one: up to `elapsed` milliseconds ago.
fn check_lives(held: &Held, before: &Held, now: u64, elapsed: i64) {
    for (name, (value, ttl)) in held {
        let shown = String::from_utf8_lossy(name);
        assert!(*ttl > 0, "{shown} lives for ever: {ttl}");
        if before.get(name).is_some_and(|(old, _)| old == value) {
            continue;
        }
        let right = lives(name, value, now).ceil().max(1.0) as i64 + LONGER.as_millis() as i64;
        assert!((right - elapsed - 1..=right + 1).contains(ttl), "{shown}: {ttl} ms, not {right}, {elapsed} ms ago");
    }
}

#[test]
fn the_script_in_an_embedded_lua_agrees_with_the_memory_store() {
    let runtime = Runtime::new().unwrap();
    let url = lua::serve();
    let mut asks = ::redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
    for seed in 0..from_env("TOLLGATE_RUNS", 10).min(200) {
        let mut pair = Pair::new(&runtime, &url);
        let (mut random, mut before) = (Random::new(seed), Held::new());
        for _ in 0..400 {
            pair.operate(&mut random);
            let held: Vec<Vec<u8>> = ::redis::cmd("EVERYTHING").query(&mut asks).unwrap();
            let parsed = |ttl: &[u8]| std::str::from_utf8(ttl).unwrap().parse().unwrap();
            let held: Held = held.chunks(3).map(|key| (key[0].clone(), (key[1].clone(), parsed(&key[2])))).collect();
            check_lives(&held, &before, pair.now, 0);
            before = held;
        }
        for name in before.keys() {
            let _: () = ::redis::cmd("DEL").arg(name).query(&mut asks).unwrap();
        }
    }
}

#[test]
fn a_server_agrees_with_the_memory_store_and_its_keys_expire_when_they_are_as_good_as_new() {
    let (runtime, server) = (Runtime::new().unwrap(), Server::start());
    let mut asks = server.ask();
    let look = ::redis::Script::new(
        "local held = {} for _, key in ipairs(redis.call('KEYS', '*')) do held[#held + 1] = key \
         held[#held + 1] = redis.call('GET', key) held[#held + 1] = redis.call('PTTL', key) end return held",
    );
    let (operations, runs) = (from_env("TOLLGATE_REDIS_OPERATIONS", 5_000), 10);
    for seed in 0..runs {
        let mut pair = Pair::new(&runtime, &server.url());
        let (mut random, mut before) = (Random::new(1_000 + seed), Held::new());
        for _ in 0..operations.div_ceil(runs) {
            let begun = std::time::Instant::now();
            pair.operate(&mut random);
            let held: Vec<::redis::Value> = look.invoke(&mut asks).unwrap();
            let elapsed = begun.elapsed().as_millis() as i64 + 1;
            let read = |value: &::redis::Value| ::redis::from_redis_value_ref::<Vec<u8>>(value).unwrap();
            let ttl = |value: &::redis::Value| ::redis::from_redis_value_ref::<i64>(value).unwrap();
            let held: Held = held.chunks(3).map(|key| (read(&key[0]), (read(&key[1]), ttl(&key[2])))).collect();
            check_lives(&held, &before, pair.now, elapsed);
            before = held;
        }
        server.run::<()>(&["FLUSHALL"]);
    }
}
