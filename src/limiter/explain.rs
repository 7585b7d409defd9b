//! What would become of a request, and why.

use std::fmt;

use super::{Generation, Intent, Limiter};
use crate::{
    decision::{Decision, Mode, Outcome, Verdict, Wait},
    error::Error,
    limit::Limit,
    rule::{Application, ExplainedKey},
    time::Nanos,
};

/// What [`Limiter::explain`] says of a request. [`Display`](fmt::Display) writes it for people, without the values of
/// keys.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Explanation {
    /// What would be decided.
    pub decision: Decision,
    /// Every rule in force, those that enforce first.
    pub rules: Vec<ExplainedRule>,
}

/// What one rule says of a request.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExplainedRule {
    /// The rule's name.
    pub rule: String,
    /// What it means that it refuses.
    pub mode: Mode,
    /// How it counts.
    pub algorithm: &'static str,
    /// The limit for this request.
    pub limit: Limit,
    /// Whether it is asked, and why not.
    pub application: Application,
    /// What it counts the request by; `None` where it has one count for all, or is not asked.
    pub key: Option<ExplainedKey>,
    /// How many permits the request costs; `None` where it is not asked.
    pub cost: Option<u64>,
    /// What its bucket says, if nothing else happens; `None` where it was not looked at.
    pub verdict: Option<Verdict>,
}

impl<Req> Limiter<Req> {
    /// Says what [`acquire`](Self::acquire) or the layer would do with `request` now, rule by rule, and why. Nothing is
    /// charged, and nothing changes. Conditions, keys and costs are asked twice, when this is called, so closures that
    /// answer otherwise the second time make it wrong; the request is not held.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Limit, Limiter, Rule, explain::Application, time::ManualClock};
    ///
    /// let limiter = Limiter::builder([
    ///     Rule::new("user", Limit::per_minute(1), |id: &u64| Some(Key::from(*id))),
    ///     Rule::global("night", Limit::per_minute(100)).when(|id: &u64| *id == 0),
    /// ])
    /// .clock(ManualClock::new())
    /// .build()?;
    /// assert!(limiter.check_now(&7)?.is_allowed());
    /// let explanation = limiter.explain_now(&7)?;
    /// assert!(!explanation.decision.is_allowed());
    /// assert_eq!(explanation.rules[0].verdict.unwrap().remaining, 0);
    /// assert_eq!(explanation.rules[1].application, Application::ConditionFalse(0));
    /// assert_eq!(
    ///     explanation.to_string(),
    ///     "refused with 429, retry after 60 s\n\
    ///      \"user\": 1/min by the token bucket, key (number), cost 1: refused, passes in 60s; 0 of 1 left\n\
    ///      \"night\": not asked, condition 1 is false\n"
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Where the store fails.
    pub fn explain(&self, request: &Req) -> impl Future<Output = Result<Explanation, Error>> + Send + use<Req> {
        let rules = self.generation();
        let mut decision = rules.undecided();
        let (judging, met) = (rules.judge(request, Intent::Peek, &mut decision), rules.met(request));
        async move {
            judging.wait(&mut decision).await?;
            Ok(Explanation::of(decision, met))
        }
    }

    /// As [`explain`](Self::explain), for plain threads.
    ///
    /// # Errors
    ///
    /// Where the store fails, or does not answer at once ([`ErrorKind::NotReady`](crate::ErrorKind::NotReady)).
    pub fn explain_now(&self, request: &Req) -> Result<Explanation, Error> {
        let rules = self.generation();
        let mut decision = rules.undecided();
        rules.judge(request, Intent::Peek, &mut decision).now()?;
        Ok(Explanation::of(decision, rules.met(request)))
    }
}

impl<Req> Generation<Req> {
    /// What each rule says of a request before any count is looked at.
    fn met(&self, request: &Req) -> Vec<ExplainedRule> {
        let mut rules: Vec<ExplainedRule> = Vec::new();
        for ((rule, _), info) in self.rules.iter().zip(self.rules.info().iter()) {
            let mut met = rule.meet(request);
            let live = info.live.and_then(|live| rules.get(live));
            if live.is_some_and(|live| live.application != Application::Applies) {
                met.application = Application::NotBeside;
            }
            let asked = met.application.is_asked();
            rules.push(ExplainedRule {
                rule: rule.name().to_owned(),
                mode: info.mode,
                algorithm: rule.algorithm_name(),
                limit: met.limit,
                application: met.application,
                key: met.key.filter(|_| asked),
                cost: met.cost.filter(|_| asked),
                verdict: None,
            });
        }
        rules
    }
}

impl Explanation {
    /// A decision, and what each rule said before it.
    fn of(decision: Decision, mut rules: Vec<ExplainedRule>) -> Self {
        for asked in rules.iter_mut().filter(|rule| rule.application.is_asked()) {
            let enforced = decision.rules().find(|rule| rule.rule == asked.rule).map(|rule| rule.verdict);
            let tried = || decision.shadows().find(|shadow| shadow.rule == asked.rule).map(|shadow| shadow.verdict);
            asked.verdict = enforced.or_else(tried);
        }
        Self { decision, rules }
    }
}

impl Explanation {
    /// Returns the explanation as [`Display`](fmt::Display) writes it, **with the values of keys**, which may be
    /// personal data.
    pub fn with_keys(&self) -> impl fmt::Display + '_ {
        WithKeys(self)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, keys: bool) -> fmt::Result {
        let decision = &self.decision;
        let delay = decision.delay();
        match decision.refusal() {
            None if delay.is_zero() => f.write_str("passes")?,
            None => write!(f, "passes after {delay:?}")?,
            Some(_) => write!(f, "refused with {}", decision.status().as_u16())?,
        }
        if let Some(secs) = decision.retry_after_secs().filter(|_| !decision.is_allowed()) {
            write!(f, ", retry after {secs} s")?;
        }
        f.write_str("\n")?;
        self.rules.iter().try_for_each(|rule| rule.write(f, keys))
    }
}

struct WithKeys<'a>(&'a Explanation);

impl fmt::Display for WithKeys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, true)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, false)
    }
}

impl ExplainedRule {
    fn write(&self, f: &mut fmt::Formatter<'_>, keys: bool) -> fmt::Result {
        write!(f, "{:?}", self.rule)?;
        match self.mode {
            Mode::Enforce => {}
            Mode::Shadow => f.write_str(" (shadow)")?,
            Mode::Warn => f.write_str(" (warns)")?,
        }
        f.write_str(": ")?;
        match self.application {
            Application::Applies => {}
            Application::ConditionFalse(at) => return writeln!(f, "not asked, condition {} is false", at + 1),
            Application::NoKey => return f.write_str("not asked, the request has no key for it\n"),
            Application::RefusedWithoutKey => return f.write_str("refused, the request has no key for it\n"),
            Application::NotBeside => return f.write_str("not asked, the rule beside which it is tried is not\n"),
            Application::Blocked => return f.write_str("refused, as all that it applies to\n"),
            Application::UnusableLimit => return writeln!(f, "refused, it cannot run the limit {}", self.limit),
        }
        write!(f, "{} by the {}", self.limit, self.algorithm)?;
        match &self.key {
            Some(key) if keys => write!(f, ", key {} ({})", key.reveal(), key.kind())?,
            Some(key) => write!(f, ", key ({})", key.kind())?,
            None => {}
        }
        if let Some(cost) = self.cost {
            write!(f, ", cost {cost}")?;
        }
        let Some(verdict) = self.verdict else { return f.write_str(": not looked at\n") };
        let secs = |wait: Nanos| wait.as_duration();
        match verdict.outcome {
            Outcome::Pass => f.write_str(": passes")?,
            Outcome::Delay(wait) => write!(f, ": passes after {:?}", secs(wait))?,
            Outcome::Refuse(Wait::For(wait)) => write!(f, ": refused, passes in {:?}", secs(wait))?,
            Outcome::Refuse(Wait::Unknown) => f.write_str(": refused, nobody knows for how long")?,
            Outcome::Refuse(Wait::Never) => f.write_str(": refused for good, it can never hold that much")?,
        }
        if verdict.source.has_numbers() {
            write!(f, "; {} of {} left", verdict.remaining, verdict.limit)?;
        }
        f.write_str("\n")
    }
}
