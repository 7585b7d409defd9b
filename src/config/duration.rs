use std::{fmt, time::Duration};

use serde::{Serialize, Serializer};

use super::problem::shown;
use crate::limit::Limit;

/// A span of time as it is written in a rule file: `250ms`, `90s`, `1h30m`, `7d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span(u64);

/// The units with their other spellings, the longest first.
const UNITS: [(&str, &str, u64); 7] = [
    ("d", "day", 86_400_000_000_000),
    ("h", "hour", 3_600_000_000_000),
    ("m", "min", 60_000_000_000),
    ("s", "sec", 1_000_000_000),
    ("ms", "ms", 1_000_000),
    ("us", "us", 1_000),
    ("ns", "ns", 1),
];

/// What a span looks like, for the schema.
pub(super) const PATTERN: &str = "^([0-9]+(d|h|m|min|s|sec|ms|us|ns))+$";
pub(super) const EXPECTED: &str = "a span of time such as \"250ms\", \"90s\", \"1h30m\" or \"7d\"";

impl Span {
    pub(super) const fn as_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    pub(super) const fn nanos(self) -> u64 {
        self.0
    }

    /// Reads a span, or says what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |problem: &str| Err(format!("{}: {problem}", shown(text)));
        if text.is_empty() {
            return wrong(&format!("not {EXPECTED}"));
        }
        let (mut rest, mut total, mut longest) = (text, 0_u64, None);
        while !rest.is_empty() {
            let digits = rest.len() - rest.trim_start_matches(|char: char| char.is_ascii_digit()).len();
            let (number, after) = rest.split_at(digits);
            let letters = after.find(|char: char| char.is_ascii_digit()).unwrap_or(after.len());
            let (unit, next) = after.split_at(letters);
            if number.is_empty() {
                return wrong(&format!("not {EXPECTED}"));
            }
            if unit.is_empty() {
                return wrong(&format!("a number without a unit; write \"{number}s\" for seconds"));
            }
            if let Some(problem) = calendar(unit) {
                return wrong(&problem);
            }
            let known = UNITS.iter().position(|(short, long, _)| [*short, *long].contains(&unit));
            let Some((at, (.., nanos))) = known.and_then(|at| Some((at, UNITS.get(at)?))) else {
                return wrong(&format!("{} is not a unit; there are d, h, m, s, ms, us and ns", shown(unit)));
            };
            if longest.is_some_and(|longest| at <= longest) {
                return wrong("the units go from the longest to the shortest, each once, as in \"1h30m\"");
            }
            longest = Some(at);
            let span = number.parse().ok().and_then(|number: u64| number.checked_mul(*nanos));
            match span.and_then(|span| total.checked_add(span)) {
                Some(sum) if Duration::from_nanos(sum) <= Limit::MAX_SPAN => total = sum,
                _ => return wrong("longer than 106751d, the longest there is"),
            }
            rest = next;
        }
        Ok(Self(total))
    }

    /// Reads a unit that stands alone, as in `100/min`.
    pub(super) fn of_unit(unit: &str) -> Option<Self> {
        let alone = |(short, long, _): &&(&str, &str, u64)| *long == unit || *short == unit && *short != "m";
        let known = UNITS.iter().take(4).find(alone).map(|(.., nanos)| *nanos);
        known
            .or_else(|| {
                ["second", "minute"].contains(&unit).then_some(if unit == "second" { 1 } else { 60 } * 1_000_000_000)
            })
            .map(Self)
    }
}

/// What to say of a unit that has no fixed length.
pub(super) fn calendar(unit: &str) -> Option<String> {
    let calendar = match unit {
        "mo" | "month" | "months" | "M" => "month",
        "y" | "year" | "years" => "year",
        _ => return None,
    };
    Some(format!(
        "a {calendar} has no fixed length and there are no calendar windows; write a number of days, such as \"{}\"",
        if calendar == "month" { "30d" } else { "365d" }
    ))
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        for (short, _, nanos) in UNITS {
            if rest >= nanos {
                write!(f, "{}{short}", rest / nanos)?;
                rest %= nanos;
            }
        }
        if self.0 == 0 { f.write_str("0s") } else { Ok(()) }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, nanos) in [
            ("1s", 1_000_000_000),
            ("250ms", 250_000_000),
            ("1h30m", 5_400_000_000_000),
            ("30min", 1_800_000_000_000),
            ("7d", 604_800_000_000_000),
            ("1d2h3m4s5ms6us7ns", 93_784_005_006_007),
            ("0s", 0),
            ("106751d", 106_751 * 86_400_000_000_000),
        ] {
            let span = Span::parse(text).unwrap();
            assert_eq!(span.nanos(), nanos, "{text}");
            assert_eq!(Span::parse(&span.to_string()), Ok(span), "{text}");
        }
        assert_eq!(Span::parse("90s").unwrap().to_string(), "1m30s");
        assert_eq!(Span::of_unit("min"), Span::of_unit("minute"));
        assert_eq!(Span::of_unit("m"), None);
    }

    #[test]
    fn says_what_is_wrong_and_the_way_out() {
        for (text, says) in [
            ("", "such as \"250ms\""),
            ("60", "write \"60s\" for seconds"),
            ("1h30", "write \"30s\" for seconds"),
            ("s", "such as"),
            ("-1s", "such as"),
            ("1.5h", "\".\" is not a unit"),
            ("1 s", "\" s\" is not a unit"),
            ("1M", "a month has no fixed length"),
            ("1y", "\"365d\""),
            ("5x", "there are d, h, m, s, ms, us and ns"),
            ("30m1h", "from the longest to the shortest"),
            ("1s1s", "each once"),
            ("106752d", "the longest there is"),
            ("99999999999999999999d", "the longest there is"),
        ] {
            let error = Span::parse(text).unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
