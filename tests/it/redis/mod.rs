//! The Redis store, against servers that these tests start on free ports of the loopback address.

mod asking;
mod cases;
#[cfg(feature = "testing")]
mod conformance;
mod differential;
mod ends;
mod exact;
mod faults;
mod holding;
mod late;
mod lua;
mod outcomes;
mod places;
mod proxy;
mod reloading;
mod server;
mod stack;
mod strange;
#[cfg(feature = "redis-rustls")]
mod tls;
mod together;

use std::time::Duration;

use tollgate::{
    key::Secret,
    store::{RedisStore, RedisStoreBuilder},
};

use crate::soon::{comes_to, until};

/// The secret that all processes of a deployment share.
fn secret() -> Secret {
    Secret::new(*b"of every process")
}

/// A store whose time is the limiter's: keys outlive any test, since the server's clock does not stop.
fn by_the_clock(url: &str) -> RedisStoreBuilder {
    let patient = Duration::from_secs(5);
    RedisStore::builder(url, secret()).time_from_clock(LONGER).deadline(patient).connect_timeout(patient)
}

const LONGER: Duration = Duration::from_secs(3_600);
