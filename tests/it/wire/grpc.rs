//! Refusals of gRPC calls, as the protocol writes them (grpc/grpc, doc/PROTOCOL-HTTP2.md and doc/PROTOCOL-WEB.md).

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use tollgate::{Key, MissingKey, decision::Wait, key};

use super::*;

const MINUTE: Limit = Limit::per_minute(9);
const THREE_SECONDS: Wait = Wait::For(Nanos::from_secs(3));

fn refusing(wait: Wait) -> Rule<Request> {
    says("p", MINUTE, Outcome::Refuse(wait), 0, Some(Nanos::SECOND))
}

fn call(content_type: &str) -> Request {
    request(Method::POST, &[("content-type", content_type.as_bytes()), ("te", b"trailers")])
}

#[test]
fn a_call_is_known_by_its_content_type_and_answered_in_kind() {
    const GRPC: Option<&str> = Some("application/grpc");
    const ROWS: usize = 21;
    let rows: [(&str, Option<&str>); ROWS] = [
        ("application/grpc", GRPC),
        ("application/grpc+proto", GRPC),
        ("application/grpc+json", GRPC),
        ("application/grpc;charset=utf-8", GRPC),
        ("application/grpc ; charset=utf-8", GRPC),
        ("Application/GRPC", GRPC), // RFC 9110, 8.3.1: media types are case-insensitive
        ("application/grpc-web", Some("application/grpc-web")),
        ("application/grpc-web+proto", Some("application/grpc-web+proto")),
        ("Application/Grpc-Web+Proto;x=1", Some("application/grpc-web+proto")),
        ("application/grpc-web-text", Some("application/grpc-web-text")),
        ("application/grpc-web-text+proto", Some("application/grpc-web-text+proto")),
        ("application/grpcfoo", None),
        ("application/grpc-foo", None),
        ("application/grpc-web-foo", None),
        ("application/grp", None),
        ("xapplication/grpc", None),
        ("application/json", None),
        ("application/connect+proto", None),
        ("application/proto", None),
        ("", None),
        ("application/grpc\u{e9}", None),
    ];
    assert_eq!(rows.len(), ROWS);
    for (content_type, right) in rows {
        let answer = send(&limited([refusing(THREE_SECONDS)]), call(content_type));
        let right_type = right.unwrap_or("application/problem+json");
        assert_eq!(answer.field("content-type").as_deref(), Some(right_type), "{content_type}");
        assert_eq!(answer.status, if right.is_some() { 200 } else { 429 }, "{content_type}");
        assert_eq!(answer.field("grpc-status").as_deref(), right.map(|_| "8"), "{content_type}");
        // Trailers only: the head ends the stream. Clients retry, and obey a pushback, only then.
        assert_eq!(answer.ended_at_once, right.is_some(), "{content_type}");
        assert_eq!(answer.body.is_empty(), right.is_some(), "{content_type}");
        assert_eq!(answer.field("content-length"), None, "{content_type}");
        // A metadata field like any other.
        assert_eq!(answer.field("retry-after").as_deref(), Some("3"), "{content_type}");
    }
    // A call is a POST.
    let mut get = call("application/grpc");
    *get.method_mut() = Method::GET;
    assert_eq!(send(&limited([refusing(THREE_SECONDS)]), get).status, 429);
    assert_eq!(send(&limited([refusing(THREE_SECONDS)]), request(Method::POST, &[])).status, 429);
}

/// `google.rpc.Status` with code 8, its message and one `google.rpc.RetryInfo`; as another encoder wrote it.
#[test]
fn the_details_are_a_retry_info_to_the_nanosecond() {
    const ROWS: usize = 8;
    let rows: [(Wait, Option<&str>); ROWS] = [
        (
            Wait::For(Nanos::from_secs(30)),
            Some("CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIHg"),
        ),
        (
            Wait::For(Nanos::SECOND),
            Some("CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIAQ"),
        ),
        (
            Wait::For(ms(1_500)),
            Some(
                "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaNgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIKCggIARCAyrXuAQ",
            ),
        ),
        (
            Wait::For(ms(250)),
            Some(
                "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMwoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIHCgUQgOWadw",
            ),
        ),
        (
            Wait::For(Nanos::from_secs(3_600)),
            Some("CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMQoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIFCgMIkBw"),
        ),
        // An unknown wait is told as a second, as `Retry-After` is.
        (
            Wait::Unknown,
            Some("CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIAQ"),
        ),
        (
            Wait::For(Nanos::ZERO),
            Some("CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaLgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxICCgA"),
        ),
        (Wait::Never, None),
    ];
    assert_eq!(rows.len(), ROWS);
    for (wait, right) in rows {
        let answer = send(&limited([refusing(wait)]), call("application/grpc"));
        assert_eq!(answer.field("grpc-status-details-bin").as_deref(), right, "{wait:?}");
        assert_eq!(answer.field("grpc-status").as_deref(), Some("8"));
        assert_eq!(answer.field("grpc-message").as_deref(), Some("rate limit exceeded"));
    }
}

/// A protobuf message's fields: number, and bytes or a number.
fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>, u64)> {
    fn varint(message: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = message[0];
            *message = &message[1..];
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }
    let mut fields = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        let value = varint(&mut message);
        if tag & 7 == 2 {
            let (bytes, rest) = message.split_at(value as usize);
            fields.push((tag >> 3, bytes.to_vec(), 0));
            message = rest;
        } else {
            assert_eq!(tag & 7, 0, "only numbers and bytes are written");
            fields.push((tag >> 3, vec![], value));
        }
    }
    fields
}

/// The code and message inside are those outside, whatever the refusal's reason.
#[test]
fn code_and_message_are_the_same_in_and_out_of_the_details() {
    let never = key::from_fn(|_: &Request| Some(Key::unavailable("100% of tenants: \u{e9}\nadd one")));
    let refuse = |status: u16| {
        vec![
            Rule::new("k", MINUTE, key::header("x-key")).on_missing_key(MissingKey::Refuse(status.try_into().unwrap())),
        ]
    };
    const NO_KEY: &str = "the request has no key to be limited by";
    const ROWS: usize = 11;
    // rules; grpc-status, grpc-message, whether there are details
    let rows: [(Vec<Rule<Request>>, &str, &str, bool); ROWS] = [
        (vec![refusing(THREE_SECONDS)], "8", "rate limit exceeded", true),
        (vec![refusing(THREE_SECONDS).overload()], "8", "the service is at its capacity", true),
        (vec![Rule::new("k", MINUTE, never)], "13", "100%25 of tenants: %C3%A9%0Aadd one", false),
        (refuse(400), "3", NO_KEY, false),
        (refuse(401), "16", NO_KEY, false),
        (refuse(403), "7", NO_KEY, false),
        (refuse(404), "9", NO_KEY, false),
        (refuse(429), "8", NO_KEY, false),
        (refuse(500), "13", NO_KEY, false),
        (refuse(503), "14", NO_KEY, false),
        (vec![refusing(Wait::Never)], "8", "rate limit exceeded", false),
    ];
    assert_eq!(rows.len(), ROWS);
    for (rules, code, message, has_details) in rows {
        let answer = send(&limited(rules), call("application/grpc"));
        assert_eq!((answer.status, answer.ended_at_once), (200, true));
        assert_eq!(answer.field("grpc-status").as_deref(), Some(code), "{message}");
        assert_eq!(answer.field("grpc-message").as_deref(), Some(message), "{code}");
        let details = answer.field("grpc-status-details-bin");
        assert_eq!(details.is_some(), has_details, "{message}");
        let Some(details) = details else { continue };
        let status = fields(&STANDARD_NO_PAD.decode(details).unwrap());
        assert_eq!(status[0], (1, vec![], code.parse().unwrap()));
        assert_eq!(status[1], (2, message.as_bytes().to_vec(), 0));
        let any = fields(&status[2].1);
        assert_eq!(any[0].1, b"type.googleapis.com/google.rpc.RetryInfo");
        assert_eq!(fields(&fields(&any[1].1)[0].1), [(1, vec![], 3)], "three seconds");
    }
}

/// `Status-Message` is percent-encoded, in UTF-8, upper-case; a client decodes it.
#[test]
fn messages_of_any_text_are_percent_encoded() {
    const ROWS: usize = 7;
    let rows: [(&str, Option<&str>); ROWS] = [
        ("rate limit exceeded", Some("rate limit exceeded")),
        ("100% used", Some("100%25 used")),
        ("limite d\u{e9}pass\u{e9}e", Some("limite d%C3%A9pass%C3%A9e")),
        ("line1\nline2", Some("line1%0Aline2")),
        ("\u{0}\r\t\u{7f}", Some("%00%0D%09%7F")),
        ("\"~!#$&'", Some("\"~!#$&'")),
        // The grammar has no empty message, so there is none.
        ("", None),
    ];
    assert_eq!(rows.len(), ROWS);
    for (text, right) in rows {
        let rule = Rule::new("k", MINUTE, move |_: &Request| Some(Key::unavailable(text)));
        let answer = send(&limited([rule]), call("application/grpc"));
        assert_eq!(answer.field("grpc-message").as_deref(), right, "{text:?}");
        assert_eq!(answer.field("grpc-status").as_deref(), Some("13"), "{text:?}");
    }
}

/// grpc/proposal, A6: a positive number of milliseconds, or a negative one for "not at all".
#[test]
fn a_pushback_is_told_where_it_was_asked_for() {
    const ROWS: usize = 9;
    let rows: [(Wait, &str); ROWS] = [
        (Wait::For(Nanos::from_secs(30)), "30000"),
        (Wait::For(Nanos::new(200_000)), "1"),
        (Wait::For(Nanos::ZERO), "1"),
        (Wait::For(ms(1)), "1"),
        (Wait::For(Nanos::new(1_000_001)), "2"),
        (Wait::For(Nanos::from_secs(86_400 * 25)), "2147483647"), // a signed 32-bit number
        (Wait::For(Nanos::MAX), "2147483647"),
        (Wait::Unknown, "1000"),
        (Wait::Never, "-1"),
    ];
    assert_eq!(rows.len(), ROWS);
    for (wait, right) in rows {
        let with = layer([refusing(wait)], &ManualClock::new()).grpc_pushback();
        let answer = send(&over(with.clone(), hello()), call("application/grpc"));
        assert_eq!(answer.field("grpc-retry-pushback-ms").as_deref(), Some(right), "{wait:?}");
        // Off unless asked for: it is obeyed without jitter. And it means nothing to others.
        let answer = send(&limited([refusing(wait)]), call("application/grpc"));
        assert_eq!(answer.field("grpc-retry-pushback-ms"), None);
        assert_eq!(get(&over(with, hello())).field("grpc-retry-pushback-ms"), None);
    }
    // Where a key is missing no time helps.
    let rule = Rule::new("k", MINUTE, key::peer_addr());
    let answer = send(&over(layer([rule], &ManualClock::new()).grpc_pushback(), hello()), call("application/grpc"));
    assert_eq!(answer.field("grpc-retry-pushback-ms").as_deref(), Some("-1"));
}

/// doc/PROTOCOL-WEB.md: an answer without messages may have its trailers among the header fields.
#[test]
fn a_browser_gets_the_status_in_the_header() {
    const ROWS: usize = 4;
    let rows: [&str; ROWS] = [
        "application/grpc-web",
        "application/grpc-web+proto",
        "application/grpc-web-text",
        "application/grpc-web-text+proto",
    ];
    assert_eq!(rows.len(), ROWS);
    for content_type in rows {
        let answer = send(&limited([refusing(THREE_SECONDS)]), call(content_type));
        assert_eq!((answer.status, answer.body.as_str(), answer.ended_at_once), (200, "", true));
        assert_eq!(answer.field("content-type").as_deref(), Some(content_type));
        assert_eq!(answer.field("grpc-status").as_deref(), Some("8"));
        assert_eq!(answer.field("grpc-message").as_deref(), Some("rate limit exceeded"));
        assert!(answer.field("grpc-status-details-bin").is_some());
    }
}

#[test]
fn a_call_that_passes_is_left_as_it_is() {
    let passing = says("p", MINUTE, Outcome::Pass, 3, None);
    let answer = send(&limited([passing]), call("application/grpc"));
    assert_eq!((answer.status, answer.body.as_str()), (200, "hello"));
    assert_eq!((answer.field("grpc-status"), answer.field("retry-after")), (None, None));
}
