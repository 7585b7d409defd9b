//! The integration tests: one binary, a module per area.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, and says where"
)]

mod http;
mod quickstart;
mod service;
mod support;
