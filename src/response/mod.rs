//! From a decision to an answer: what a passing response is given, and what a refused request is answered with.
//!
//! HTTP services need nothing said: [`Http`] answers with 429 (or 503), `Retry-After`, `Cache-Control: no-store`, a
//! problem document, and tells the tightest rule's numbers on every response.
//! [`respond_with`](crate::RateLimitLayer::respond_with) replaces the refusal's status and body; any other kind of
//! service says what a refusal is with [`refuse_with`](crate::RateLimitLayer::refuse_with).

mod accept;
mod arena;
mod digits;
mod ending;
mod grpc;
mod headers;
mod policies;
mod prepared;
mod problem;
mod refuse_with;
mod remembered;
mod respond_with;
mod told;
mod warning;

use std::hash::{BuildHasher, Hasher, RandomState};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};

use crate::{
    body::ResponseBody,
    decision::{Decision, Refusal, RuleVerdict, Source, Wait},
    store::HeldReceipt,
    time::Nanos,
};

use headers::append_lists;
pub use headers::{Headers, Writer};
use policies::Policies;
use prepared::Prepared;
pub use refuse_with::RefuseWith;
use remembered::Likeness;
pub use respond_with::RespondWith;
pub use told::Told;
use told::{Fields, Numbers};
pub(crate) use warning::WARNING;

/// What passing responses are turned into.
pub trait Answer<Res> {
    /// The response of the limited service.
    type Response;

    /// What the response will tell of the decision; by default, nothing.
    type Told: Default;

    /// Returns the response to a request that passed.
    fn pass(response: Res, told: &mut Self::Told) -> Self::Response;

    /// Calls `judge` with the head of a response, where rules depend on it, and returns the response. Unless overridden
    /// it is not called, which counts as a request without an answer.
    fn judged(&self, response: Res, _judge: &mut dyn FnMut(&Response<()>)) -> Res {
        response
    }

    /// Returns a response that holds what is held until it has ended. Unless overridden it ends here.
    fn holding(&self, response: Self::Response, held: HeldReceipt) -> Self::Response {
        drop(held.take());
        response
    }
}

/// What refused requests are answered with.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot say what a refusal looks like for requests `{Req}` and responses `{Res}`",
    label = "a refusal has no meaning for this service yet",
    note = "for a service that is not HTTP say it: `RateLimitLayer::new(rules).refuse_with(|request, decision| ...)`",
    note = "for HTTP the request type of the rules must be the service's own, such as `axum::extract::Request`"
)]
pub trait Refuse<Req, Res>: Answer<Res> {
    /// Returns the answer to a request that does not pass.
    fn refuse(&self, request: &Req, decision: &Decision) -> Self::Response;

    /// Prepares a request that passes, before the inner service is called, and returns what its response will tell.
    fn prepare(&self, request: &mut Req, decision: &Decision) -> Self::Told;

    /// As [`prepare`](Self::prepare), of a request that the only rule lets pass, with these numbers. Unless overridden,
    /// or where `None` is returned, the whole decision is made for [`prepare`](Self::prepare). The numbers are made
    /// when they are asked for.
    fn tells<'a>(&self, _rule: impl FnOnce() -> RuleVerdict<'a>) -> Option<Self::Told> {
        None
    }

    /// Returns whether [`prepare`](Self::prepare) needs the rules' names.
    fn names_rules(&self) -> bool {
        true
    }

    /// Gives a request what it holds until its end, before the inner service is called.
    fn hand_over(&self, _request: &mut Req, _held: HeldReceipt) {}
}

/// The answers of an HTTP service.
///
/// gRPC requests, known by their content type, get HTTP status 200 with `grpc-status: 8` and a `RetryInfo`, since a
/// plain 429 would reach their client as a status that may be retried at once.
#[derive(Debug, Clone, Default)]
pub struct Http {
    pub(crate) headers: Headers,
    pub(crate) on_refusals_only: bool,
    pub(crate) jitter_percent: u8,
    pub(crate) grpc_pushback: bool,
    pub(crate) exposes_decision: bool,
    policies: Policies,
    prepared: Prepared,
}

impl Http {
    /// What the response to a request that passes will tell.
    #[inline]
    fn told(&self, extensions: &mut http::Extensions, decision: &Decision) -> Told {
        let told = Told(match self.on_refusals_only {
            true => None,
            false => self.headers.told(decision, &self.policies),
        });
        match self.exposes_decision || decision.has_shadows() {
            true => self.told_besides(told, extensions, decision),
            false => told,
        }
    }

    /// The same of one rule's verdict, where that is all that it takes.
    #[inline(always)]
    fn tells<'a>(&self, rule: impl FnOnce() -> RuleVerdict<'a>) -> Option<Told> {
        let tells_nothing = self.on_refusals_only || matches!(self.headers, Headers::None);
        match &self.headers {
            _ if self.exposes_decision => None,
            _ if tells_nothing => Some(Told(None)),
            Headers::XRateLimit => Some(Told(Some(Fields::X(Numbers::of(&rule().verdict, Nanos::ZERO))))),
            Headers::Ietf => self.policies.told_of_pass(&rule()).map(|lists| Told(Some(Fields::Ietf(lists)))),
            _ => None,
        }
    }

    /// What is told besides the usual fields.
    #[cold]
    fn told_besides(&self, told: Told, extensions: &mut http::Extensions, decision: &Decision) -> Told {
        self.expose(extensions, decision);
        let told = match warning::of(decision) {
            Some(warning) => Told(Some(Fields::Warned(Box::new((told, warning))))),
            None => told,
        };
        match self.exposes_decision {
            true => Told(Some(Fields::Exposed(Box::new((told, decision.clone()))))),
            false => told,
        }
    }

    /// Whether what is told of a request that passes needs the rules' names.
    fn names_rules(&self) -> bool {
        self.exposes_decision || !self.on_refusals_only && self.headers.name_rules()
    }

    #[inline]
    fn expose(&self, extensions: &mut http::Extensions, decision: &Decision) {
        if self.exposes_decision {
            extensions.insert(decision.clone());
        }
    }

    /// What every refusal has, unless it was said otherwise.
    fn finish<B>(&self, response: &mut Response<B>, decision: &Decision) {
        self.finish_fields(response.headers_mut(), decision);
        self.expose(response.extensions_mut(), decision);
    }

    fn finish_fields(&self, headers: &mut HeaderMap, decision: &Decision) {
        if !headers.contains_key(header::RETRY_AFTER)
            && let Some(secs) = self.retry_after_secs(decision)
        {
            headers.insert(header::RETRY_AFTER, digits::value(secs));
        }
        if !headers.contains_key(header::CACHE_CONTROL) {
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        self.headers.write(headers, decision, &self.policies);
    }

    /// The wait in seconds, rounded up, with jitter: never less than the truth.
    fn retry_after_secs(&self, decision: &Decision) -> Option<u64> {
        let wait = decision.wait()?;
        let secs = decision.secs_told(wait)?;
        let wait = match wait {
            Wait::For(wait) if self.jitter_percent > 0 => wait,
            _ => return Some(secs),
        };
        let share = RandomState::new().build_hasher().finish() % (u64::from(self.jitter_percent) * 1_000 + 1);
        let more = u128::from(wait.get()) * u128::from(share) / 100_000;
        Some(wait.saturating_add(Nanos::saturating_from_u128(more)).as_secs_ceil().max(secs))
    }

    /// The default refusal.
    fn refusal<ReqB, B>(&self, request: &Request<ReqB>, decision: &Decision) -> Response<ResponseBody<B>> {
        if let Some(content_type) = grpc::content_type(request) {
            // An empty body, so that the head ends the stream: trailers only.
            let mut response = Response::new(ResponseBody::refusal(RefusalBody::default()));
            response.headers_mut().insert(header::CONTENT_TYPE, content_type);
            grpc::write(response.headers_mut(), decision, self.grpc_pushback);
            self.finish(&mut response, decision);
            return response;
        }
        let mut response = self.refusal_of_document(decision, accept::wants_text(request.headers()));
        if request.method() == Method::HEAD {
            leave_out_content(&mut response);
        }
        self.expose(response.extensions_mut(), decision);
        response.map(ResponseBody::refusal)
    }

    /// The default refusal of a request with GET, which is a copy of an earlier one where one was alike.
    fn refusal_of_document(&self, decision: &Decision, as_text: bool) -> Response<RefusalBody> {
        let make = || {
            let mut response = Response::new(RefusalBody::from(problem::document(decision, as_text)));
            *response.status_mut() = decision.status();
            match self.prepared(decision, as_text) {
                Some(fields) => *response.headers_mut() = fields,
                None => {
                    response.headers_mut().insert(header::CONTENT_TYPE, problem::content_type(as_text));
                    self.finish_fields(response.headers_mut(), decision);
                }
            }
            response
        };
        let likeness = self.likeness(decision).filter(|_| !as_text);
        match (likeness, decision.names()) {
            (Some(likeness), Some(rules)) => remembered::or_make(&self.prepared, rules, likeness, make),
            _ => make(),
        }
    }

    /// What a refusal by one rule, in the usual way, depends on.
    fn likeness(&self, decision: &Decision) -> Option<Likeness> {
        let ruling = decision.asked().only()?;
        let overload = match decision.refusal()? {
            Refusal::Limited => false,
            Refusal::Overload => true,
            Refusal::MissingKey { .. } | Refusal::StoreFailed => return None,
        };
        let Some(wait @ Wait::For(_)) = ruling.refuses_for() else { return None };
        let numbers = |since| Some(Numbers::of(&ruling.verdict(), since));
        let (numbers, lists) = match self.headers {
            Headers::None => (None, false),
            Headers::XRateLimit => (numbers(Nanos::ZERO), false),
            Headers::XRateLimitEpoch => (numbers(decision.at()), false),
            Headers::Ietf => (None, true),
            Headers::Both => (numbers(Nanos::ZERO), true),
            Headers::Custom(_) => return None,
        };
        let tells_all = self.jitter_percent == 0 && ruling.is_as_made() && ruling.source() == Source::Store;
        let has_reset = numbers.is_none_or(|numbers| numbers.reset.is_some());
        let secs = wait.retry_after_secs()?;
        (tells_all && has_reset).then_some(Likeness { rule: ruling.rule(), overload, secs, numbers, lists })
    }

    /// The fields of the default refusal, where it is one of the usual ones.
    fn prepared(&self, decision: &Decision, as_text: bool) -> Option<HeaderMap> {
        if as_text || matches!(self.headers, Headers::Custom(_)) {
            return None;
        }
        let secs = self.retry_after_secs(decision)?;
        let (numbers, lists) = match self.headers.told(decision, &self.policies) {
            Some(Fields::X(numbers)) => (Some((numbers, numbers.reset?)), None),
            Some(Fields::Ietf(lists)) => (None, Some(lists)),
            Some(Fields::Both(both)) => {
                let (numbers, lists) = *both;
                (Some((numbers, numbers.reset?)), Some(lists))
            }
            None | Some(Fields::Custom(_) | Fields::Warned(_) | Fields::Exposed(_)) => (None, None),
        };
        let mut fields = self.prepared.fields(secs, numbers);
        if let Some(mut lists) = lists {
            append_lists(&mut fields, &mut lists);
        }
        Some(fields)
    }
}

/// Makes the refusal of a request with GET that of the same one with HEAD.
#[cold]
fn leave_out_content(response: &mut Response<RefusalBody>) {
    // RFC 9110, 9.3.2: "The server MUST NOT send content in the response" to HEAD; 8.6: a length, where there is one,
    // is that of the answer to GET. Servers would add that of the empty body.
    let length = std::mem::take(response.body_mut()).len();
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
}

/// Answers that are HTTP's, and can be told what every HTTP layer can. Sealed.
pub trait HttpAnswers: sealed::Sealed {}

pub(crate) mod sealed {
    pub trait Sealed {
        fn http(&mut self) -> &mut super::Http;
        fn header_names(&self) -> Vec<http::HeaderName>;
    }
}

impl HttpAnswers for Http {}
impl sealed::Sealed for Http {
    fn http(&mut self) -> &mut Http {
        self
    }
    fn header_names(&self) -> Vec<http::HeaderName> {
        self.headers.names()
    }
}

/// Turns a response that passed into one that tells.
#[inline]
fn pass<B, R>(mut response: Response<B>, told: &mut Told) -> Response<ResponseBody<B, R>> {
    told.write(&mut response);
    response.map(ResponseBody::new)
}

impl<B> Answer<Response<B>> for Http {
    type Response = Response<ResponseBody<B>>;
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

impl<ReqB, B> Refuse<Request<ReqB>, Response<B>> for Http {
    fn refuse(&self, request: &Request<ReqB>, decision: &Decision) -> Self::Response {
        self.refusal(request, decision)
    }

    #[inline]
    fn prepare(&self, request: &mut Request<ReqB>, decision: &Decision) -> Told {
        self.told(request.extensions_mut(), decision)
    }

    #[inline]
    fn tells<'a>(&self, rule: impl FnOnce() -> RuleVerdict<'a>) -> Option<Told> {
        self.tells(rule)
    }

    #[inline]
    fn names_rules(&self) -> bool {
        self.names_rules()
    }

    fn hand_over(&self, request: &mut Request<ReqB>, held: HeldReceipt) {
        ending::hand_over(request, held);
    }
}

/// A refusal's whole body. It stands beside an inner body of any kind whose data can be made of [`Bytes`].
///
/// ```
/// use tollgate::response::RefusalBody;
///
/// let body: RefusalBody = "slow down".into();
/// assert_eq!(body.len(), 9);
/// ```
#[derive(Debug, Clone, Default)]
pub struct RefusalBody(Bytes);

impl RefusalBody {
    /// Returns the number of bytes that are left.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no bytes are left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn take(&mut self) -> Option<Bytes> {
        (!self.0.is_empty()).then(|| std::mem::take(&mut self.0))
    }
}

impl<T: Into<Bytes>> From<T> for RefusalBody {
    fn from(bytes: T) -> Self {
        Self(bytes.into())
    }
}
