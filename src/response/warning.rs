//! The rules that would have refused, had they enforced.

use http::{HeaderName, HeaderValue};

use super::headers::{begin_item, list, parameter};
use crate::decision::{Decision, Mode};

/// A list, as the IETF fields have: of each rule that warns and would have refused the name, and the seconds until the
/// same request would pass.
pub(crate) const WARNING: HeaderName = HeaderName::from_static("x-ratelimit-warning");

/// What the response to a request that passes warns of.
#[inline]
pub(super) fn of(decision: &Decision) -> Option<HeaderValue> {
    if decision.has_shadows() { render(decision) } else { None }
}

#[cold]
fn render(decision: &Decision) -> Option<HeaderValue> {
    list(|items| {
        for shadow in decision.shadows().filter(|shadow| shadow.mode == Mode::Warn && shadow.would_refuse()) {
            begin_item(items, shadow.rule);
            if let Some(secs) = shadow.wait_secs() {
                parameter(items, b";t=", secs);
            }
        }
    })
}
