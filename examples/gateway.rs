//! A gateway whose rules are a file: authentication, limits by account and plan, reload, metrics, and answers to
//! "why?".
//!
//! `cargo run --features watch,metrics,redis --example gateway` serves on 127.0.0.1:3000 and prints what to try. From
//! the environment it takes `PORT`, `RULES` (a file like `examples/rules/gateway.toml`, which it reads unless said
//! otherwise), and `REDIS_URL`: with it all gateways on that Redis count together, and while it is away each grants
//! half of every limit; without it each counts in its own memory. The file is read again when it is saved and on
//! SIGHUP; what is wrong with it is logged, and changes nothing. The limits are outside the operators' pages too: a
//! rule file says whom it excepts.

use std::{
    collections::HashMap,
    error::Error,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, Request, State},
    http::{StatusCode, Uri},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tollgate::{
    FailurePolicy, Key, Limiter, RateLimitLayer,
    charge::Share,
    config::{Registry, Rules, Watch},
    key::Secret,
    store::{Guarded, MemoryStore, RedisStore},
};

type Failure = Box<dyn Error + Send + Sync>;

/// Whom a key belongs to. A real gateway asks a database, and keeps hashes of keys only.
#[derive(Debug, Clone, Copy)]
struct User {
    account: &'static str,
    plan: &'static str,
}

const KEYS: [(&str, User); 4] = [
    ("key-of-ana", User { account: "acme", plan: "free" }),
    ("key-of-bob", User { account: "acme", plan: "free" }),
    ("key-of-eve", User { account: "umbrella", plan: "pro" }),
    ("key-of-ops", User { account: "operators", plan: "staff" }),
];

/// Leaves the user in the extensions, for the rules and for what is further in. Who is not known goes on without one.
async fn identify(mut request: Request, next: Next) -> Response {
    let key = request.headers().get("x-api-key");
    let user = KEYS.iter().find(|(known, _)| key.is_some_and(|key| key == known)).map(|(_, user)| *user);
    if let Some(user) = user {
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

/// Stops who is not known: inside the limits, so that guessing is limited too.
async fn require_user(user: Option<Extension<User>>, request: Request, next: Next) -> Response {
    match user {
        Some(_) => next.run(request).await,
        None => (StatusCode::UNAUTHORIZED, "send a key: x-api-key\n").into_response(),
    }
}

async fn require_operator(Extension(user): Extension<User>, request: Request, next: Next) -> Response {
    match user.plan {
        "staff" => next.run(request).await,
        _ => (StatusCode::FORBIDDEN, "for operators only\n").into_response(),
    }
}

/// What the rule file may refer to by name.
fn registry() -> Registry<Body> {
    fn user(request: &Request) -> Option<&User> {
        request.extensions().get()
    }
    Registry::new()
        .key("account", |request| Some(Key::from(user(request)?.account)))
        .value("account", |request| Some(user(request)?.account.into()))
        .value("plan", |request| Some(user(request)?.plan.into()))
}

/// The limits in force, and what reads them again when their file is saved.
struct Limits {
    limiter: Limiter<Request>,
    watch: Watch,
}

impl Limits {
    async fn new(path: &Path, redis_url: Option<&str>) -> Result<Self, Failure> {
        let rules = Rules::from_path(path)?;
        let builder = Limiter::builder(rules.build(&registry())?);
        let limiter = match redis_url {
            Some(url) => {
                let redis = redis(url)?;
                // A gateway that is started before its Redis counts by itself until that is there.
                let _away = tokio::time::timeout(Duration::from_secs(1), redis.connected()).await;
                builder.store(guarded(redis)).build()?
            }
            None => builder.store(MemoryStore::new()).build()?,
        };
        let watch = rules.watch(&limiter, registry())?;
        Ok(Self { limiter, watch })
    }
}

/// The same in all gateways, as their other secrets; it hides keys on the server.
fn redis(url: &str) -> Result<RedisStore, Failure> {
    let secret = match std::env::var("TOLLGATE_SECRET") {
        Ok(text) => Secret::new(text.into_bytes().try_into().map_err(|_| "TOLLGATE_SECRET: not 16 bytes")?),
        Err(_) => Secret::new(*b"only for showing"),
    };
    let redis = RedisStore::builder(url, secret).deployment("gateway").build();
    redis.map_err(|why| format!("REDIS_URL: {why}").into())
}

/// While Redis is away each gateway counts by itself, which of two lets each grant a half.
fn guarded(redis: RedisStore) -> Guarded {
    Guarded::new(redis, FailurePolicy::Fallback(Share::one_in(2)))
}

/// Reloads on SIGHUP, whether or not the file has changed.
#[cfg(unix)]
fn on_hangup(limits: &Arc<Limits>) -> Result<(), Failure> {
    let mut hangups = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
    let limits = Arc::clone(limits);
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            let limits = Arc::clone(&limits);
            let _ = tokio::task::spawn_blocking(move || limits.watch.reload()).await;
        }
    });
    Ok(())
}

/// The recorder of this process.
fn prometheus() -> Result<PrometheusHandle, Failure> {
    static INSTALLED: Mutex<Option<PrometheusHandle>> = Mutex::new(None);
    // Held while it is installed: of two that ask at once, one installs it and both have it.
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if installed.is_none() {
        *installed = Some(PrometheusBuilder::new().install_recorder()?);
    }
    installed.clone().ok_or_else(|| "there is no recorder".into())
}

/// What the handlers of operators need.
#[derive(Clone)]
struct Operated {
    limits: Arc<Limits>,
    prometheus: PrometheusHandle,
}

async fn metrics(State(Operated { limits, prometheus }): State<Operated>) -> impl IntoResponse {
    limits.limiter.publish_metrics();
    ([("content-type", "text/plain; version=0.0.4")], prometheus.render())
}

/// What would become of a request now: `/explain?method=POST&path=/files/a&key=key-of-ana&peer=192.0.2.1`. Keys are not
/// shown. A slip in the question is told, since an answer to another one would be believed.
async fn explain(State(Operated { limits, .. }): State<Operated>, uri: Uri) -> Result<String, (StatusCode, String)> {
    let asked: HashMap<String, String> =
        form_urlencoded::parse(uri.query().unwrap_or("").as_bytes()).into_owned().collect();
    let bad = |why: &dyn std::fmt::Display| (StatusCode::BAD_REQUEST, format!("{why}\n"));
    if let Some(name) = asked.keys().find(|name| !["method", "path", "key", "peer"].contains(&name.as_str())) {
        return Err(bad(&format_args!("there is no {name:?} to ask for; there are method, path, key and peer")));
    }
    let given = |name: &str, otherwise: &str| asked.get(name).cloned().unwrap_or_else(|| otherwise.into());
    if !given("path", "/").starts_with('/') {
        return Err(bad(&"path: begin it with \"/\""));
    }
    let request = Request::builder().method(given("method", "GET").as_str()).uri(given("path", "/"));
    let mut request = request.body(Body::empty()).map_err(|error| bad(&error))?;
    let peer = given("peer", "127.0.0.1").parse::<IpAddr>();
    let peer = peer.map_err(|error| bad(&format_args!("peer: {error}, such as 192.0.2.1")))?;
    request.extensions_mut().insert(ConnectInfo(SocketAddr::new(peer, 0)));
    if let Some(given) = asked.get("key") {
        let user = KEYS.iter().find(|(key, _)| given == key).map(|(_, user)| *user);
        request.extensions_mut().insert(user.ok_or_else(|| bad(&"key: nobody has this one; without it nobody asks"))?);
    }
    match limits.limiter.explain(&request).await {
        Ok(explanation) => Ok(explanation.to_string()),
        Err(error) => Err((StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"))),
    }
}

/// The gateway over the limits of a file.
fn app(limits: &Arc<Limits>) -> Result<Router, Failure> {
    let operated = Operated { limits: Arc::clone(limits), prometheus: prometheus()? };
    let for_operators = Router::new()
        .route("/metrics", get(metrics))
        .route("/explain", get(explain))
        .with_state(operated)
        .route_layer(middleware::from_fn(require_operator));
    Ok(Router::new()
        .route("/", get(|Extension(user): Extension<User>| async move { format!("hello {}\n", user.account) }))
        .route(
            "/files/{*path}",
            post(|uri: Uri, body: Bytes| async move { format!("{} bytes at {uri}\n", body.len()) }),
        )
        .merge(for_operators)
        .layer(middleware::from_fn(require_user))
        .layer(RateLimitLayer::from(limits.limiter.clone()))
        .layer(middleware::from_fn(identify)))
}

/// Serves until it is told to end.
async fn serve(listener: tokio::net::TcpListener, limits: &Arc<Limits>) -> Result<(), Failure> {
    #[cfg(unix)]
    on_hangup(limits)?;
    let app = app(limits)?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, app).await?)
}

const DEFAULT_RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/rules/gateway.toml");

#[tokio::main]
async fn main() -> std::process::ExitCode {
    tracing_subscriber::fmt::init();
    match run().await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Failure> {
    let variable = |name: &str| std::env::var(name).ok();
    let path = variable("RULES").unwrap_or_else(|| DEFAULT_RULES.into());
    // Before there are rules, so that everything is counted.
    prometheus()?;
    let limits = Arc::new(Limits::new(Path::new(&path), variable("REDIS_URL").as_deref()).await?);
    let port: u16 = match variable("PORT") {
        Some(port) => port.parse().map_err(|_| format!("PORT={port}: not a number from 0 to 65535"))?,
        None => 3000,
    };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("127.0.0.1:{port}: {error}; set PORT to another port"))?;
    let address = listener.local_addr()?;
    println!(
        "serving on http://{address}/ by the rules of {path}; try

  curl -i -H 'x-api-key: key-of-ana' http://{address}/
  curl -i -H 'x-api-key: key-of-ana' --data-binary hello http://{address}/files/a.txt
  curl -i -H 'x-api-key: key-of-eve' --data-binary hello http://{address}/files/a.txt     # another account, another plan
  curl -H 'x-api-key: key-of-ops' 'http://{address}/explain?method=POST&path=/files/a.txt&key=key-of-ana'
  curl -H 'x-api-key: key-of-ops' http://{address}/metrics

and save other numbers into the file, or send SIGHUP to process {}.",
        std::process::id()
    );
    serve(listener, &limits).await
}

#[cfg(test)]
#[path = "../tests/it/prometheus.rs"]
mod prometheus_text;

#[cfg(test)]
#[path = "../tests/it/redis/server.rs"]
#[allow(dead_code, reason = "other tests want more of a server")]
mod server;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tokio::{
        io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
        net::{TcpListener, TcpStream},
    };

    use super::{prometheus_text::Page, server::Server, *};

    const UPLOADS: &str = "
        [[policies]]
        id = 'uploads'
        match = { method = 'POST', path = '/files/{*path}' }
        key = 'account'
        limit = '2/1m'
        on_missing_key = 'skip'
    ";

    /// A gateway that serves on a port of its own by a file of its own, and is gone with the runtime of its test.
    struct Gateway {
        address: SocketAddr,
        limits: Arc<Limits>,
        directory: PathBuf,
    }

    impl Drop for Gateway {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }

    impl Gateway {
        async fn start(name: &str, rules: &str) -> Self {
            Self::start_with(name, rules, None).await
        }

        async fn start_with(name: &str, rules: &str, redis_url: Option<&str>) -> Self {
            let directory = std::env::temp_dir().join(format!("gateway-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            let path = directory.join("rules.toml");
            std::fs::write(&path, rules).unwrap();
            prometheus().unwrap();
            let limits = Arc::new(Limits::new(&path, redis_url).await.unwrap());
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let served = Arc::clone(&limits);
            tokio::spawn(async move { serve(listener, &served).await.unwrap() });
            let gateway = Self { address, limits, directory };
            assert_eq!(gateway.get("/", "key-of-ops").await.0, 200);
            gateway
        }

        /// Saves the file as many editors do.
        fn save(&self, rules: &str) {
            let other = self.directory.join(".rules.toml.swp");
            std::fs::write(&other, rules).unwrap();
            std::fs::rename(other, self.directory.join("rules.toml")).unwrap();
        }

        async fn send(&self, head: &str, key: &str) -> (u16, String) {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            let request = format!("{head} HTTP/1.1\r\nhost: a\r\nx-api-key: {key}\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
            let body = answer.split_once("\r\n\r\n").unwrap().1;
            (status, body.to_owned())
        }

        async fn get(&self, path: &str, key: &str) -> (u16, String) {
            self.send(&format!("GET {path}"), key).await
        }

        async fn upload(&self, key: &str) -> u16 {
            self.send("POST /files/a.txt", key).await.0
        }

        async fn page(&self) -> (Page, String) {
            let (status, text) = self.get("/metrics", "key-of-ops").await;
            assert_eq!(status, 200, "{text}");
            (Page::read(&text).unwrap_or_else(|why| panic!("{why}\n{text}")), text)
        }

        /// Waits until so many sets of rules came into force, and so many were refused, or more: a signal that another
        /// test sends reaches all gateways.
        async fn reloads(&self, reloaded: u64, failed: u64) {
            let seen = async || loop {
                let counts = self.limits.limiter.reloads();
                if counts.reloaded >= reloaded && counts.failed >= failed {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            };
            tokio::time::timeout(Duration::from_secs(20), seen()).await.expect("it notices");
        }
    }

    #[tokio::test]
    async fn the_rules_it_comes_with_limit_accounts_and_uploads_by_themselves() {
        let gateway = Gateway::start("comes-with", &std::fs::read_to_string(DEFAULT_RULES).unwrap()).await;
        assert_eq!(gateway.get("/", "nobody's").await.0, 401);
        assert_eq!(gateway.get("/", "key-of-ana").await, (200, "hello acme\n".into()));
        for _ in 0..5 {
            assert_eq!(gateway.upload("key-of-ana").await, 200);
            assert_eq!(gateway.upload("key-of-bob").await, 200); // of the same account
        }
        assert_eq!(gateway.upload("key-of-ana").await, 429);
        assert_eq!(gateway.upload("key-of-eve").await, 200);
        assert_eq!(gateway.get("/", "key-of-ana").await.0, 200);
    }

    #[tokio::test]
    async fn a_saved_file_helps_at_once_and_what_was_used_stays_used() {
        let gateway = Gateway::start("saved", UPLOADS).await;
        assert_eq!([gateway.upload("key-of-ana").await, gateway.upload("key-of-ana").await], [200, 200]);
        assert_eq!(gateway.upload("key-of-ana").await, 429);
        let before = gateway.limits.limiter.reloads().reloaded;
        gateway.save(&UPLOADS.replace("2/1m", "4/1m"));
        gateway.reloads(before + 1, 0).await;
        assert_eq!([gateway.upload("key-of-ana").await, gateway.upload("key-of-ana").await], [200, 200]);
        assert_eq!(gateway.upload("key-of-ana").await, 429);
    }

    #[tokio::test]
    async fn a_bad_file_changes_nothing_and_is_counted() {
        let gateway = Gateway::start("bad", UPLOADS).await;
        assert_eq!(gateway.upload("key-of-ana").await, 200);
        gateway.save(&UPLOADS.replace("2/1m", "2/month"));
        gateway.reloads(0, 1).await;
        assert_eq!([gateway.upload("key-of-ana").await, gateway.upload("key-of-ana").await], [200, 429]);
        let failed = gateway.page().await.0.get("tollgate_reloads_total", &[("outcome", "failed")]);
        assert!(failed >= Some(1.0), "{failed:?}");
        let before = gateway.limits.limiter.reloads().reloaded;
        gateway.save(&UPLOADS.replace("2/1m", "3/1m"));
        gateway.reloads(before + 1, 1).await;
        assert_eq!([gateway.upload("key-of-ana").await, gateway.upload("key-of-ana").await], [200, 429]);
    }

    #[tokio::test]
    async fn the_metrics_have_no_key_and_no_series_more_after_100_000_keys() {
        let rules = "
            [[policies]]
            id = 'client'
            key = { header = 'x-client' }
            limit = '1/1h'
        ";
        let gateway = Gateway::start("keys", rules).await;
        let ask = async |keys: std::ops::Range<u32>| {
            let (from, to) = TcpStream::connect(gateway.address).await.unwrap().into_split();
            let mut to = to;
            let count = keys.len();
            let writes = async move {
                for key in keys {
                    let request = format!(
                        "GET / HTTP/1.1\r\nhost: a\r\nx-api-key: key-of-ana\r\nx-client: sentinel-{key}\r\n\r\n"
                    );
                    to.write_all(request.as_bytes()).await.unwrap();
                }
                to
            };
            let reads = async move {
                let mut lines = BufReader::new(from).lines();
                let mut passed = 0;
                for _ in 0..count {
                    let status = loop {
                        let line = lines.next_line().await.unwrap().unwrap();
                        if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
                            break rest.to_owned();
                        }
                        // The body of the one before ends without an end of the line.
                        if let Some((_, rest)) = line.split_once("HTTP/1.1 ") {
                            break rest.to_owned();
                        }
                    };
                    passed += usize::from(status.starts_with("200"));
                }
                passed
            };
            let (_to, passed) = tokio::join!(writes, reads);
            passed
        };
        // Enough for each series to have been told of once.
        assert_eq!(ask(0..2_000).await, 2_000);
        let (before, _) = gateway.page().await;
        assert_eq!(ask(2_000..102_000).await, 100_000);
        assert_eq!(ask(5..15).await, 0);
        let (after, text) = gateway.page().await;
        // Gateways of other tests may have come meanwhile, with rules of their own.
        let ours = |series: &&String| series.contains("\"client\"") || !series.contains("\"rule\"");
        let of = |page: &Page| page.series.keys().filter(ours).cloned().collect::<Vec<_>>();
        assert_eq!(of(&before), of(&after));
        assert!(of(&after).len() > 15, "{:?}", of(&after));
        let of = |outcome| after.get("tollgate_decisions_total", &[("rule", "client"), ("outcome", outcome)]);
        assert_eq!((of("allowed"), of("refused")), (Some(102_000.0), Some(10.0)));
        assert_eq!(after.get("tollgate_tracked_keys", &[("rule", "client")]), Some(102_000.0));
        for key in ["sentinel", "key-of", "acme", "127.0.0.1"] {
            assert!(!text.contains(key), "{key} in\n{text}");
        }
    }

    /// A real server, and two gateways on it.
    #[tokio::test]
    async fn gateways_on_one_redis_count_together_and_each_by_itself_while_it_is_away() {
        let mut server = Server::start();
        let url = server.url();
        let rules = UPLOADS.replace("2/1m", "6/1h");
        let one = Gateway::start_with("one", &rules, Some(&url)).await;
        let other = Gateway::start_with("other", &rules, Some(&url)).await;
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.extend([one.upload("key-of-ana").await, other.upload("key-of-bob").await]);
        }
        assert_eq!(seen, [200, 200, 200, 200, 200, 200, 429, 429], "six for the account, whichever gateway it asks");
        let path = "/explain?method=POST&path=/files/b.txt&key=key-of-eve";
        assert!(one.get(path, "key-of-ops").await.1.contains("6 of 6 left"));
        // What was used stays used for both, when one has read the file again already.
        let before = one.limits.limiter.reloads().reloaded;
        one.save(&rules.replace("6/1h", "7/1h"));
        one.reloads(before + 1, 0).await;
        assert_eq!([one.upload("key-of-ana").await, one.upload("key-of-ana").await], [200, 429]);
        // Alone each grants a half of what it would.
        server.kill();
        let mut seen = Vec::new();
        for _ in 0..5 {
            seen.push(other.upload("key-of-eve").await);
        }
        assert_eq!(seen, [200, 200, 200, 429, 429]);
        let (page, text) = other.page().await;
        let of = |outcome| page.get("tollgate_decisions_total", &[("rule", "uploads"), ("outcome", outcome)]);
        assert!(of("fallback") >= Some(3.0) && of("fallback_refused") >= Some(2.0), "{text}");
        assert!(page.get("tollgate_store_errors_total", &[]) >= Some(1.0), "{text}");
        for key in ["key-of", "acme", "umbrella"] {
            assert!(!text.contains(key), "{key} in\n{text}");
        }
    }

    #[tokio::test]
    async fn operators_are_told_why_and_nobody_else() {
        let gateway = Gateway::start("why", UPLOADS).await;
        let path = "/explain?method=POST&path=/files/b.txt&key=key-of-ana";
        assert_eq!(gateway.get(path, "key-of-ana").await.0, 403);
        assert_eq!(gateway.get("/metrics", "key-of-ana").await.0, 403);
        assert_eq!(gateway.get(path, "nobody's").await.0, 401);
        let told = gateway.get(path, "key-of-ops").await;
        assert_eq!((told.0, told.1.starts_with("passes\n")), (200, true), "{}", told.1);
        let _both = (gateway.upload("key-of-ana").await, gateway.upload("key-of-bob").await);
        let (_, told) = gateway.get(path, "key-of-ops").await;
        assert!(told.starts_with("refused with 429") && told.contains("\"uploads\""), "{told}");
        assert!(!told.contains("acme"), "{told}");
        let (_, told) = gateway.get("/explain?path=/", "key-of-ops").await;
        assert!(told.contains("not asked"), "{told}");
        let (status, told) = gateway.get("/explain?peer=nowhere", "key-of-ops").await;
        assert_eq!((status, told.contains("invalid IP address")), (400, true), "{told}");
        for (slip, why) in [("methd=POST", "\"methd\""), ("key=key-of-anna", "nobody"), ("path=files", "begin it")] {
            let (status, told) = gateway.get(&format!("/explain?{slip}"), "key-of-ops").await;
            assert_eq!((status, told.contains(why)), (400, true), "{slip}: {told}");
        }
    }

    #[tokio::test]
    async fn operators_ask_why_from_an_address_that_guesses() {
        let rules = std::fs::read_to_string(DEFAULT_RULES).unwrap();
        let gateway = Gateway::start("guesses", &rules.replace("\"20/1m\"", "\"3/1h\"")).await;
        for _ in 0..3 {
            assert_eq!(gateway.get("/", "a guess").await.0, 401);
        }
        assert_eq!(gateway.get("/", "a guess").await.0, 429);
        assert_eq!(gateway.get("/", "key-of-ana").await.0, 429);
        let (status, told) = gateway.get("/explain?key=key-of-ana", "key-of-ops").await;
        assert_eq!((status, told.starts_with("refused with 429")), (200, true), "{told}");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_hangup_reads_the_file_again() {
        let gateway = Gateway::start("hangup", UPLOADS).await;
        let before = gateway.limits.limiter.reloads().reloaded;
        let status = std::process::Command::new("kill").args(["-HUP", &std::process::id().to_string()]).status();
        assert!(status.unwrap().success());
        gateway.reloads(before + 1, 0).await;
    }
}
