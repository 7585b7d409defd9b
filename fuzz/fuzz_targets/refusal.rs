//! A refusal's content negotiation: any method, `Accept` and `Content-Type` get a well-formed refusal.
#![no_main]

use std::convert::Infallible;

use futures_util::FutureExt;
use http::{HeaderValue, Method, Request, Response, header};
use libfuzzer_sys::fuzz_target;
use tollgate::{Limit, RateLimitLayer, Rule};
use tower::{Layer, Service, service_fn};

fuzz_target!(|data: (Vec<u8>, Vec<u8>, bool)| {
    let (accept, content_type, post) = data;
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let mut service = RateLimitLayer::new([Rule::global("all", Limit::per_day(1))]).layer(inner);
    let mut answer = None;
    for _ in 0..2 {
        let mut request = Request::new(());
        *request.method_mut() = if post { Method::POST } else { Method::GET };
        for (name, value) in [(header::ACCEPT, &accept), (header::CONTENT_TYPE, &content_type)] {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                request.headers_mut().insert(name, value);
            }
        }
        answer = service.call(request).now_or_never();
    }
    let Some(Ok(response)) = answer else { panic!("the memory store answers at once") };
    let grpc = response.headers().contains_key("grpc-status");
    assert_eq!(response.status(), if grpc { 200 } else { 429 });
    assert!(response.headers()["content-type"].to_str().is_ok());
    let retry_after = response.headers()["retry-after"].to_str().ok().and_then(|text| text.parse::<u64>().ok());
    assert!(retry_after.is_some_and(|secs| (1..=86_400).contains(&secs)));
});
