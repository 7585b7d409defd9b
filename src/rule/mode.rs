//! Rules that do not enforce: in the shadow, with a warning, or another limit tried beside the one in force.

use std::borrow::Cow;

use super::{Cost, Rule};
use crate::{decision::Mode, error::ConfigError, limit::Limit};

/// Beside which rule another limit is tried.
#[derive(Debug, Clone)]
pub(super) struct Beside {
    live: Cow<'static, str>,
    /// Whether it was said how it counts.
    pub(super) has_algorithm: bool,
}

impl<Req> Rule<Req> {
    /// Sets what it means that the rule refuses; [`Mode::Enforce`] unless set. [`shadow`](Self::shadow) and
    /// [`warn`](Self::warn) say it in code, this where it comes from data.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Makes the rule one that only watches: [`Mode::Shadow`].
    ///
    /// It has its own counts, charged as they would be if it enforced beside the rules that do, and touches nothing
    /// else. What it would have refused is in [`Decision::shadows`](crate::Decision::shadows), in the log, and in
    /// [`Limiter::differences`](crate::Limiter::differences).
    ///
    /// A shadow cannot know how clients would have behaved, had they been refused.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Limit, Limiter, Rule};
    ///
    /// let limiter = Limiter::new([
    ///     Rule::new("user", Limit::per_minute(100), |id: &u64| Some(Key::from(*id))),
    ///     Rule::new("burst", Limit::per_second(2), |id: &u64| Some(Key::from(*id))).shadow(),
    /// ]);
    /// let refused = |id| limiter.check_now(&id).unwrap().shadows().filter(|shadow| shadow.would_refuse()).count();
    /// assert_eq!([refused(7), refused(7), refused(7)], [0, 0, 1]);
    /// assert_eq!(limiter.differences("burst").unwrap().would_refuse, 1);
    /// ```
    pub fn shadow(self) -> Self {
        self.mode(Mode::Shadow)
    }

    /// Makes the rule one that lets pass what it would refuse, and warns: [`Mode::Warn`]. As [`shadow`](Self::shadow),
    /// and the response says which rules would have refused, in `X-RateLimit-Warning`.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tollgate::{Limit, RateLimitLayer, Rule, key};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let soon = Rule::new("user", Limit::per_minute(1), key::header("x-user")).warn();
    /// let service = RateLimitLayer::new([soon])
    ///     .layer(service_fn(async |_: Request<String>| Ok::<_, std::convert::Infallible>(Response::new(String::new()))));
    /// let ask = || service.clone().oneshot(Request::builder().header("x-user", "ana").body(String::new()).unwrap());
    /// assert!(!ask().await.unwrap().headers().contains_key("x-ratelimit-warning"));
    /// let warned = ask().await.unwrap();
    /// assert_eq!(warned.status(), 200);
    /// assert_eq!(warned.headers()["x-ratelimit-warning"], r#""user";t=60"#);
    /// # });
    /// ```
    pub fn warn(self) -> Self {
        self.mode(Mode::Warn)
    }

    /// Returns a rule that tries `limit` beside the rule named `live` of the same set: on the same requests, by the
    /// same keys, at the same costs, and in the shadow. Its name is `live` with `.shadow` behind it unless
    /// [`named`](Self::named) otherwise.
    ///
    /// It counts **as if it stood in the other one's place**: it is charged for each request that every *other* rule
    /// which enforces lets pass, if it lets it pass itself, whatever the live rule says. So it agrees, request by
    /// request, with a limiter that has this limit instead, on the traffic that the other rules let through.
    /// [`Decision::shadows`](crate::Decision::shadows) says where the two differ, and
    /// [`Limiter::differences`](crate::Limiter::differences) how often.
    ///
    /// It is another limit, and may be another [`algorithm`](Self::algorithm) or [`limit_for`](Self::limit_for); all
    /// else is the live rule's and cannot be said. What ends with a request (a place [in flight](Limit::in_flight), a
    /// charge [by outcome](Self::count_only_when)) is counted only of requests that run.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Limit, Limiter, Rule, decision::Difference};
    ///
    /// let limiter = Limiter::new([
    ///     Rule::new("user", Limit::per_minute(2), |id: &u64| Some(Key::from(*id))),
    ///     Rule::shadow_of("user", Limit::per_minute(3)).named("user-3"),
    /// ]);
    /// let differs = |id| limiter.check_now(&id).unwrap().shadows().find_map(|shadow| shadow.difference());
    /// // Both let two pass, the third only the higher limit, and the fourth neither.
    /// assert_eq!([differs(7), differs(7), differs(7), differs(7)], [None, None, Some(Difference::WouldPass), None]);
    /// ```
    pub fn shadow_of(live: impl Into<Cow<'static, str>>, limit: Limit) -> Self {
        let live = live.into();
        let name = format!("{live}.shadow");
        let beside = Beside { live, has_algorithm: false };
        Self { mode: Mode::Shadow, beside: Some(beside), ..Self::global(name, limit) }
    }

    /// Sets the rule's name, such as that of one of several limits that are tried beside one rule.
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }

    pub(crate) fn in_mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn enforces(&self) -> bool {
        self.mode == Mode::Enforce
    }

    pub(crate) fn warns(&self) -> bool {
        self.mode == Mode::Warn
    }

    /// The name of the rule beside which it is tried.
    pub(crate) fn live(&self) -> Option<&str> {
        self.beside.as_ref().map(|beside| &*beside.live)
    }

    /// Takes over from the rule beside which it is tried what is the same for both.
    pub(super) fn take_over(&mut self, live: Option<&Self>) -> Result<(), ConfigError> {
        let Some(beside) = self.beside.clone() else { return Ok(()) };
        let wrong = |field, problem: Cow<'static, str>| Err(ConfigError::new(self.name.clone(), field, problem));
        let Some(live) = live.filter(|live| live.mode == Mode::Enforce && live.beside.is_none()) else {
            let problem = format!(
                "no rule named {:?} enforces in this set, so there is nothing to compare with; name one that does, or make \
                 this a rule of its own: Rule::new(..).shadow()",
                beside.live
            );
            return wrong("shadow_of", problem.into());
        };
        let said = [
            ("cost", !matches!(self.cost, Cost::Fixed(1))),
            ("when", !self.when.is_empty()),
            ("on_missing_key", self.on_missing_key.is_some()),
            ("wait_up_to", self.wait_up_to.is_some()),
            ("on_store_failure", self.on_store_failure.is_some()),
            ("queue", self.queue.is_some()),
        ];
        let said = said.into_iter().chain(self.ends.said());
        if let Some((field, _)) = said.into_iter().find(|(_, said)| *said) {
            return wrong(
                field,
                format!("it is that of the rule {:?}; say it there and drop it here", beside.live).into(),
            );
        }
        if self.mode == Mode::Enforce {
            return wrong(
                "mode",
                "a limit that is tried beside another cannot enforce; change the other rule's limit instead".into(),
            );
        }
        let limit_for = self.limit_for.take();
        let algorithm = if beside.has_algorithm { &self.algorithm } else { &live.algorithm }.clone();
        let (name, was) = (std::mem::take(&mut self.name), self.was.take());
        let wait_up_to = live.wait_up_to.filter(|_| algorithm == live.algorithm);
        *self = Self {
            name,
            was,
            limit: self.limit,
            limit_for,
            algorithm,
            wait_up_to,
            mode: self.mode,
            beside: Some(beside),
            ..live.clone()
        };
        Ok(())
    }
}
