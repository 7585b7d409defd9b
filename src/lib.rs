#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
// What the README links to as files are pages here. Of two definitions the first counts.
//! [Limitations]: crate::guide::limitations
//! [guide]: crate::guide
//! [algorithms]: crate::guide::algorithms
//! [layers]: crate::guide::layers
//! [headers]: crate::guide::headers
//! [trying limits]: crate::guide::trying_limits
//! [rules as data]: crate::guide::rules_as_data
//! [changing rules]: crate::guide::reload
//! [proxies]: crate::guide::proxies
//! [counting failures]: crate::guide::login
//! [how many at a time]: crate::guide::downloads
//! [gRPC]: crate::guide::grpc
//! [Redis]: crate::guide::redis
//! [failure]: crate::guide::failure
//! [testing]: crate::guide::testing
//! [metrics and the log]: crate::guide::observing
//! [moving from tower_governor]: crate::guide::from_tower_governor
//!
// Pages in the docs have no files beside them, so a picture is all in its link.
#![doc = include_str!("../pictures/links.md")]
#![doc = include_str!("../README.md")]
//!
//! # Map of the crate
//!
//! [`RateLimitLayer`] (and its [`RateLimit`], [`ResponseFuture`], [`ResponseBody`]) is the tower face of a [`Limiter`]:
//! [`Rule`]s + a [`Store`](store::Store) + a [`Clock`](time::Clock). A rule names a [`Limit`], takes a [`Key`] from
//! each request, and counts by a [`Bucket`](bucket::Bucket). The answer is a [`Decision`]. [`guide`] has the longer
//! texts.
//!
//! # Errors
//!
//! What cannot work is a [`ConfigError`] when rules are put together. A refusal is an answer, not an error.

mod body;
pub mod bucket;
pub mod charge;
#[cfg(feature = "config")]
pub mod config;
pub mod decision;
mod error;
mod extract;
mod few;
mod future;
/// Why a request would pass, or not: what [`Limiter::explain`] answers.
pub mod explain {
    pub use crate::{
        limiter::{ExplainedRule, Explanation},
        rule::{Application, ExplainedKey},
    };
}
pub mod guide;
pub mod key;
mod layer;
mod limit;
mod limiter;
mod observe;
pub mod response;
mod rule;
mod service;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;
pub mod when;

pub use body::{BodyFor, ResponseBody};
pub use charge::FailurePolicy;
pub use decision::{Decision, Mode};
pub use error::{ConfigError, Error, ErrorKind, StoreError, Unsupported};
pub use future::ResponseFuture;
pub use key::Key;
pub use layer::RateLimitLayer;
pub use limit::{Limit, ParseLimitError};
pub use limiter::{Limiter, LimiterBuilder, ReloadCounts, Reloaded, RuleStats};
pub use rule::{MissingKey, Rule};
pub use service::RateLimit;
