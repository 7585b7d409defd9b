//! Why a rule applies to a request, or not.

use super::{Cost, MissingKey, Rule, set};
use crate::{key::Key, limit::Limit};

/// How a rule meets a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Application {
    /// It is asked.
    Applies,
    /// A condition of it does not hold: which one, from 0 on, in the order in which they were said.
    ConditionFalse(usize),
    /// The request has no key for it, and then it does not apply.
    NoKey,
    /// The request has no key for it, and is refused for that.
    RefusedWithoutKey,
    /// It refuses whatever it applies to.
    Blocked,
    /// Its limit for this request cannot be run, and the request is refused for good.
    UnusableLimit,
    /// It is tried beside a rule that does not apply.
    NotBeside,
}

impl Application {
    /// Whether its bucket has a say.
    pub(crate) fn is_asked(self) -> bool {
        matches!(self, Self::Applies | Self::Blocked | Self::UnusableLimit)
    }
}

/// What a rule counts a request by. Shows nothing of the key's value unless it is [revealed](Self::reveal).
#[derive(Clone, PartialEq, Eq)]
pub struct ExplainedKey {
    kind: &'static str,
    text: String,
}

impl ExplainedKey {
    /// Returns what kind of key it is: `text`, `number`, `ip`, `fingerprint`, `tuple`, or `shared` where requests
    /// without a key share one.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns the key as text. It may be personal data. Of a [fingerprint](Key::fingerprint) nothing is told.
    pub fn reveal(&self) -> &str {
        &self.text
    }
}

/// Shows the kind alone.
impl std::fmt::Debug for ExplainedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExplainedKey({})", self.kind)
    }
}

/// What a rule makes of a request, before any count is looked at.
pub(crate) struct Met {
    pub(crate) application: Application,
    pub(crate) key: Option<ExplainedKey>,
    pub(crate) limit: Limit,
    pub(crate) cost: Option<u64>,
}

impl<Req> Rule<Req> {
    /// As [`applies`](Self::applies), and says why.
    pub(crate) fn meet(&self, request: &Req) -> Met {
        let not = |application, key| Met { application, key, limit: self.limit, cost: None };
        if let Some(at) = self.when.iter().position(|when| !when(request)) {
            return not(Application::ConditionFalse(at), None);
        }
        let found = self.key.as_ref().map(|key| key.key(request));
        let key = match &found {
            None => None,
            Some(Some(key)) if !key.is_empty() && key.unavailable_reason().is_none() => {
                let (kind, text) = key.in_plain();
                Some(ExplainedKey { kind, text })
            }
            Some(key) => match (self.on_missing_key, key.as_ref().and_then(Key::unavailable_reason)) {
                (None, None) | (Some(MissingKey::Skip), _) => return not(Application::NoKey, None),
                (None, Some(_)) | (Some(MissingKey::Refuse(_)), _) => return not(Application::RefusedWithoutKey, None),
                (Some(MissingKey::Share), _) => Some(ExplainedKey { kind: "shared", text: "-".into() }),
            },
        };
        let limit = self.limit_for.as_ref().map_or(self.limit, |limit_for| limit_for(request));
        let usable = limit == self.limit || set::check_limit(&limit, &self.algorithm).is_ok();
        let cost = match &self.cost {
            Cost::Fixed(cost) => *cost,
            Cost::Of(cost) => cost(request),
        };
        let application = match usable {
            true => Application::Applies,
            false if self.blocked => Application::Blocked,
            false => Application::UnusableLimit,
        };
        Met { application, key, limit, cost: Some(cost) }
    }
}
