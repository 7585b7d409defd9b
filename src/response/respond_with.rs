//! Refusals of the user's own over HTTP.

use std::{fmt, sync::Arc};

use http::{HeaderName, Request, Response};

use super::{Answer, Http, HttpAnswers, Refuse, Told, ending, pass, sealed};
use crate::{
    body::ResponseBody,
    decision::{Decision, RuleVerdict},
    store::HeldReceipt,
};

type Respond<Req, RB> = Arc<dyn Fn(&Req, &Decision) -> Response<RB> + Send + Sync>;

/// The answers of an HTTP service with the user's own refusals, bodies of type `RB`.
pub struct RespondWith<Req, RB> {
    pub(crate) http: Http,
    pub(crate) respond: Respond<Req, RB>,
}

impl<Req, B, RB> Answer<Response<B>> for RespondWith<Req, RB> {
    type Response = Response<ResponseBody<B, RB>>;
    type Told = Told;

    #[inline]
    fn pass(response: Response<B>, told: &mut Told) -> Self::Response {
        pass(response, told)
    }

    fn judged(&self, response: Response<B>, judge: &mut dyn FnMut(&Response<()>)) -> Response<B> {
        ending::judged(response, judge)
    }

    fn holding(&self, response: Self::Response, held: HeldReceipt) -> Self::Response {
        response.map(|body| body.holding(held))
    }
}

impl<ReqB, B, RB> Refuse<Request<ReqB>, Response<B>> for RespondWith<Request<ReqB>, RB> {
    fn refuse(&self, request: &Request<ReqB>, decision: &Decision) -> Self::Response {
        let mut response = (self.respond)(request, decision).map(ResponseBody::refusal);
        self.http.finish(&mut response, decision);
        response
    }

    #[inline]
    fn prepare(&self, request: &mut Request<ReqB>, decision: &Decision) -> Told {
        self.http.told(request.extensions_mut(), decision)
    }

    #[inline]
    fn tells<'a>(&self, rule: impl FnOnce() -> RuleVerdict<'a>) -> Option<Told> {
        self.http.tells(rule)
    }

    #[inline]
    fn names_rules(&self) -> bool {
        self.http.names_rules()
    }

    fn hand_over(&self, request: &mut Request<ReqB>, held: HeldReceipt) {
        ending::hand_over(request, held);
    }
}

impl<Req, RB> Clone for RespondWith<Req, RB> {
    fn clone(&self) -> Self {
        Self { http: self.http.clone(), respond: Arc::clone(&self.respond) }
    }
}

impl<Req, RB> fmt::Debug for RespondWith<Req, RB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RespondWith").field("http", &self.http).finish_non_exhaustive()
    }
}

impl<Req, RB> HttpAnswers for RespondWith<Req, RB> {}
impl<Req, RB> sealed::Sealed for RespondWith<Req, RB> {
    fn http(&mut self) -> &mut Http {
        &mut self.http
    }
    fn header_names(&self) -> Vec<HeaderName> {
        self.http.headers.names()
    }
}
