//! Rules from files.

mod broken;
mod data;
mod matching;
mod outcomes;
pub(crate) mod published;
mod schema;
#[cfg(feature = "watch")]
mod watching;
