//! What a decision costs beside the plainest commands there are, on one server in one run: GET and INCR over the same kind
//! of connection, and the store under one rule and under three. Medians of interleaved rounds, and their ratios.
//!
//! Starts a `redis-server` of its own; `REDIS_URL` names one that runs already.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_precision_loss, reason = "a bench may panic")]

use std::{
    process::{Child, Command, Stdio},
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
    Limiter(Limiter<u64>),
}

impl Asked {
    async fn once(&mut self) {
        match self {
            Self::Get(connection) => {
                let _: Option<u64> = redis::cmd("GET").arg("bench:get").query_async(connection).await.unwrap();
            }
            Self::Incr(connection) => {
                let _: u64 = redis::cmd("INCR").arg("bench:incr").query_async(connection).await.unwrap();
            }
            Self::Limiter(limiter) => assert!(limiter.check(&7).await.unwrap().is_allowed()),
        }
    }
}

/// How many a second `tasks` tasks get done, and the median latency.
async fn round(asked: &Asked, tasks: usize) -> (f64, Duration) {
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
    took.sort_unstable();
    (took.len() as f64 / all.as_secs_f64(), took[took.len() / 2])
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

fn median<T: PartialOrd + Copy>(mut all: Vec<T>) -> T {
    all.sort_by(|one, other| one.partial_cmp(other).unwrap());
    all[all.len() / 2]
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    // `cargo test --all-targets` runs benches too, to see that they run.
    let rounds = if std::env::args().any(|argument| argument == "--bench") { ROUNDS } else { 1 };
    let (url, _server) = match std::env::var("REDIS_URL") {
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
    let cases = [
        ("GET", Asked::Get(plain.clone())),
        ("INCR", Asked::Incr(plain)),
        ("one rule", Asked::Limiter(limiter(&url, &["one"]).await)),
        ("three rules", Asked::Limiter(limiter(&url, &["one", "two", "three"]).await)),
    ];
    for tasks in [64, 1] {
        let mut measured = vec![Vec::new(); cases.len()];
        for _ in 0..rounds {
            for ((_, asked), measured) in cases.iter().zip(&mut measured) {
                measured.push(round(asked, tasks).await);
            }
        }
        let medians: Vec<_> = measured
            .into_iter()
            .map(|all| (median(all.iter().map(|one| one.0).collect()), median(all.iter().map(|one| one.1).collect())))
            .collect();
        println!("{tasks} tasks on one connection");
        for ((name, _), (rate, p50)) in cases.iter().zip(&medians) {
            let (get, incr) = (medians[0], medians[1]);
            println!(
                "  {name:<12} {rate:>9.0}/s, {:.2} of GET, {:.2} of INCR; p50 {p50:>9.1?}, {:.2} times GET",
                rate / get.0,
                rate / incr.0,
                p50.as_secs_f64() / get.1.as_secs_f64(),
            );
        }
    }
}
