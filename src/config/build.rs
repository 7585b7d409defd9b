//! From data that was checked to rules.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use http::{Request, StatusCode};

use super::{
    data::{self, Cost, Entry, Fallback, File, Key, Match, MissingKeyWord, Origin, Proxies, StoreFailureWord},
    keys,
    matching::{Choice, Matcher, Named},
    problem::{Code, Problem, instead, shown},
    read::step,
    registry::{self, Registry},
    resolve::{Alternative, Alternatives, Quota, Quotas},
    texts::Text,
};
use crate::{
    bucket::{FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket},
    charge::{FailurePolicy, Share},
    decision::Mode,
    key::TrustedProxies,
    limit::Limit,
    rule::{MissingKey, Rule},
    when,
};

/// The kinds of names, each with its path.
#[derive(Default)]
struct Names {
    keys: Vec<(String, String)>,
    costs: Vec<(String, String)>,
    conditions: Vec<(String, String)>,
    values: Vec<(String, String)>,
    outcomes: Vec<(String, String)>,
}

impl Names {
    fn of(file: &File) -> Self {
        let mut names = Self::default();
        for (at, policy) in file.policies.iter().flatten().enumerate() {
            names.entry(&policy.own, &format!("policies[{at}]"));
            for (number, entry) in policy.entries.iter().enumerate() {
                names.entry(entry, &format!("policies[{at}].entries[{number}]"));
            }
        }
        names
    }

    fn entry(&mut self, entry: &Entry, path: &str) {
        if let Some(key) = &entry.key {
            keys::names(key, &format!("{path}.key"), &mut self.keys);
        }
        if let Some(Cost::Name(Text(name))) = &entry.cost {
            self.costs.push((name.clone(), format!("{path}.cost")));
        }
        for (field, origin) in [("tier", &entry.tier), ("customer", &entry.customer)] {
            if let Some(Origin::Name(Text(name))) = origin {
                self.values.push((name.clone(), format!("{path}.{field}")));
            }
        }
        for (field, outcomes) in [("count_only", &entry.count_only), ("give_back", &entry.give_back)] {
            let outcomes = outcomes.as_ref().map(|outcomes| outcomes.0.as_slice()).unwrap_or_default();
            for (at, name) in outcomes.iter().enumerate().filter_map(|(at, outcome)| Some((at, outcome.name()?))) {
                let item = if outcomes.len() > 1 { format!("[{at}]") } else { String::new() };
                self.outcomes.push((name.to_owned(), format!("{path}.{field}{item}")));
            }
        }
        let Some(matching) = &entry.matching else { return };
        for (name, _) in matching.values.iter().flatten() {
            self.values.push((name.clone(), format!("{path}.match.values{}", step(name, false))));
        }
        let conditions = matching.condition.as_ref().map(|condition| condition.0.as_slice()).unwrap_or_default();
        for (at, Text(name)) in conditions.iter().enumerate() {
            if !registry::CONDITIONS.contains(&name.as_str()) {
                let item = if conditions.len() > 1 { format!("[{at}]") } else { String::new() };
                self.conditions.push((name.clone(), format!("{path}.match.condition{item}")));
            }
        }
    }

    fn each(&self) -> [(&'static str, &[(String, String)]); 5] {
        [
            ("condition", &self.conditions),
            ("cost", &self.costs),
            ("key", &self.keys),
            ("outcome", &self.outcomes),
            ("value", &self.values),
        ]
    }
}

pub(super) fn names(file: &File) -> Vec<String> {
    let names = Names::of(file);
    let each = names.each().into_iter();
    let texts = each.flat_map(|(kind, names)| names.iter().map(move |(name, _)| format!("{kind} {}", shown(name))));
    texts.collect::<BTreeSet<_>>().into_iter().collect()
}

/// All that is not registered, each with what is.
fn unknown<B>(file: &File, registry: &Registry<B>) -> Vec<Problem> {
    let own = |names: &mut dyn Iterator<Item = &String>| names.cloned().collect::<Vec<_>>();
    let mut problems: Vec<_> = registry
        .taken
        .iter()
        .map(|taken| {
            Problem::new(
                Code::Conflict,
                "",
                format!("the program registers the {taken}, which is built in or there already; give it another name"),
            )
        })
        .collect();
    for (kind, used) in Names::of(file).each() {
        let (built_in, registered): (&[&str], _) = match kind {
            "key" => (registry::KEYS, own(&mut registry.keys.keys())),
            "cost" => (&[], own(&mut registry.costs.keys())),
            "condition" => (registry::CONDITIONS, own(&mut registry.conditions.keys())),
            "outcome" => (registry::OUTCOMES, own(&mut registry.outcomes.keys())),
            _ => (&[], own(&mut registry.values.keys())),
        };
        let known: Vec<_> = built_in.iter().copied().chain(registered.iter().map(String::as_str)).collect();
        for (name, path) in used.iter().filter(|(name, _)| !known.contains(&name.as_str())) {
            let text = match known.is_empty() {
                true => format!("there is no {kind} {}, and none is registered", shown(name)),
                false => format!("there is no {kind} {}; {}", shown(name), instead(name, &known)),
            };
            problems.push(Problem::new(Code::UnknownName, path, text));
        }
    }
    problems
}

pub(super) fn build<B: 'static>(file: &File, registry: &Registry<B>) -> Result<Vec<Rule<Request<B>>>, Vec<Problem>> {
    let problems = unknown(file, registry);
    if !problems.is_empty() {
        return Err(problems);
    }
    let none = BTreeMap::new();
    let lists = file.lists.as_ref().unwrap_or(&none);
    let proxies = file.proxies.as_ref().and_then(|proxies| trusted(proxies, lists));
    let value = |name: &str| registry.values.get(name).cloned();
    let condition = |name: &str| match name {
        "preflight" => Some(Arc::new(when::preflight()) as registry::Condition<B>),
        other => registry.conditions.get(other).cloned(),
    };
    let named = Named { lists, proxies: proxies.as_ref(), value: &value, condition: &condition };
    let building = Building { registry, named };
    let (mut rules, mut problems) = (Vec::new(), Vec::new());
    for alternatives in Alternatives::of(file) {
        building.policy(&alternatives, &mut rules, &mut problems);
    }
    if problems.is_empty() { Ok(rules) } else { Err(problems) }
}

fn trusted(proxies: &Proxies, lists: &BTreeMap<String, Vec<super::texts::Net>>) -> Option<TrustedProxies> {
    let trusted = match (&proxies.nets, proxies.hops) {
        (Some(named), _) => {
            let nets: Vec<_> = super::matching::nets(named, lists).iter().map(ToString::to_string).collect();
            TrustedProxies::try_nets(nets.iter().map(String::as_str)).ok()?
        }
        (None, hops) => TrustedProxies::hops(usize::try_from(hops?.0).ok()?),
    };
    let trusted = match proxies.header.as_ref().map(|header| header.0.to_ascii_lowercase()).as_deref() {
        None | Some("x-forwarded-for") => trusted,
        Some("forwarded") => trusted.forwarded(),
        Some(single) => trusted.header(single),
    };
    Some(match proxies.v6_prefix {
        Some(bits) => trusted.v6_prefix(keys::prefix(bits.0)),
        None => trusted,
    })
}

struct Building<'b, B> {
    registry: &'b Registry<B>,
    named: Named<'b, B>,
}

impl<B: 'static> Building<'_, B> {
    fn policy(&self, alternatives: &Alternatives<'_>, rules: &mut Vec<Rule<Request<B>>>, problems: &mut Vec<Problem>) {
        let each = alternatives.each();
        let none = Match::default();
        let matcher = |matching: Option<&Match>| Matcher::new(matching.unwrap_or(&none), &self.named);
        let policy = alternatives.policy.matching.as_ref().map(|matching| Arc::new(matcher(Some(matching))));
        let own = |one: &Alternative<'_>| matcher(one.policy.and(one.own.matching.as_ref()));
        let choice = Arc::new(Choice(each.iter().map(own).collect()));
        for (at, one) in each.iter().enumerate() {
            let Some(of_one) = self.rules(one) else {
                // Nothing is left out in silence, though what was checked has all that it needs.
                problems.push(Problem::new(Code::CannotWork, &one.path, "something that it refers to is not there"));
                continue;
            };
            for rule in of_one {
                let rule = match &policy {
                    Some(policy) => {
                        let policy = Arc::clone(policy);
                        rule.when(move |request| policy.rank(request).is_some())
                    }
                    None => rule,
                };
                let choice = Arc::clone(&choice);
                // Where nothing is said there is nothing to ask.
                let always = each.len() == 1 && (one.policy.is_none() || one.own.matching.is_none());
                rules.push(if always { rule } else { rule.when(move |request| choice.is(at, request)) });
            }
        }
    }

    /// The rules of one entry: none where it is unlimited, and a second one where some of its requests are blocked.
    /// `None` where something that it refers to is not there.
    fn rules(&self, one: &Alternative<'_>) -> Option<Vec<Rule<Request<B>>>> {
        let id = one.own.id.as_ref()?.0.clone();
        let quotas = one.quotas();
        let (amount, _) = one.amount();
        if let Some(places) = amount.in_flight {
            return Some(vec![self.counting(one, &id, Limit::in_flight(places.0))?]);
        }
        let Some(limit) = first_limit(&quotas) else {
            let blocked = quotas.own == Quota::Blocked;
            return Some(if blocked { vec![Rule::blocked(id).mode(mode(one))] } else { Vec::new() });
        };
        let rule = self.counting(one, &id, limit)?;
        if quotas.tier.is_none() && quotas.customer.is_none() {
            return Some(vec![rule]);
        }
        let blocks = quotas.each().any(|quota| quota == Quota::Blocked);
        let asked = Arc::new(Asked::new(&quotas, self.registry));
        let (for_limit, for_rule, for_blocked) = (Arc::clone(&asked), Arc::clone(&asked), asked);
        let rule =
            rule.when(move |request| matches!(for_rule.quota(request), Quota::Limit(_))).limit_for(move |request| {
                match for_limit.quota(request) {
                    Quota::Limit(limit) => limit,
                    Quota::Unlimited | Quota::Blocked => limit,
                }
            });
        let mut rules = vec![rule];
        if blocks {
            let blocked = Rule::blocked(format!("{id}.blocked")).mode(mode(one));
            rules.push(blocked.when(move |request| for_blocked.quota(request) == Quota::Blocked));
        }
        Some(rules)
    }

    fn counting(&self, one: &Alternative<'_>, id: &str, limit: Limit) -> Option<Rule<Request<B>>> {
        let key = one.get(|entry| &entry.key)?;
        let global = matches!(key, Key::Name(name) if name.0 == "global");
        let rule = if global {
            Rule::global(id.to_owned(), limit)
        } else {
            let key = keys::extractor(key, self.registry, self.named.proxies)?;
            Rule::new(id.to_owned(), limit, move |request| key(request))
        };
        let mut rule = if limit.is_in_flight() { rule } else { self.by_outcome(one, timed(one, rule))? };
        rule = rule.mode(mode(one));
        if let Some(was) = &one.own.was {
            rule = rule.was(was.0.clone());
        }
        if one.get(|entry| &entry.overload) == Some(&true) {
            rule = rule.overload();
        }
        rule = match one.get(|entry| &entry.cost) {
            Some(Cost::Fixed(cost)) => rule.fixed_cost(cost.0),
            Some(Cost::Name(Text(name))) => {
                let cost = Arc::clone(self.registry.costs.get(name)?);
                rule.cost(move |request| cost(request))
            }
            None => rule,
        };
        if let (Some(missing), false) = (one.get(|entry| &entry.on_missing_key), global) {
            rule = rule.on_missing_key(missing_key(missing));
        }
        match one.get(|entry| &entry.on_store_failure) {
            Some(failure) => Some(rule.on_store_failure(store_failure(failure))),
            None => Some(rule),
        }
    }

    /// What a rule says of how its requests are answered.
    fn by_outcome(&self, one: &Alternative<'_>, mut rule: Rule<Request<B>>) -> Option<Rule<Request<B>>> {
        let (entry, _) = one.outcomes();
        for outcome in entry.count_only.iter().flat_map(|outcomes| &outcomes.0) {
            let is = outcome.condition(self.registry)?;
            rule = rule.count_only_when(move |response| is(response));
        }
        for outcome in entry.give_back.iter().flat_map(|outcomes| &outcomes.0) {
            let is = outcome.condition(self.registry)?;
            rule = rule.give_back_when(move |response| is(response));
        }
        Some(if entry.give_back_unanswered == Some(true) { rule.give_back_unanswered() } else { rule })
    }
}

/// What only a rule says that knows time.
fn timed<Req>(one: &Alternative<'_>, rule: Rule<Req>) -> Rule<Req> {
    let rule = match one.algorithm() {
        data::Algorithm::TokenBucket => rule.algorithm(TokenBucket),
        data::Algorithm::FixedWindow => rule.algorithm(FixedWindow),
        data::Algorithm::SlidingWindowLog => rule.algorithm(SlidingWindowLog),
        data::Algorithm::SlidingWindowCounter => rule.algorithm(SlidingWindowCounter),
        data::Algorithm::LeakyBucket => rule.algorithm(LeakyBucket),
    };
    match one.get(|entry| &entry.wait_up_to) {
        Some(longest) => rule.wait_up_to(longest.as_duration()),
        None => rule,
    }
}

/// The rule's own limit: what the entry says, or the first of its tiers where that is none.
fn first_limit(quotas: &Quotas<'_>) -> Option<Limit> {
    quotas.each().find_map(|quota| match quota {
        Quota::Limit(limit) => Some(limit),
        Quota::Unlimited | Quota::Blocked => None,
    })
}

fn mode(one: &Alternative<'_>) -> Mode {
    match one.get(|entry| &entry.mode) {
        Some(data::Mode::Shadow) => Mode::Shadow,
        Some(data::Mode::Warn) => Mode::Warn,
        Some(data::Mode::Enforce) | None => Mode::Enforce,
    }
}

fn missing_key(said: &data::MissingKey) -> MissingKey {
    match said {
        data::MissingKey::Word(MissingKeyWord::Skip) => MissingKey::Skip,
        data::MissingKey::Word(MissingKeyWord::Share) => MissingKey::Share,
        data::MissingKey::Refuse(refusal) => {
            let status = refusal.refuse.and_then(|status| u16::try_from(status.0).ok());
            let status = status.and_then(|status| StatusCode::from_u16(status).ok());
            MissingKey::Refuse(status.unwrap_or(StatusCode::BAD_REQUEST))
        }
    }
}

fn store_failure(said: &data::StoreFailure) -> FailurePolicy {
    let share = |fallback: &Fallback| {
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        match (fallback.fallback_percent, fallback.fallback_one_in) {
            (Some(percent), _) => Share::percent(number(percent.0)),
            (None, Some(processes)) => Share::one_in(number(processes.0)),
            (None, None) => Share::WHOLE,
        }
    };
    match said {
        data::StoreFailure::Word(StoreFailureWord::Allow) => FailurePolicy::Allow,
        data::StoreFailure::Word(StoreFailureWord::Refuse) => FailurePolicy::Refuse,
        data::StoreFailure::Fallback(fallback) => FailurePolicy::Fallback(share(fallback)),
    }
}

/// Names of tiers or customers with their quotas, and where a request's name comes from.
type Table<B> = (registry::Origin<B>, HashMap<String, Quota>);

/// The quota of each request: its customer's, or else its tier's, or else the entry's own.
struct Asked<B> {
    own: Quota,
    /// Customers before tiers.
    tables: Vec<Table<B>>,
}

impl<B: 'static> Asked<B> {
    fn new(quotas: &Quotas<'_>, registry: &Registry<B>) -> Self {
        let table = |(origin, quotas): &(&Origin, BTreeMap<String, Quota>)| {
            let quotas = quotas.iter().map(|(name, quota)| (name.clone(), *quota)).collect();
            Some((keys::origin(origin, registry)?, quotas))
        };
        let tables = [&quotas.customer, &quotas.tier].into_iter().flatten().filter_map(table).collect();
        Self { own: quotas.own, tables }
    }

    fn quota(&self, request: &Request<B>) -> Quota {
        let quota = |(origin, quotas): &Table<B>| quotas.get(&*origin(request)?).copied();
        self.tables.iter().find_map(quota).unwrap_or(self.own)
    }
}
