//! Any body type fits, and is forwarded as it is.

use std::{
    convert::Infallible,
    fmt::Debug,
    pin::Pin,
    task::{Context, Poll},
};

use axum::http::{HeaderMap, HeaderValue, Request, Response};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Empty, Full};
use tokio_test::{assert_ready_ok, task};
use tollgate::{Limit, Limiter, RateLimit, RateLimitLayer, ResponseBody, Rule, response::RefusalBody};
use tower::{Layer, Service, service_fn, util::ServiceFn};

use super::*;

/// A body of the test's own: two pieces and trailers, and an error that is nothing.
#[derive(Debug, Default, Clone)]
struct Pieces {
    given: usize,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = ();

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ()>>> {
        self.given += 1;
        Poll::Ready(match self.given {
            1 => Some(Ok(Frame::data("one".into()))),
            2 => Some(Ok(Frame::data("two".into()))),
            3 => Some(Ok(Frame::trailers(HeaderMap::from_iter([(
                "x-sum".parse().unwrap(),
                HeaderValue::from_static("6"),
            )])))),
            _ => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.given >= 3
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(1);
        hint.set_upper(9);
        hint
    }
}

/// A body that breaks.
#[derive(Debug)]
struct Breaks;

impl Body for Breaks {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(Some(Err("broken pipe")))
    }
}

type Frames = (Vec<u8>, Option<HeaderMap>);

/// Reads a body by hand: its data, its trailers, and what it says of itself on the way.
fn read<B>(body: B) -> (Vec<(Option<u64>, bool)>, Frames)
where
    B: Body<Data = Bytes>,
    B::Error: Debug,
{
    let mut body = task::spawn(Box::pin(body));
    let (mut said, mut data, mut trailers) = (Vec::new(), Vec::new(), None);
    loop {
        said.push((body.size_hint().upper(), body.is_end_stream()));
        let frame = body.enter(|cx, mut body| body.as_mut().as_mut().poll_frame(cx));
        let Poll::Ready(frame) = frame else { panic!("these bodies are never pending") };
        match frame.map(|frame| frame.unwrap().into_data()) {
            Some(Ok(bytes)) => data.extend(bytes),
            Some(Err(frame)) => trailers = frame.into_trailers().ok(),
            None => return (said, (data, trailers)),
        }
    }
}

/// Limits a service whose requests and responses have this body, passes one request and refuses one.
fn passes_and_refuses<B>(make: fn() -> B)
where
    B: Body<Data = Bytes> + 'static,
    B::Error: Debug,
{
    let limiter = Limiter::builder([Rule::global("all", Limit::per_minute(1))]).clock(ManualClock::new()).build();
    let layer: RateLimitLayer<Request<B>> = limiter.unwrap().into();
    let mut service = layer
        .layer(service_fn(|request: Request<B>| async { Ok::<_, Infallible>(Response::new(request.into_body())) }));
    let mut call = || -> Response<ResponseBody<B>> {
        assert_ready_ok!(task::spawn(()).enter(|cx, _| service.poll_ready(cx)));
        assert_ready_ok!(task::spawn(Box::pin(service.call(Request::new(make())))).poll())
    };

    let passed = call();
    assert_eq!(passed.status(), 200);
    assert_eq!(read(passed.into_body()), read(make()), "as if nobody had been there");

    let refused = call();
    assert_eq!(refused.status(), 429);
    let length = refused.body().size_hint().exact().expect("a refusal knows its length");
    assert!(!refused.body().is_end_stream());
    let (said, (data, trailers)) = read(refused.into_body());
    assert_eq!(data.len() as u64, length);
    assert_eq!(said, [(Some(length), false), (Some(0), true)], "one piece, and then the end");
    assert!(trailers.is_none());
    let problem: serde_json::Value = serde_json::from_slice(&data).unwrap();
    assert_eq!(problem["status"], 429);
}

#[test]
fn any_body_passes_as_it_is_and_a_refusal_fits_beside_it() {
    passes_and_refuses(|| axum::body::Body::from("hello"));
    passes_and_refuses(|| Full::<Bytes>::from("hello"));
    passes_and_refuses(Empty::<Bytes>::new);
    passes_and_refuses(Pieces::default);
    passes_and_refuses(|| Pieces::default().boxed_unsync());
}

#[cfg(feature = "tonic")]
#[test]
fn tonics_body_passes_as_it_is_and_a_refusal_fits_beside_it() {
    passes_and_refuses(|| tonic::body::Body::new(Full::<Bytes>::from("hello")));
    passes_and_refuses(|| tonic::body::Body::new(Pieces::default().map_err(|()| tonic::Status::internal("broken"))));
    passes_and_refuses(tonic::body::Body::empty);
}

#[test]
fn trailers_size_and_end_are_the_inner_bodys_own() {
    let body: ResponseBody<Pieces> = ResponseBody::new(Pieces::default());
    let (said, (data, trailers)) = read(body);
    assert_eq!(data, b"onetwo");
    assert_eq!(trailers.unwrap()["x-sum"], "6");
    assert_eq!(said, [(Some(9), false), (Some(9), false), (Some(9), false), (Some(9), true)]);

    let empty = ResponseBody::<Empty<Bytes>>::default();
    assert!(empty.is_end_stream());
    assert_eq!(empty.size_hint().exact(), Some(0));
}

#[test]
fn errors_of_a_body_come_out_as_they_went_in() {
    let mut body: ResponseBody<Breaks> = ResponseBody::new(Breaks);
    let mut frame = task::spawn(body.frame());
    let Poll::Ready(Some(Err(error))) = frame.poll() else { panic!("it breaks at once") };
    assert_eq!(error, "broken pipe");
}

#[test]
fn a_refusal_without_a_body_has_ended_before_it_began() {
    for body in [RefusalBody::default(), RefusalBody::from("")] {
        let body: ResponseBody<Pieces> = ResponseBody::refusal(body);
        assert!(body.is_end_stream());
        assert_eq!(body.size_hint().exact(), Some(0));
        assert_eq!(read(body), (vec![(Some(0), true)], (vec![], None)));
    }
}

#[test]
fn a_refusal_may_have_a_body_of_another_type() {
    // `Full`'s errors cannot happen, so they can become anything, here the inner body's.
    let refusal: ResponseBody<axum::body::Body, axum::body::Body> = ResponseBody::refusal(Full::from("no").into_axum());
    assert_eq!(read(refusal).1.0, b"no");
    let refusal: ResponseBody<Full<Bytes>, Full<Bytes>> = ResponseBody::refusal(Full::from("no"));
    assert_eq!(read(refusal).1.0, b"no");
}

trait IntoAxum {
    fn into_axum(self) -> axum::body::Body;
}

impl IntoAxum for Full<Bytes> {
    fn into_axum(self) -> axum::body::Body {
        axum::body::Body::new(self)
    }
}

/// The layer asks nothing of a service that it is only put on.
type _AnyService = RateLimit<ServiceFn<fn(u8) -> u8>, u8>;
