use std::{borrow::Cow, collections::HashSet, sync::Arc};

use super::{Cost, MissingKey, Reported, Rule};
use crate::{
    bucket::Algorithm,
    decision::{Mode, RuleInfo, Tally},
    error::ConfigError,
    limit::Limit,
    time::Nanos,
};

/// The immutable set of rules in force, checked.
pub(crate) struct Rules<Req> {
    /// Those that enforce first.
    rules: Vec<(Rule<Req>, Reported)>,
    enforcing: usize,
    /// How often each that does not enforce differs.
    tallies: Vec<Arc<Tally>>,
    info: Arc<[RuleInfo]>,
}

impl<Req> Rules<Req> {
    /// Puts rules together, or says what is wrong with the first that cannot work.
    pub(crate) fn new(rules: impl IntoIterator<Item = Rule<Req>>) -> Result<Self, ConfigError> {
        let mut rules: Vec<_> = rules.into_iter().collect();
        #[cfg(tollgate_shadowed)]
        rules.extend(super::shadowed::beside(&rules));
        let enforcing: Vec<_> = rules.iter().filter(|rule| rule.mode == Mode::Enforce).cloned().collect();
        for rule in &mut rules {
            let live = rule.live().and_then(|live| enforcing.iter().find(|rule| rule.name() == live));
            rule.take_over(live)?;
        }
        let mut names = HashSet::new();
        for rule in &rules {
            check(rule)?;
            if !names.insert(rule.name()) {
                return Err(ConfigError::new(
                    rule.name(),
                    "name",
                    "two rules have this name and would share their counts; give each its own",
                ));
            }
        }
        check_former(&rules, &names)?;
        // Their order among each other stays.
        rules.sort_by_key(|rule| rule.mode != Mode::Enforce);
        let position = |name: &str| rules.iter().position(|rule| rule.name() == name);
        let tallies = (enforcing.len()..rules.len()).map(|_| Arc::default()).collect();
        let info = rules
            .iter()
            .map(|rule| RuleInfo {
                name: rule.name.clone(),
                overload: rule.is_overload(),
                limit: rule.limit,
                mode: rule.mode,
                live: rule.live().and_then(position),
                unknown_wait_secs: rule.unknown_wait_secs(),
            })
            .collect();
        let rules = rules.into_iter().map(|rule| (rule, Reported::default())).collect();
        Ok(Self { rules, enforcing: enforcing.len(), tallies, info })
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &(Rule<Req>, Reported)> {
        self.rules.iter()
    }

    /// Those that enforce.
    #[inline]
    pub(crate) fn enforcing(&self) -> &[(Rule<Req>, Reported)] {
        self.rules.get(..self.enforcing).unwrap_or(&self.rules)
    }

    /// Those that do not, with their numbers.
    pub(crate) fn tried(&self) -> impl Iterator<Item = (usize, &(Rule<Req>, Reported))> {
        self.rules.iter().enumerate().skip(self.enforcing)
    }

    /// Whether there are any.
    #[inline]
    pub(crate) fn tries(&self) -> bool {
        !self.tallies.is_empty()
    }

    /// How often the rule of this number differs, if it does not enforce.
    pub(crate) fn tally(&self, at: usize) -> Option<&Tally> {
        self.tallies.get(at.checked_sub(self.enforcing)?).map(|tally| &**tally)
    }

    /// Goes on from what was counted of the rules before that have the same name and do not enforce either.
    pub(crate) fn go_on_from(&mut self, before: &Self) {
        let (enforcing, rules) = (self.enforcing, &self.rules);
        for ((rule, _), tally) in rules.iter().skip(enforcing).zip(&mut self.tallies) {
            let at = before.position_before(rule).and_then(|at| at.checked_sub(before.enforcing));
            if let Some(counted) = at.and_then(|at| before.tallies.get(at)) {
                *tally = Arc::clone(counted);
            }
        }
    }

    /// The rule of this set that `rule` of a later one goes on from.
    pub(crate) fn position_before(&self, rule: &Rule<Req>) -> Option<usize> {
        self.position(rule.name()).or_else(|| self.position(rule.former_name()?))
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Rule<Req>> {
        self.rules.get(at).map(|(rule, _)| rule)
    }

    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.rules.iter().position(|(rule, _)| rule.name() == name)
    }

    pub(crate) fn info(&self) -> &Arc<[RuleInfo]> {
        &self.info
    }
}

/// Says which former name of a rule cannot have been one.
fn check_former<Req>(rules: &[Rule<Req>], names: &HashSet<&str>) -> Result<(), ConfigError> {
    let mut former = HashSet::new();
    for rule in rules {
        let Some(was) = rule.former_name() else { continue };
        let problem = if !is_name(was) {
            "no rule can have had this name; begin with a-z or *, and use only a-z, 0-9, _ . * and -"
        } else if names.contains(was) {
            "a rule of this name is in the set, and its counts are its own; drop it, or the .was(..)"
        } else if !former.insert(was) {
            "two rules go on from the counts of this one; say it of one of them"
        } else {
            continue;
        };
        return Err(ConfigError::new(rule.name(), "was", format!("{was:?}: {problem}")));
    }
    Ok(())
}

fn check<Req>(rule: &Rule<Req>) -> Result<(), ConfigError> {
    let wrong = |field, problem: Cow<'static, str>| Err(ConfigError::new(rule.name(), field, problem));
    if !is_name(rule.name()) {
        return wrong(
            "name",
            "it becomes a token in header fields; begin with a-z or *, and use only a-z, 0-9, _ . * and -".into(),
        );
    }
    if let Err((field, problem)) = check_limit(&rule.limit, &rule.algorithm) {
        return wrong(field, problem);
    }
    if rule.wait_up_to.is_some() && rule.algorithm != Algorithm::TokenBucket {
        return wrong(
            "wait_up_to",
            format!(
                "only the token bucket can wait, not the {}; drop it, or use TokenBucket (or LeakyBucket, which always \
                 holds requests until their turn)",
                rule.algorithm.name()
            )
            .into(),
        );
    }
    if rule.wait_up_to.is_some_and(|longest| longest.is_zero()) {
        return wrong("wait_up_to", "a request that may wait for 0 s never waits; drop it, or say how long".into());
    }
    if let Some(Err(problem)) = rule.on_store_failure.map(|policy| policy.check()) {
        return wrong("on_store_failure", problem.into());
    }
    if let Err((field, problem)) = rule.check_ending().and_then(|()| rule.check_queue()) {
        return wrong(field, problem);
    }
    match rule.on_missing_key {
        Some(_) if !rule.is_keyed() => {
            return wrong(
                "on_missing_key",
                "a rule without keys misses none; drop it, or use Rule::new with a key".into(),
            );
        }
        Some(MissingKey::Refuse(status)) if !(status.is_client_error() || status.is_server_error()) => {
            return wrong("on_missing_key", format!("{status} is no refusal; use a status from 400 to 599").into());
        }
        _ => {}
    }
    match rule.cost {
        Cost::Fixed(0) => {
            wrong("cost", "a fixed cost of 0 is never charged, so the rule would never refuse; use at least 1".into())
        }
        Cost::Fixed(cost) if rule.limit_for.is_none() && cost > rule.limit.capacity() => {
            wrong("cost", too_dear(cost, &rule.limit).into())
        }
        _ => Ok(()),
    }
}

/// What is wrong with a cost above the capacity of `limit`.
pub(crate) fn too_dear(cost: u64, limit: &Limit) -> String {
    let (capacity, raise) = (limit.capacity(), if limit.explicit_burst().is_some() { "burst" } else { "limit" });
    format!(
        "{cost} is above the capacity of {capacity}, so no request could ever pass; lower the cost or raise the {raise}"
    )
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|byte| matches!(byte, b'a'..=b'z' | b'*'))
        && bytes.all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'*' | b'-'))
}

/// Returns the field that is wrong with `limit`, and what.
pub(crate) fn check_limit(limit: &Limit, algorithm: &Algorithm) -> Result<(), (&'static str, Cow<'static, str>)> {
    let max = Nanos::from(Limit::MAX_SPAN).get();
    if limit.permits() == 0 {
        return Err((
            "limit",
            "0 permits would refuse everything; use at least 1, or Rule::blocked(name) where that is meant".into(),
        ));
    }
    if limit.is_in_flight() || algorithm.holds_places() {
        return algorithm.check(limit).map_err(|problem| (field_of(limit, algorithm, problem), problem.into()));
    }
    if limit.period_nanos() == 0 {
        return Err(("period", "a period of 0 has no rate; use at least one nanosecond".into()));
    }
    if limit.explicit_burst() == Some(0) {
        return Err(("burst", "a burst of 0 would refuse everything; use at least 1".into()));
    }
    if limit.period_nanos() > max {
        return Err((
            "period",
            // Where it is said in more than 64 bits nobody knows any more what was said.
            match limit.period_nanos() {
                u64::MAX => {
                    format!("longer than {:?}, the longest there is; use Limit::MAX_SPAN at most", Limit::MAX_SPAN)
                }
                _ => format!(
                    "{:?} is longer than {:?}, the longest there is; use Limit::MAX_SPAN at most",
                    limit.period(),
                    Limit::MAX_SPAN
                ),
            }
            .into(),
        ));
    }
    let to_full = u128::from(limit.capacity()) * u128::from(limit.period_nanos());
    if to_full > u128::from(max) * u128::from(limit.permits()) {
        return Err((
            "burst",
            format!(
                "{} permits at {limit} take longer than {:?} to fill; lower the burst or raise the rate",
                limit.capacity(),
                Limit::MAX_SPAN
            )
            .into(),
        ));
    }
    algorithm.check(limit).map_err(|problem| (field_of(limit, algorithm, problem), problem.into()))
}

/// Which field is wrong where an algorithm cannot run a limit.
fn field_of(limit: &Limit, algorithm: &Algorithm, problem: &str) -> &'static str {
    if limit.is_in_flight() != algorithm.holds_places() {
        "algorithm"
    } else if limit.explicit_burst().is_some() || problem.contains(".burst(") {
        "burst"
    } else {
        "limit"
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        bucket::{
            CustomBucket, FixedWindow, InFlight, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket,
        },
        charge::{FailurePolicy, Share},
        key::Key,
    };

    fn rule(limit: Limit) -> Rule<u64> {
        Rule::new("r", limit, |id: &u64| Some(Key::from(*id)))
    }

    fn named(name: &'static str) -> Rule<u64> {
        Rule::new(name, Limit::per_second(1), |id: &u64| Some(Key::from(*id)))
    }

    fn tried(live: &'static str) -> Rule<u64> {
        Rule::shadow_of(live, Limit::per_second(1))
    }

    fn falls_back(share: Share) -> Rule<u64> {
        named("a").on_store_failure(FailurePolicy::Fallback(share))
    }

    #[test]
    fn says_which_field_is_wrong_and_the_way_out() {
        let second = Limit::per_second(1);
        for (rules, field, says) in [
            (vec![rule(Limit::per_second(0))], "limit", "use at least 1, or Rule::blocked"),
            (vec![rule(Limit::new(1, Duration::ZERO))], "period", "at least one nanosecond"),
            (vec![rule(Limit::new(1, Duration::MAX))], "period", ": longer than 9223372036.854775807s"),
            (vec![rule(Limit::new(1, Duration::from_secs(9_223_372_037)))], "period", "9223372037s is longer than"),
            (vec![rule(second.burst(0))], "burst", "use at least 1"),
            (vec![rule(second.burst(u64::MAX))], "burst", "lower the burst"),
            (vec![rule(second.burst(2)).algorithm(FixedWindow)], "burst", "drop .burst"),
            (vec![rule(second.burst(2)).algorithm(SlidingWindowLog)], "burst", "drop .burst"),
            (vec![rule(second.burst(2)).algorithm(SlidingWindowCounter)], "burst", "drop .burst"),
            (vec![rule(second).algorithm(LeakyBucket)], "burst", "say it with .burst"),
            (vec![rule(Limit::per_second(65_537)).algorithm(SlidingWindowLog)], "limit", "at most 65536"),
            (
                vec![rule(second).fixed_cost(2)],
                "cost",
                "2 is above the capacity of 1, so no request could ever pass; lower the cost or raise the limit",
            ),
            (vec![rule(second.burst(5)).fixed_cost(6)], "cost", "lower the cost or raise the burst"),
            (vec![rule(second).fixed_cost(0)], "cost", "never refuse"),
            (vec![falls_back(Share::percent(0))], "on_store_failure", "at least Share::percent(1)"),
            (vec![falls_back(Share::percent(101))], "on_store_failure", "Share::WHOLE at most"),
            (
                vec![rule(second).algorithm(FixedWindow).wait_up_to(Duration::from_secs(1))],
                "wait_up_to",
                "not the fixed window",
            ),
            (vec![rule(Limit::in_flight(0))], "limit", "use at least 1"),
            (vec![rule(Limit::in_flight(1).burst(2))], "burst", "drop .burst"),
            (vec![rule(Limit::in_flight(1)).algorithm(TokenBucket)], "algorithm", "drop .algorithm"),
            (vec![rule(Limit::in_flight(1)).algorithm(CustomBucket::new(InFlight))], "algorithm", "drop .algorithm"),
            (vec![rule(second).algorithm(InFlight)], "algorithm", "Limit::in_flight(n)"),
            (vec![rule(Limit::in_flight(1)).fixed_cost(2)], "cost", "2 is above the capacity of 1"),
            (vec![rule(Limit::in_flight(1)).wait_up_to(Duration::from_secs(1))], "wait_up_to", "drop it"),
            (vec![rule(Limit::in_flight(1)).retry_after(Duration::ZERO)], "retry_after", "at least one second"),
            (vec![rule(second).retry_after(Duration::from_secs(1))], "retry_after", "drop it"),
            (vec![rule(second).queue(1, Duration::MAX)], "queue", "use wait_up_to"),
            (vec![rule(Limit::in_flight(1)).queue(0, Duration::MAX)], "queue", "at least 1"),
            (vec![rule(Limit::in_flight(1)).queue(1, Duration::ZERO)], "queue", "say how long"),
            (vec![rule(Limit::in_flight(1)), tried("r").queue(1, Duration::MAX)], "queue", "say it there"),
            (vec![rule(second).until_head()], "until_head", "Limit::in_flight(n)"),
            (vec![rule(Limit::in_flight(1)).give_back_when(|_| true)], "give_back_when", "use a rate"),
            (vec![rule(second).count_only_when(|_| true).give_back_when(|_| true)], "count_only_when", "two rules"),
            (vec![rule(second).give_back_unanswered()], "give_back_unanswered", "add give_back_when"),
            (vec![named("a"), named("b"), named("a")], "name", "two rules have this name"),
            (vec![named("a"), named("a").shadow()], "name", "two rules have this name"),
            (vec![tried("a")], "shadow_of", "no rule named \"a\" enforces"),
            (vec![named("a").warn(), tried("a")], "shadow_of", "Rule::new(..).shadow()"),
            (vec![named("a"), tried("a"), tried("a.shadow")], "shadow_of", "no rule named \"a.shadow\""),
            (vec![named("a"), tried("a"), tried("a")], "name", "two rules have this name"),
            (vec![named("a"), tried("a").mode(Mode::Enforce)], "mode", "change the other rule's limit"),
            (vec![named("a"), tried("a").fixed_cost(2)], "cost", "that of the rule \"a\""),
            (vec![named("a"), tried("a").when(|_| true)], "when", "say it there"),
            (vec![named("a"), tried("a").on_missing_key(MissingKey::Skip)], "on_missing_key", "say it there"),
            (vec![named("a"), tried("a").wait_up_to(Duration::MAX)], "wait_up_to", "say it there"),
            (vec![named("a"), tried("a").on_store_failure(FailurePolicy::Allow)], "on_store_failure", "say it there"),
            (vec![named("a"), tried("a").count_only_when(|_| true)], "count_only_when", "say it there"),
            (vec![named("a"), Rule::shadow_of("a", Limit::in_flight(1))], "algorithm", "or use a rate"),
            (vec![named("a"), tried("a").algorithm(LeakyBucket)], "burst", "say it with .burst"),
            (vec![named("a").algorithm(LeakyBucket), tried("a")], "burst", "say it with .burst"),
            (vec![rule(second.burst(5)).fixed_cost(5), tried("r")], "cost", "5 is above the capacity of 1"),
            (vec![named("a"), tried("a").named("A")], "name", "begin with a-z"),
            (vec![named("a").was("b"), named("b")], "was", "a rule of this name is in the set"),
            (vec![named("a").was("a")], "was", "drop it, or the .was(..)"),
            (vec![named("a").was("c"), named("b").was("c")], "was", "say it of one of them"),
            (vec![named("a").was("B")], "was", "no rule can have had this name"),
            (vec![named("")], "name", "begin with a-z"),
            (vec![named("User")], "name", "begin with a-z"),
            (vec![named("1st")], "name", "begin with a-z"),
            (vec![named("a b")], "name", "begin with a-z"),
            (vec![named("caf\u{e9}")], "name", "begin with a-z"),
        ] {
            let error = Rules::new(rules.clone()).err().unwrap_or_else(|| panic!("{rules:?} was accepted"));
            assert_eq!(error.field(), field, "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn takes_what_can_work() {
        for rules in [
            vec![],
            vec![named("a"), named("*"), named("per-user_2.x*")],
            vec![rule(Limit::new(1, Limit::MAX_SPAN))],
            vec![rule(Limit::new(u64::MAX, Duration::from_nanos(1)))],
            vec![rule(Limit::per_second(10).burst(1))],
            vec![rule(Limit::per_second(65_536)).algorithm(SlidingWindowLog)],
            vec![rule(Limit::per_second(1).burst(3)).algorithm(LeakyBucket)],
            vec![rule(Limit::in_flight(3)).fixed_cost(3).until_head().retry_after(Duration::MAX)],
            vec![rule(Limit::in_flight(u64::MAX)).algorithm(InFlight)],
            vec![rule(Limit::in_flight(1)).queue(usize::MAX, Duration::MAX).shadow()],
            vec![rule(Limit::per_second(1)).count_only_when(|_| true).give_back_unanswered()],
            vec![rule(Limit::per_second(1).burst(3)).fixed_cost(3).wait_up_to(Duration::MAX)],
            vec![tried("a").algorithm(FixedWindow), named("a").wait_up_to(Duration::MAX), tried("a").named("b").warn()],
            vec![named("a").shadow(), Rule::global("b", Limit::per_second(1)).warn()],
        ] {
            let _ = Rules::new(rules).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}
