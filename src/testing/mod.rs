//! For tests of what is built on this crate.

pub mod conformance;
