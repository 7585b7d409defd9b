//! The default refusal's body: a problem document (RFC 9457), with the types of
//! draft-ietf-httpapi-ratelimit-headers-11, section 5.

use std::{cell::RefCell, fmt::Write, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderValue;
use smallvec::SmallVec;

use super::arena::{put_number, written};
use crate::decision::{Decision, Refusal, RuleInfo, Wait};

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// The document that this thread has written last. In a flood one refusal is as the other for a second.
struct Last {
    rules: Arc<[RuleInfo]>,
    refusal: Option<Refusal>,
    wait: Option<Told>,
    violated: SmallVec<[usize; 3]>,
    as_text: bool,
    document: Bytes,
}

/// When a client is told to come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// After so many seconds.
    After(u64),
    /// Nobody knows when, whatever `Retry-After` says.
    Unknown,
}

impl Told {
    /// `None` where that is never, or where no rule refused by a count.
    fn by(decision: &Decision) -> Option<Self> {
        match decision.wait()? {
            Wait::Unknown => Some(Self::Unknown),
            wait => decision.secs_told(wait).map(Self::After),
        }
    }
}

impl Last {
    fn is_of(&self, decision: &Decision, as_text: bool) -> bool {
        self.as_text == as_text
            && self.refusal == decision.refusal()
            && self.wait == Told::by(decision)
            && decision.names().is_some_and(|rules| Arc::ptr_eq(rules, &self.rules))
            && decision.violated_rules().eq(self.violated.iter().copied())
    }

    fn of(decision: &Decision, as_text: bool, document: &Bytes) -> Option<Self> {
        Some(Self {
            rules: Arc::clone(decision.names()?),
            refusal: decision.refusal(),
            wait: Told::by(decision),
            violated: decision.violated_rules().collect(),
            as_text,
            document: document.clone(),
        })
    }
}

/// Returns the content type.
pub(super) const fn content_type(as_text: bool) -> HeaderValue {
    if as_text { TEXT } else { PROBLEM_JSON }
}

/// Returns the body.
pub(super) fn document(decision: &Decision, as_text: bool) -> Bytes {
    let remembered = LAST.try_with(|last| {
        let mut last = last.try_borrow_mut().ok()?;
        if let Some(last) = last.as_ref().filter(|last| last.is_of(decision, as_text)) {
            return Some(last.document.clone());
        }
        let document = write(decision, as_text);
        *last = Last::of(decision, as_text, &document);
        Some(document)
    });
    remembered.ok().flatten().unwrap_or_else(|| write(decision, as_text))
}

fn write(decision: &Decision, as_text: bool) -> Bytes {
    written(|text| match as_text {
        true => {
            detail(text, decision, |text, reason| text.put_slice(reason.as_bytes()));
            text.put_u8(b'\n');
        }
        false => problem(text, decision),
    })
}

/// The beginnings of the two usual documents, up to the status, which may be another one.
const QUOTA: &[u8] =
    br##"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":"##;
const CAPACITY: &[u8] = br##"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporary Reduced Capacity","status":"##;

fn problem(text: &mut BytesMut, decision: &Decision) {
    let status = decision.status();
    match decision.refusal() {
        Some(Refusal::Limited) => text.put_slice(QUOTA),
        Some(Refusal::Overload | Refusal::StoreFailed) => text.put_slice(CAPACITY),
        Some(Refusal::MissingKey { .. }) | None => {
            // RFC 9457, 4.2.1: with "about:blank" the title is the status phrase.
            text.put_slice(br#"{"type":"about:blank","title":""#);
            text.put_slice(status.canonical_reason().unwrap_or("Error").as_bytes());
            text.put_slice(br#"","status":"#);
        }
    }
    put_number(text, status.as_u16().into());
    text.put_slice(br#","detail":""#);
    detail(text, decision, escape);
    text.put_u8(b'"');
    let mut before: &[u8] = br#","violated-policies":["#;
    let mut any = false;
    for name in decision.violated() {
        // Rule names are tokens and need no escaping.
        text.put_slice(before);
        text.put_u8(b'"');
        text.put_slice(name.as_bytes());
        text.put_u8(b'"');
        (before, any) = (b",", true);
    }
    text.put_slice(if any { b"]}" } else { b"}" });
}

/// Writes what happened, in words that need no escaping but for a reason of the user's own.
fn detail(text: &mut BytesMut, decision: &Decision, write_reason: fn(&mut BytesMut, &str)) {
    let refusal = decision.refusal();
    match (refusal, decision.wait()) {
        (Some(Refusal::MissingKey { reason, .. }), _) => write_reason(text, reason),
        (Some(Refusal::StoreFailed), _) => text.put_slice(b"The rate limit cannot be checked at the moment."),
        (_, Some(Wait::Never)) => {
            text.put_slice(b"This request asks for more than its limit can ever hold; waiting does not help.");
        }
        (refusal, Some(wait @ Wait::For(_))) => {
            text.put_slice(match refusal {
                Some(Refusal::Overload) => b"The service is at its capacity; try again in ",
                _ => b"The limit is used up; try again in ",
            });
            put_number(text, decision.secs_told(wait).unwrap_or(1));
            text.put_slice(b" s.");
        }
        (refusal, _) => text.put_slice(match (refusal, lacks_place(decision)) {
            (Some(Refusal::Overload), true) => {
                b"The service is at its capacity: too many requests are running. Try again when some of them have ended."
            }
            (Some(Refusal::Overload), false) => {
                b"The service is at its capacity, and it is not known until when; try again later."
            }
            (_, true) => b"Too many requests are running; try again when some of them have ended.",
            (_, false) => b"The limit is used up, and it is not known until when; try again later.",
        }),
    }
}

/// Whether a rule refused that bounds what runs at a time.
fn lacks_place(decision: &Decision) -> bool {
    decision.rules().any(|rule| !rule.verdict.outcome.passes() && rule.limit.is_in_flight())
}

/// Escapes a text for JSON (RFC 8259, section 7).
fn escape(text: &mut BytesMut, raw: &str) {
    for char in raw.chars() {
        match char {
            '"' | '\\' => {
                let _ = write!(text, "\\{char}");
            }
            '\n' => text.put_slice(b"\\n"),
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
        let mut text = BytesMut::new();
        let raw = "a \"quoted\" \\ line\nand a \u{1} control, caf\u{e9}";
        escape(&mut text, raw);
        let quoted = [b"\"", &text[..], b"\""].concat();
        assert_eq!(serde_json::from_slice::<String>(&quoted).unwrap(), raw);
    }
}
