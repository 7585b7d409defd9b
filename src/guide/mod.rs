//! The guide.
#[doc = include_str!("limitations.md")]
pub mod limitations {}
