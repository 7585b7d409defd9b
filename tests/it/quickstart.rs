//! The quickstart, as the program it is, over a real socket.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
};

use axum::{
    body::Body,
    http::{HeaderMap, Method, Request, StatusCode},
};
use http_body_util::BodyExt;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;

/// The running example. It ends with the test.
struct Quickstart {
    child: Child,
    /// Kept open, since a program that cannot print panics.
    _stdout: BufReader<ChildStdout>,
    address: String,
}

impl Quickstart {
    fn start() -> Self {
        // This test is target/<profile>/deps/it-<hash>.
        let here = env::current_exe().unwrap();
        let profile = here.parent().and_then(|deps| deps.parent()).expect("a test is two directories deep");
        let program = profile.join("examples").join(format!("quickstart{}", env::consts::EXE_SUFFIX));
        assert!(
            program.exists(),
            "{} is missing: `cargo test` builds it, `cargo test --test it` does not; run `cargo build --examples` first",
            program.display()
        );
        let mut child = Command::new(program).env("PORT", "0").stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().expect("it was piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/')).map(|(address, _)| address);
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
        Self { child, _stdout: stdout, address }
    }

    /// Opens one connection. Whatever is sent on it shows that it is still open.
    async fn connect(&self) -> Connection {
        let stream = tokio::net::TcpStream::connect(&self.address).await.unwrap();
        let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Connection { sender, host: self.address.clone() }
    }
}

impl Drop for Quickstart {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Connection {
    sender: SendRequest<Body>,
    host: String,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn number(&self, name: &str) -> u64 {
        self.headers[name].to_str().unwrap().parse().unwrap()
    }
}

impl Connection {
    async fn send(&mut self, method: Method, token: &str) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri("/")
            .header("host", &self.host)
            .header("authorization", format!("Bearer {token}"))
            .body(Body::empty())
            .unwrap();
        self.sender.ready().await.expect("the connection is still open");
        let (parts, body) = self.sender.send_request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body: String::from_utf8(body.to_vec()).unwrap() }
    }

    async fn get(&mut self, token: &str) -> Answer {
        self.send(Method::GET, token).await
    }
}

#[tokio::test]
async fn the_quickstart_limits_users_and_addresses_over_a_socket() {
    let server = Quickstart::start();
    let mut client = server.connect().await;

    // Three at once, and then one a second. A slow machine may get one or two more.
    let mut remaining = Vec::new();
    let refused = loop {
        let answer = client.get("ana-secret").await;
        if answer.status != 200 {
            break answer;
        }
        assert_eq!(answer.body, "hello\n");
        assert_eq!(answer.number("x-ratelimit-limit"), 3);
        remaining.push(answer.number("x-ratelimit-remaining"));
        assert!(remaining.len() < 10, "{remaining:?}");
    };
    assert_eq!(remaining[0], 2);
    assert!(remaining.len() >= 3 && remaining.is_sorted_by(|a, b| a >= b), "{remaining:?}");

    assert_eq!(refused.status, 429);
    assert_eq!(refused.number("retry-after"), 1);
    assert_eq!(refused.number("x-ratelimit-remaining"), 0);
    assert_eq!(refused.headers["cache-control"], "no-store");
    assert_eq!(refused.headers["content-type"], "application/problem+json");
    assert_eq!(refused.number("content-length"), refused.body.len() as u64);
    let problem: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["user"]));

    // Without a body, and with what GET has told. An answer that is longer or shorter than it says would be read as the
    // beginning of the next one on this connection, or be waited for.
    let head = client.send(Method::HEAD, "ana-secret").await;
    if head.status == 429 {
        assert_eq!(head.body, "");
        assert_eq!(head.number("content-length"), refused.body.len() as u64);
        assert_eq!(head.headers["content-type"], "application/problem+json");
    }

    // Somebody else is not held up by it, on this connection or on another.
    assert_eq!(client.get("bob-secret").await.status, 200);
    assert_eq!(server.connect().await.get("bob-secret").await.status, 200);

    // Whoever guesses tokens is told so, until the limit of the address is spent.
    let mut guesses = 0;
    let refused = loop {
        let answer = client.get(&format!("guess-{guesses}")).await;
        if answer.status != 401 {
            break answer;
        }
        assert_eq!(answer.number("x-ratelimit-limit"), 20);
        guesses += 1;
        assert!(guesses < 30, "the address is never refused");
    };
    assert!(guesses >= 5, "{guesses}");
    assert_eq!(refused.status, 429);
    let problem: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["address"]));
    assert!((1..=3).contains(&refused.number("retry-after")));
    // A connection of its own does not help, nor does a right token.
    assert_eq!(server.connect().await.get("ana-secret").await.status, 429);
}
