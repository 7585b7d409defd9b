//! One limit for many processes: three axum servers that count in one Redis.
//!
//! `cargo run --features redis --example many_servers` starts itself three times as a server, asks them in turns,
//! prints how many passed in all, which is the limit, and ends. `REDIS_URL` names the Redis; without it a
//! `redis-server` is started for as long as this takes. With `PORT` it is one of the servers, and serves until it is
//! ended: `PORT=3000 REDIS_URL=redis://127.0.0.1:6379 cargo run --features redis --example many_servers`.

use std::{
    error::Error,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use axum::{Router, extract::Request, routing::get};
use tollgate::{
    FailurePolicy, Limit, Limiter, RateLimitLayer, Rule,
    charge::Share,
    key::{self, Secret},
    store::{Guarded, RedisStore, RedisStoreBuilder, Store},
};

const SERVERS: u32 = 3;
/// How many requests a client has in an hour, whichever server it asks.
const LIMIT: u64 = 20;
/// What the demonstration sends to each server.
const EACH: u64 = 15;

type Failure = Box<dyn Error + Send + Sync>;

/// What each of the processes serves: on equal stores they share the counts.
fn app(store: impl Store) -> Result<Router, Failure> {
    let rules = [Rule::new("client", Limit::per_hour(LIMIT).burst(LIMIT), key::header("x-client"))];
    let limiter = Limiter::<Request>::builder(rules).store(store).build()?;
    Ok(Router::new().route("/", get(|| async { "hello\n" })).layer(RateLimitLayer::from(limiter)))
}

/// How to connect to Redis.
fn builder(url: &str) -> Result<RedisStoreBuilder, Failure> {
    // The same in all processes, as their other secrets; it hides keys on the server.
    let secret = match std::env::var("TOLLGATE_SECRET") {
        Ok(text) => Secret::new(text.into_bytes().try_into().map_err(|_| "TOLLGATE_SECRET: not 16 bytes")?),
        Err(_) => Secret::new(*b"only for showing"),
    };
    Ok(RedisStore::builder(url, secret).deployment("many-servers"))
}

/// Redis, which is connected to in the background.
fn redis(url: &str) -> Result<RedisStore, Failure> {
    Ok(builder(url)?.build()?)
}

/// Fails, and says why, where Redis cannot be used: the servers would serve all the same, and each count alone.
async fn reach(url: &str) -> Result<(), Failure> {
    let Err(error) = builder(url)?.connect().await else { return Ok(()) };
    let (mut why, mut next) = (error.to_string(), error.source());
    while let Some(cause) = next {
        why = format!("{why}: {cause}");
        next = cause.source();
    }
    Err(format!("REDIS_URL: {why}").into())
}

/// What happens while Redis is away: each process grants a third of the limit by itself.
fn guarded(redis: RedisStore) -> Guarded {
    Guarded::new(redis, FailurePolicy::Fallback(Share::one_in(SERVERS)))
}

/// One of the servers.
async fn serve(port: u16, url: &str) -> Result<(), Failure> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    let redis = redis(url)?;
    // Rather not begin with an outage; but it serves without Redis too.
    let _in_time = tokio::time::timeout(Duration::from_secs(2), redis.connected()).await;
    let app = app(guarded(redis))?;
    println!("serving on http://{address}/");
    axum::serve(listener, app).await?;
    Ok(())
}

/// A process that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a Redis on a free port, and returns its address.
fn start_redis() -> Result<(Running, String), Failure> {
    let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut command = Command::new(&program);
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
    command.args(["--maxmemory-policy", "noeviction"]).stdin(Stdio::null()).stdout(Stdio::null());
    let redis = command.spawn().map_err(|error| {
        format!("{program} cannot be started ({error}); install it, or set REDIS_URL to a server that runs")
    })?;
    let redis = Running(redis);
    let give_up = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > give_up {
            return Err(format!("{program} does not answer on port {port}").into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok((redis, format!("redis://127.0.0.1:{port}")))
}

/// Starts this program as a server on a free port, and returns its address.
fn start_server(url: &str) -> Result<(Running, SocketAddr), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut server = Running(command.env("PORT", "0").env("REDIS_URL", url).stdout(Stdio::piped()).spawn()?);
    let stdout = server.0.stdout.take().ok_or("its output was piped")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let address = line.trim().strip_prefix("serving on http://").and_then(|rest| rest.strip_suffix('/'));
    Ok((server, address.ok_or("a server said nothing of its address")?.parse()?))
}

/// Sends one request, and returns the status and what is left.
fn ask(server: SocketAddr, client: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(server)?;
    write!(stream, "GET / HTTP/1.1\r\nhost: {server}\r\nx-client: {client}\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let left = answer.lines().find_map(|line| line.strip_prefix("x-ratelimit-remaining: ")).unwrap_or("-");
    let status = status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no answer of HTTP"))?;
    Ok((status, left.to_owned()))
}

/// Asks all servers in turns, and fails unless as many pass as may.
fn demonstrate(url: &str) -> Result<(), Failure> {
    let mut servers = Vec::new();
    for _ in 0..SERVERS {
        servers.push(start_server(url)?);
    }
    // A client of its own for each run: the counts stay on the server for an hour.
    let client = format!("client-{}-{}", std::process::id(), servers.first().map_or(0, |(_, address)| address.port()));
    let mut passed_by = vec![0_u64; servers.len()];
    for number in 0..EACH {
        for ((_, server), passed) in servers.iter().zip(&mut passed_by) {
            let (status, left) = ask(*server, &client)?;
            *passed += u64::from(status == 200);
            if number % 5 == 0 {
                println!("{server}: {status}, {left} left");
            }
        }
    }
    let passed: u64 = passed_by.iter().sum();
    println!(
        "{passed} of {} requests to {SERVERS} servers passed ({passed_by:?}); the limit is {LIMIT}",
        passed_by.len() as u64 * EACH
    );
    if passed == LIMIT { Ok(()) } else { Err("they do not count together".into()) }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::var("REDIS_URL").ok();
    if let Ok(port) = std::env::var("PORT") {
        let port = port.parse().map_err(|_| format!("PORT={port}: not a number from 0 to 65535"))?;
        let url = url.ok_or("REDIS_URL: say which Redis the servers share")?;
        return serve(port, &url).await;
    }
    if let Some(url) = &url {
        reach(url).await?;
    }
    tokio::task::spawn_blocking(move || match url {
        Some(url) => demonstrate(&url),
        None => {
            let (_redis, url) = start_redis()?;
            demonstrate(&url)
        }
    })
    .await?
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tollgate::store::MemoryStore;
    use tower::ServiceExt;

    use super::*;

    async fn passes(app: &Router, client: &str) -> bool {
        let request = Request::builder().header("x-client", client).body(Body::empty()).unwrap();
        app.clone().oneshot(request).await.unwrap().status() == 200
    }

    #[tokio::test]
    async fn servers_on_one_store_grant_one_limit() {
        let store = MemoryStore::new();
        let servers = [app(store.clone()).unwrap(), app(store.clone()).unwrap(), app(store).unwrap()];
        let mut passed = 0;
        for _ in 0..EACH {
            for server in &servers {
                passed += u64::from(passes(server, "ana").await);
            }
        }
        assert_eq!(passed, LIMIT);
        assert!(passes(&servers[1], "bob").await);
    }

    /// Nobody listens there, so each process grants its share: a third of twenty, rounded up.
    #[tokio::test]
    async fn servers_without_redis_grant_a_share_each() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let url = format!("redis://127.0.0.1:{port}");
        for _ in 0..SERVERS {
            let app = app(guarded(redis(&url).unwrap())).unwrap();
            let mut passed = 0;
            for _ in 0..EACH {
                passed += u64::from(passes(&app, "ana").await);
            }
            assert_eq!(passed, LIMIT.div_ceil(u64::from(SERVERS)));
        }
    }

    #[tokio::test]
    async fn a_redis_that_cannot_be_used_is_named_before_anything_is_shown() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let why = reach(&format!("redis://127.0.0.1:{port}")).await.unwrap_err().to_string();
        assert!(why.starts_with("REDIS_URL: ") && why.contains(&format!("127.0.0.1:{port}")), "{why}");
    }

    #[tokio::test]
    async fn servers_on_one_redis_grant_one_limit() {
        let (_redis, url) = start_redis().unwrap();
        let mut servers = Vec::new();
        for _ in 0..SERVERS {
            let redis = RedisStore::builder(&url, Secret::new([7; 16])).deadline(Duration::from_secs(5));
            servers.push(app(redis.connect().await.unwrap()).unwrap());
        }
        let mut passed = 0;
        for _ in 0..EACH {
            for server in &servers {
                passed += u64::from(passes(server, "ana").await);
            }
        }
        assert_eq!(passed, LIMIT);
    }
}
