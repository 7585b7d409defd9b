//! The file of limits.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The table this program holds to; others are for others.
#[derive(Deserialize)]
struct File {
    instructions: BTreeMap<String, Limit>,
}

/// How many instructions there may be, and why that is a good number.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    pub most: u32,
    pub why: String,
}

/// Reads the limits, by the names of their cases.
pub fn read() -> Result<BTreeMap<String, Limit>, String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../limits.toml");
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let file: File = toml::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
    match file.instructions.iter().find(|(_, limit)| limit.why.trim().is_empty()) {
        Some((name, _)) => Err(format!("{path}: {name} has no reason")),
        None => Ok(file.instructions),
    }
}
