//! Rules from files.

mod broken;
mod data;
mod matching;
mod published;
mod schema;
