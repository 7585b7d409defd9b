#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
//! x

mod body;
pub mod bucket;
pub mod charge;
pub mod decision;
mod error;
mod future;
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
pub mod time;

pub use body::{BodyFor, ResponseBody};
pub use decision::Decision;
pub use error::{ConfigError, Error, ErrorKind, StoreError, Unsupported};
pub use future::ResponseFuture;
pub use key::Key;
pub use layer::RateLimitLayer;
pub use limit::{Limit, ParseLimitError};
pub use limiter::{Limiter, LimiterBuilder};
pub use rule::{MissingKey, Rule};
pub use service::RateLimit;
