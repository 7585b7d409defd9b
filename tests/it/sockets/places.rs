//! Streams that hold a place each, and end in every way there is.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::atomic::AtomicI64,
    task::{Context, Poll},
};

use axum::routing::get;
use futures_util::future::join_all;
use http_body::Frame;
use tollgate::Limit;

use super::*;
use crate::{
    random::{Random, from_env},
    soon::until,
};

const PLACES: u64 = 10;
const STREAMS: u64 = 200;
/// Every second of these only lets others go on.
const PIECES: u64 = 5;

/// How many streams there are, from the start of their handler to their last frame.
#[derive(Default)]
struct Gauge {
    now: AtomicI64,
    peak: AtomicI64,
}

/// One of them.
struct Running(Arc<Gauge>);

impl Running {
    fn start(gauge: &Arc<Gauge>) -> Self {
        let now = gauge.now.fetch_add(1, Ordering::SeqCst) + 1;
        gauge.peak.fetch_max(now, Ordering::SeqCst);
        Self(Arc::clone(gauge))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What a client asks a stream to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// To its end, as an answer of unknown length.
    Whole,
    /// It breaks after a piece.
    Breaks,
    /// The handler panics.
    Panics,
    /// The handler answers never.
    Hangs,
    /// It goes on for ever.
    Endless,
}

const ENDS: [End; 5] = [End::Whole, End::Breaks, End::Panics, End::Hangs, End::Endless];

struct Pieces {
    end: End,
    given: u64,
    running: Option<Running>,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.given += 1;
        let last = match self.end {
            End::Breaks if self.given > 1 => Some(Err(Broken)),
            End::Endless if self.given > PIECES => return Poll::Pending,
            End::Whole if self.given > PIECES => None,
            _ if self.given.is_multiple_of(2) => {
                // Others get their turn between two pieces.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            _ => return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"piece"))))),
        };
        self.running = None;
        Poll::Ready(last)
    }
}

/// The stream breaks off.
#[derive(Debug)]
struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("broken off")
    }
}

impl std::error::Error for Broken {}

async fn stream(gauge: Arc<Gauge>, request: Request) -> Result<Response<Body>, Infallible> {
    let running = Running::start(&gauge);
    let end = request.headers()["x-end"].to_str().unwrap().parse::<usize>().unwrap();
    match ENDS[end] {
        // Without a line in the log for each of thousands.
        End::Panics => std::panic::resume_unwind(Box::new("on purpose")),
        End::Hangs => std::future::pending().await,
        end => Ok(Response::new(Body::new(Pieces { end, given: 0, running: Some(running) }))),
    }
}

/// Sends a request until there is a place for it, reads as much as it wants to, and goes away.
async fn client(server: SocketAddr, version: Version, seed: u64, free: impl Fn() -> u64, streamed: &AtomicUsize) {
    let mut random = Random::new(seed);
    let end = random.below(ENDS.len() as u64) as usize;
    let pieces = random.below(PIECES + 2);
    let request = || Request::builder().uri("/").header("x-end", end.to_string()).body(Body::empty()).unwrap();
    loop {
        let mut connection = Connection::open(server, version).await;
        // A handler that hangs is left after a while, whether or not it has begun.
        let patience = Duration::from_millis(if ENDS[end] == End::Hangs { 20 } else { 20_000 });
        let Ok(answer) = tokio::time::timeout(patience, connection.try_start(request())).await else {
            assert_eq!(ENDS[end], End::Hangs, "no answer");
            streamed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        match answer {
            Err(_) => {
                assert!(matches!(ENDS[end], End::Panics | End::Breaks), "no answer to {:?}", ENDS[end]);
                return;
            }
            Ok(response) if response.status() == StatusCode::TOO_MANY_REQUESTS => {
                until("a place is free", async || free() > 0).await;
            }
            Ok(response) => {
                assert_eq!(response.status(), StatusCode::OK);
                streamed.fetch_add(1, Ordering::Relaxed);
                let mut body = response.into_body();
                for _ in 0..pieces {
                    // Of an endless one there is nothing more to come.
                    let next = tokio::time::timeout(Duration::from_millis(20), body.frame());
                    if !matches!(next.await, Ok(Some(Ok(_)))) {
                        break;
                    }
                }
                return;
            }
        }
    }
}

#[test]
fn two_hundred_streams_through_ten_places_are_never_more_than_ten_and_leave_none_taken() {
    let runs = from_env("TOLLGATE_STREAM_RUNS", 5);
    for run in 0..runs {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        runtime.block_on(async {
            let gauge = Arc::<Gauge>::default();
            let shown = Arc::clone(&gauge);
            let limit = layer([Rule::global("streams", Limit::in_flight(PLACES))], &ManualClock::new());
            let limiter = limit.limiter().clone();
            let handler = get(move |request: Request| stream(Arc::clone(&shown), request));
            let server = Server::start(Router::new().route("/", handler).layer(limit)).await;
            let streamed = AtomicUsize::new(0);
            let free = || limiter.peek_now(&Request::new(Body::empty())).unwrap().tightest().unwrap().verdict.remaining;
            let clients = (0..STREAMS).map(|number| {
                let version = BOTH[(number % 2) as usize];
                client(server.address, version, run * STREAMS + number, &free, &streamed)
            });
            join_all(clients).await;
            until("every place is free", async || free() == PLACES).await;
            assert_eq!(gauge.now.load(Ordering::SeqCst), 0, "run {run}");
            assert!(
                gauge.peak.load(Ordering::SeqCst) <= PLACES as i64,
                "run {run}: {} at once",
                gauge.peak.load(Ordering::SeqCst)
            );
            assert!(streamed.load(Ordering::Relaxed) as u64 > STREAMS / 2, "run {run}");
        });
    }
}
