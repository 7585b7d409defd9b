use http::{HeaderName, HeaderValue, Response, StatusCode, header::RETRY_AFTER};

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
    /// Writes the fields. Where a layer further in has written them and refused, or has no more remaining, its own
    /// stay: the client is told of the tightest rule on its way.
    pub(crate) fn write<B>(self, response: &mut Response<B>, decision: &Decision) {
        let Some(rule) = decision.tightest().filter(|_| self == Self::XRateLimit) else { return };
        let verdict = rule.verdict;
        let refused_inside = decision.is_allowed()
            && (matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
                || response.headers().contains_key(RETRY_AFTER));
        let headers = response.headers_mut();
        if let Some(theirs) = headers.get(&REMAINING) {
            let theirs = theirs.to_str().ok().and_then(|text| text.parse::<u64>().ok());
            // What cannot be read is somebody else's, and is left alone.
            if refused_inside || theirs.is_none_or(|theirs| theirs <= verdict.remaining) {
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
