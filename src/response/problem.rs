//! The default refusal's body: a problem document (RFC 9457), with the types of
//! draft-ietf-httpapi-ratelimit-headers-11, section 5.

use std::fmt::Write;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use smallvec::SmallVec;

use crate::decision::{Decision, Refusal, Wait};

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Returns the content type and the body.
pub(super) fn document(decision: &Decision, as_text: bool) -> (HeaderValue, Bytes) {
    if as_text {
        let mut text = Text::default();
        detail(&mut text, decision, |text, reason| text.push_str(reason));
        text.push_str("\n");
        return (TEXT, text.into_bytes());
    }
    let status = decision.status();
    let mut text = Text::default();
    match decision.refusal() {
        Some(Refusal::Limited) => head(&mut text, "quota-exceeded", "Quota Exceeded", status),
        Some(Refusal::Overload | Refusal::StoreFailed) => {
            head(&mut text, "temporary-reduced-capacity", "Temporary Reduced Capacity", status);
        }
        Some(Refusal::MissingKey { .. }) | None => {
            // RFC 9457, 4.2.1: with "about:blank" the title is the status phrase.
            let title = status.canonical_reason().unwrap_or("Error");
            let _ = write!(text, "{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{}", status.as_u16());
        }
    }
    text.push_str(",\"detail\":\"");
    detail(&mut text, decision, escape);
    text.push_str("\"");
    let mut violated = decision.violated().peekable();
    if violated.peek().is_some() {
        text.push_str(",\"violated-policies\":[");
        for (at, name) in violated.enumerate() {
            // Rule names are tokens and need no escaping.
            let _ = write!(text, "{}\"{name}\"", if at > 0 { "," } else { "" });
        }
        text.push_str("]");
    }
    text.push_str("}");
    (PROBLEM_JSON, text.into_bytes())
}

/// A body in the making: one allocation in all, where it is not unusually long.
#[derive(Default)]
struct Text(SmallVec<[u8; 320]>);

impl Text {
    fn push_str(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self.0)
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.push_str(text);
        Ok(())
    }
}

fn head(text: &mut Text, kind: &str, title: &str, status: StatusCode) {
    let _ = write!(
        text,
        "{{\"type\":\"https://iana.org/assignments/http-problem-types#{kind}\",\"title\":\"{title}\",\"status\":{}",
        status.as_u16()
    );
}

/// Writes what happened, in words that need no escaping but for a reason of the user's own.
fn detail(text: &mut Text, decision: &Decision, write_reason: fn(&mut Text, &str)) {
    let refusal = decision.refusal();
    match (refusal, decision.wait()) {
        (Some(Refusal::MissingKey { reason, .. }), _) => write_reason(text, reason),
        (Some(Refusal::StoreFailed), _) => text.push_str("The rate limit cannot be checked at the moment."),
        (_, Some(Wait::Never)) => {
            text.push_str("This request asks for more than its limit can ever hold; waiting does not help.");
        }
        (Some(Refusal::Overload), _) => {
            let _ = write!(text, "The service is at its capacity; try again in {} s.", secs(decision));
        }
        _ => {
            let _ = write!(text, "The limit is used up; try again in {} s.", secs(decision));
        }
    }
}

fn secs(decision: &Decision) -> u64 {
    decision.retry_after_secs().unwrap_or(1)
}

/// Escapes a text for JSON (RFC 8259, section 7).
fn escape(text: &mut Text, raw: &str) {
    for char in raw.chars() {
        match char {
            '"' | '\\' => {
                let _ = write!(text, "\\{char}");
            }
            '\n' => text.push_str("\\n"),
            control if control < ' ' => {
                let _ = write!(text, "\\u{:04x}", u32::from(control));
            }
            other => {
                let _ = text.write_char(other);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_what_json_needs() {
        let mut text = Text::default();
        let raw = "a \"quoted\" \\ line\nand a \u{1} control, caf\u{e9}";
        escape(&mut text, raw);
        let quoted = [b"\"", text.0.as_slice(), b"\""].concat();
        assert_eq!(serde_json::from_slice::<String>(&quoted).unwrap(), raw);
    }
}
