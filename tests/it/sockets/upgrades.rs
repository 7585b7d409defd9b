//! Protocols that begin as an HTTP request.

use axum::{response::IntoResponse, routing::get};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tollgate::Limit;

use super::*;

/// Switches to a protocol that says everything back.
async fn echo(mut request: Request) -> impl IntoResponse {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let (mut read, mut write) = split(TokioIo::new(upgrade.await.unwrap()));
        copy(&mut read, &mut write).await
    });
    (StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "echo")])
}

const UPGRADE: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";

/// Reads until the end of a head, and no further.
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tokio::time::timeout(PATIENCE, stream.read_u8()).await.expect("a head").unwrap());
    }
    String::from_utf8(head).unwrap()
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[tokio::test]
async fn an_upgrade_passes_and_a_refused_one_is_an_ordinary_refusal() {
    let clock = ManualClock::new();
    let rule = Rule::global("all", Limit::per_minute(1));
    let app = Router::new().route("/", get(echo)).layer(layer([rule], &clock));
    let server = Server::start(app).await;

    let mut upgraded = TcpStream::connect(server.address).await.unwrap();
    upgraded.write_all(UPGRADE).await.unwrap();
    let switched = head(&mut upgraded).await;
    assert!(switched.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{switched}");
    assert_eq!(field(&switched, "upgrade"), Some("echo"));
    assert_eq!(field(&switched, "x-ratelimit-remaining"), Some("0"));

    let mut refused = TcpStream::connect(server.address).await.unwrap();
    for _ in 0..2 {
        refused.write_all(UPGRADE).await.unwrap();
        let head = head(&mut refused).await;
        assert!(head.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{head}");
        assert_eq!((field(&head, "upgrade"), field(&head, "connection")), (None, None));
        assert_eq!(field(&head, "retry-after"), Some("60"));
        let mut body = vec![0; field(&head, "content-length").unwrap().parse().unwrap()];
        refused.read_exact(&mut body).await.unwrap();
        assert!(body.ends_with(b"}"));
    }

    // What was upgraded before is nobody's request any more.
    for said in [&b"ping"[..], b"a second time"] {
        upgraded.write_all(said).await.unwrap();
        let mut heard = vec![0; said.len()];
        tokio::time::timeout(PATIENCE, upgraded.read_exact(&mut heard)).await.expect("an echo").unwrap();
        assert_eq!(heard, said);
    }

    // The connection of the refused one is still HTTP's, and can be upgraded once there is room.
    clock.advance(Duration::from_secs(60));
    refused.write_all(UPGRADE).await.unwrap();
    assert!(head(&mut refused).await.starts_with("HTTP/1.1 101 "));
    refused.write_all(b"at last").await.unwrap();
    let mut heard = [0; 7];
    refused.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"at last");
    assert_eq!(server.accepted(), 2);
}
