//! Several connections, several clients.

use axum::routing::get;
use futures_util::future::join_all;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use tollgate::{Limit, key};

use super::*;

/// A pooling client, as programs have it, that speaks from one of loopback's own addresses.
fn client(version: Version, from: Ipv4Addr) -> Client<HttpConnector, Body> {
    let mut connector = HttpConnector::new();
    connector.set_local_address(Some(from.into()));
    Client::builder(TokioExecutor::new()).http2_only(version == Version::HTTP_2).build(connector)
}

async fn status(client: &Client<HttpConnector, Body>, server: &Server) -> u16 {
    let uri = format!("http://{}/", server.address).parse().unwrap();
    let answer = Answer::read(client.get(uri).await.unwrap()).await;
    answer.status.as_u16()
}

#[tokio::test]
async fn connections_of_both_versions_share_one_limit() {
    let rule = Rule::global("all", Limit::per_minute(7));
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layer([rule], &ManualClock::new()));
    let server = Server::start(app).await;
    // A client has a pool of its own, so each of these 20 opens a connection.
    let statuses = join_all((0..20).map(|at| {
        let client = client(BOTH[at % 2], Ipv4Addr::LOCALHOST);
        let server = &server;
        async move { [status(&client, server).await, status(&client, server).await] }
    }))
    .await;
    let count = |wanted| statuses.iter().flatten().filter(|status| **status == wanted).count();
    assert_eq!((count(200), count(429)), (7, 33), "{statuses:?}");
    assert!(server.accepted() >= 20);
}

// Only Linux has all of 127.0.0.0/8 without being told.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn peers_are_told_apart_by_the_address_of_their_socket() {
    let rule = Rule::new("address", Limit::per_minute(2), key::peer_addr());
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layer([rule], &ManualClock::new()));
    let server = Server::start(app).await;
    for last in [1, 2, 3] {
        let from = Ipv4Addr::new(127, 0, 0, last);
        // Whichever way it comes, it is the same client.
        let clients = BOTH.map(|version| client(version, from));
        let mut statuses = Vec::new();
        for client in clients.iter().cycle().take(4) {
            statuses.push(status(client, &server).await);
        }
        assert_eq!(statuses, [200, 200, 429, 429], "{from}");
    }
}
