use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{
    decision::Decision,
    limiter::{Answered, Generation, Judgement, Limiter, Unanswered, Waiting},
    response::{Answer, Refuse},
    store::{Ongoing, Receipt},
    time::BoxFuture,
};

/// What a limited service and its futures share.
pub(crate) struct Gate<Req, R> {
    pub(crate) limiter: Limiter<Req>,
    pub(crate) responder: R,
}

impl<Req, R> Gate<Req, R> {
    /// Whether one rule lets a request pass and no more than its numbers is needed for what is `told` of that, which is
    /// written then. It is counted then, too.
    #[inline(always)]
    pub(crate) fn tells_of_pass<Res>(&self, rules: &Generation<Req>, answered: &Answered, told: &mut R::Told) -> bool
    where
        R: Refuse<Req, Res>,
    {
        if !answered.passes() || !rules.is_unwatched() {
            return false;
        }
        let Some(tells) = self.responder.tells(|| rules.told(answered)) else { return false };
        *told = tells;
        rules.count_pass(answered.at());
        true
    }

    /// Reports the judgement to act on: the store's, or what the rules say of a store that failed.
    #[inline]
    pub(crate) fn settled<Res>(
        &self,
        rules: &Generation<Req>,
        request: &Req,
        judged: Result<Option<Box<Receipt>>, Box<Unanswered>>,
        decision: &mut Decision,
    ) -> Option<Box<Receipt>>
    where
        R: Refuse<Req, Res>,
    {
        let receipt = judged.unwrap_or_else(|unanswered| {
            *decision = rules.without_store(&unanswered);
            None
        });
        rules.name_and_report(request, decision, self.responder.names_rules());
        receipt
    }
}

pin_project! {
    /// The response future of a [`RateLimit`](crate::RateLimit) service.
    ///
    /// # Cancel safety
    ///
    /// Dropped before the inner service is called, every charge is given back. After that, places
    /// [in flight](crate::Limit::in_flight) are free, rules that count by outcome do what they say of a request without
    /// an answer, and the other charges stand. A store that answers later may have charged a request whose future was
    /// dropped before the answer; the memory store answers at once.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, R>
    where
        S: Service<Req>,
        R: Refuse<Req, S::Response>,
    {
        #[pin]
        state: State<S, S::Future, Req, R, R::Told, R::Response>,
        // Of a request that the inner service is at and that holds nothing. Not in the state: what is put together of
        // one part is not copied once more.
        told: R::Told,
    }
}

pin_project! {
    #[project = StateProject]
    enum State<S, F, Req, R, Told, Res> {
        /// The request passed and the inner service is at it.
        Calling { #[pin] future: F },
        /// The same, of a request that holds something until its end. Boxed, since few do.
        Ongoing { call: Pin<Box<Call<F, Req, R, Told>>> },
        /// It did not. Boxed, so that the future of a passing request stays small.
        Refused { response: Option<Box<Res>> },
        /// The store has not answered yet, or the request's turn has not come.
        Held { held: Box<Held<S, Req, R>> },
    }
}

pin_project! {
    /// A call to the inner service by a request that holds something until its end.
    pub(crate) struct Call<F, Req, R, Told> {
        #[pin]
        future: F,
        told: Told,
        // Ends when there is an answer or an error, or with this.
        ongoing: Option<Ongoing>,
        gate: Arc<Gate<Req, R>>,
    }
}

/// A request that waits before the inner service is called.
pub(crate) struct Held<S, Req, R> {
    pub(crate) gate: Arc<Gate<Req, R>>,
    /// The rules that the request is decided by, until it is.
    pub(crate) rules: Option<Arc<Generation<Req>>>,
    pub(crate) service: S,
    /// Taken when the inner service is called.
    pub(crate) request: Option<Req>,
    pub(crate) step: Step,
}

pub(crate) enum Step {
    /// For the store. The service is ready.
    Checking(BoxFuture<'static, Result<Judgement, Box<Unanswered>>>),
    /// For a place. The service is a clone that was never asked.
    Waiting(Box<Waiting>),
    /// For its turn. The service is a clone that was never asked, so that no readiness is held meanwhile.
    Sleeping { sleep: BoxFuture<'static, ()>, decision: Decision, receipt: Box<Receipt> },
    /// For the service to be ready again.
    Readying { decision: Decision, receipt: Box<Receipt> },
    /// For nothing: the state is about to change.
    Done,
}

/// Where a held request goes next.
enum Next<Req> {
    /// With what ends with the request, if anything does.
    Call(Req, Decision, Option<Box<Receipt>>),
    Refuse(Req, Decision),
}

impl<S, Req, R> ResponseFuture<S, Req, R>
where
    S: Service<Req>,
    R: Refuse<Req, S::Response>,
{
    #[inline]
    pub(crate) fn calling(future: S::Future, told: R::Told) -> Self {
        Self { state: State::Calling { future }, told }
    }

    pub(crate) fn ongoing(call: Call<S::Future, Req, R, R::Told>) -> Self {
        Self { state: State::Ongoing { call: Box::pin(call) }, told: R::Told::default() }
    }

    pub(crate) fn refused(response: Box<R::Response>) -> Self {
        Self { state: State::Refused { response: Some(response) }, told: R::Told::default() }
    }

    pub(crate) fn held(held: Held<S, Req, R>) -> Self {
        Self { state: State::Held { held: Box::new(held) }, told: R::Told::default() }
    }
}

impl<F, Req, R, Told> Call<F, Req, R, Told> {
    /// Calls `service`, which is ready.
    pub(crate) fn new<S>(
        service: &mut S,
        mut request: Req,
        decision: &Decision,
        receipt: Box<Receipt>,
        gate: Arc<Gate<Req, R>>,
    ) -> Self
    where
        S: Service<Req, Future = F>,
        R: Refuse<Req, S::Response, Told = Told>,
    {
        let told = gate.responder.prepare(&mut request, decision);
        // A panic in the call ends it too.
        let ongoing = Some(Ongoing::starting(*receipt));
        if let Some(held) = ongoing.as_ref().and_then(Ongoing::held) {
            gate.responder.hand_over(&mut request, held);
        }
        Self { future: service.call(request), told, ongoing, gate }
    }

    fn poll_answer<Res, E>(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<R::Response, E>>
    where
        F: Future<Output = Result<Res, E>>,
        R: Answer<Res, Told = Told>,
    {
        let call = self.project();
        let answer = ready!(call.future.poll(cx));
        // An error ends it here, and not when somebody drops this future.
        let ongoing = call.ongoing.take();
        let response = answer?;
        let Some(mut ongoing) = ongoing else { return Poll::Ready(Ok(R::pass(response, call.told))) };
        let responder = &call.gate.responder;
        let response = responder.judged(response, &mut |head| ongoing.judge(head));
        let until_end = ongoing.answered();
        let response = R::pass(response, call.told);
        Poll::Ready(Ok(match until_end.into_held() {
            Some(held) => responder.holding(response, held),
            None => response,
        }))
    }
}

impl Step {
    /// The step of a request whose turn is still to come.
    pub(crate) fn until_turn<Req>(rules: &Generation<Req>, decision: Decision, mut receipt: Box<Receipt>) -> Self {
        receipt.until_started();
        if decision.delay() == Duration::ZERO {
            return Self::Readying { decision, receipt };
        }
        Self::Sleeping { sleep: rules.turn(&decision), decision, receipt }
    }
}

impl<S, Req, R> Held<S, Req, R>
where
    S: Service<Req> + Clone,
{
    fn poll_next<Res>(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Next<Req>>, S::Error>>
    where
        R: Refuse<Req, Res>,
    {
        let gate = &*self.gate;
        loop {
            match &mut self.step {
                Step::Checking(judging) => {
                    let judgement = ready!(judging.as_mut().poll(cx));
                    let (Some(request), Some(rules)) = (self.request.take(), self.rules.take()) else {
                        return Poll::Ready(Ok(None));
                    };
                    let mut decision = rules.undecided();
                    let judged = judgement.map(|judgement| {
                        decision = judgement.decision;
                        judgement.receipt
                    });
                    if let Some(waiting) = rules.for_places(&request, &decision) {
                        (self.request, self.rules) = (Some(request), Some(rules));
                        self.step = Step::Waiting(waiting);
                        self.service = self.service.clone();
                        continue;
                    }
                    let receipt = gate.settled::<Res>(&rules, &request, judged, &mut decision);
                    match receipt {
                        _ if !decision.is_allowed() => return Poll::Ready(Ok(Some(Next::Refuse(request, decision)))),
                        None => return Poll::Ready(Ok(Some(Next::Call(request, decision, None)))),
                        Some(receipt) if decision.delay() == Duration::ZERO => {
                            return Poll::Ready(Ok(Some(Next::Call(request, decision, Some(receipt)))));
                        }
                        Some(receipt) => {
                            self.request = Some(request);
                            self.step = Step::until_turn(&rules, decision, receipt);
                            self.service = self.service.clone();
                        }
                    }
                }
                Step::Waiting(waiting) => {
                    let (Some(request), Some(rules)) = (&self.request, &self.rules) else {
                        return Poll::Ready(Ok(None));
                    };
                    let judgement = ready!(waiting.poll(cx, rules, request));
                    let mut decision = rules.undecided();
                    let judged = judgement.map(|judgement| {
                        decision = judgement.decision;
                        judgement.receipt
                    });
                    let receipt = gate.settled::<Res>(rules, request, judged, &mut decision);
                    // Leaves the lines, now that it has its places.
                    self.step = Step::Done;
                    if !decision.is_allowed() {
                        return Poll::Ready(Ok(self.request.take().map(|request| Next::Refuse(request, decision))));
                    }
                    let receipt = Box::new(rules.receipt_or_none(receipt));
                    self.step = Step::until_turn(rules, decision, receipt);
                    self.rules = None;
                }
                Step::Sleeping { sleep, .. } => {
                    ready!(sleep.as_mut().poll(cx));
                    if let Step::Sleeping { decision, receipt, .. } = std::mem::replace(&mut self.step, Step::Done) {
                        self.step = Step::Readying { decision, receipt };
                    }
                }
                Step::Readying { .. } => {
                    let ready = ready!(self.service.poll_ready(cx));
                    let step = std::mem::replace(&mut self.step, Step::Done);
                    // An error gives the charges back here, and not when somebody drops this future.
                    ready?;
                    let (Step::Readying { decision, receipt }, Some(request)) = (step, self.request.take()) else {
                        return Poll::Ready(Ok(None));
                    };
                    return Poll::Ready(Ok(Some(Next::Call(request, decision, receipt.start()))));
                }
                Step::Done => return Poll::Ready(Ok(None)),
            }
        }
    }
}

impl<S, Req, R> Future for ResponseFuture<S, Req, R>
where
    S: Service<Req> + Clone,
    R: Refuse<Req, S::Response>,
{
    type Output = Result<R::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProject::Calling { future } => {
                    let response = ready!(future.poll(cx))?;
                    return Poll::Ready(Ok(R::pass(response, this.told)));
                }
                StateProject::Ongoing { call } => {
                    return call.as_mut().poll_answer(cx);
                }
                StateProject::Refused { response } => match response.take() {
                    Some(response) => return Poll::Ready(Ok(*response)),
                    None => return Poll::Pending,
                },
                StateProject::Held { held } => match ready!(held.poll_next::<S::Response>(cx))? {
                    Some(Next::Call(request, decision, Some(receipt))) => {
                        let gate = Arc::clone(&held.gate);
                        let call = Call::new(&mut held.service, request, &decision, receipt, gate);
                        this.state.set(State::Ongoing { call: Box::pin(call) });
                    }
                    Some(Next::Call(mut request, decision, None)) => {
                        *this.told = held.gate.responder.prepare(&mut request, &decision);
                        let future = held.service.call(request);
                        this.state.set(State::Calling { future });
                    }
                    Some(Next::Refuse(request, decision)) => {
                        return Poll::Ready(Ok(held.gate.responder.refuse(&request, &decision)));
                    }
                    None => return Poll::Pending,
                },
            }
        }
    }
}

impl<S, Req, R> fmt::Debug for ResponseFuture<S, Req, R>
where
    S: Service<Req>,
    R: Refuse<Req, S::Response>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Calling { .. } | State::Ongoing { .. } => "Calling",
            State::Refused { .. } => "Refused",
            State::Held { .. } => "Held",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
