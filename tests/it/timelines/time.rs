//! Times as the timelines write them: `"1.2s"`, or whole nanoseconds.

use std::str::FromStr;

use serde::Deserialize;

/// An instant or a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub(super) struct Time(u64);

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Nanos(u64),
    Text(String),
}

impl Time {
    pub(super) const fn nanos(self) -> u64 {
        self.0
    }

    /// Makes it so many times as long, unless that is a hundred days or more.
    pub(super) fn stretch(&mut self, times: u64) -> bool {
        self.0 = self.0.saturating_mul(times);
        self.0 < 100 * 86_400_000_000_000
    }
}

impl TryFrom<Written> for Time {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Nanos(nanos) => Ok(Self(nanos)),
            Written::Text(text) => text.parse(),
        }
    }
}

const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

impl FromStr for Time {
    type Err = String;

    /// A number, with a fraction or not, and a unit; exact, or an error.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is no time; write one such as \"1.2s\", in ns, us, ms, s, min, h or d");
        let at = text.find(|letter: char| letter.is_ascii_alphabetic()).ok_or_else(wrong)?;
        let (number, unit) = text.split_at(at);
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let whole: u64 = whole.parse().map_err(|_| wrong())?;
        let mut nanos = whole.checked_mul(*unit).ok_or_else(wrong)?;
        let mut unit = *unit;
        for digit in fraction.chars() {
            let digit = digit.to_digit(10).ok_or_else(wrong)?;
            if unit % 10 != 0 {
                return Err(wrong());
            }
            unit /= 10;
            nanos = nanos.checked_add(u64::from(digit) * unit).ok_or_else(wrong)?;
        }
        Ok(Self(nanos))
    }
}

#[test]
fn reads_times_exactly_or_not_at_all() {
    for (text, nanos) in [
        ("1.2s", 1_200_000_000),
        ("0s", 0),
        ("250ms", 250_000_000),
        ("0.999999999s", 999_999_999),
        ("1.5min", 90_000_000_000),
        ("365d", 31_536_000_000_000_000),
        ("7ns", 7),
    ] {
        assert_eq!(text.parse(), Ok(Time(nanos)), "{text}");
    }
    for text in ["", "1", "s", "1.s1", "-1s", "1.5ns", "1.0000000001s", "1 s", "1m", "99999999999999999999s"] {
        assert!(text.parse::<Time>().is_err(), "{text}");
    }
}
