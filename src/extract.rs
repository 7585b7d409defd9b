//! What frameworks take from a limited service: axum's extractor of the [`Decision`], and tonic's name of a service.

#[cfg(feature = "axum")]
mod axum {
    use std::convert::Infallible;

    use axum::{
        extract::{FromRequestParts, OptionalFromRequestParts},
        http::{StatusCode, request::Parts},
    };

    use crate::decision::Decision;

    /// The decision that let the request pass; after [`expose_decision`](crate::RateLimitLayer::expose_decision). Where
    /// it is not there the answer is 500 with the fix; take an `Option<Decision>` where that is no mistake.
    impl<S: Sync> FromRequestParts<S> for Decision {
        type Rejection = (StatusCode, &'static str);

        async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
            parts.extensions.get::<Self>().cloned().ok_or((
                StatusCode::INTERNAL_SERVER_ERROR,
                "no rate limit decision: put a RateLimitLayer with .expose_decision() around this handler",
            ))
        }
    }

    impl<S: Sync> OptionalFromRequestParts<S> for Decision {
        type Rejection = Infallible;

        async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Infallible> {
            Ok(parts.extensions.get::<Self>().cloned())
        }
    }
}

#[cfg(feature = "tonic")]
use crate::service::RateLimit;

#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService, Req, R> tonic::server::NamedService for RateLimit<S, Req, R> {
    const NAME: &'static str = S::NAME;
}
