//! The Redis store, against servers that these tests start on free ports of the loopback address.

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

use std::{fmt::Debug, time::Duration};

use tollgate::{
    key::Secret,
    store::{RedisStore, RedisStoreBuilder},
};

/// The secret that all processes of a deployment share.
fn secret() -> Secret {
    Secret::new(*b"of every process")
}

/// A store whose time is the limiter's: keys outlive any test, since the server's clock does not stop.
fn by_the_clock(url: &str) -> RedisStoreBuilder {
    let patient = Duration::from_secs(5);
    RedisStore::builder(url, secret()).time_from_clock(LONGER).deadline(patient).connect_timeout(patient)
}

/// Looks again and again, until `wanted` is found.
async fn comes_to<T: PartialEq + Debug, F: Future<Output = T>>(what: &str, wanted: T, mut look: impl FnMut() -> F) {
    let mut found = None;
    for _ in 0..4_000 {
        let now = look().await;
        if now == wanted {
            return;
        }
        found = Some(now);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: {found:?} in vain, and not {wanted:?}");
}

/// Looks again and again, until it `holds`.
async fn until<F: Future<Output = bool>>(what: &str, holds: impl FnMut() -> F) {
    comes_to(what, true, holds).await;
}

const LONGER: Duration = Duration::from_secs(3_600);
