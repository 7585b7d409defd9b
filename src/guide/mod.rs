//! The guide: longer texts, a page each.

#[doc = include_str!("algorithms.md")]
pub mod algorithms {}

#[doc = include_str!("layers.md")]
pub mod layers {}

#[doc = include_str!("limitations.md")]
pub mod limitations {}

#[doc = include_str!("testing.md")]
pub mod testing {}
