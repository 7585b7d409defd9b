use http::{HeaderMap, HeaderName, HeaderValue};

use crate::decision::Decision;

/// Which fields tell clients of their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Headers {
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (in seconds, rounded up) of the tightest
    /// rule, on every response that a rule applied to.
    #[default]
    XRateLimit,
    /// None. Refusals still have their `Retry-After`.
    None,
}

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

impl Headers {
    /// Writes the fields. Where a layer further in has written them and has no more remaining, its own stay: the
    /// client is told of the tightest rule on its way.
    pub(crate) fn write(self, headers: &mut HeaderMap, decision: &Decision) {
        let Some(rule) = decision.tightest().filter(|_| self == Self::XRateLimit) else { return };
        let verdict = rule.verdict;
        if let Some(theirs) = headers.get(&REMAINING) {
            let theirs = theirs.to_str().ok().and_then(|text| text.parse::<u64>().ok());
            // What cannot be read is somebody else's, and is left alone.
            if theirs.is_none_or(|theirs| theirs <= verdict.remaining) {
                return;
            }
            headers.remove(&RESET);
        }
        headers.reserve(3);
        headers.insert(LIMIT, HeaderValue::from(verdict.limit));
        headers.insert(REMAINING, HeaderValue::from(verdict.remaining));
        if let Some(reset) = verdict.reset {
            headers.insert(RESET, HeaderValue::from(reset.as_secs_ceil()));
        }
    }
}
