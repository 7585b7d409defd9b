//! The integration tests: one binary, a module per area.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "all of this binary is tests, which clippy tells only by the attribute"
)]

mod cases;
mod engine;
mod seeds;

mod timelines;
