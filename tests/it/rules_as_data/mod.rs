//! Rules from files.

mod broken;
mod data;
mod matching;
pub(crate) mod published;
mod schema;
