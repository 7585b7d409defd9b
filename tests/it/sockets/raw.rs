//! What only the bytes on the wire show.

use axum::routing::post;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tollgate::Limit;

use super::*;

/// An app that reads whole bodies, with room for one request.
async fn one_upload() -> Server {
    let rule = Rule::global("all", Limit::per_minute(1));
    let upload = post(|body: Bytes| async move { body.len().to_string() }).get(|| async { "hello" });
    Server::start(Router::new().route("/", upload).layer(layer([rule], &ManualClock::new()))).await
}

/// Sends bytes on a connection of their own, and reads until the server closes it.
async fn exchange(server: &Server, bytes: &str) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("the server closes").unwrap();
    answer
}

const EXPECTING: &str =
    "POST / HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 50000000\r\n\r\n";

#[tokio::test]
async fn a_refused_upload_is_never_invited() {
    let server = one_upload().await;
    assert!(
        exchange(&server, "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.contains(" 200 ")
    );

    // RFC 9110, 10.1.1: a final status instead of 100 tells the client not to send the body. The fifty megabytes can
    // still come, so nothing else can be asked on this connection.
    let answer = exchange(&server, EXPECTING).await;
    assert!(answer.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{answer}");
    assert!(!answer.contains("100 Continue"), "{answer}");
    assert!(answer.contains("\r\nretry-after: 60\r\n"), "{answer}");
    assert!(answer.ends_with(r#""violated-policies":["all"]}"#), "{answer}");
}

#[tokio::test]
async fn an_upload_that_passes_is_invited() {
    let server = one_upload().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head =
        "POST / HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 3\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut invitation = [0; 25];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut invitation)).await.expect("an invitation").unwrap();
    assert_eq!(&invitation, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"abc").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n3"), "{answer}");
}

#[tokio::test]
async fn pipelined_requests_are_answered_one_after_another() {
    // Had an answer more or fewer bytes than it says, the next would not be found. That of HEAD says as many as GET's.
    let server = one_upload().await;
    let ask = |method, last: &str| format!("{method} / HTTP/1.1\r\nhost: localhost\r\n{last}\r\n");
    let all = [
        ask("GET", ""),
        ask("HEAD", ""),
        ask("GET", ""),
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\nabc".to_owned(),
        ask("GET", "connection: close\r\n"),
    ];
    let answer = exchange(&server, &all.concat()).await;
    let mut rest = &*answer;
    for (method, status) in [("GET", "200"), ("HEAD", "429"), ("GET", "429"), ("POST", "429"), ("GET", "429")] {
        let (head, after) = rest.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {rest:?} of {answer}"));
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
        let length = if method == "HEAD" { 0 } else { length.parse().unwrap() };
        let (body, after) = after.split_at(length);
        assert!(
            body.starts_with(if status == "200" {
                "hello"
            } else if length == 0 {
                ""
            } else {
                "{"
            }),
            "{body}"
        );
        rest = after;
    }
    assert_eq!(rest, "");
    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn a_client_from_before_keep_alive_is_refused_in_its_own_version() {
    let server = one_upload().await;
    let ask = "GET / HTTP/1.0\r\n\r\n";
    assert!(exchange(&server, ask).await.starts_with("HTTP/1.0 200 OK\r\n"));
    let refused = exchange(&server, ask).await;
    assert!(refused.starts_with("HTTP/1.0 429 Too Many Requests\r\n"), "{refused}");
    assert!(refused.ends_with('}'), "{refused}");
}
