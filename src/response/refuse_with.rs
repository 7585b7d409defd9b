use std::{fmt, sync::Arc};

use http::Response;

use super::{Answer, Refuse};
use crate::decision::{Decision, RuleVerdict};

type OutcomeFn<Res> = Arc<dyn Fn(&Res) -> Response<()> + Send + Sync>;
type RefuseFn<Req, Res> = Arc<dyn Fn(&Req, &Decision) -> Res + Send + Sync>;

/// The answers of any other service: passing responses unchanged, and the user's own refusals.
pub struct RefuseWith<Req, Res> {
    pub(crate) refuse: RefuseFn<Req, Res>,
    /// How a response is read where rules depend on it.
    pub(crate) outcome: Option<OutcomeFn<Res>>,
}

impl<Req, Res> Answer<Res> for RefuseWith<Req, Res> {
    type Response = Res;
    type Told = ();

    fn pass(response: Res, _told: &mut ()) -> Res {
        response
    }

    fn judged(&self, response: Res, judge: &mut dyn FnMut(&Response<()>)) -> Res {
        if let Some(outcome) = &self.outcome {
            judge(&outcome(&response));
        }
        response
    }
}

impl<Req, Res> Refuse<Req, Res> for RefuseWith<Req, Res> {
    fn refuse(&self, request: &Req, decision: &Decision) -> Res {
        (self.refuse)(request, decision)
    }

    fn prepare(&self, _request: &mut Req, _decision: &Decision) {}

    fn tells<'a>(&self, _rule: impl FnOnce() -> RuleVerdict<'a>) -> Option<()> {
        Some(())
    }

    fn names_rules(&self) -> bool {
        false
    }
}

impl<Req, Res> Clone for RefuseWith<Req, Res> {
    fn clone(&self) -> Self {
        Self { refuse: Arc::clone(&self.refuse), outcome: self.outcome.clone() }
    }
}

impl<Req, Res> fmt::Debug for RefuseWith<Req, Res> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefuseWith").finish_non_exhaustive()
    }
}
