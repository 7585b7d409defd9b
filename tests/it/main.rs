//! The integration tests: one binary, a module per area.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test that panics has failed, which is its job"
)]

mod attacks;
mod cases;
#[cfg(feature = "testing")]
mod conformance;
mod ending;
mod engine;
mod explain;
mod extractor;
#[cfg(feature = "tonic")]
mod grpc;
mod guarded;
mod http;
mod memory;
mod modes;
#[cfg(feature = "metrics")]
mod observing;
mod oracle;
#[cfg(feature = "metrics")]
mod prometheus;
mod promise;
mod queue;
mod quickstart;
mod random;
#[cfg(feature = "redis")]
mod redis;
mod reload;
#[cfg(feature = "config")]
mod rules_as_data;
mod seeds;
mod service;
mod sockets;
mod soon;
mod stats;
mod support;
mod threads;
mod timelines;
mod wire;
