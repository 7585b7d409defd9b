//! Texts that have to be something: a header's name, a host, a path.

use http::{HeaderName, Method};
use serde::Serialize;

use super::{
    forms::texts,
    node::{Node, Value},
    problem::{Code, instead, shown},
    read::{Read, Reader},
    shape::Shape,
};
use crate::key::try_path_router;

texts! {
    /// Any text but an empty one.
    Text: BadName, "a text", Some("."), not_empty;
    /// The name of a rule.
    Id: BadName, "a text", Some("^[a-z][a-z0-9_.*-]{0,63}$"), id;
    /// The name of a header.
    Header: BadName, "the name of a header", Some("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"), header;
    /// A method.
    MethodName: BadName, "a method such as \"POST\"", Some("^[A-Z][A-Z_-]*$"), method;
    /// A host, or all below one.
    Host: BadName, "a host such as \"api.example.com\" or \"*.example.com\"", Some("^(\\*\\.)?[^*:/@ A-Z]+$"), host;
    /// A path pattern.
    Path: BadPath, "a path pattern such as \"/users/{id}\"", Some("^/"), path;
    /// An address, a network, or the name of a list: which names there are is known only when all was read.
    Net: BadNetwork, "an address, a network such as \"10.0.0.0/8\", or the name of a list", Some("."), not_empty;
}

fn not_empty(text: &str) -> Result<(), String> {
    match text {
        "" => Err("an empty text means nothing here; leave the field out, or fill it".into()),
        _ => Ok(()),
    }
}

fn path(text: &str) -> Result<(), String> {
    if text.contains("{{") || text.contains("}}") {
        return Err(format!("{}: a brace in a path is sent as %7B or %7D; write it so", shown(text)));
    }
    try_path_router(text).map(drop)
}

fn id(text: &str) -> Result<(), String> {
    let mut bytes = text.bytes();
    let begins = bytes.next().is_some_and(|byte| byte.is_ascii_lowercase());
    let goes_on = bytes.all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'*' | b'-'));
    if begins && goes_on && text.len() <= 64 {
        return Ok(());
    }
    Err(format!(
        "{} becomes a token in header fields; begin with a-z, use only a-z, 0-9, _ . * and -, and 64 letters at most",
        shown(text)
    ))
}

fn header(text: &str) -> Result<(), String> {
    let read = HeaderName::from_bytes(text.as_bytes());
    read.map(drop).map_err(|_| format!("{} is no name of a header; use letters, digits and -", shown(text)))
}

fn method(text: &str) -> Result<(), String> {
    let read = Method::from_bytes(text.as_bytes());
    let upper = !text.bytes().any(|byte| byte.is_ascii_lowercase());
    if read.is_ok() && upper {
        return Ok(());
    }
    let meant = text.to_ascii_uppercase();
    let known = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "CONNECT", "PATCH", "TRACE"];
    Err(format!("{} is no method, which are written in capitals; {}", shown(text), instead(&meant, &known)))
}

fn host(text: &str) -> Result<(), String> {
    let below = text.strip_prefix("*.").unwrap_or(text);
    let letters = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_[]:".contains(&byte);
    let port = below.rsplit_once(':').is_some_and(|(name, _)| !name.ends_with(']') && !name.starts_with('['));
    if !below.is_empty() && below.bytes().all(letters) && !port && !below.ends_with('.') {
        return Ok(());
    }
    Err(format!(
        "{} is no host; write it in lower case, without a port or a dot at the end, and a star only as in \"*.example.com\"",
        shown(text)
    ))
}
