//! What a rule says of the end of a request.

use std::{borrow::Cow, sync::Arc, time::Duration};

use http::Response;

use super::Rule;
use crate::{
    charge::{ByOutcome, Condition, Ending},
    time::Nanos,
};

/// What was said of a request's end, before it is checked.
#[derive(Clone, Default)]
pub(super) struct Ends {
    /// With any of these the charge comes back.
    give_back_when: Vec<Condition>,
    /// Without any of these the charge comes back.
    count_only_when: Vec<Condition>,
    give_back_unanswered: bool,
    until_head: bool,
    retry_after: Option<Duration>,
}

impl Ends {
    /// What was said, by field.
    pub(super) fn said(&self) -> [(&'static str, bool); 5] {
        [
            ("give_back_when", !self.give_back_when.is_empty()),
            ("count_only_when", !self.count_only_when.is_empty()),
            ("give_back_unanswered", self.give_back_unanswered),
            ("until_head", self.until_head),
            ("retry_after", self.retry_after.is_some()),
        ]
    }
}

/// What is wrong with a field, and the way out.
type Wrong = (&'static str, Cow<'static, str>);

impl<Req> Rule<Req> {
    /// Gives the charge back where `when` is true of the response's head; said several times, where any is.
    ///
    /// The charge is taken before the request starts, so parallel requests cannot slip through, and given back as soon
    /// as the head is there. Until then it counts. Where there is no response, because the inner service failed or
    /// panicked or the client left, the charge **stands**, unless the rule says
    /// [`give_back_unanswered`](Self::give_back_unanswered). What the response tells of the limit are the numbers
    /// before it is given back.
    ///
    /// For services that are not HTTP see [`refuse_with_outcome`](crate::RateLimitLayer::refuse_with_outcome), without
    /// a service [`Receipt::judge`](crate::store::Receipt::judge).
    ///
    /// # Examples
    ///
    /// Two answers a minute that cost something; those of a cache cost nothing:
    ///
    /// ```
    /// use tollgate::{Key, Limit, Limiter, Rule};
    ///
    /// let rule = Rule::new("user", Limit::per_minute(2), |id: &u64| Some(Key::from(*id)))
    ///     .give_back_when(|response| response.headers().contains_key("x-cache-hit"));
    /// let limiter = Limiter::new([rule]);
    /// let left = || limiter.peek_now(&7).unwrap().tightest().unwrap().verdict.remaining;
    ///
    /// let (_, mut receipt) = limiter.reserve_now(&7)?;
    /// assert_eq!(left(), 1);
    /// receipt.judge(&http::Response::builder().header("x-cache-hit", "1").body(()).unwrap());
    /// assert_eq!(left(), 2);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn give_back_when(mut self, when: impl Fn(&Response<()>) -> bool + Send + Sync + 'static) -> Self {
        self.ends.give_back_when.push(Arc::new(when));
        self
    }

    /// Counts only requests whose response's head `when` is true of, and gives the others' charges back; said several
    /// times, of which any is. Otherwise as [`give_back_when`](Self::give_back_when).
    ///
    /// # Examples
    ///
    /// Failures only: five wrong passwords in a quarter of an hour, and as many right ones as you like.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{Request, StatusCode};
    /// use tollgate::{Limit, RateLimitLayer, Rule, bucket::SlidingWindowLog, key};
    ///
    /// let wrong = Rule::new("login", Limit::new(5, Duration::from_secs(900)), key::header("x-account"))
    ///     .algorithm(SlidingWindowLog)
    ///     .count_only_when(|response| response.status() == StatusCode::UNAUTHORIZED);
    /// let layer = RateLimitLayer::<Request<String>>::try_new([wrong])?;
    /// # let _ = layer;
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn count_only_when(mut self, when: impl Fn(&Response<()>) -> bool + Send + Sync + 'static) -> Self {
        self.ends.count_only_when.push(Arc::new(when));
        self
    }

    /// Gives the charge back also where there was no response: the inner service failed or panicked, or the client left
    /// before the response's head was there. Only beside [`give_back_when`](Self::give_back_when) or
    /// [`count_only_when`](Self::count_only_when).
    ///
    /// A client that leaves in time is then not counted, so do not say it where the limit guards secrets.
    pub fn give_back_unanswered(mut self) -> Self {
        self.ends.give_back_unanswered = true;
        self
    }

    /// Frees a place of an [in-flight](crate::Limit::in_flight) limit when the response's head is there, and not only
    /// when its body has ended.
    pub fn until_head(mut self) -> Self {
        self.ends.until_head = true;
        self
    }

    /// Sets what a client that finds no place [in flight](crate::Limit::in_flight) is told to wait, which nobody knows:
    /// one second unless set. Rounded up to whole seconds in `Retry-After`.
    pub fn retry_after(mut self, retry_after: Duration) -> Self {
        self.ends.retry_after = Some(retry_after);
        self
    }

    /// The field by which its charges depend on how a request is answered.
    pub(crate) fn judges_by(&self) -> Option<&'static str> {
        let said = self.ends.said().into_iter().take(2).find(|(_, said)| *said);
        said.map(|(field, _)| field)
    }

    /// What becomes of its charges.
    pub(crate) fn ending(&self) -> Ending {
        let Ends { give_back_when, count_only_when, give_back_unanswered: unanswered, until_head, .. } = &self.ends;
        if self.algorithm.holds_places() {
            return Ending::Frees { at_head: *until_head };
        }
        let any = |conditions: &[Condition]| match conditions {
            [condition] => Arc::clone(condition),
            _ => {
                let conditions = conditions.to_vec();
                Arc::new(move |response: &Response<()>| conditions.iter().any(|when| when(response))) as Condition
            }
        };
        let comes_back = match (give_back_when.as_slice(), count_only_when.as_slice()) {
            ([], []) => return Ending::Stands,
            ([], counted) => {
                let counted = any(counted);
                Arc::new(move |response: &Response<()>| !counted(response))
            }
            (given_back, _) => any(given_back),
        };
        Ending::ByOutcome(ByOutcome { comes_back, unanswered: *unanswered })
    }

    /// What clients are told to wait where nobody knows, in whole seconds.
    pub(crate) fn unknown_wait_secs(&self) -> u64 {
        self.ends.retry_after.map_or(1, |wait| Nanos::from(wait).as_secs_ceil().max(1))
    }

    /// Says what cannot work of what was said of the end.
    pub(super) fn check_ending(&self) -> Result<(), Wrong> {
        let Ends { give_back_when, count_only_when, give_back_unanswered, until_head, retry_after } = &self.ends;
        let by_outcome = match (give_back_when.is_empty(), count_only_when.is_empty()) {
            (true, true) => None,
            (false, true) => Some("give_back_when"),
            (true, false) => Some("count_only_when"),
            (false, false) => {
                return Err((
                    "count_only_when",
                    "give_back_when is said too, and they may contradict each other; say one of them, or make two rules"
                        .into(),
                ));
            }
        };
        let places = self.algorithm.holds_places();
        match by_outcome {
            Some(field) if places => {
                return Err((
                    field,
                    "a place is free when the request has ended, however it ended; drop it, or use a rate".into(),
                ));
            }
            None if *give_back_unanswered => {
                return Err((
                    "give_back_unanswered",
                    "nothing else is said of the outcome; add give_back_when or count_only_when, or drop it".into(),
                ));
            }
            _ => {}
        }
        if *until_head && !places {
            return Err(("until_head", "a rate holds no place; drop it, or use Limit::in_flight(n)".into()));
        }
        match retry_after {
            Some(_) if !places => Err((
                "retry_after",
                "a rate knows when the request passes, and tells it; drop it, or use Limit::in_flight(n)".into(),
            )),
            Some(Duration::ZERO) => {
                Err(("retry_after", "0 s would bring everybody back at once; use at least one second".into()))
            }
            _ => Ok(()),
        }
    }
}
