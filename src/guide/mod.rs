//! The guide: longer texts, a page each.

// Pages in the docs have no files beside them, so a picture is all in its link. Of two definitions the first counts.
#[doc = include_str!("../../pictures/links.md")]
#[doc = include_str!("algorithms.md")]
pub mod algorithms {}

#[doc = include_str!("downloads.md")]
pub mod downloads {}

#[doc = include_str!("failure.md")]
pub mod failure {}

#[doc = include_str!("from_tower_governor.md")]
pub mod from_tower_governor {}

#[doc = include_str!("grpc.md")]
pub mod grpc {}

#[doc = include_str!("headers.md")]
pub mod headers {}

#[doc = include_str!("layers.md")]
pub mod layers {}

#[doc = include_str!("limitations.md")]
pub mod limitations {}

#[doc = include_str!("login.md")]
pub mod login {}

#[doc = include_str!("observing.md")]
pub mod observing {}

#[doc = include_str!("proxies.md")]
pub mod proxies {}

#[doc = include_str!("redis.md")]
#[cfg(feature = "redis")]
pub mod redis {}

#[doc = include_str!("reload.md")]
pub mod reload {}

#[doc = include_str!("rules_as_data.md")]
#[cfg(feature = "config")]
pub mod rules_as_data {}

#[doc = include_str!("testing.md")]
pub mod testing {}

#[doc = include_str!("trying_limits.md")]
pub mod trying_limits {}
