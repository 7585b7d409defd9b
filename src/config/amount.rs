use std::fmt;

use serde::{Serialize, Serializer};

use super::{
    duration::{Span, calendar},
    problem::shown,
};

/// What the field `limit` says: a number of permits whose period is a field of its own, a rate, or one of two words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Amount {
    /// `limit = 100`, beside `period = "1m"`.
    Permits(u64),
    /// `limit = "100/1m"`.
    Rate(u64, Span),
    /// `limit = "unlimited"`.
    Unlimited,
    /// `limit = "blocked"`.
    Blocked,
}

pub(super) const PATTERN: &str =
    "^(unlimited|blocked|[0-9]+(/| per )(s|min|h|d|sec|second|minute|hour|day|([0-9]+(d|h|m|min|s|sec|ms|us|ns))+))$";
pub(super) const EXPECTED: &str =
    "a number beside a `period`, a text such as \"100/1m\" or \"10/s\", \"unlimited\" or \"blocked\"";

impl Amount {
    /// Reads the text of a limit, or says what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |problem: &str| Err(format!("{}: {problem}", shown(text)));
        match text {
            "unlimited" => return Ok(Self::Unlimited),
            "blocked" => return Ok(Self::Blocked),
            _ => {}
        }
        let Some((permits, period)) = text.split_once('/').or_else(|| text.split_once(" per ")) else {
            return wrong(&format!("not {EXPECTED}"));
        };
        let digits = !permits.is_empty() && permits.bytes().all(|byte| byte.is_ascii_digit());
        let Some(permits) =
            digits.then(|| permits.parse().ok()).flatten().filter(|permits| *permits <= i64::MAX as u64)
        else {
            return wrong(&format!("{} is not a whole number from 1 to {}", shown(permits), i64::MAX));
        };
        if period == "m" {
            return wrong("\"m\" alone could mean minute or month; write \"1m\" or \"min\" for a minute");
        }
        if let Some(problem) = calendar(period) {
            return wrong(&problem);
        }
        if let Some(burst) = period.split_once(" burst ").map(|(_, burst)| burst) {
            return wrong(&format!("the burst is a field of its own; write `burst = {burst}`"));
        }
        match Span::of_unit(period).map_or_else(|| Span::parse(period), Ok) {
            Ok(period) => Ok(Self::Rate(permits, period)),
            Err(problem) => wrong(&format!("the period {problem}")),
        }
    }

    /// Whether it is a limit, rather than one of the two words.
    pub(super) fn is_limit(self) -> bool {
        matches!(self, Self::Permits(_) | Self::Rate(..))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Permits(permits) => write!(f, "{permits}"),
            Self::Rate(permits, period) => write!(f, "{permits}/{period}"),
            Self::Unlimited => f.write_str("unlimited"),
            Self::Blocked => f.write_str("blocked"),
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Permits(permits) => serializer.serialize_u64(*permits),
            other => serializer.collect_str(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_short_form_and_writes_it_back() {
        let span = |text| Span::parse(text).unwrap();
        for (text, amount, written) in [
            ("100/1m", Amount::Rate(100, span("1m")), "100/1m"),
            ("10/s", Amount::Rate(10, span("1s")), "10/1s"),
            ("300 per minute", Amount::Rate(300, span("1m")), "300/1m"),
            ("300/min", Amount::Rate(300, span("1m")), "300/1m"),
            ("5 per day", Amount::Rate(5, span("1d")), "5/1d"),
            ("3/250ms", Amount::Rate(3, span("250ms")), "3/250ms"),
            ("50/7d", Amount::Rate(50, span("7d")), "50/7d"),
            ("unlimited", Amount::Unlimited, "unlimited"),
            ("blocked", Amount::Blocked, "blocked"),
        ] {
            assert_eq!(Amount::parse(text), Ok(amount), "{text}");
            assert_eq!(amount.to_string(), written);
            assert_eq!(Amount::parse(written), Ok(amount), "{written}");
        }
    }

    #[test]
    fn says_what_is_wrong_and_the_way_out() {
        for (text, says) in [
            ("", "a number beside a `period`"),
            ("100", "a number beside a `period`"),
            ("ten/s", "\"ten\" is not a whole number"),
            ("-1/s", "\"-1\" is not a whole number"),
            ("99999999999999999999/s", "is not a whole number"),
            ("5/m", "write \"1m\" or \"min\""),
            ("5/month", "no calendar windows"),
            ("5 per year", "\"365d\""),
            ("5/60", "write \"60s\""),
            ("5/fortnight", "such as"),
            ("10/s burst 20", "write `burst = 20`"),
        ] {
            let error = Amount::parse(text).unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
