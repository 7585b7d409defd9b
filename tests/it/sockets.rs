//! The layer in real servers on loopback sockets, seen by clients that share no memory with them, over both versions of
//! HTTP.

mod answers;
mod cancelled;
mod places;
mod raw;
mod shared;
mod streams;
mod upgrades;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderMap, Method, Response, StatusCode, Version},
    serve::ListenerExt,
};
use http_body_util::BodyExt;
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tollgate::{Limiter, RateLimitLayer, Rule, time::ManualClock};

use crate::{soon::PATIENCE, support::layer};

/// Both versions; HTTP/2 by prior knowledge, since there is no TLS to agree on it.
const BOTH: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];

/// A running server. It ends with the test's runtime.
struct Server {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Server {
    /// Serves the router with `axum::serve`, as users do.
    async fn start(app: Router) -> Self {
        let accepted = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&accepted);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = listener.tap_io(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let service = app.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        Self { address, accepted }
    }

    /// Returns how many connections there were.
    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    async fn connect(&self, version: Version) -> Connection {
        Connection::open(self.address, version).await
    }
}

/// One connection. Whatever is sent on it shows that it is still open.
struct Connection {
    sender: Sender,
    address: SocketAddr,
}

enum Sender {
    One(http1::SendRequest<Body>),
    Two(http2::SendRequest<Body>),
}

impl Connection {
    async fn open(address: SocketAddr, version: Version) -> Self {
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let sender = if version == Version::HTTP_2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(connection);
            Sender::Two(sender)
        } else {
            let (sender, connection) = http1::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            Sender::One(sender)
        };
        Self { sender, address }
    }

    /// Sends a request whose target is a path.
    async fn start(&mut self, request: Request) -> Response<Incoming> {
        self.try_start(request).await.unwrap()
    }

    /// Sends a request that the server may not answer.
    async fn try_start(&mut self, mut request: Request) -> hyper::Result<Response<Incoming>> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
        match &mut self.sender {
            Sender::One(sender) => {
                *request.uri_mut() = path.parse().unwrap();
                request.headers_mut().insert("host", self.address.to_string().parse().unwrap());
                sender.ready().await.expect("the connection is still open");
                sender.send_request(request).await
            }
            Sender::Two(sender) => {
                *request.uri_mut() = format!("http://{}{path}", self.address).parse().unwrap();
                sender.ready().await.expect("the connection is still open");
                sender.send_request(request).await
            }
        }
    }

    async fn send(&mut self, request: Request) -> Answer {
        Answer::read(self.start(request).await).await
    }

    async fn ask(&mut self, method: Method) -> Answer {
        let request = Request::builder().method(method).uri("/").body(Body::empty()).unwrap();
        self.send(request).await
    }
}

/// A response, read to its end.
struct Answer {
    status: StatusCode,
    version: Version,
    headers: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

impl Answer {
    async fn read(response: Response<Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let body = tokio::time::timeout(PATIENCE, body.collect()).await.expect("an end").unwrap();
        let trailers = body.trailers().cloned();
        Self { status: parts.status, version: parts.version, headers: parts.headers, body: body.to_bytes(), trailers }
    }

    /// Every field but the server's `date`, in the order of their names.
    fn fields(&self) -> Vec<(&str, &str)> {
        fields_of(&self.headers)
    }
}

fn fields_of(headers: &HeaderMap) -> Vec<(&str, &str)> {
    let mut fields: Vec<_> = headers
        .iter()
        .filter(|(name, _)| *name != "date")
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
        .collect();
    fields.sort_unstable();
    fields
}
