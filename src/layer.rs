use std::{fmt, sync::Arc};

use http::{Request, Response};
use tower_layer::Layer;

use crate::{
    decision::Decision,
    error::ConfigError,
    future::Gate,
    limiter::Limiter,
    response::{Headers, Http, HttpAnswers, RefuseWith, RespondWith},
    rule::Rule,
    service::RateLimit,
};

/// Puts a [`Limiter`] in front of any tower service.
///
/// One layer value is **one limiter**: every service it is put on, every route, connection and clone count together.
/// Add it after (that is, inside) what it takes its keys from, such as authentication.
///
/// # Differences from `tower::limit::RateLimitLayer`
///
/// Tower's makes a new limit for each service it is put on and lets callers wait; see
/// [`RateLimit`](crate::RateLimit).
///
/// # Examples
///
/// ```
/// use axum::{Router, extract::Request, routing::get};
/// use tollgate::{Limit, RateLimitLayer, Rule, key};
///
/// let per_key = RateLimitLayer::new([
///     Rule::new("api-key", Limit::per_second(10).burst(20), key::header("x-api-key")),
///     Rule::new("writes", Limit::per_minute(30), key::header("x-api-key"))
///         .when(|request: &Request| request.method() != "GET"),
///     Rule::global("everyone", Limit::per_second(5_000)).overload(),
/// ]);
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(per_key);
/// ```
#[must_use]
pub struct RateLimitLayer<Req, R = Http> {
    limiter: Limiter<Req>,
    responder: R,
}

impl<Req> RateLimitLayer<Req, Http> {
    /// Returns a layer over `rules`, with a memory store and the system clock. For others:
    /// `RateLimitLayer::from(Limiter::builder(rules).store(store).clock(clock).build()?)`.
    ///
    /// The rules are a list, even of one: `[rule]`. No rules at all are valid and let everything pass.
    ///
    /// # Panics
    ///
    /// Where the rules cannot work, at the caller's line; [`try_new`](Self::try_new) returns that as an error.
    #[track_caller]
    pub fn new(rules: impl IntoIterator<Item = Rule<Req>>) -> Self {
        Limiter::new(rules).into()
    }

    /// Returns a layer over `rules`, with a memory store and the system clock.
    ///
    /// # Errors
    ///
    /// Where the rules cannot work.
    pub fn try_new(rules: impl IntoIterator<Item = Rule<Req>>) -> Result<Self, ConfigError> {
        Ok(Limiter::builder(rules).build()?.into())
    }

    /// Sets what a refusal is for a service that is not HTTP: a response of its own. What was said of headers means
    /// nothing to such a service. A place [in flight](crate::Limit::in_flight) is free when the response is there.
    ///
    /// # Panics
    ///
    /// Where a rule's charges depend on how a request was answered ([`Rule::give_back_when`],
    /// [`Rule::count_only_when`]): use [`refuse_with_outcome`](Self::refuse_with_outcome). A later
    /// [reload](Limiter::reload) to such rules is an error.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Limit, RateLimitLayer, Rule};
    /// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let limit = RateLimitLayer::new([Rule::new("name", Limit::per_minute(1), |name: &String| Some(Key::from(name)))])
    ///     .refuse_with(|name, _decision| format!("not now, {name}"));
    /// let mut greeter = ServiceBuilder::new()
    ///     .layer(limit)
    ///     .service(service_fn(|name: String| async move { Ok::<_, std::convert::Infallible>(format!("hello {name}")) }));
    /// assert_eq!(greeter.ready().await.unwrap().call("ana".into()).await.unwrap(), "hello ana");
    /// assert_eq!(greeter.ready().await.unwrap().call("ana".into()).await.unwrap(), "not now, ana");
    /// # });
    /// ```
    #[track_caller]
    pub fn refuse_with<Res>(
        self,
        refuse: impl Fn(&Req, &Decision) -> Res + Send + Sync + 'static,
    ) -> RateLimitLayer<Req, RefuseWith<Req, Res>> {
        if let Some(rule) = self.limiter.reads_no_outcomes() {
            #[allow(clippy::panic, reason = "documented, at the caller's line, and its twin cannot")]
            {
                panic!(
                    "rule \"{rule}\" counts by outcome, and refuse_with does not say how a response of this service is to be \
                     read; use refuse_with_outcome(refuse, |response| http::Response::builder().status(..).body(()))"
                );
            }
        }
        RateLimitLayer { limiter: self.limiter, responder: RefuseWith { refuse: Arc::new(refuse), outcome: None } }
    }

    /// As [`refuse_with`](Self::refuse_with), where rules depend on how a request was answered: `outcome` says what a
    /// response of this service would be in HTTP.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::{Response, StatusCode};
    /// use tollgate::{Key, Limit, RateLimitLayer, Rule};
    /// use tower::{ServiceBuilder, ServiceExt, service_fn};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let wrong = Rule::new("wrong", Limit::per_minute(1), |password: &String| Some(Key::from(password)))
    ///     .count_only_when(|response| response.status() == StatusCode::UNAUTHORIZED);
    /// let limit = RateLimitLayer::new([wrong]).refuse_with_outcome(
    ///     |_, _| "come back later",
    ///     |answer: &&str| {
    ///         let mut head = Response::new(());
    ///         *head.status_mut() = if *answer == "no" { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
    ///         head
    ///     },
    /// );
    /// let door = ServiceBuilder::new().layer(limit).service(service_fn(|password: String| async move {
    ///     Ok::<_, std::convert::Infallible>(if password == "sesame" { "welcome" } else { "no" })
    /// }));
    /// for (password, answer) in [("sesame", "welcome"), ("sesame", "welcome"), ("rye", "no"), ("rye", "come back later")] {
    ///     assert_eq!(door.clone().oneshot(password.into()).await.unwrap(), answer);
    /// }
    /// # });
    /// ```
    pub fn refuse_with_outcome<Res>(
        self,
        refuse: impl Fn(&Req, &Decision) -> Res + Send + Sync + 'static,
        outcome: impl Fn(&Res) -> Response<()> + Send + Sync + 'static,
    ) -> RateLimitLayer<Req, RefuseWith<Req, Res>> {
        let responder = RefuseWith { refuse: Arc::new(refuse), outcome: Some(Arc::new(outcome)) };
        RateLimitLayer { limiter: self.limiter, responder }
    }
}

impl<B> RateLimitLayer<Request<B>, Http> {
    /// Sets the whole response to a refused request, whatever the reason: a limit (429), overload or a store that
    /// failed (503), or a missing key with its own status; [`Decision::status`] and [`Decision::refusal`] tell which,
    /// and [`Decision::violated`] by which rules. `Retry-After`, `Cache-Control: no-store` and the limit's fields are
    /// added where the response does not have them.
    ///
    /// Its body may be a [`RefusalBody`](crate::response::RefusalBody) or any body with the inner body's data and
    /// errors, so in axum whatever turns into a response will do.
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::{Router, extract::Request, response::IntoResponse, routing::get};
    /// use tollgate::{Limit, RateLimitLayer, Rule, key};
    ///
    /// let limit = RateLimitLayer::new([Rule::new("api-key", Limit::per_second(10), key::header("x-api-key"))])
    ///     .respond_with(|request: &Request, decision| {
    ///         let wait = decision.retry_after_secs().unwrap_or_default();
    ///         (decision.status(), format!("{} is busy, wait {wait} s", request.uri())).into_response()
    ///     });
    /// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(limit);
    /// ```
    pub fn respond_with<RB>(
        self,
        respond: impl Fn(&Request<B>, &Decision) -> Response<RB> + Send + Sync + 'static,
    ) -> RateLimitLayer<Request<B>, RespondWith<Request<B>, RB>> {
        let responder = RespondWith { http: self.responder, respond: Arc::new(respond) };
        RateLimitLayer { limiter: self.limiter, responder }
    }
}

impl<Req, R: HttpAnswers> RateLimitLayer<Req, R> {
    /// Sets which fields tell clients of their limits; [`Headers::XRateLimit`] unless set.
    pub fn headers(mut self, headers: Headers) -> Self {
        self.responder.http().headers = headers;
        self
    }

    /// Tells clients of their limits on refusals only; on every response unless set.
    pub fn headers_on_refusals_only(mut self) -> Self {
        self.responder.http().on_refusals_only = true;
        self
    }

    /// Returns the names of the header fields a browser's scripts have to be allowed to read, for
    /// `tower_http::cors::CorsLayer::expose_headers`. Put the CORS layer **outside** this one.
    pub fn expose_headers(&self) -> Vec<http::HeaderName> {
        let mut names = self.responder.header_names();
        if self.limiter.warns() {
            names.push(crate::response::WARNING);
        }
        names
    }

    /// Adds up to `percent` percent to `Retry-After` at random, so that clients refused together do not come back
    /// together. Only ever more, never less than the truth. At most 100.
    pub fn retry_jitter(mut self, percent: u8) -> Self {
        self.responder.http().jitter_percent = percent.min(100);
        self
    }

    /// Tells gRPC clients by `grpc-retry-pushback-ms` when to retry, or not to (gRPC proposal A6). Off unless set: who
    /// obeys it comes back at exactly that time, with no jitter.
    pub fn grpc_pushback(mut self) -> Self {
        self.responder.http().grpc_pushback = true;
        self
    }

    /// Leaves the [`Decision`] in the extensions of requests that pass and of all responses.
    pub fn expose_decision(mut self) -> Self {
        self.responder.http().exposes_decision = true;
        self
    }
}

impl<Req, R> RateLimitLayer<Req, R> {
    /// Returns the limiter, to look at counts or reset them.
    pub fn limiter(&self) -> &Limiter<Req> {
        &self.limiter
    }
}

impl<Req> From<Limiter<Req>> for RateLimitLayer<Req, Http> {
    fn from(limiter: Limiter<Req>) -> Self {
        Self { limiter, responder: Http::default() }
    }
}

impl<S, Req, R: Clone> Layer<S> for RateLimitLayer<Req, R> {
    type Service = RateLimit<S, Req, R>;

    fn layer(&self, inner: S) -> Self::Service {
        let gate = Gate { limiter: self.limiter.clone(), responder: self.responder.clone() };
        RateLimit::new(inner, Arc::new(gate))
    }
}

impl<Req, R: Clone> Clone for RateLimitLayer<Req, R> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), responder: self.responder.clone() }
    }
}

impl<Req, R: fmt::Debug> fmt::Debug for RateLimitLayer<Req, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("limiter", &self.limiter).field("responder", &self.responder).finish()
    }
}
