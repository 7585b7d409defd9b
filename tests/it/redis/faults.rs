//! What goes wrong with a server and the way to it. Each test tells its figures; see them with `--nocapture`.

use std::time::Instant;

use tokio::time::sleep;
use tollgate::{Key, Limit, Limiter, Rule, bucket::FixedWindow};

use super::{
    Duration, RedisStore, asking::Asking, comes_to, late::Lateness, proxy::Proxy, secret, server::Server, until,
};

const DEADLINE: Duration = Duration::from_millis(25);
const PERMITS: u64 = 1_000_000;

/// What the store says is back after at most this once the server is.
const BACK: Duration = Duration::from_millis(500);

fn limiter(store: &RedisStore) -> Limiter<u64> {
    // A whole day, so that what is used can be counted afterwards; not at midnight, when it starts again.
    let rule =
        Rule::new("fault", Limit::new(PERMITS, Duration::from_secs(365 * 86_400)), |id: &u64| Some(Key::from(*id)));
    Limiter::builder([rule.algorithm(FixedWindow)]).store(store.clone()).build().unwrap()
}

async fn connect(url: &str) -> (RedisStore, Limiter<u64>) {
    let store = RedisStore::builder(url, secret()).deadline(DEADLINE).connect().await.unwrap();
    let limiter = limiter(&store);
    (store, limiter)
}

/// One decision: when it was asked for, how long it took, and whether there was an answer.
struct Asked {
    at: Instant,
    took: Duration,
    error: Option<String>,
}

/// Asks every few milliseconds, and times the machine beside it.
struct Faulted {
    asking: Asking<Asked>,
    lateness: Lateness,
}

impl Faulted {
    fn begin(limiter: &Limiter<u64>) -> Self {
        let limiter = limiter.clone();
        let ask = move || {
            let limiter = limiter.clone();
            [async move {
                let at = Instant::now();
                let error = limiter.check(&7).await.err().map(|error| {
                    let why = std::error::Error::source(&error).unwrap();
                    format!("{why}: {:?}", why.source().map(ToString::to_string))
                });
                Asked { at, took: at.elapsed(), error }
            }]
        };
        let asking = Asking::begin(Duration::from_millis(2), |asked: &Asked| asked.error.is_none(), ask);
        Self { asking, lateness: Lateness::begin() }
    }

    /// Waits until so many more questions are answered.
    async fn goes_well(&self, more: usize) {
        self.asking.goes_well(more).await;
    }

    async fn end(self) -> Seen {
        Seen(self.asking.end().await, self.lateness.end().await)
    }
}

/// What was answered, and how late the machine was.
struct Seen(Vec<Asked>, Duration);

impl Seen {
    fn passed(&self) -> u64 {
        self.0.iter().filter(|asked| asked.error.is_none()).count() as u64
    }

    /// The first that passed of those asked for after `from`.
    fn back_after(&self, from: Instant) -> Duration {
        let first = self.0.iter().filter(|asked| asked.at >= from && asked.error.is_none()).map(|asked| asked.at).min();
        first.expect("it comes back").duration_since(from)
    }

    fn failed(&self, from: Instant, to: Instant) -> Vec<&str> {
        let during = self.0.iter().filter(|asked| asked.at >= from && asked.at < to);
        during.filter_map(|asked| asked.error.as_deref()).collect()
    }

    /// Tells the figures, and asserts that none took longer than it may, on top of what the machine itself is late.
    fn tell(&self, what: &str, back: Duration, connects: usize) {
        let mut took: Vec<_> = self.0.iter().map(|asked| asked.took).collect();
        took.sort_unstable();
        let p99 = took[took.len() * 99 / 100];
        println!(
            "{what}: {} decisions, {} failed, p99 {p99:?}, longest {:?}, back after {back:?}, {connects} connects, \
             timers late by {:?}",
            took.len(),
            self.0.len() as u64 - self.passed(),
            took.last().unwrap(),
            self.1,
        );
        assert!(
            p99 <= DEADLINE + Duration::from_millis(5) + self.1,
            "{what}: p99 {p99:?}, timers late by {:?}",
            self.1
        );
        assert!(back <= BACK + self.1, "{what}: back after {back:?}, timers late by {:?}", self.1);
    }
}

/// How many permits are used, as the server knows.
async fn used(limiter: &Limiter<u64>) -> u64 {
    let mut used = None;
    until("an answer", async || {
        used = limiter.peek(&7).await.ok().map(|decision| PERMITS - decision.tightest().unwrap().verdict.remaining);
        used.is_some()
    })
    .await;
    used.unwrap()
}

/// Waits until as much is used as passed: what was charged and answered too late comes back when the answer comes.
async fn settles(store: &RedisStore, limiter: &Limiter<u64>, passed: u64) {
    comes_to("what is used is what passed", passed, async || {
        store.flush().await.unwrap();
        used(limiter).await
    })
    .await;
}

/// Waits until a server that was started again answers, and says when that was.
async fn comes_up(mut server: Server) -> (Server, Instant) {
    let waited = tokio::task::spawn_blocking(move || {
        assert!(server.comes_up());
        (server, Instant::now())
    });
    waited.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_starts_empty_is_found_again() {
    let mut server = Server::start();
    let proxy = Proxy::before(server.address()).await;
    let (_store, limiter) = connect(&proxy.url()).await;
    let asking = Faulted::begin(&limiter);
    asking.goes_well(50).await;
    let killed = Instant::now();
    server.kill();
    sleep(Duration::from_secs(3)).await;
    server.start_again(&[]);
    let (server, up) = comes_up(server).await;
    asking.goes_well(200).await;
    let seen = asking.end().await;
    seen.tell("SIGKILL", seen.back_after(up), proxy.connects());
    assert!(seen.failed(killed, up).len() > 100);
    assert!(proxy.connects() <= 20, "{} connects in a 3 s outage", proxy.connects());
    assert!(used(&limiter).await <= seen.passed());
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_up_while_a_server_is_stopped_charges_nothing() {
    let server = Server::start();
    let (store, limiter) = connect(&server.url()).await;
    let asking = Faulted::begin(&limiter);
    asking.goes_well(50).await;
    server.stop();
    sleep(Duration::from_secs(5)).await;
    server.go_on();
    let up = Instant::now();
    asking.goes_well(200).await;
    let seen = asking.end().await;
    let connects: String = server.run(&["INFO", "stats"]);
    let connects = connects.lines().find_map(|line| line.strip_prefix("total_connections_received:")).unwrap();
    let connects: usize = connects.trim().parse().unwrap();
    seen.tell("SIGSTOP", seen.back_after(up), connects);
    assert!(connects < 30, "{connects} connects");
    settles(&store, &limiter, seen.passed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_swallows_everything_is_replaced() {
    let server = Server::start();
    let proxy = Proxy::before(server.address()).await;
    let (_store, limiter) = connect(&proxy.url()).await;
    let asking = Faulted::begin(&limiter);
    asking.goes_well(400).await;
    let from = Instant::now();
    proxy.swallow_existing();
    asking.goes_well(200).await;
    let seen = asking.end().await;
    seen.tell("black hole", seen.back_after(from + DEADLINE), proxy.connects());
    // A machine that is late itself may give a good connection up too.
    assert!((2..=6).contains(&proxy.connects()), "{} connects", proxy.connects());
    assert!(!seen.failed(from, from + BACK).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_becomes_a_replica_is_left_until_it_is_one_again() {
    let server = Server::start();
    let (store, limiter) = connect(&server.url()).await;
    let asking = Faulted::begin(&limiter);
    asking.goes_well(50).await;
    let nobody = super::server::free_port().to_string();
    server.run::<()>(&["REPLICAOF", "127.0.0.1", &nobody]);
    let from = Instant::now();
    sleep(Duration::from_secs(1)).await;
    let to = Instant::now();
    server.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    let up = Instant::now();
    asking.goes_well(200).await;
    let seen = asking.end().await;
    seen.tell("replica", seen.back_after(up), 0);
    let failed = seen.failed(from, to);
    assert!(failed.len() > 50 && failed.iter().any(|why| why.contains("replica")), "{failed:?}");
    settles(&store, &limiter, seen.passed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_memory_says_so_and_keeps_its_connection() {
    let server = Server::start_with(&["--maxmemory-policy", "noeviction"]);
    let proxy = Proxy::before(server.address()).await;
    let (store, limiter) = connect(&proxy.url()).await;
    let asking = Faulted::begin(&limiter);
    asking.goes_well(50).await;
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let from = Instant::now();
    sleep(Duration::from_millis(500)).await;
    let to = Instant::now();
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    let up = Instant::now();
    asking.goes_well(100).await;
    let seen = asking.end().await;
    seen.tell("OOM", seen.back_after(up), proxy.connects());
    let failed = seen.failed(from, to);
    assert!(failed.len() > 50 && failed.iter().all(|why| why.contains("OOM")), "{failed:?}");
    assert_eq!(proxy.connects(), 1);
    settles(&store, &limiter, seen.passed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_elses_endless_script_holds_nobody_up() {
    let server = Server::start_with(&["--busy-reply-threshold", "100"]);
    let (store, limiter) = connect(&server.url()).await;
    let asking = Faulted::begin(&limiter);
    asking.goes_well(50).await;
    let url = server.url();
    let busy = tokio::task::spawn_blocking(move || {
        let mut connection = ::redis::Client::open(url).unwrap().get_connection().unwrap();
        let endless = ::redis::Script::new("while true do end");
        endless.invoke::<()>(&mut connection).expect_err("it is killed")
    });
    sleep(Duration::from_secs(1)).await;
    server.run::<()>(&["SCRIPT", "KILL"]);
    let up = Instant::now();
    asking.goes_well(200).await;
    let seen = asking.end().await;
    seen.tell("BUSY", seen.back_after(up), 0);
    assert!(busy.await.unwrap().to_string().contains("killed"));
    settles(&store, &limiter, seen.passed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loads_its_data_is_waited_for() {
    let mut server = Server::start();
    let (_store, limiter) = connect(&server.url()).await;
    server.run::<()>(&["DEBUG", "POPULATE", "20000"]);
    server.run::<()>(&["SAVE"]);
    assert!(server.directory().join("dump.rdb").exists());
    server.kill();
    let slowly = ["--key-load-delay", "50", "--loading-process-events-interval-bytes", "1024"];
    server.start_again(&slowly);
    let asking = Faulted::begin(&limiter);
    // Every answer but the last says that it loads.
    let (server, up) = comes_up(server).await;
    asking.goes_well(200).await;
    let seen = asking.end().await;
    let failed = seen.failed(up - Duration::from_secs(20), up);
    assert!(failed.iter().any(|why| why.contains("loading")), "{:?}", failed.last());
    seen.tell("LOADING", seen.back_after(up), 0);
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_no_more_clients_is_asked_again_later() {
    let server = Server::start_with(&["--maxclients", "4"]);
    let (_store, limiter) = connect(&server.url()).await;
    let mut others: Vec<_> = (0..3).map(|_| server.ask()).collect();
    let asking = Faulted::begin(&limiter);
    asking.goes_well(20).await;
    // The store's connection is the oldest; its place is taken at once.
    let first: String = ::redis::cmd("CLIENT").arg("LIST").query(&mut others[0]).unwrap();
    let store = first.lines().find(|line| line.contains("cmd=evalsha") || line.contains("cmd=eval ")).unwrap();
    let id = store.split(' ').find_map(|field| field.strip_prefix("id=")).unwrap().to_owned();
    ::redis::cmd("CONFIG").arg("SET").arg("maxclients").arg(3).query::<()>(&mut others[0]).unwrap();
    ::redis::cmd("CLIENT").arg("KILL").arg("ID").arg(id).query::<u32>(&mut others[0]).unwrap();
    let from = Instant::now();
    sleep(Duration::from_secs(1)).await;
    let to = Instant::now();
    ::redis::cmd("CONFIG").arg("SET").arg("maxclients").arg(100).query::<()>(&mut others[0]).unwrap();
    let up = Instant::now();
    asking.goes_well(200).await;
    let seen = asking.end().await;
    let failed = seen.failed(from, to);
    assert!(failed.len() > 50, "{}", failed.len());
    let stats: String = ::redis::cmd("INFO").arg("stats").query(&mut others[0]).unwrap();
    let rejected = stats.lines().find_map(|line| line.strip_prefix("rejected_connections:")).unwrap();
    let rejected: u32 = rejected.trim().parse().unwrap();
    assert!((1..10).contains(&rejected), "{rejected} connections refused");
    seen.tell("maxclients", seen.back_after(up), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_may_be_flushed_at_any_moment() {
    let server = Server::start();
    // Nothing here is about being late, and every one has to be answered.
    let patient = RedisStore::builder(&server.url(), secret()).deadline(Duration::from_secs(2));
    let store = patient.connect().await.unwrap();
    let limiter = limiter(&store);
    let asking = Faulted::begin(&limiter);
    let mut asks = server.ask();
    for _ in 0..300 {
        ::redis::cmd("SCRIPT").arg("FLUSH").query::<()>(&mut asks).unwrap();
        asking.goes_well(1).await;
    }
    let seen = asking.end().await;
    seen.tell("SCRIPT FLUSH", Duration::ZERO, 1);
    assert_eq!(seen.passed(), seen.0.len() as u64);
    settles(&store, &limiter, seen.passed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_cut_in_half_is_an_error_and_is_not_asked_for_twice() {
    let server = Server::start();
    let proxy = Proxy::before(server.address()).await;
    let (store, limiter) = connect(&proxy.url()).await;
    assert!(limiter.check(&7).await.unwrap().is_allowed());
    proxy.cut_next_reply();
    let lateness = Lateness::begin();
    let from = Instant::now();
    let error = limiter.check(&7).await.expect_err("half an answer");
    let answered = from.elapsed();
    store.connected().await;
    let back = from.elapsed();
    let late = lateness.end().await;
    let why = std::error::Error::source(&error).unwrap().to_string();
    println!("half a reply: {why} after {answered:?}, back after {back:?}, timers late by {late:?}");
    assert!(answered <= DEADLINE + Duration::from_millis(5) + late, "{answered:?}, timers late by {late:?}");
    assert!(back <= BACK + late, "{back:?}, timers late by {late:?}");
    assert_eq!(used(&limiter).await, 2, "it ran once, and nobody can know");
    assert_eq!(proxy.connects(), 2);
}

/// As it closes one that was idle for too long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_the_server_closes_is_replaced_before_anybody_asks() {
    let server = Server::start();
    let proxy = Proxy::before(server.address()).await;
    let store = RedisStore::builder(&proxy.url(), secret()).deadline(Duration::from_secs(5)).connect().await.unwrap();
    let limiter = limiter(&store);
    assert!(limiter.check(&7).await.unwrap().is_allowed());
    assert_eq!(server.run::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]), 1);
    until("it connects anew", async || proxy.connects() > 1).await;
    store.connected().await;
    assert!(limiter.check(&7).await.unwrap().is_allowed());
    assert_eq!(proxy.connects(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_dropped_on_its_way_gives_back_what_it_charged() {
    let server = Server::start();
    let (store, limiter) = connect(&server.url()).await;
    assert!(limiter.check(&7).await.unwrap().is_allowed());
    let mut answered = 0;
    for _ in 0..50 {
        let mut check = tokio_test::task::spawn(limiter.check(&7));
        // A thread that was held up between asking and looking finds its answer there.
        answered += u64::from(check.poll().is_ready());
        drop(check);
    }
    assert!(answered < 25, "{answered} of 50 were not dropped on their way");
    settles(&store, &limiter, 1 + answered).await;
}
