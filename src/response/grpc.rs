//! A refusal on the wire of gRPC: trailers only, HTTP status 200 (grpc/grpc, doc/PROTOCOL-HTTP2.md). A plain 429 would
//! reach a client as `UNAVAILABLE`, which clients may retry at once.

use std::fmt::Write;

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};

use crate::{
    decision::{Decision, Refusal, Wait},
    time::Nanos,
};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// The content types of gRPC and of its form for browsers.
const TYPES: [&str; 4] = [
    "application/grpc-web-text+proto",
    "application/grpc-web-text",
    "application/grpc-web+proto",
    "application/grpc-web",
];

/// Returns what to answer a gRPC request with, by its content type; `None` where it is none.
pub(super) fn content_type<B>(request: &Request<B>) -> Option<HeaderValue> {
    if request.method() != Method::POST {
        return None;
    }
    let asked = request.headers().get(header::CONTENT_TYPE)?.to_str().ok()?;
    let asked = asked.split(';').next()?.trim();
    if let Some(web) = TYPES.iter().find(|web| asked.eq_ignore_ascii_case(web)) {
        return Some(HeaderValue::from_static(web));
    }
    // Other forms of messages, such as +json, are answered as the default one.
    for web in ["application/grpc-web-text", "application/grpc-web"] {
        let fits = asked
            .split_at_checked(web.len())
            .is_some_and(|(kind, rest)| kind.eq_ignore_ascii_case(web) && rest.starts_with('+'));
        if fits {
            return Some(HeaderValue::from_static(web));
        }
    }
    let (kind, rest) = asked.split_at_checked("application/grpc".len())?;
    let grpc = kind.eq_ignore_ascii_case("application/grpc") && (rest.is_empty() || rest.starts_with('+'));
    grpc.then(|| HeaderValue::from_static("application/grpc"))
}

/// Writes the trailers of a refusal.
pub(super) fn write(headers: &mut HeaderMap, decision: &Decision, pushback: bool) {
    let (code, message) = status(decision);
    headers.insert(GRPC_STATUS, HeaderValue::from(code));
    if !message.is_empty() {
        insert(headers, GRPC_MESSAGE, &percent_encoded(message));
    }
    let wait = match decision.wait() {
        Some(Wait::For(wait)) => Some(wait),
        Some(Wait::Unknown) => decision.retry_after_secs().map(Nanos::from_secs),
        Some(Wait::Never) | None => None,
    };
    if let Some(wait) = wait {
        insert(headers, GRPC_DETAILS, &STANDARD_NO_PAD.encode(details(code, message, wait)));
    }
    if pushback {
        // grpc/proposal A6: milliseconds, or a negative number for "do not retry".
        let millis = wait.map(|wait| wait.get().div_ceil(1_000_000).clamp(1, 2_147_483_647));
        headers.insert(GRPC_PUSHBACK, millis.map_or(HeaderValue::from_static("-1"), HeaderValue::from));
    }
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// The code (google/rpc/code.proto) and message of a refusal.
fn status(decision: &Decision) -> (u64, &'static str) {
    match decision.refusal() {
        Some(Refusal::StoreFailed) => (14, "the rate limit cannot be checked"),
        Some(Refusal::Overload) => (8, "the service is at its capacity"),
        Some(Refusal::MissingKey { status, reason }) => (code_of(status), reason),
        Some(Refusal::Limited) | None => (8, "rate limit exceeded"),
    }
}

/// The code of a status that a rule chose for requests without a key.
fn code_of(status: StatusCode) -> u64 {
    match status {
        StatusCode::BAD_REQUEST => 3,
        StatusCode::FORBIDDEN => 7,
        StatusCode::TOO_MANY_REQUESTS => 8,
        StatusCode::SERVICE_UNAVAILABLE => 14,
        StatusCode::UNAUTHORIZED => 16,
        status if status.is_client_error() => 9,
        _ => 13,
    }
}

/// Percent-encodes a message: everything but %x20-24 and %x26-7E.
pub(super) fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// A `google.rpc.Status` with a `google.rpc.RetryInfo`, as protobuf.
fn details(code: u64, message: &str, wait: Nanos) -> Vec<u8> {
    let mut delay = Vec::new();
    let (secs, nanos) = (wait.get() / Nanos::SECOND.get(), wait.get() % Nanos::SECOND.get());
    number(&mut delay, 1, secs);
    number(&mut delay, 2, nanos);
    let mut retry_info = Vec::new();
    bytes(&mut retry_info, 1, &delay);
    let mut any = Vec::new();
    bytes(&mut any, 1, RETRY_INFO.as_bytes());
    bytes(&mut any, 2, &retry_info);
    let mut status = Vec::new();
    number(&mut status, 1, code);
    bytes(&mut status, 2, message.as_bytes());
    bytes(&mut status, 3, &any);
    status
}

/// A field of a number; nothing for zero, which is the default.
fn number(message: &mut Vec<u8>, field: u64, value: u64) {
    if value > 0 {
        varint(message, field << 3);
        varint(message, value);
    }
}

/// A field of bytes, which may be a message.
fn bytes(message: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(message, field << 3 | 2);
    varint(message, value.len() as u64);
    message.extend_from_slice(value);
}

fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(u8::try_from(value & 0x7f | 0x80).unwrap_or(0x80));
        value >>= 7;
    }
    message.push(u8::try_from(value).unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_retry_info_to_the_nanosecond() {
        for (nanos, right) in [
            (
                30_000_000_000,
                "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIHg",
            ),
            (
                1_000_000_000,
                "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIAQ",
            ),
            (
                1_500_000_000,
                "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaNgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIKCggIARCAyrXuAQ",
            ),
            (
                250_000_000,
                "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMwoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIHCgUQgOWadw",
            ),
            (
                3_600_000_000_000,
                "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMQoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIFCgMIkBw",
            ),
        ] {
            let encoded = STANDARD_NO_PAD.encode(details(8, "rate limit exceeded", Nanos::new(nanos)));
            assert_eq!(encoded, right, "{nanos}");
        }
    }

    #[test]
    fn encodes_messages() {
        for (text, right) in [
            ("rate limit exceeded", "rate limit exceeded"),
            ("100% used", "100%25 used"),
            ("limite d\u{e9}pass\u{e9}e", "limite d%C3%A9pass%C3%A9e"),
            ("line1\nline2", "line1%0Aline2"),
        ] {
            assert_eq!(percent_encoded(text), right);
        }
    }

    #[test]
    fn knows_grpc_by_its_content_type() {
        let answer = |method: &str, asked: &str| {
            let request = Request::builder().method(method).header("content-type", asked).body(()).unwrap();
            content_type(&request).map(|value| value.to_str().unwrap().to_owned())
        };
        for (asked, right) in [
            ("application/grpc", Some("application/grpc")),
            ("application/grpc+proto", Some("application/grpc")),
            ("application/grpc+json", Some("application/grpc")),
            ("application/grpc;charset=utf-8", Some("application/grpc")),
            ("Application/GRPC", Some("application/grpc")),
            ("application/grpc-web", Some("application/grpc-web")),
            ("application/grpc-web+proto", Some("application/grpc-web+proto")),
            ("application/grpc-web-text", Some("application/grpc-web-text")),
            ("application/grpc-web-text+proto", Some("application/grpc-web-text+proto")),
            ("application/grpcfoo", None),
            ("application/grpc-foo", None),
            ("application/json", None),
            ("application/connect+proto", None),
            ("application/proto", None),
            ("", None),
        ] {
            assert_eq!(answer("POST", asked).as_deref(), right, "{asked}");
        }
        assert_eq!(answer("GET", "application/grpc"), None);
    }
}
