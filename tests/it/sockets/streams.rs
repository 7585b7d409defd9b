//! Bodies that come piece by piece go through as they are.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::routing::{get, post};
use http_body::{Frame, SizeHint};
use tokio::sync::{Mutex, mpsc};
use tollgate::Limit;

use super::*;

/// A body that is what it is told to be, frame by frame.
struct Told {
    frames: mpsc::UnboundedReceiver<Frame<Bytes>>,
    hint: SizeHint,
}

impl http_body::Body for Told {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.frames.poll_recv(cx).map(|frame| frame.map(Ok))
    }

    fn size_hint(&self) -> SizeHint {
        self.hint
    }
}

/// Serves one response with such a body, with room for one request or without a limit.
async fn telling(limited: bool, hint: SizeHint) -> (Server, mpsc::UnboundedSender<Frame<Bytes>>) {
    let (tell, frames) = mpsc::unbounded_channel();
    let body = Arc::new(Mutex::new(Some(Told { frames, hint })));
    let app = Router::new()
        .route("/", get(move || async move { Body::new(body.lock().await.take().expect("it is asked for once")) }));
    let rule = Rule::global("all", Limit::per_minute(1));
    let app = if limited { app.layer(layer([rule], &ManualClock::new())) } else { app };
    (Server::start(app).await, tell)
}

/// The next frame with anything in it: HTTP/2 may end a stream with an empty one.
async fn next(body: &mut Incoming) -> Option<Frame<Bytes>> {
    loop {
        let frame = tokio::time::timeout(PATIENCE, body.frame()).await.expect("a frame or the end")?.unwrap();
        if frame.data_ref().is_none_or(|data| !data.is_empty()) {
            return Some(frame);
        }
    }
}

fn root() -> Request {
    Request::builder().uri("/").header("te", "trailers").body(Body::empty()).unwrap()
}

#[tokio::test]
async fn each_piece_arrives_when_it_is_sent() {
    for version in BOTH {
        let (server, tell) = telling(true, SizeHint::default()).await;
        let mut connection = server.connect(version).await;
        let response = connection.start(root()).await;
        assert_eq!(response.headers()["x-ratelimit-remaining"], "0");
        assert!(!response.headers().contains_key("content-length"));
        let mut body = response.into_body();
        // The next piece is made only after the last has arrived, so nobody on the way waits for more.
        for piece in ["one", "two", "three"] {
            tell.send(Frame::data(piece.into())).unwrap();
            assert_eq!(next(&mut body).await.unwrap().into_data().unwrap(), piece);
        }
        // Others are refused meanwhile, and the stream goes on.
        assert_eq!(server.connect(version).await.ask(Method::GET).await.status, 429);
        tell.send(Frame::data("four".into())).unwrap();
        assert_eq!(next(&mut body).await.unwrap().into_data().unwrap(), "four");
        drop(tell);
        assert!(next(&mut body).await.is_none());
    }
}

#[tokio::test]
async fn a_stream_is_as_without_the_layer_but_for_the_limits_fields() {
    for version in BOTH {
        for exact in [None, Some(6)] {
            let mut seen = Vec::new();
            for limited in [false, true] {
                let hint = exact.map_or(SizeHint::default(), SizeHint::with_exact);
                let (server, tell) = telling(limited, hint).await;
                tell.send(Frame::data("one".into())).unwrap();
                tell.send(Frame::data("two".into())).unwrap();
                drop(tell);
                let answer = server.connect(version).await.send(root()).await;
                let fields: Vec<_> =
                    answer.fields().into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
                seen.push((answer.status, fields, answer.body, answer.trailers));
            }
            let [without, with] = &mut *seen else { unreachable!() };
            with.1.retain(|field| !field.starts_with("x-ratelimit-"));
            assert_eq!(without, with, "{version:?} {exact:?}");
            let framing = match (version, exact) {
                (_, Some(_)) => vec!["content-length: 6"],
                (Version::HTTP_11, None) => vec!["transfer-encoding: chunked"],
                (_, None) => vec![],
            };
            assert_eq!(with.1, framing);
        }
    }
}

#[tokio::test]
async fn trailers_go_through_over_http_2() {
    let (server, tell) = telling(true, SizeHint::default()).await;
    tell.send(Frame::data("summed".into())).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "6".parse().unwrap());
    tell.send(Frame::trailers(trailers)).unwrap();
    drop(tell);
    let answer = server.connect(Version::HTTP_2).await.send(root()).await;
    assert_eq!(answer.body, "summed");
    assert_eq!(fields_of(&answer.trailers.expect("trailers")), [("x-sum", "6")]);
    assert!(!answer.headers.contains_key("x-sum"));
}

#[tokio::test]
async fn uploads_go_through_and_a_refused_one_is_not_waited_for() {
    let rule = Rule::global("all", Limit::per_minute(1));
    let app = Router::new()
        .route("/", post(|body: Body| async move { body.collect().await.unwrap().to_bytes().len().to_string() }))
        .layer(layer([rule], &ManualClock::new()));
    let server = Server::start(app).await;
    let mut connection = server.connect(Version::HTTP_2).await;
    let upload = |body| Request::builder().method(Method::POST).uri("/").body(body).unwrap();
    let megabyte = Bytes::from(vec![7; 1 << 20]);
    assert_eq!(connection.send(upload(Body::from(megabyte.clone()))).await.body, "1048576");
    // More than fits into any window of HTTP/2, and it is never read.
    let refused = connection.send(upload(Body::from(megabyte))).await;
    assert_eq!(refused.status, 429);
    // A body that never ends, or does not even begin.
    let (_tell, frames) = mpsc::unbounded_channel();
    let refused = connection.send(upload(Body::new(Told { frames, hint: SizeHint::default() }))).await;
    assert_eq!(refused.status, 429);
    assert_eq!(connection.ask(Method::POST).await.status, 429, "the connection goes on");
    assert_eq!(server.accepted(), 1);
}
