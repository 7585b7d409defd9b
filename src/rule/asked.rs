//! What a rule says of a request before any bucket is looked at.

use http::StatusCode;

use super::{Cost, MissingKey, Rule, set};
use crate::{
    key::{Found, KeyId, Secret},
    limit::Limit,
    observe::{self, Once},
};

/// What of a rule was reported already.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    key: Once,
    unavailable: Once,
    limit: Once,
}

/// Whether a rule applies to a request, and how.
#[derive(Debug)]
pub(crate) enum Applies {
    /// Its key is not there.
    NoKey,
    /// Under another limit than it was made with, where one is said.
    Yes {
        key: KeyId,
        limit: Option<Limit>,
        cost: u64,
        usable: bool,
    },
    Refused {
        status: StatusCode,
        reason: &'static str,
    },
}

impl<Req> Rule<Req> {
    /// What the rule has to say of `request` before any bucket is looked at; `None` where a condition does not hold.
    #[inline]
    pub(crate) fn applies(&self, request: &Req, secret: &Secret, reported: &Reported) -> Option<Applies> {
        self.holds(request).then(|| self.applied(request, secret, reported))
    }

    /// Whether all conditions hold. Apart from what follows, so that a false one costs nothing of it.
    #[inline(always)]
    pub(crate) fn holds(&self, request: &Req) -> bool {
        self.when.iter().all(|when| when(request))
    }

    /// As [`applies`](Self::applies), where all conditions hold.
    pub(crate) fn applied(&self, request: &Req, secret: &Secret, reported: &Reported) -> Applies {
        let key = match self.key_of(request, secret, reported) {
            Ok(Some(key)) => key,
            Ok(None) => return Applies::NoKey,
            Err((status, reason)) => return Applies::Refused { status, reason },
        };
        let (limit, usable) = self.other_limit(request, reported);
        Applies::Yes { key, limit, cost: self.cost_of(request), usable }
    }

    /// How many permits a request takes.
    #[inline]
    pub(crate) fn cost_of(&self, request: &Req) -> u64 {
        match &self.cost {
            Cost::Fixed(cost) => *cost,
            Cost::Of(cost) => cost(request),
        }
    }

    /// Whether all requests are under the limit that it was made with.
    pub(crate) fn has_one_limit(&self) -> bool {
        self.limit_for.is_none()
    }

    /// The limit for this request where that is another one than its own, and whether the rule can run it.
    #[inline]
    pub(crate) fn other_limit(&self, request: &Req, reported: &Reported) -> (Option<Limit>, bool) {
        let limit = self.limit_for.as_ref().map(|limit_for| limit_for(request)).filter(|limit| *limit != self.limit);
        (limit, limit.is_none_or(|limit| self.can_run(&limit, reported)))
    }

    /// Whether it can run another limit than its own.
    #[cold]
    fn can_run(&self, limit: &Limit, reported: &Reported) -> bool {
        match set::check_limit(limit, &self.algorithm) {
            Err((field, problem)) if !self.blocked => {
                observe::unusable_limit(&reported.limit, &self.name, limit, &format_args!("{field}: {problem}"));
                false
            }
            checked => checked.is_ok(),
        }
    }

    /// The key that a request counts by, `None` where there is none and the rule does not apply, or what it is refused
    /// with.
    #[inline]
    pub(crate) fn key_of(
        &self,
        request: &Req,
        secret: &Secret,
        reported: &Reported,
    ) -> Result<Option<KeyId>, (StatusCode, &'static str)> {
        let Some(key) = &self.key else { return Ok(Some(KeyId::NONE)) };
        match key.found(request, secret) {
            Found::Id(id) => Ok(Some(id)),
            Found::Nothing => self.without_key(None, reported),
            Found::Unavailable(reason) => self.without_key(Some(reason), reported),
        }
    }

    /// What becomes of a request that has no key, for a reason where one had to be there.
    #[cold]
    fn without_key(
        &self,
        unavailable: Option<&'static str>,
        reported: &Reported,
    ) -> Result<Option<KeyId>, (StatusCode, &'static str)> {
        if let Some(reason) = unavailable {
            observe::unavailable_key(&reported.unavailable, &self.name, reason);
        }
        match (self.on_missing_key, unavailable) {
            (None, Some(reason)) => Err((StatusCode::INTERNAL_SERVER_ERROR, reason)),
            (None, None) => {
                observe::missing_key(&reported.key, &self.name);
                Ok(None)
            }
            (Some(MissingKey::Skip), _) => Ok(None),
            (Some(MissingKey::Share), _) => Ok(Some(KeyId::NONE)),
            (Some(MissingKey::Refuse(status)), _) => {
                Err((status, unavailable.unwrap_or("the request has no key to be limited by")))
            }
        }
    }
}
