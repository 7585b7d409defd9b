//! A gRPC service and its client, as tonic's code generator would write them, by hand: no compiler of protocol
//! definitions has to be there for tests.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use axum::http::{self, uri::PathAndQuery};
use futures_util::{Stream, StreamExt, future::BoxFuture, stream};
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    client,
    server::{self, ClientStreamingService, NamedService, ServerStreamingService, UnaryService},
    transport::Channel,
};
use tonic_prost::ProstCodec;
use tower::Service;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Number {
    #[prost(uint64, tag = "1")]
    pub(super) value: u64,
}

pub(super) fn number(value: u64) -> Number {
    Number { value }
}

type Numbers = Pin<Box<dyn Stream<Item = Result<Number, Status>> + Send>>;

/// The service `test.Counter`.
#[derive(Clone, Default)]
pub(super) struct Counter {
    /// How many calls reached it.
    pub(super) calls: Arc<AtomicUsize>,
}

impl NamedService for Counter {
    const NAME: &'static str = "test.Counter";
}

struct Double;

impl UnaryService<Number> for Double {
    type Response = Number;
    type Future = Ready<Result<Response<Number>, Status>>;

    fn call(&mut self, request: Request<Number>) -> Self::Future {
        let value = request.into_inner().value;
        let mut response = Response::new(number(value * 2));
        response.metadata_mut().insert("x-own", "kept".parse().unwrap());
        ready(if value == 13 { Err(Status::invalid_argument("no")) } else { Ok(response) })
    }
}

struct Count;

impl ServerStreamingService<Number> for Count {
    type Response = Number;
    type ResponseStream = Numbers;
    type Future = Ready<Result<Response<Numbers>, Status>>;

    fn call(&mut self, request: Request<Number>) -> Self::Future {
        let numbers = (1..=request.into_inner().value).map(|value| Ok(number(value)));
        // The status is in trailers, behind the numbers.
        let last = Status::out_of_range("no more numbers");
        ready(Ok(Response::new(stream::iter(numbers).chain(stream::iter([Err(last)])).boxed())))
    }
}

struct Sum;

impl ClientStreamingService<Number> for Sum {
    type Response = Number;
    type Future = BoxFuture<'static, Result<Response<Number>, Status>>;

    fn call(&mut self, request: Request<Streaming<Number>>) -> Self::Future {
        Box::pin(async move {
            let (mut numbers, mut sum) = (request.into_inner(), 0);
            while let Some(number) = numbers.message().await? {
                sum += number.value;
            }
            Ok(Response::new(number(sum)))
        })
    }
}

impl Service<http::Request<Body>> for Counter {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let mut grpc = server::Grpc::new(ProstCodec::<Number, Number>::default());
            Ok(match request.uri().path() {
                "/test.Counter/Double" => grpc.unary(Double, request).await,
                "/test.Counter/Count" => grpc.server_streaming(Count, request).await,
                "/test.Counter/Sum" => grpc.client_streaming(Sum, request).await,
                _ => Status::unimplemented("").into_http(),
            })
        })
    }
}

/// The client of [`Counter`].
#[derive(Clone)]
pub(super) struct Client {
    grpc: client::Grpc<Channel>,
}

impl Client {
    pub(super) fn new(channel: Channel) -> Self {
        Self { grpc: client::Grpc::new(channel) }
    }

    pub(super) async fn double(&mut self, value: u64) -> Result<Response<Number>, Status> {
        self.grpc.ready().await.expect("the channel is open");
        let path = PathAndQuery::from_static("/test.Counter/Double");
        self.grpc.unary(Request::new(number(value)), path, ProstCodec::default()).await
    }

    pub(super) async fn count(&mut self, to: u64) -> Result<Streaming<Number>, Status> {
        self.grpc.ready().await.expect("the channel is open");
        let path = PathAndQuery::from_static("/test.Counter/Count");
        let request = Request::new(number(to));
        Ok(self.grpc.server_streaming(request, path, ProstCodec::default()).await?.into_inner())
    }

    pub(super) async fn sum(&mut self, numbers: impl Stream<Item = Number> + Send + 'static) -> Result<u64, Status> {
        self.grpc.ready().await.expect("the channel is open");
        let path = PathAndQuery::from_static("/test.Counter/Sum");
        let answer: Response<Number> =
            self.grpc.client_streaming(Request::new(numbers), path, ProstCodec::default()).await?;
        Ok(answer.into_inner().value)
    }
}
