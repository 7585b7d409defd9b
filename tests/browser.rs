//! What a script in a real browser can read of a refusal by a server of another origin.
//!
//! `scripts/browser` installs what this needs, and runs it; `scripts/test` runs it with all the others.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is its job"
)]

use std::{
    env,
    net::Ipv4Addr,
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::Request,
    http::{HeaderName, Method},
    middleware::{self, Next},
    response::Html,
    routing::get,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, process::Command};
use tollgate::{Limit, Limiter, RateLimitLayer, Rule, key, response::Headers, time::ManualClock, when};
use tower_http::cors::{Any, CorsLayer};

/// What the page asks for, one request after another, and where it leaves what it saw.
const PAGE: &str = r#"<!DOCTYPE html>
<pre id="seen">nothing</pre>
<script>
const fields = ["retry-after", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset",
                "ratelimit", "ratelimit-policy", "content-type"];
async function ask() {
  try {
    // A field that is not on the list of simple ones makes the browser send a preflight first.
    const response = await fetch("API", { headers: { "x-key": "ana" }, cache: "no-store" });
    const told = fields.map((name) => response.headers.get(name));
    return { status: response.status, told, body: await response.text() };
  } catch (error) {
    return { error: error.name };
  }
}
(async () => {
  const seen = [await ask(), await ask(), await ask()];
  document.getElementById("seen").textContent = JSON.stringify(seen);
})();
</script>
"#;

/// A new directory for the browser, which ends with the test.
struct Profile(PathBuf);

impl Profile {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("tollgate-browser-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        // The browser's helpers may still be writing; what they leave is in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The browser: `$CHROMIUM`, or whichever there is.
fn chromium() -> PathBuf {
    if let Some(program) = env::var_os("CHROMIUM") {
        return program.into();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let found =
        env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name))).find(|program| program.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "this test needs Chromium, and {names:?} are not on the PATH: run `scripts/setup chromium`, which installs \
             it, or set CHROMIUM to the program"
        )
    })
}

async fn serve(app: Router) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

/// Lets a browser load a page of one origin, whose script asks `api`, of another one, three times.
async fn browse(api: Router) -> Value {
    let api = serve(api).await;
    let page = PAGE.replace("API", &format!("{api}/"));
    let page = serve(Router::new().route("/", get(|| async { Html(page) }))).await;
    let profile = Profile::new();
    let browser = Command::new(chromium())
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"])
        // Nobody else is talked to.
        .args(["--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"])
        .arg(format!("--user-data-dir={}", profile.0.display()))
        // The page's own time, which stands still while a request is under way.
        .args(["--virtual-time-budget=10000", "--dump-dom", &page])
        .env("XDG_CONFIG_HOME", &profile.0)
        .env("XDG_CACHE_HOME", &profile.0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", chromium().display()));
    let output = tokio::time::timeout(Duration::from_secs(120), browser.wait_with_output()).await;
    let output = output.expect("the browser ends by itself").unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let seen = dom.split_once(r#"<pre id="seen">"#).and_then(|(_, rest)| rest.split_once("</pre>"));
    let text = seen.map(|(text, _)| text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"));
    let seen = text.and_then(|text| serde_json::from_str(&text).ok());
    seen.unwrap_or_else(|| panic!("{}\n{dom}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

/// Counts the preflights and the rest that come to a server.
#[derive(Clone, Default)]
struct Requests {
    preflights: Arc<AtomicUsize>,
    others: Arc<AtomicUsize>,
}

impl Requests {
    fn counted(&self, api: Router) -> Router {
        let counts = self.clone();
        api.layer(middleware::from_fn(move |request: Request, next: Next| {
            let kind = if *request.method() == Method::OPTIONS { &counts.preflights } else { &counts.others };
            kind.fetch_add(1, Ordering::Relaxed);
            next.run(request)
        }))
    }

    fn seen(&self) -> (usize, usize) {
        (self.preflights.load(Ordering::Relaxed), self.others.load(Ordering::Relaxed))
    }
}

fn two_a_minute() -> Rule<Request> {
    Rule::new("key", Limit::per_minute(2), key::header("x-key"))
}

/// The limit, and how many decisions it made.
fn limit(rule: Rule<Request>) -> (RateLimitLayer<Request>, Arc<AtomicUsize>) {
    let decisions = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&decisions);
    let limiter = Limiter::builder([rule]).clock(ManualClock::new()).on_decision(move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    (RateLimitLayer::from(limiter.build().unwrap()).headers(Headers::Both), decisions)
}

fn cors(expose: Vec<HeaderName>) -> CorsLayer {
    // Not kept by the browser, so that each request has a preflight of its own.
    CorsLayer::new().allow_origin(Any).allow_headers(Any).expose_headers(expose).max_age(Duration::ZERO)
}

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

#[tokio::test]
async fn a_script_of_another_origin_reads_the_refusal_and_preflights_are_not_counted() {
    let (limit, decisions) = limit(two_a_minute());
    let expose = limit.expose_headers();
    let requests = Requests::default();
    let seen = browse(requests.counted(hello().layer(limit).layer(cors(expose)))).await;

    const POLICY: &str = r#""key";q=2;w=60"#;
    for (at, remaining, reset, told) in [(0, "1", "30", r#""key";r=1;t=30"#), (1, "0", "60", r#""key";r=0;t=30"#)] {
        let text = "text/plain; charset=utf-8";
        let fields = json!([null, "2", remaining, reset, told, POLICY, text]);
        assert_eq!(seen[at], json!({ "status": 200, "told": fields, "body": "hello" }));
    }
    assert_eq!(seen[2]["status"], 429);
    let problem = "application/problem+json";
    assert_eq!(seen[2]["told"], json!(["30", "2", "0", "60", r#""key";r=0;t=30"#, POLICY, problem]));
    let body: Value = serde_json::from_str(seen[2]["body"].as_str().unwrap()).unwrap();
    assert_eq!((&body["status"], &body["violated-policies"]), (&json!(429), &json!(["key"])));

    assert_eq!(requests.seen(), (3, 3), "a preflight before each");
    assert_eq!(decisions.load(Ordering::Relaxed), 3, "and the limit was asked for none of them");
}

#[tokio::test]
async fn a_script_sees_no_numbers_that_are_not_exposed() {
    let (limit, _) = limit(two_a_minute());
    let seen = browse(hello().layer(limit).layer(cors(vec![]))).await;
    let statuses: Vec<_> = (0..3).map(|at| &seen[at]["status"]).collect();
    assert_eq!(statuses, [200, 200, 429]);
    for at in 0..3 {
        let told = seen[at]["told"].as_array().unwrap();
        assert!(told[..6].iter().all(Value::is_null), "{told:?}");
    }
}

#[tokio::test]
async fn with_cors_inside_the_limit_preflights_are_counted_and_refusals_cannot_be_read() {
    let (limit, decisions) = limit(Rule::global("all", Limit::per_minute(4)));
    let requests = Requests::default();
    let expose = limit.expose_headers();
    let seen = browse(requests.counted(hello().layer(cors(expose)).layer(limit))).await;
    assert_eq!((&seen[0]["status"], &seen[1]["status"]), (&json!(200), &json!(200)));
    // The third preflight is refused, and what it should have allowed is never sent.
    assert_eq!(seen[2], json!({ "error": "TypeError" }));
    assert_eq!((requests.seen(), decisions.load(Ordering::Relaxed)), ((3, 2), 5));
}

#[tokio::test]
async fn a_rule_can_leave_preflights_out_where_cors_is_inside() {
    let (limit, _) = limit(Rule::global("all", Limit::per_minute(2)).when(when::not(when::preflight())));
    let requests = Requests::default();
    let expose = limit.expose_headers();
    let seen = browse(requests.counted(hello().layer(cors(expose)).layer(limit))).await;
    assert_eq!((&seen[0]["status"], &seen[1]["status"]), (&json!(200), &json!(200)));
    // The refusal, made outside CORS, is still hidden from the script.
    assert_eq!(seen[2], json!({ "error": "TypeError" }));
    assert_eq!(requests.seen(), (3, 3), "every preflight passed");
}
