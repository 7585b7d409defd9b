use std::borrow::Cow;

use super::Rule;
use crate::limit::Limit;

impl<Req> Rule<Req> {
    /// Returns a rule that refuses every request it applies to, as one that can never pass: there is no `Retry-After`,
    /// and the limit that is told is 0. It counts nothing. Say whom it is for with [`when`](Self::when).
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Request;
    /// use tollgate::{Limiter, Rule, when};
    ///
    /// let limiter = Limiter::new([Rule::blocked("scraper").when(when::header_is("user-agent", "scraper"))]);
    /// let request = |agent| Request::builder().header("user-agent", agent).body(()).unwrap();
    /// let decision = limiter.check_now(&request("scraper"))?;
    /// assert!(!decision.is_allowed());
    /// assert_eq!(decision.retry_after(), None);
    /// assert!(limiter.check_now(&request("browser"))?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn blocked(name: impl Into<Cow<'static, str>>) -> Self {
        // No limit can be run that permits nothing.
        let rule = Self::global(name, Limit::per_second(1)).limit_for(|_| Limit::per_second(0));
        Self { blocked: true, ..rule }
    }
}
