//! What ends with a request: places of what is in flight, and charges that depend on how it was answered.

mod await_points;
mod bodies;
mod login;
mod places;

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use tollgate::{Limiter, Rule, store::MemoryStore, time::ManualClock};

use crate::support::Broken;

/// Requests say nothing; their answers are bodies that are told what to do.
type Asked = Request<()>;
type Answered = Response<Frames>;

/// A body that gives one frame after the other, and then waits for ever unless it has ended.
#[derive(Debug, Default)]
struct Frames {
    frames: VecDeque<Result<Frame<Bytes>, Broken>>,
    /// Whether the end comes after the last frame, and nobody has to ask for it.
    ends: bool,
    /// Whether it says so before anybody asks.
    says_so: bool,
}

impl Frames {
    /// Never ends by itself.
    fn endless(frames: impl IntoIterator<Item = Frame<Bytes>>) -> Self {
        Self { frames: frames.into_iter().map(Ok).collect(), ..Self::default() }
    }

    /// Ends, as whoever asks for another frame finds out.
    fn ending(frames: impl IntoIterator<Item = Frame<Bytes>>) -> Self {
        Self { ends: true, ..Self::endless(frames) }
    }

    /// Ends, and says so with the last frame.
    fn known(frames: impl IntoIterator<Item = Frame<Bytes>>) -> Self {
        Self { says_so: true, ..Self::ending(frames) }
    }

    /// Breaks.
    fn broken() -> Self {
        Self { frames: [Ok(data()), Err(Broken(9))].into(), ..Self::default() }
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(frame)),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.says_so && self.frames.is_empty()
    }
}

fn data() -> Frame<Bytes> {
    Frame::data(Bytes::from_static(b"piece"))
}

fn trailers() -> Frame<Bytes> {
    Frame::trailers(http::HeaderMap::new())
}

fn ok(body: Frames) -> Answered {
    Response::new(body)
}

fn unauthorized(body: Frames) -> Answered {
    let mut response = ok(body);
    *response.status_mut() = StatusCode::UNAUTHORIZED;
    response
}

/// A limiter whose store says what is used.
fn limiter<Req>(rules: impl IntoIterator<Item = Rule<Req>>) -> Limiter<Req> {
    Limiter::builder(rules).clock(ManualClock::new()).store(MemoryStore::new()).build().unwrap()
}

/// How much of each rule is used for such a request, in the order of the rules.
fn used<Req>(limiter: &Limiter<Req>, request: &Req) -> Vec<u64> {
    let decision = limiter.peek_now(request).unwrap();
    decision.rules().map(|rule| rule.verdict.limit - rule.verdict.remaining).collect()
}
