//! What a decision costs beside the plainest commands there are, on one server in one run: GET, INCR and a script that
//! does nothing (which no store that sends its scripts one by one can beat) over the same kind of connection, and the
//! store under one rule and under three, for one client and for many. Medians of interleaved rounds, and their ratios;
//! and on Linux the processor's time for each, here and on the server, which a busy machine falsifies less.
//!
//! Starts a `redis-server` of its own; `REDIS_URL` names one that runs already. Words of the command line choose rows.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_precision_loss, reason = "a bench may panic")]

use std::{
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use redis::{AsyncConnectionConfig, Client, aio::MultiplexedConnection};
use tollgate::{Key, Limit, Limiter, Rule, key::Secret, store::RedisStore};

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(400);

#[derive(Clone)]
enum Asked {
    Get(MultiplexedConnection),
    Incr(MultiplexedConnection),
    Nothing(MultiplexedConnection, redis::Script),
    /// One client's requests.
    Limiter(Limiter<u64>),
    /// As many clients as there are requests in a round and more.
    Many(Limiter<u64>),
}

/// How many clients there are where there are many.
const CLIENTS: u64 = 50_000;

static NEXT: AtomicU64 = AtomicU64::new(0);

impl Asked {
    async fn once(&mut self) {
        match self {
            Self::Get(connection) => {
                let _: Option<u64> = redis::cmd("GET").arg("bench:get").query_async(connection).await.unwrap();
            }
            Self::Incr(connection) => {
                let _: u64 = redis::cmd("INCR").arg("bench:incr").query_async(connection).await.unwrap();
            }
            Self::Nothing(connection, script) => {
                let mut call = redis::cmd("EVALSHA");
                call.arg(script.get_hash()).arg(1).arg("bench:nothing").arg("");
                let _: u64 = call.query_async(connection).await.unwrap();
            }
            Self::Limiter(limiter) => assert!(limiter.check(&7).await.unwrap().is_allowed()),
            Self::Many(limiter) => {
                let client = NEXT.fetch_add(1, Ordering::Relaxed) % CLIENTS;
                assert!(limiter.check(&client).await.unwrap().is_allowed());
            }
        }
    }
}

/// What a round showed: how many a second, the median latency, and the processor's time for each.
struct Round {
    rate: f64,
    p50: f64,
    here: f64,
    there: f64,
}

/// The processor's time that a process has used, in nanoseconds; 0 where the system does not tell.
fn processor_time(process: &str) -> f64 {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return 0.0 };
    let used = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    used.sum()
}

/// Has `tasks` tasks ask for a while.
async fn round(asked: &Asked, tasks: usize, server: &str) -> Round {
    let (here, there) = (processor_time("self"), processor_time(server));
    let begun = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let mut asked = asked.clone();
            tokio::spawn(async move {
                let mut took = Vec::new();
                while begun.elapsed() < ROUND {
                    let one = Instant::now();
                    asked.once().await;
                    took.push(one.elapsed());
                }
                took
            })
        })
        .collect();
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await.unwrap());
    }
    let all = begun.elapsed();
    let (here, there) = (processor_time("self") - here, processor_time(server) - there);
    took.sort_unstable();
    let count = took.len() as f64;
    let p50 = took[took.len() / 2].as_secs_f64() * 1e6;
    Round { rate: count / all.as_secs_f64(), p50, here: here / count / 1e3, there: there / count / 1e3 }
}

async fn limiter(url: &str, names: &[&'static str]) -> Limiter<u64> {
    let secret = Secret::new(*b"of a bench alone");
    let store = RedisStore::builder(url, secret).deadline(Duration::from_secs(5)).connect().await.unwrap();
    let plenty = Limit::per_second(1_000_000).burst(100_000_000);
    let rules = names.iter().map(|name| Rule::new(*name, plenty, |id: &u64| Some(Key::from(*id))));
    Limiter::builder(rules).store(store).build().unwrap()
}

/// The server that the bench started.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start() -> (String, Server) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
    let mut command = Command::new(program);
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
    let child = command.stdout(Stdio::null()).spawn().unwrap_or_else(|error| panic!("redis-server: {error}"));
    std::thread::sleep(Duration::from_millis(300));
    (format!("redis://127.0.0.1:{port}"), Server(child))
}

fn median(of: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<_> = of.collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    // `cargo test --all-targets` runs benches too, to see that they run.
    let (options, words): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let rounds = if options.iter().any(|option| option == "--bench") { ROUNDS } else { 1 };
    let (url, server) = match std::env::var("REDIS_URL") {
        Ok(url) => (url, None),
        Err(_) => {
            let (url, server) = start();
            (url, Some(server))
        }
    };
    let client = Client::open(url.as_str()).unwrap();
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let client = Client::open(client.get_connection_info().clone().set_tcp_settings(tcp)).unwrap();
    let settings = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(1024);
    let plain = client.get_multiplexed_async_connection_with_config(&settings).await.unwrap();
    let _: () = redis::cmd("SET").arg("bench:get").arg(1).query_async(&mut plain.clone()).await.unwrap();
    let nothing = redis::Script::new("return 1");
    let _: u64 = nothing.invoke_async(&mut plain.clone()).await.unwrap();
    let mut cases = vec![
        ("GET", Asked::Get(plain.clone())),
        ("INCR", Asked::Incr(plain.clone())),
        ("return 1", Asked::Nothing(plain, nothing)),
        ("one rule", Asked::Limiter(limiter(&url, &["one"]).await)),
        ("three rules", Asked::Limiter(limiter(&url, &["one", "two", "three"]).await)),
        ("one, clients", Asked::Many(limiter(&url, &["one"]).await)),
        ("three, clients", Asked::Many(limiter(&url, &["one", "two", "three"]).await)),
    ];
    cases.retain(|(name, _)| words.is_empty() || words.iter().any(|word| name.contains(word.as_str())));
    let server = server.as_ref().map_or_else(String::new, |server| server.0.id().to_string());
    for tasks in [64, 1] {
        let mut measured: Vec<Vec<Round>> = cases.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for ((_, asked), measured) in cases.iter().zip(&mut measured) {
                measured.push(round(asked, tasks, &server).await);
            }
        }
        println!("{tasks} tasks on one connection");
        let of = |row: &[Round], what: fn(&Round) -> f64| median(row.iter().map(what));
        let first = (of(&measured[0], |round| round.rate), of(&measured[0], |round| round.p50));
        for ((name, _), row) in cases.iter().zip(&measured) {
            let (rate, p50) = (of(row, |round| round.rate), of(row, |round| round.p50));
            println!(
                "  {name:<14} {rate:>8.0}/s, {:.2} of {}; p50 {p50:>7.1} us, {:.2} times; \
                 processor {:>5.2} us here, {:>5.2} there",
                rate / first.0,
                cases[0].0,
                p50 / first.1,
                of(row, |round| round.here),
                of(row, |round| round.there),
            );
        }
    }
}
