use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use super::{
    arena::{put_number, written},
    digits,
};
use crate::{
    decision::{Decision, Outcome, RuleVerdict, Source, Wait},
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

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
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

    /// Writes the fields; none where no rule applied.
    pub(super) fn write<B>(&self, response: &mut Response<B>, decision: &Decision, policies: &Policies) {
        if let Self::Custom(Writer(write)) = self {
            return write(decision, response.headers_mut());
        }
        if matches!(self, Self::None) {
            return;
        }
        let Some(tightest) = decision.tightest() else { return };
        let refused_inside = decision.is_allowed() && is_refusal(response);
        let headers = response.headers_mut();
        match self {
            Self::XRateLimit => write_x(headers, tightest, None, refused_inside),
            Self::XRateLimitEpoch => write_x(headers, tightest, Some(decision.at()), refused_inside),
            Self::Ietf => write_ietf(headers, decision, policies),
            Self::Both => {
                write_x(headers, tightest, None, refused_inside);
                write_ietf(headers, decision, policies);
            }
            Self::None | Self::Custom(_) => {}
        }
    }
}

/// Whether the response, not ours, refuses for now.
fn is_refusal<B>(response: &Response<B>) -> bool {
    matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
        || response.headers().contains_key(header::RETRY_AFTER)
}

/// Writes one rule's numbers. Where a layer further in has written them, and has refused or has no more remaining, its
/// own stay: the client is told of the tightest rule on its way.
fn write_x(headers: &mut HeaderMap, rule: RuleVerdict<'_>, epoch: Option<Nanos>, refused_inside: bool) {
    let verdict = rule.verdict;
    let reset = verdict.reset.map(|reset| epoch.unwrap_or(Nanos::ZERO).saturating_add(reset).as_secs_ceil());
    if let Some(theirs) = headers.get(&REMAINING) {
        let theirs = number(theirs);
        let keeps = theirs.is_none_or(|theirs| {
            theirs < verdict.remaining || theirs == verdict.remaining && headers.get(&RESET).and_then(number) >= reset
        });
        // What cannot be read is somebody else's, and is left alone too.
        if refused_inside || keeps {
            return;
        }
        headers.remove(&RESET);
    }
    headers.reserve(3);
    headers.insert(LIMIT, digits::value(verdict.limit));
    headers.insert(REMAINING, digits::value(verdict.remaining));
    if let Some(reset) = reset {
        headers.insert(RESET, digits::value(reset));
    }
}

fn number(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.parse().ok()
}

/// `RateLimit-Policy` as it is on most responses of a layer: of every rule, each with the limit it was made with.
#[derive(Debug, Clone, Default)]
pub(super) struct Policies(Arc<OnceLock<HeaderValue>>);

impl Policies {
    fn of(&self, decision: &Decision) -> Option<HeaderValue> {
        if !decision.is_by_every_rule_as_made() {
            return render_policies(decision);
        }
        match self.0.get() {
            Some(policies) => Some(policies.clone()),
            None => render_policies(decision).map(|policies| self.0.get_or_init(|| policies).clone()),
        }
    }
}

fn render_policies(decision: &Decision) -> Option<HeaderValue> {
    list(|policies| {
        for rule in decision.rules().filter(|rule| rule.verdict.source.has_numbers()) {
            begin_item(policies, rule.rule);
            parameter(policies, b";q=", rule.verdict.limit);
            parameter(policies, b";w=", policy_window(&rule).as_secs_ceil().max(1));
        }
    })
}

/// Appends a list item for each rule to what layers further in have written; lists may go over several lines.
fn write_ietf(headers: &mut HeaderMap, decision: &Decision, policies: &Policies) {
    // Draft 11, 6: `Retry-After` shall not be earlier than the end of an effective window that is told. One that is there
    // already comes from further in, where the request was refused, or is the application's own.
    let passed = decision.is_allowed();
    let last_end = headers.get(header::RETRY_AFTER).filter(|_| passed).map(|value| number(value).unwrap_or(0));
    let limits = list(|limits| {
        for rule in decision.rules().filter(|rule| rule.verdict.source.has_numbers()) {
            match rule.verdict.outcome {
                // For the same reason a refusal tells only the windows of those who refuse.
                Outcome::Pass | Outcome::Delay(_) | Outcome::Refuse(Wait::Never) => {
                    let at_least = u64::from(rule.verdict.remaining == 0);
                    let window = rule.verdict.effective_window.map(|window| window.as_secs_ceil().max(at_least));
                    let too_long = last_end.is_some() && window > last_end;
                    if passed && !too_long || !rule.verdict.outcome.passes() {
                        item(limits, rule.rule, rule.verdict.remaining, window);
                    }
                }
                Outcome::Refuse(Wait::For(wait)) => item(limits, rule.rule, 0, Some(wait.as_secs_ceil().max(1))),
                Outcome::Refuse(Wait::Unknown) => item(limits, rule.rule, 0, None),
            }
        }
    });
    headers.reserve(2);
    for (name, list) in [(POLICY, policies.of(decision)), (RATE_LIMIT, limits)] {
        if let Some(list) = list {
            headers.append(name, list);
        }
    }
}

/// Returns what `write` writes, unless that is nothing.
fn list(write: impl FnOnce(&mut BytesMut)) -> Option<HeaderValue> {
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
    begin_item(list, name);
    parameter(list, b";r=", remaining);
    if let Some(window) = window {
        parameter(list, b";t=", window);
    }
}

/// Begins a list item named `name`, which is a token and needs no escaping.
fn begin_item(list: &mut BytesMut, name: &str) {
    if !list.is_empty() {
        list.put_slice(b", ");
    }
    list.put_u8(b'"');
    list.put_slice(name.as_bytes());
    list.put_u8(b'"');
}

fn parameter(list: &mut BytesMut, name: &[u8], value: u64) {
    list.put_slice(name);
    put_number(list, value.min(MAX_INTEGER));
}
