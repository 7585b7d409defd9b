//! Whether a client would rather have a refusal in plain words (RFC 9110, 12.5.1).

use http::{HeaderMap, header};

/// Returns whether `text/plain` is wanted more than a problem document. Where nothing is said, or both are wanted as
/// much, it is not.
pub(super) fn wants_text(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(header::ACCEPT).iter();
    if lines.next().is_none_or(|line| line == "*/*") && lines.next().is_none() {
        // Nothing, or what most programs send.
        return false;
    }
    let (mut text, mut json) = (Quality::default(), Quality::default());
    for line in headers.get_all(header::ACCEPT) {
        for range in line.to_str().unwrap_or_default().split(',').take(32) {
            let (range, q) = weighed(range);
            text.take(range, q, &["text/plain", "text/*", "*/*"]);
            // JSON is what a problem document is, for clients that do not know the name.
            json.take(range, q, &["application/problem+json", "application/json", "application/*", "*/*"]);
        }
    }
    text.value > json.value
}

/// A media range and its weight in thousandths.
fn weighed(range: &str) -> (&str, u16) {
    let mut parts = range.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let q = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    (name, q.map_or(1_000, thousandths))
}

/// Reads a weight (`0.5`, `1`, `0.123`); what cannot be read counts as nothing.
fn thousandths(q: &str) -> u16 {
    let (whole, fraction) = q.split_once('.').unwrap_or((q, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 3 {
        return 0;
    }
    let padded = format!("{whole}{fraction:0<3}");
    padded.parse().unwrap_or(0).min(1_000)
}

/// The weight of the most specific range that fits so far.
#[derive(Default)]
struct Quality {
    value: u16,
    /// How far from the end of the list the range stood that gave it.
    specific: usize,
}

impl Quality {
    fn take(&mut self, range: &str, q: u16, fitting: &[&str]) {
        let Some(at) = fitting.iter().position(|known| range.eq_ignore_ascii_case(known)) else { return };
        let specific = fitting.len() - at;
        if specific > self.specific {
            *self = Self { value: q, specific };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_text_to_those_who_ask_for_it() {
        for (accept, text) in [
            ("", false),
            ("*/*", false),
            ("text/plain", true),
            ("text/*", true),
            ("TEXT/PLAIN", true),
            ("text/plain, application/json", false),
            ("text/plain, application/json;q=0.9", true),
            ("text/plain;q=0.5, */*;q=0.1", true),
            ("text/plain;q=0.1, */*;q=0.5", false),
            ("text/plain;q=0, */*", false),
            ("application/json", false),
            ("text/html,application/xhtml+xml,*/*;q=0.8", false),
            ("text/plain;q=x", false),
            (",;,q=", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            assert_eq!(wants_text(&headers), text, "{accept}");
        }
        assert!(!wants_text(&HeaderMap::new()));
    }
}
