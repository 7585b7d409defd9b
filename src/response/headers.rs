use std::{fmt, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use super::{
    arena::{put_number, written},
    digits,
    policies::Policies,
    told::{Fields, Lists, Numbers},
};
use crate::{
    decision::{Decision, Outcome, RuleVerdict, Source, Verdict, Wait},
    time::Nanos,
};

/// Which fields tell clients of their limits.
///
/// # Examples
///
/// ```
/// use http::Request;
/// use tollgate::{Limit, RateLimitLayer, Rule, key, response::Headers};
///
/// let rule = || Rule::<Request<String>>::new("user", Limit::per_second(10), key::header("x-user"));
/// let ietf = RateLimitLayer::new([rule()]).headers(Headers::Ietf);
/// let own = RateLimitLayer::new([rule()]).headers(Headers::custom(|decision, headers| {
///     if let Some(rule) = decision.tightest() {
///         headers.insert("x-calls-left", rule.verdict.remaining.into());
///     }
/// }));
/// assert_eq!(ietf.expose_headers(), ["retry-after", "ratelimit-policy", "ratelimit"]);
/// # let _ = own;
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Headers {
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` of the tightest rule; the reset in
    /// **seconds from now**, rounded up.
    #[default]
    XRateLimit,
    /// The same, the reset as **Unix time** in seconds, rounded up, as GitHub tells it.
    XRateLimitEpoch,
    /// `RateLimit-Policy` and `RateLimit` with every rule that applied, in the form of
    /// draft-ietf-httpapi-ratelimit-headers-08 to -11. A refusal's `RateLimit` lists the rules that refused.
    Ietf,
    /// [`XRateLimit`](Self::XRateLimit) and [`Ietf`](Self::Ietf).
    Both,
    /// None. Refusals still have their `Retry-After`.
    None,
    /// Whatever this writes.
    Custom(Writer),
}

/// A user's own writer of header fields.
#[derive(Clone)]
pub struct Writer(WriteFn);
type WriteFn = Arc<dyn Fn(&Decision, &mut HeaderMap) + Send + Sync>;

impl Writer {
    pub(super) fn write(&self, decision: &Decision, headers: &mut HeaderMap) {
        (self.0)(decision, headers);
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writer(..)")
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::XRateLimit => "XRateLimit",
            Self::XRateLimitEpoch => "XRateLimitEpoch",
            Self::Ietf => "Ietf",
            Self::Both => "Both",
            Self::None => "None",
            Self::Custom(_) => "Custom(..)",
        })
    }
}

pub(super) const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(super) const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(super) const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The largest integer of a structured field (RFC 9651, 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

impl Headers {
    /// Returns a style that writes whatever `write` does, on every response that the layer makes or passes on.
    pub fn custom(write: impl Fn(&Decision, &mut HeaderMap) + Send + Sync + 'static) -> Self {
        Self::Custom(Writer(Arc::new(write)))
    }

    /// Returns the names of the fields a browser has to be allowed to read, `Retry-After` included; without those of a
    /// [custom](Self::custom) writer.
    pub fn names(&self) -> Vec<HeaderName> {
        let fields: &[HeaderName] = match self {
            Self::XRateLimit | Self::XRateLimitEpoch => &[LIMIT, REMAINING, RESET],
            Self::Ietf => &[POLICY, RATE_LIMIT],
            Self::Both => &[LIMIT, REMAINING, RESET, POLICY, RATE_LIMIT],
            Self::None | Self::Custom(_) => &[],
        };
        [header::RETRY_AFTER].iter().chain(fields).cloned().collect()
    }

    /// Whether what is told needs the rules' names.
    pub(super) const fn name_rules(&self) -> bool {
        !matches!(self, Self::XRateLimit | Self::XRateLimitEpoch | Self::None)
    }

    /// What the fields will be; none where no rule applied.
    #[inline]
    pub(super) fn told(&self, decision: &Decision, policies: &Policies) -> Option<Fields> {
        match self {
            Self::None => None,
            Self::Custom(writer) => Some(Fields::Custom(Box::new((writer.clone(), decision.clone())))),
            _ => self.told_of_tightest(decision, policies),
        }
    }

    fn told_of_tightest(&self, decision: &Decision, policies: &Policies) -> Option<Fields> {
        let tightest = decision.tightest_ruling()?;
        let lists = || Lists { policies: policies.of(decision), limits: limits(decision) };
        Some(match self {
            Self::XRateLimit => Fields::X(Numbers::of(&tightest.verdict(), Nanos::ZERO)),
            Self::XRateLimitEpoch => Fields::X(Numbers::of(&tightest.verdict(), decision.at())),
            Self::Ietf => Fields::Ietf(lists()),
            Self::Both => Fields::Both(Box::new((Numbers::of(&tightest.verdict(), Nanos::ZERO), lists()))),
            Self::None | Self::Custom(_) => return None,
        })
    }

    /// Writes the fields of a refusal; none where no rule applied.
    pub(super) fn write(&self, headers: &mut HeaderMap, decision: &Decision, policies: &Policies) {
        if let Self::Custom(writer) = self {
            return writer.write(decision, headers);
        }
        match self.told(decision, policies) {
            Some(Fields::X(numbers)) => write_x(headers, numbers, false),
            Some(Fields::Ietf(mut lists)) => append_lists(headers, &mut lists),
            Some(Fields::Both(both)) => {
                let (numbers, mut lists) = *both;
                write_x(headers, numbers, false);
                append_lists(headers, &mut lists);
            }
            None | Some(Fields::Custom(_) | Fields::Warned(_) | Fields::Exposed(_)) => {}
        }
    }
}

impl Numbers {
    /// The reset is counted from `since`.
    pub(super) fn of(verdict: &Verdict, since: Nanos) -> Self {
        let reset = verdict.reset.map(|reset| since.saturating_add(reset).as_secs_ceil());
        Self { limit: verdict.limit, remaining: verdict.remaining, reset }
    }
}

/// Whether the response, not ours, refuses for now.
pub(super) fn is_refusal<B>(response: &Response<B>) -> bool {
    matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
        || response.headers().contains_key(header::RETRY_AFTER)
}

/// Writes one rule's numbers. Where a layer further in has written them, and has refused or has no more remaining, its
/// own stay: the client is told of the tightest rule on its way. Nothing is reserved: an empty map makes room for six
/// fields by itself, and a fuller one grows once at most.
pub(super) fn write_x(headers: &mut HeaderMap, numbers: Numbers, refused_inside: bool) {
    let Numbers { limit, remaining, reset } = numbers;
    if let Some(theirs) = headers.get(&REMAINING) {
        let theirs = number(theirs);
        let keeps = theirs.is_none_or(|theirs| {
            theirs < remaining || theirs == remaining && headers.get(&RESET).and_then(number) >= reset
        });
        // What cannot be read is somebody else's, and is left alone too.
        if refused_inside || keeps {
            return;
        }
        headers.remove(&RESET);
    }
    headers.insert(LIMIT, digits::value(limit));
    headers.insert(REMAINING, digits::value(remaining));
    if let Some(reset) = reset {
        headers.insert(RESET, digits::value(reset));
    }
}

fn number(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.parse().ok()
}

pub(super) fn render_policies(decision: &Decision) -> Option<HeaderValue> {
    list(|policies| {
        for rule in decision.rules().filter(|rule| rule.verdict.source.has_numbers()) {
            begin_item(policies, rule.rule);
            parameter(policies, b";q=", rule.verdict.limit);
            if rule.limit.is_in_flight() {
                policies.put_slice(b";qu=\"concurrent-requests\"");
            } else {
                parameter(policies, b";w=", policy_window(&rule).as_secs_ceil().max(1));
            }
        }
    })
}

/// The list items of the rules; where the request was refused, of those who refused: no window that is told may end
/// later than `Retry-After` says.
fn limits(decision: &Decision) -> Option<HeaderValue> {
    let passed = decision.is_allowed();
    list(|limits| {
        for rule in decision.rules().filter(|rule| rule.verdict.source.has_numbers()) {
            match rule.verdict.outcome {
                Outcome::Pass | Outcome::Delay(_) | Outcome::Refuse(Wait::Never) => {
                    if passed || !rule.verdict.outcome.passes() {
                        begin_limit(limits, rule.rule);
                        end_limit(limits, &rule.verdict);
                    }
                }
                Outcome::Refuse(Wait::For(wait)) => item(limits, rule.rule, 0, Some(wait.as_secs_ceil().max(1))),
                Outcome::Refuse(Wait::Unknown) => item(limits, rule.rule, 0, None),
            }
        }
    })
}

/// The seconds that a response says to wait already; none of them where they cannot be read.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::RETRY_AFTER).map(|value| number(value).unwrap_or(0))
}

/// Those of our [`limits`] whose window ends within `last_end` seconds, or has no end.
pub(super) fn only_until(limits: &HeaderValue, last_end: u64) -> Option<HeaderValue> {
    let ends_later = |item: &&str| {
        let window = item.split_once(WINDOW).and_then(|(_, window)| window.parse::<u64>().ok());
        window.is_some_and(|window| window > last_end)
    };
    // Names are tokens, so nothing in them looks like a part of a list.
    let items = limits.to_str().ok()?.split(BETWEEN).filter(|item| !ends_later(item));
    list(|list| {
        for item in items {
            if !list.is_empty() {
                list.put_slice(BETWEEN.as_bytes());
            }
            list.put_slice(item.as_bytes());
        }
    })
}

/// Appends to what layers further in have written; lists may go over several lines.
pub(super) fn append_lists(headers: &mut HeaderMap, lists: &mut Lists) {
    if let Some(policies) = lists.policies.take() {
        headers.append(POLICY, policies);
    }
    if let Some(limits) = lists.limits.take() {
        headers.append(RATE_LIMIT, limits);
    }
}

/// What is between two items of a list.
const BETWEEN: &str = ", ";

/// What is before an item's window, the last of its parameters.
const WINDOW: &str = ";t=";

/// Returns what `write` writes, unless that is nothing.
pub(super) fn list(write: impl FnOnce(&mut BytesMut)) -> Option<HeaderValue> {
    HeaderValue::from_maybe_shared::<Bytes>(written(write)).ok().filter(|value| !value.is_empty())
}

/// A window's period, or the time a bucket takes to fill.
fn policy_window(rule: &RuleVerdict<'_>) -> Nanos {
    let limit = rule.limit;
    // A fallback tells a share of the limit, at a share of its rate.
    let told = if rule.verdict.source == Source::Fallback { limit.capacity() } else { rule.verdict.limit };
    let to_fill = u128::from(told) * u128::from(limit.period_nanos());
    Nanos::saturating_from_u128(to_fill.div_ceil(u128::from(limit.permits().max(1))))
}

fn item(list: &mut BytesMut, name: &str, remaining: u64, window: Option<u64>) {
    begin_limit(list, name);
    numbers(list, remaining, window);
}

/// Begins what is told of a rule that does not refuse.
pub(super) fn begin_limit(list: &mut BytesMut, name: &str) {
    begin_item(list, name);
    list.put_slice(b";r=");
}

/// Ends what is told of a rule that does not refuse, or refuses for good.
pub(super) fn end_limit(list: &mut BytesMut, verdict: &Verdict) {
    let at_least = u64::from(verdict.remaining == 0);
    numbers(list, verdict.remaining, verdict.effective_window.map(|window| window.as_secs_ceil().max(at_least)));
}

fn numbers(list: &mut BytesMut, remaining: u64, window: Option<u64>) {
    put_number(list, remaining.min(MAX_INTEGER));
    if let Some(window) = window {
        parameter(list, WINDOW.as_bytes(), window);
    }
}

/// Begins a list item named `name`, which is a token and needs no escaping.
pub(super) fn begin_item(list: &mut BytesMut, name: &str) {
    if !list.is_empty() {
        list.put_slice(BETWEEN.as_bytes());
    }
    list.put_u8(b'"');
    list.put_slice(name.as_bytes());
    list.put_u8(b'"');
}

pub(super) fn parameter(list: &mut BytesMut, name: &[u8], value: u64) {
    list.put_slice(name);
    put_number(list, value.min(MAX_INTEGER));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_that_end_after_a_retry_are_not_told() {
        let limits = HeaderValue::from_static(r#""a";r=1;t=5, "b";r=0, "c-t";r=7;t=6"#);
        for (last_end, right) in [
            (0, Some(r#""b";r=0"#)),
            (4, Some(r#""b";r=0"#)),
            (5, Some(r#""a";r=1;t=5, "b";r=0"#)),
            (6, Some(r#""a";r=1;t=5, "b";r=0, "c-t";r=7;t=6"#)),
        ] {
            assert_eq!(only_until(&limits, last_end), right.map(HeaderValue::from_static), "{last_end}");
        }
        assert_eq!(only_until(&HeaderValue::from_static(r#""a";r=1;t=5"#), 4), None);
    }
}
