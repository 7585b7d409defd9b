use std::{fmt, str::FromStr, time::Duration};

use crate::time::Nanos;

/// How much, per how long, with what burst; or how much at a time. Plain data, checked when [rules](crate::Rule) are
/// put together.
///
/// `permits` per `period` is the long-run rate; `burst` is how many permits an idle client may use at once (token
/// bucket) or how deep the queue is (leaky bucket). Without [`burst`](Self::burst) it equals `permits`. Windows have
/// no burst of their own. [`in_flight`](Self::in_flight) is no rate: it bounds what runs at the same instant.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::Limit;
///
/// let limit = Limit::per_second(10).burst(20); // ten per second, for ever; twenty at once after a pause
/// assert_eq!((limit.permits(), limit.period(), limit.capacity()), (10, Duration::from_secs(1), 20));
/// assert_eq!(limit.to_string(), "10/s burst 20");
/// assert_eq!("300/min".parse::<Limit>()?, Limit::per_minute(300));
/// assert_eq!("5 per day".parse::<Limit>()?, Limit::per_day(5));
/// # Ok::<(), tollgate::ParseLimitError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    /// The rate in lowest terms, `drain / permit` permits a nanosecond, since that is what every decision counts in.
    drain: u64,
    permit: u64,
    /// What both were divided by.
    common: u64,
    /// Where somebody asked for one; else 0.
    burst: u64,
    kind: Kind,
}

/// What a limit is, and whether it has a burst of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Rate,
    RateWithBurst,
    InFlight,
    /// Which makes no sense, and is said when rules are put together.
    InFlightWithBurst,
}

impl Limit {
    /// The longest period, and the longest time from empty to full: 2^63 - 1 nanoseconds, about 292 years. Any
    /// instant until the year 2262 can be this far from the end of what [`Nanos`] holds.
    pub const MAX_SPAN: Duration = Duration::from_nanos(i64::MAX as u64);

    /// Returns `permits` per `period`.
    ///
    /// Zero permits and a period of zero, or over [`MAX_SPAN`](Self::MAX_SPAN), are errors when rules are put together.
    pub fn new(permits: u64, period: Duration) -> Self {
        Self::of(permits, Nanos::from(period))
    }

    const fn of(permits: u64, period: Nanos) -> Self {
        let common = match greatest_common_divisor(permits, period.get()) {
            0 => 1,
            common => common,
        };
        Self { drain: permits / common, permit: period.get() / common, common, burst: 0, kind: Kind::Rate }
    }

    /// Returns `permits` per second.
    pub const fn per_second(permits: u64) -> Self {
        Self::of(permits, Nanos::SECOND)
    }

    /// Returns `permits` per 60 seconds.
    pub const fn per_minute(permits: u64) -> Self {
        Self::of(permits, Nanos::from_secs(60))
    }

    /// Returns `permits` per 3,600 seconds.
    pub const fn per_hour(permits: u64) -> Self {
        Self::of(permits, Nanos::from_secs(3_600))
    }

    /// Returns `permits` per 86,400 seconds (not per calendar day; a fixed window of one day begins at 0:00 UTC).
    pub const fn per_day(permits: u64) -> Self {
        Self::of(permits, Nanos::from_secs(86_400))
    }

    /// Returns `places` at the same instant, however long each is taken: no rate, and no period. A rule with such a
    /// limit counts by [`InFlight`](crate::bucket::InFlight), and a request holds its places until it has ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::Limit;
    ///
    /// let limit = Limit::in_flight(10);
    /// assert!(limit.is_in_flight());
    /// assert_eq!((limit.permits(), limit.capacity(), limit.to_string().as_str()), (10, 10, "10 in flight"));
    /// assert_eq!("10 in flight".parse(), Ok(limit));
    /// ```
    pub const fn in_flight(places: u64) -> Self {
        Self { drain: places, permit: 0, common: 1, burst: 0, kind: Kind::InFlight }
    }

    /// Sets how many permits may be used at once after a pause: the **total**, not an extra.
    ///
    /// For a token bucket this is its capacity, for a leaky bucket the depth of its queue. It may be smaller than
    /// `permits`. On a window, and on what is in flight, it is an error when rules are put together.
    #[must_use]
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = burst;
        self.kind = match self.kind {
            Kind::Rate | Kind::RateWithBurst => Kind::RateWithBurst,
            Kind::InFlight | Kind::InFlightWithBurst => Kind::InFlightWithBurst,
        };
        self
    }

    /// Returns whether it bounds what runs at the same instant, and is no rate.
    pub const fn is_in_flight(&self) -> bool {
        matches!(self.kind, Kind::InFlight | Kind::InFlightWithBurst)
    }

    /// Returns the permits per [`period`](Self::period), or the places.
    pub const fn permits(&self) -> u64 {
        self.drain * self.common
    }

    /// Returns the period; zero of a limit on what is in flight.
    pub const fn period(&self) -> Duration {
        Nanos::new(self.period_nanos()).as_duration()
    }

    /// Returns the largest number of permits that can be there at once: `burst` where it was set, else `permits`.
    pub const fn capacity(&self) -> u64 {
        match self.kind {
            Kind::RateWithBurst => self.burst,
            Kind::Rate | Kind::InFlight | Kind::InFlightWithBurst => self.permits(),
        }
    }

    /// Returns the burst, where it was set.
    pub const fn explicit_burst(&self) -> Option<u64> {
        match self.kind {
            Kind::Rate | Kind::InFlight => None,
            Kind::RateWithBurst | Kind::InFlightWithBurst => Some(self.burst),
        }
    }

    pub(crate) const fn period_nanos(&self) -> u64 {
        self.permit * self.common
    }

    /// How many units there are to a permit, of which each nanosecond drains [`drain`](Self::drain): the smallest whole
    /// numbers that say so.
    pub(crate) const fn permit(&self) -> u64 {
        self.permit
    }

    /// How many units a nanosecond drains.
    pub(crate) const fn drain(&self) -> u64 {
        self.drain
    }
}

const fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// Writes what [`FromStr`] reads, for the four periods that have a name; other periods are written as
/// `3 per 250ms` and are not read back.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|unit| self.period_nanos() == Nanos::from_secs(unit.secs).get());
        match unit {
            _ if self.is_in_flight() => write!(f, "{} in flight", self.permits())?,
            Some(unit) => write!(f, "{}/{}", self.permits(), unit.short)?,
            None => write!(f, "{} per {:?}", self.permits(), self.period())?,
        }
        match self.explicit_burst() {
            Some(burst) => write!(f, " burst {burst}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Limit({self})")
    }
}

struct Unit {
    short: &'static str,
    long: &'static str,
    secs: u64,
}

const UNITS: [Unit; 4] = [
    Unit { short: "s", long: "second", secs: 1 },
    Unit { short: "min", long: "minute", secs: 60 },
    Unit { short: "h", long: "hour", secs: 3_600 },
    Unit { short: "d", long: "day", secs: 86_400 },
];

/// Reads `N/(s|min|h|d)` or `N per second|minute|hour|day`, then optionally `burst B`; or `N in flight`.
///
/// ```
/// use tollgate::Limit;
///
/// assert_eq!("4000 per second burst 8000".parse(), Ok(Limit::per_second(4_000).burst(8_000)));
/// let error = "5/m".parse::<Limit>().unwrap_err();
/// assert!(error.to_string().contains("min"), "{error}");
/// ```
impl FromStr for Limit {
    type Err = ParseLimitError;

    fn from_str(text: &str) -> Result<Self, ParseLimitError> {
        let fail = |problem| ParseLimitError { text: text.into(), problem };
        let words: Vec<&str> = text.split_whitespace().collect();
        let (permits, unit, rest) = match words.as_slice() {
            [places, "in", "flight"] => return Ok(Self::in_flight(number(places).map_err(fail)?)),
            [permits, "per", unit, rest @ ..] => {
                let unit = UNITS.iter().find(|known| known.long == *unit).ok_or_else(|| fail(Problem::unit(unit)))?;
                (*permits, unit, rest)
            }
            [rate, rest @ ..] => {
                let (permits, unit) = rate.split_once('/').ok_or_else(|| fail(Problem::Form))?;
                let unit = UNITS.iter().find(|known| known.short == unit).ok_or_else(|| fail(Problem::unit(unit)))?;
                (permits, unit, rest)
            }
            [] => return Err(fail(Problem::Form)),
        };
        let limit = Self::new(number(permits).map_err(fail)?, Duration::from_secs(unit.secs));
        match rest {
            [] => Ok(limit),
            ["burst", burst] => Ok(limit.burst(number(burst).map_err(fail)?)),
            _ => Err(fail(Problem::Form)),
        }
    }
}

/// Digits only: `u64`'s own parser would take a sign.
fn number(text: &str) -> Result<u64, Problem> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().ok_or_else(|| Problem::Number(text.into()))
}

/// What is wrong with the text of a [`Limit`]; it names the text, the part, and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseLimitError {
    text: Box<str>,
    problem: Problem,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Problem {
    Form,
    Number(Box<str>),
    Minute,
    Calendar(Box<str>),
    Unit(Box<str>),
}

impl Problem {
    fn unit(unit: &str) -> Self {
        match unit {
            "m" => Self::Minute,
            "month" | "months" | "mo" | "year" | "years" | "y" => Self::Calendar(unit.into()),
            _ => Self::Unit(unit.into()),
        }
    }
}

impl fmt::Display for ParseLimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit \"{}\": ", self.text.escape_debug())?;
        match &self.problem {
            Problem::Form => write!(
                f,
                "not of the form \"N/(s|min|h|d)\" or \"N per second|minute|hour|day\", then optionally \"burst B\", nor \
                 \"N in flight\""
            ),
            Problem::Number(text) => {
                write!(f, "\"{}\" is not a whole number from 0 to {}", text.escape_debug(), u64::MAX)
            }
            Problem::Minute => {
                write!(f, "\"m\" could mean minute, month or milli; write \"min\" or \"per minute\" for minutes")
            }
            Problem::Calendar(unit) => write!(
                f,
                "\"{unit}\" has no fixed length and there are no calendar windows; \
                 write a number of days, such as Limit::new(n, Duration::from_secs(30 * 86_400)) for exactly 30 days"
            ),
            Problem::Unit(unit) => write!(
                f,
                "\"{}\" is not a unit; after \"/\" write s, min, h or d, after \"per\" write second, minute, hour or day",
                unit.escape_debug()
            ),
        }
    }
}

impl std::error::Error for ParseLimitError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for limit in [
            Limit::per_second(0),
            Limit::per_second(10).burst(20),
            Limit::per_minute(300),
            Limit::per_hour(u64::MAX).burst(0),
            Limit::per_day(1),
            Limit::in_flight(0),
            Limit::in_flight(u64::MAX),
        ] {
            assert_eq!(limit.to_string().parse(), Ok(limit), "{limit}");
        }
        assert_eq!(Limit::new(3, Duration::from_millis(250)).to_string(), "3 per 250ms");
    }

    #[test]
    fn what_is_in_flight_is_no_rate() {
        assert_ne!(Limit::in_flight(1), Limit::new(1, Duration::ZERO));
        assert_eq!(Limit::in_flight(3).burst(5).capacity(), 3);
        assert_eq!(Limit::in_flight(3).burst(5).explicit_burst(), Some(5));
        assert_eq!(Limit::in_flight(3).burst(5).to_string(), "3 in flight burst 5");
        assert_eq!(size_of::<Limit>(), 5 * size_of::<u64>());
    }

    #[test]
    fn says_what_is_wrong_and_the_way_out() {
        for (text, says) in [
            ("5/m", "could mean minute, month"),
            ("5 per month", "no calendar windows"),
            ("5/month", "no calendar windows"),
            ("5/fortnight", "not a unit"),
            ("5 per s", "not a unit"),
            ("-5/s", "not a whole number"),
            ("+5/s", "not a whole number"),
            ("/s", "not a whole number"),
            ("99999999999999999999/s", "not a whole number"),
            ("5", "not of the form"),
            ("", "not of the form"),
            ("5/s burst", "not of the form"),
            ("5/s burst x", "not a whole number"),
            ("5/s burst 6 more", "not of the form"),
            ("5 per second per second", "not of the form"),
            ("5 in flight burst 6", "not of the form"),
            ("x in flight", "not a whole number"),
        ] {
            let error = text.parse::<Limit>().unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
