//! Places in flight on a server: held by the process that took them, for as long as it lives and no longer.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tollgate::{
    FailurePolicy, Key, Limit, Limiter, Rule,
    bucket::Algorithm,
    charge::{Charge, RuleSpec, Share, Slot, Take, Taken, Verdicts},
    decision::{Outcome, Wait},
    key::Secret,
    store::{Guarded, MemoryStore, Receipt, Reply, Store},
    time::Nanos,
};

use super::{
    Duration, LONGER, RedisStore, RedisStoreBuilder, by_the_clock, comes_to, lua, secret, server::Server, until,
};
use crate::random::Random;

const PATIENCE: Duration = Duration::from_secs(10);
/// Long enough for a busy machine to renew in time.
const EXPIRY: Duration = Duration::from_secs(3);

fn builder(server: &Server) -> RedisStoreBuilder {
    RedisStore::builder(&server.url(), secret()).deadline(PATIENCE).connect_timeout(PATIENCE)
}

async fn connect(server: &Server) -> RedisStore {
    builder(server).connect().await.unwrap()
}

/// A client, how many places it takes, and whether a second rule refuses it.
#[derive(Clone, Copy)]
struct Call(u64, u64, bool);

fn limiter(store: impl Store, places: u64) -> Limiter<Call> {
    let rules = [
        Rule::new("client", Limit::in_flight(places), |call: &Call| Some(Key::from(call.0))).cost(|call| call.1),
        Rule::global("never", Limit::per_day(1)).cost(|_: &Call| 2).when(|call| call.2),
    ];
    Limiter::builder(rules).store(store).build().unwrap()
}

async fn enter(limiter: &Limiter<Call>, call: Call) -> Option<Receipt> {
    let (decision, receipt) = limiter.reserve(&call).await.unwrap();
    decision.is_allowed().then_some(receipt)
}

async fn left(limiter: &Limiter<Call>, client: u64) -> u64 {
    let decision = limiter.peek(&Call(client, 1, false)).await.unwrap();
    decision.tightest().unwrap().verdict.remaining
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_places_and_give_them_back_once() {
    let server = Server::start();
    let (store, other) = (connect(&server).await, connect(&server).await);
    let (here, there) = (limiter(store.clone(), 3), limiter(other.clone(), 3));
    let two = enter(&here, Call(1, 2, false)).await.unwrap();
    let (refused, _) = there.reserve(&Call(1, 2, false)).await.unwrap();
    assert_eq!(refused.tightest().unwrap().verdict.outcome, Outcome::Refuse(Wait::Unknown));
    let one = enter(&there, Call(1, 1, false)).await.unwrap();
    assert!(enter(&here, Call(1, 1, false)).await.is_none());
    assert!(enter(&here, Call(2, 3, false)).await.is_some(), "another client has its own");
    here.reset("client", Key::from(1_u64)).await.unwrap();
    assert_eq!(left(&there, 1).await, 0, "what runs stays counted");
    drop(two);
    store.flush().await.unwrap();
    assert_eq!(left(&there, 1).await, 2);
    let again = enter(&there, Call(1, 2, false)).await.unwrap();
    drop((one, again));
    other.flush().await.unwrap();
    assert_eq!(server.run::<Vec<String>>(&["KEYS", "*:client:*"]), [""; 0], "nothing is left of free places");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_another_rule_refuses_holds_no_place() {
    let server = Server::start();
    let limiter = limiter(connect(&server).await, 2);
    for _ in 0..5 {
        assert!(enter(&limiter, Call(1, 2, true)).await.is_none());
    }
    assert_eq!(server.run::<Vec<String>>(&["KEYS", "*"]), [""; 0]);
    let held = enter(&limiter, Call(1, 2, false)).await;
    assert!(held.is_some());
    let keys = server.run::<Vec<String>>(&["KEYS", "*"]);
    assert_eq!(keys.len(), 1);
    let lives = server.run::<i64>(&["PTTL", &keys[0]]);
    assert!((1..=10_000).contains(&lives), "{lives} ms");
}

/// B46: two rules, and requests that end in any way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_rules_with_places_none_keeps_one_when_requests_have_ended() {
    let server = Server::start();
    let store = connect(&server).await;
    let rules = [
        Rule::global("all", Limit::in_flight(2)),
        Rule::new("route", Limit::in_flight(2), |route: &&str| Some(Key::from(*route))),
    ];
    let limiter = Limiter::builder(rules).store(store.clone()).build().unwrap();
    for round in 0..5 {
        let (decision, receipt) = limiter.reserve(&"/").await.unwrap();
        assert!(decision.is_allowed());
        match round {
            0 => receipt.keep(),
            1 => receipt.give_back(),
            2 => receipt.settle(2),
            3 => drop(tokio::spawn(async move { panic!("with {receipt:?}") }).await.unwrap_err()),
            _ => drop(receipt),
        }
        store.flush().await.unwrap();
        assert_eq!(server.run::<Vec<String>>(&["KEYS", "*"]), [""; 0], "round {round}");
    }
    let at_once = futures_util::future::join_all(["/"; 3].iter().map(|route| limiter.reserve(route))).await;
    assert_eq!(at_once.iter().filter(|reply| reply.as_ref().unwrap().0.is_allowed()).count(), 2);
}

/// B49: 64 tasks and 8 places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_run_than_there_are_places() {
    let server = Server::start();
    let (store, running, most) = (connect(&server).await, Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let limiter = limiter(store.clone(), 8);
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (limiter, running, most) = (limiter.clone(), Arc::clone(&running), Arc::clone(&most));
            tokio::spawn(async move {
                let mut entered = 0;
                for _ in 0..50 {
                    let Some(receipt) = enter(&limiter, Call(1, 1, false)).await else { continue };
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    drop(receipt);
                    entered += 1;
                }
                entered
            })
        })
        .collect();
    let mut entered = 0;
    for task in tasks {
        entered += task.await.unwrap();
    }
    assert!(entered > 50 && most.load(Ordering::SeqCst) <= 8, "{entered} entered, {most:?} at once");
    store.flush().await.unwrap();
    assert_eq!(left(&limiter, 1).await, 8);
}

/// Alone it only shows that places can be held; told a server by another process it holds two until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_holds_its_places() {
    if let Ok(url) = std::env::var("TOLLGATE_HOLDS") {
        let store = RedisStore::builder(&url, secret()).deadline(PATIENCE).connect_timeout(PATIENCE);
        let limiter = limiter(store.places_expire_after(EXPIRY).connect().await.unwrap(), 3);
        let held = (enter(&limiter, Call(1, 1, false)).await, enter(&limiter, Call(1, 1, false)).await);
        println!("\nholds {}", u8::from(held.0.is_some()) + u8::from(held.1.is_some()));
        return std::future::pending().await;
    }
    let server = Server::start();
    let limiter = limiter(connect(&server).await, 1);
    assert!(enter(&limiter, Call(1, 1, false)).await.is_some());
}

/// A process that holds two of a client's places, and is killed when this is dropped.
struct Process(Child);

impl Process {
    fn start(server: &Server) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["redis::places::a_process_holds_its_places", "--exact", "--nocapture"]);
        let mut child = Self(command.env("TOLLGATE_HOLDS", server.url()).stdout(Stdio::piped()).spawn().unwrap());
        let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        let holds = lines.map_while(Result::ok).find(|line| line.starts_with("holds"));
        assert_eq!(holds.as_deref(), Some("holds 2"));
        child
    }

    fn signal(&self, signal: &str) {
        let done = Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until so many of a client's places are free.
async fn soon_left(limiter: &Limiter<Call>, client: u64, free: u64) {
    comes_to("free places", free, async || left(limiter, client).await).await;
}

/// B46: a process that dies gives nothing back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_outlive_their_expiry_with_their_process_and_not_without_it() {
    let server = Server::start();
    let limiter = limiter(connect(&server).await, 3);
    let process = Process::start(&server);
    let long_after = server.now() + EXPIRY * 12 / 5;
    let are_renewed = async || {
        assert_eq!(left(&limiter, 1).await, 1, "they are renewed for as long as it lives");
        server.now() >= long_after
    };
    until("their expiry is long over", are_renewed).await;
    drop(process);
    assert_eq!(left(&limiter, 1).await, 1, "nobody has told the server");
    // Looking keeps none of them: each ends at a time that was told when it was renewed last.
    let key = server.run::<Vec<String>>(&["KEYS", "*:client:*"]).remove(0);
    let an_expiry_from_now = (server.now() + EXPIRY).as_micros();
    let latest = server.run::<Vec<(String, u128)>>(&["ZREVRANGE", &key, "0", "0", "WITHSCORES"]).remove(0).1;
    assert!(latest <= an_expiry_from_now, "later than an expiry from now");
    soon_left(&limiter, 1, 3).await;
    assert!(enter(&limiter, Call(1, 3, false)).await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_stopped_for_too_long_takes_its_places_again_also_where_others_have_them() {
    let server = Server::start();
    let store = connect(&server).await;
    let limiter = limiter(store.clone(), 3);
    let process = Process::start(&server);
    process.signal("-STOP");
    soon_left(&limiter, 1, 3).await;
    let three = enter(&limiter, Call(1, 3, false)).await;
    assert!(three.is_some(), "nobody knows whether it lives");
    process.signal("-CONT");
    // Five run now. Nobody else is let in until there is room for them again.
    let all =
        || server.run::<Vec<String>>(&["KEYS", "*:client:*"]).pop().map(|key| server.run(&["ZSCORE", &key, "all"]));
    comes_to("what all have", Some(-5_i64), async || all()).await;
    assert!(enter(&limiter, Call(1, 1, false)).await.is_none());
    drop(three);
    store.flush().await.unwrap();
    assert_eq!(left(&limiter, 1).await, 1);
    drop(process);
}

/// As a server has them whose clock was a day ahead until a moment ago: one of a process that lives, and one of a dead
/// one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_sets_its_clock_back_frees_the_places_of_dead_processes_no_later() {
    const DAY: i64 = 86_400_000_000;
    let server = Server::start();
    let store = builder(&server).keys_in_plain().places_expire_after(EXPIRY * 30).connect().await.unwrap();
    let limiter = limiter(store.clone(), 3);
    let lives = enter(&limiter, Call(1, 1, false)).await;
    let key = "tg1:{tollgate}:client:p:number:1";
    let ahead = server.now().as_micros() as i64 + DAY;
    let member = |score: i64, name: &str| server.run::<u64>(&["ZADD", key, &score.to_string(), name]);
    for name in server.run::<Vec<String>>(&["ZRANGEBYSCORE", key, "(0", "+inf"]) {
        member(ahead + 60_000_000, &name);
    }
    member(ahead + 500_000, "7:1");
    member(-2, "all");
    member(-ahead, "seen");
    assert_eq!(left(&limiter, 1).await, 1, "to look changes nothing");
    assert_eq!(server.run::<i64>(&["ZSCORE", key, "7:1"]), ahead + 500_000);
    assert!(enter(&limiter, Call(1, 2, false)).await.is_none(), "both still count");
    let score = server.run::<i64>(&["ZSCORE", key, "7:1"]);
    assert!((ahead - DAY..ahead - DAY + 60_000_000).contains(&score), "{score}");
    assert!((1..=60_000).contains(&server.run::<i64>(&["PTTL", key])));
    soon_left(&limiter, 1, 2).await;
    drop(lives);
    store.flush().await.unwrap();
    assert_eq!(left(&limiter, 1).await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_is_counted_again_by_a_server_that_forgot_it() {
    let server = Server::start();
    let store = builder(&server).places_expire_after(Duration::from_millis(150)).connect().await.unwrap();
    let limiter = limiter(store.clone(), 3);
    let (two, one) = (enter(&limiter, Call(1, 2, false)).await, enter(&limiter, Call(1, 1, false)).await);
    server.run::<()>(&["FLUSHALL"]);
    drop(one);
    soon_left(&limiter, 1, 1).await;
    drop(two);
    store.flush().await.unwrap();
    assert_eq!(left(&limiter, 1).await, 3, "and not once it has ended");
}

/// A renewal under way must not bring back what has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_ends_while_all_are_renewed_is_free() {
    let server = Server::start();
    let store = builder(&server).places_expire_after(Duration::from_millis(100)).connect().await.unwrap();
    let limiter = limiter(store.clone(), 1_000);
    let mut held: Vec<_> = Vec::new();
    for _ in 0..500 {
        held.extend(enter(&limiter, Call(1, 1, false)).await);
    }
    // Renewed more often than every 34 ms, so in some of these rounds.
    for round in 0..400 {
        if round % 50 == 0 {
            server.run::<()>(&["SCRIPT", "FLUSH"]);
        }
        let receipt = enter(&limiter, Call(1, 1, false)).await;
        assert!(receipt.is_some());
        drop(receipt);
        store.flush().await.unwrap();
        // More, where the machine was too slow for one of the renewals.
        assert!(left(&limiter, 1).await >= 500, "one that has ended is held again");
    }
    drop(held);
    store.flush().await.unwrap();
    assert_eq!(left(&limiter, 1).await, 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_grants_its_share_of_places_while_the_server_is_away() {
    let mut server = Server::start();
    let redis = builder(&server).connect().await.unwrap();
    let share = FailurePolicy::Fallback(Share::one_in(2));
    let guarded = Guarded::builder(redis.clone(), share).deadline(PATIENCE).build();
    let limiter = limiter(guarded, 4);
    let held = enter(&limiter, Call(1, 1, false)).await;
    server.kill();
    until("it is gone", async || !redis.is_connected()).await;
    let more = enter(&limiter, Call(1, 1, false)).await;
    assert!(more.is_some());
    let (refused, _) = limiter.reserve(&Call(1, 1, false)).await.unwrap();
    assert!(!refused.is_allowed() && refused.is_degraded(), "two of four, one held since before");
    drop(held);
    let again = enter(&limiter, Call(1, 1, false)).await;
    assert!(again.is_some());
    assert!(enter(&limiter, Call(1, 1, false)).await.is_none());
}

#[tokio::test]
async fn says_which_expiry_cannot_be_and_which_limit() {
    let server = Server::start();
    for expiry in [Duration::from_millis(99), Duration::from_secs(3_601)] {
        let error = builder(&server).places_expire_after(expiry).build().unwrap_err().to_string();
        assert!(error.contains(&format!("{expiry:?}")) && error.contains("100 ms to an hour"), "{error}");
    }
    let rule = Rule::new("client", Limit::in_flight(u64::MAX), |call: &Call| Some(Key::from(call.0)));
    let error = Limiter::builder([rule]).store(connect(&server).await).build().unwrap_err().to_string();
    assert!(error.contains("18446744073709551615 places"), "{error}");
}

/// A charge in both stores.
struct Held {
    memory: Taken,
    redis: Taken,
}

/// Asks a memory store and a Redis store the same of places, some requests at one moment, and lets everything end.
fn agree_on_places(url: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let memory = MemoryStore::builder().secret(secret()).build();
    let patient = by_the_clock(url).places_expire_after(LONGER);
    let redis = runtime.block_on(patient.connect()).unwrap();
    let limits = [Limit::in_flight(6), Limit::in_flight(3), Limit::per_day(400)];
    let algorithms = [Algorithm::InFlight, Algorithm::InFlight, Algorithm::TokenBucket];
    let slots: Vec<(Slot, Slot)> = ["many", "few", "rate"]
        .iter()
        .zip(algorithms.into_iter().zip(limits))
        .map(|(name, (algorithm, limit))| RuleSpec::new(*name, algorithm, limit))
        .map(|spec| (memory.bind(&spec, None).unwrap(), redis.bind(&spec, None).unwrap()))
        .collect();
    let (mut random, mut held, now) = (Random::new(46), Vec::<Held>::new(), Nanos::from_secs(1_700_000_000));
    for number in 0..3_000 {
        if random.one_in(2) && !held.is_empty() {
            let at = random.below(held.len() as u64) as usize;
            let cost = if random.one_in(4) { random.below(5) } else { 0 };
            memory.adjust(now, &mut held[at].memory, cost);
            redis.adjust(now, &mut held[at].redis, cost);
            runtime.block_on(redis.flush()).unwrap();
            if cost == 0 {
                // Once more is harmless.
                redis.adjust(now, &mut held.swap_remove(at).redis, 0);
            }
            continue;
        }
        let at_once = if random.one_in(4) { 1 + random.below(4) } else { 1 };
        let requests: Vec<_> =
            (0..at_once).map(|_| some_request(&mut random, &slots, memory.secret(), limits)).collect();
        let replies = requests.iter().map(|asked| {
            let theirs: Vec<_> = asked.iter().map(|(_, theirs)| *theirs).collect();
            match redis.decide(now, &theirs, &mut Verdicts::new()) {
                Reply::Pending(reply) => reply,
                Reply::Ready(answer) => Box::pin(std::future::ready(answer.map(|()| Verdicts::new()))),
            }
        });
        let replies = runtime.block_on(futures_util::future::join_all(replies));
        for (asked, other) in requests.iter().zip(replies) {
            let (mut one, other) = (Verdicts::new(), other.unwrap());
            let mine: Vec<_> = asked.iter().map(|(mine, _)| *mine).collect();
            assert!(matches!(memory.decide(now, &mine, &mut one), Reply::Ready(Ok(()))));
            for ((charge, of_redis), (one, other)) in asked.iter().zip(one.iter().zip(other.iter())) {
                assert_eq!(one.verdict, other.verdict, "memory and redis, {number}: {charge:?}");
                assert_eq!(one.mark.is_some(), other.mark.is_some(), "{number}: {charge:?}");
                let taken = |slot: &Slot, mark, stamp| {
                    let mut taken = Taken::new(slot.clone(), charge.key, charge.limit, charge.cost, mark);
                    taken.stamp = stamp;
                    taken
                };
                if let (Some(mark), Some(on_redis), true) = (one.mark, other.mark, charge.limit.is_in_flight()) {
                    let redis = taken(of_redis.slot, on_redis, other.stamp);
                    held.push(Held { memory: taken(charge.slot, mark, one.stamp), redis });
                }
            }
        }
    }
    for mut held in held {
        redis.adjust(now, &mut held.redis, 0);
    }
    runtime.block_on(redis.flush()).unwrap();
}

/// A request's charges, as the memory store and as the Redis store has them.
type Asked<'a> = Vec<(Charge<'a>, Charge<'a>)>;

fn some_request<'a>(random: &mut Random, slots: &'a [(Slot, Slot)], secret: &Secret, limits: [Limit; 3]) -> Asked<'a> {
    let mut asked = Vec::new();
    for (at, (of_memory, of_redis)) in slots.iter().enumerate() {
        if random.one_in(3) {
            continue;
        }
        let limit = if at < 2 && random.one_in(8) { Limit::in_flight(1 + random.below(8)) } else { limits[at] };
        let mut charge = Charge::new(of_memory, Key::from(at as u64).id(secret), limit, random.below(5));
        charge.keep = if random.one_in(6) { random.below(3) } else { 0 };
        charge.votes = !random.one_in(8);
        charge.take = match random.below(12) {
            0 => Take::Never,
            1 if at < 2 => Take::Always,
            _ => Take::IfPassed,
        };
        let mut theirs = charge;
        theirs.slot = of_redis;
        asked.push((charge, theirs));
    }
    asked
}

#[test]
fn memory_and_redis_say_the_same_of_places() {
    let server = Server::start();
    agree_on_places(&server.url());
    assert_eq!(server.run::<Vec<String>>(&["KEYS", "*:many:*"]), [""; 0]);
    assert_eq!(server.run::<Vec<String>>(&["KEYS", "*:few:*"]), [""; 0]);
}

#[test]
fn memory_and_the_script_in_an_embedded_lua_say_the_same_of_places() {
    let url = lua::serve();
    agree_on_places(&url);
    let mut asks = ::redis::Client::open(url).unwrap().get_connection().unwrap();
    let held: Vec<Vec<u8>> = ::redis::cmd("EVERYTHING").query(&mut asks).unwrap();
    let names: Vec<_> = held.chunks(3).map(|key| String::from_utf8_lossy(&key[0]).into_owned()).collect();
    assert!(names.len() == 1 && names[0].contains(":rate:"), "{names:?}");
}
