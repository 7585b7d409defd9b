#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
//! x

pub mod bucket;
pub mod charge;
pub mod decision;
mod error;
pub mod guide;
pub mod key;
mod limit;
mod limiter;
mod observe;
mod rule;
pub mod store;
pub mod time;

pub use decision::Decision;
pub use error::{ConfigError, Error, ErrorKind, StoreError, Unsupported};
pub use key::Key;
pub use limit::{Limit, ParseLimitError};
pub use limiter::{Limiter, LimiterBuilder};
pub use rule::{MissingKey, Rule};
