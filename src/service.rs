use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use arc_swap::Guard;
use tower_service::Service;

use crate::{
    decision::Decision,
    future::{Call, Gate, Held, ResponseFuture, Step},
    limiter::{Answered, Generation, Intent, Judging, Unanswerable},
    response::{Http, Refuse},
};

/// A service behind a [`RateLimitLayer`](crate::RateLimitLayer).
///
/// # Differences from `tower::limit::RateLimit`
///
/// - It decides per request and per key, and **refuses** rather than making every caller wait in `poll_ready`, which
///   is the inner service's own here.
/// - It is `Clone`, and all clones, routes and connections count together.
/// - The inner service is called only for requests that pass. Its errors are passed on unchanged. It has to be `Clone`:
///   [what else](crate::guide::layers#services-that-are-not-clone) to do with one that is not.
pub struct RateLimit<S, Req, R = Http> {
    inner: S,
    gate: Arc<Gate<Req, R>>,
}

impl<S, Req, R> RateLimit<S, Req, R> {
    pub(crate) fn new(inner: S, gate: Arc<Gate<Req, R>>) -> Self {
        Self { inner, gate }
    }

    /// Returns the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service and forgets the limit.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, Req, R> Service<Req> for RateLimit<S, Req, R>
where
    S: Service<Req> + Clone,
    R: Refuse<Req, S::Response>,
{
    type Response = R::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S, Req, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let gate = &self.gate;
        let rules = gate.limiter.in_force();
        if let Some(waiting) = rules.behind_others(&request) {
            return self.wait(request, Some(Guard::into_inner(rules)), Step::Waiting(waiting));
        }
        let mut told = R::Told::default();
        match rules.at_once(&request) {
            Ok(answered) if gate.tells_of_pass(&rules, &answered, &mut told) => {}
            Ok(answered) => match self.settle(&rules, &mut request, &answered) {
                Ok(all) => told = all,
                Err(response) => return ResponseFuture::refused(response),
            },
            Err(why) => return self.call_otherwise(rules, request, why),
        }
        drop(rules);
        ResponseFuture::calling(self.inner.call(request), told)
    }
}

impl<S, Req, R> RateLimit<S, Req, R> {
    /// What the response to a request will tell that was answered at once, or its refusal.
    #[inline(never)]
    fn settle(
        &self,
        rules: &Generation<Req>,
        request: &mut Req,
        answered: &Answered,
    ) -> Result<R::Told, Box<R::Response>>
    where
        S: Service<Req>,
        R: Refuse<Req, S::Response>,
    {
        let gate = &self.gate;
        let mut decision = Decision::unnamed();
        rules.decide_by(answered, &mut decision);
        gate.settled::<S::Response>(rules, request, Ok(None), &mut decision);
        match decision.is_allowed() {
            true => Ok(gate.responder.prepare(request, &decision)),
            false => Err(Box::new(gate.responder.refuse(request, &decision))),
        }
    }

    /// As [`call`](Service::call), where there is no answer at once.
    fn call_otherwise(
        &mut self,
        rules: Guard<Arc<Generation<Req>>>,
        mut request: Req,
        why: Unanswerable,
    ) -> ResponseFuture<S, Req, R>
    where
        S: Service<Req> + Clone,
        R: Refuse<Req, S::Response>,
    {
        let gate = &self.gate;
        let mut decision = Decision::unnamed();
        let judging = rules.judge_otherwise(why, &request, Intent::StartOrHold, &mut decision);
        let judged = match judging {
            Judging::Ready(judged) => judged,
            Judging::Pending(judging) => {
                // The service that was made ready goes with the request; its clone has to be asked again.
                let clone = self.inner.clone();
                let service = std::mem::replace(&mut self.inner, clone);
                return self.hold(service, request, Some(Guard::into_inner(rules)), Step::Checking(judging));
            }
        };
        if let Some(waiting) = rules.for_places(&request, &decision) {
            return self.wait(request, Some(Guard::into_inner(rules)), Step::Waiting(waiting));
        }
        let receipt = gate.settled::<S::Response>(&rules, &request, judged, &mut decision);
        if !decision.is_allowed() {
            return ResponseFuture::refused(Box::new(gate.responder.refuse(&request, &decision)));
        }
        if let Some(receipt) = receipt {
            if decision.delay() == Duration::ZERO {
                let call = Call::new(&mut self.inner, request, &decision, receipt, Arc::clone(gate));
                return ResponseFuture::ongoing(call);
            }
            let step = Step::until_turn(&rules, decision, receipt);
            return self.wait(request, None, step);
        }
        drop(rules);
        let told = gate.responder.prepare(&mut request, &decision);
        ResponseFuture::calling(self.inner.call(request), told)
    }

    /// Nothing the inner service holds for its readiness is kept while the request waits.
    #[cold]
    fn wait(&mut self, request: Req, rules: Option<Arc<Generation<Req>>>, step: Step) -> ResponseFuture<S, Req, R>
    where
        S: Service<Req> + Clone,
        R: Refuse<Req, S::Response>,
    {
        let service = self.inner.clone();
        self.inner = service.clone();
        self.hold(service, request, rules, step)
    }

    fn hold(
        &self,
        service: S,
        request: Req,
        rules: Option<Arc<Generation<Req>>>,
        step: Step,
    ) -> ResponseFuture<S, Req, R>
    where
        S: Service<Req>,
        R: Refuse<Req, S::Response>,
    {
        ResponseFuture::held(Held { gate: Arc::clone(&self.gate), rules, service, request: Some(request), step })
    }
}

impl<S: Clone, Req, R> Clone for RateLimit<S, Req, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), gate: Arc::clone(&self.gate) }
    }
}

impl<S: fmt::Debug, Req, R> fmt::Debug for RateLimit<S, Req, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).field("limiter", &self.gate.limiter).finish()
    }
}
