//! What can be wrong with data that was read: fields that do not go together, and rules that could not run.

use std::collections::{BTreeMap, HashMap};

use super::{
    data::{Entry, File},
    matching,
    problem::{Code, Problem, instead, shown},
    read::step,
    resolve::{Alternative, Alternatives, Quota},
    texts::{Id, Net},
};

use crate::key::parse_nets;

mod amounts;
mod entries;
mod keys;
mod outcomes;

/// The most entries there may be in a file: each is a rule, which is asked of each request.
const MOST: usize = 1_000;

/// Collects what is wrong. A field that is there but could not be read was told of: it is not missing.
pub(super) struct Checker<'f> {
    file: &'f File,
    places: &'f BTreeMap<String, usize>,
    problems: Vec<Problem>,
}

impl<'f> Checker<'f> {
    pub(super) fn run(file: &'f File, places: &'f BTreeMap<String, usize>) -> Vec<Problem> {
        let mut checker = Self { file, places, problems: Vec::new() };
        checker.file();
        checker.problems
    }

    fn wrong(&mut self, code: Code, path: impl Into<String>, text: impl Into<String>) {
        let problem = Problem::new(code, path, text);
        // An entry's problem that is its policy's is the same for each of the policy's entries.
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    fn is_there(&self, path: &str) -> bool {
        self.places.contains_key(path)
    }

    fn file(&mut self) {
        if self.file.policies.is_none() && !self.is_there("policies") {
            self.wrong(Code::MissingField, "", "there are no `policies`; an empty list limits nothing");
        }
        self.proxies();
        for (name, nets) in self.file.lists.iter().flatten() {
            for (at, Net(text)) in nets.iter().enumerate() {
                if parse_nets([text.as_str()]).is_err() {
                    let more = if self.is_list(text) { "; a list names no other list" } else { "" };
                    let text = format!(
                        "{} is neither an address nor a network, such as 10.0.0.0/8 or fd00::/8{more}",
                        shown(text)
                    );
                    self.wrong(Code::BadNetwork, format!("lists{}[{at}]", step(name, false)), text);
                }
            }
        }
        let mut ids = HashMap::new();
        let mut count = 0;
        for alternatives in Alternatives::of(self.file) {
            let each = alternatives.each();
            count += each.len();
            if count > MOST {
                self.wrong(Code::TooLarge, &alternatives.path, format!("there are more than {MOST} entries in all"));
                return;
            }
            self.id(alternatives.policy, &alternatives.path, &mut ids);
            for (at, entry) in alternatives.entries.iter().enumerate() {
                self.id(entry, &format!("{}.entries[{at}]", alternatives.path), &mut ids);
            }
            for alternative in &each {
                self.alternative(alternative);
            }
            self.policy_match(&alternatives);
            self.same_matches(&each);
        }
        self.other_names(&ids);
    }

    /// The names that rules had before, and those of rules that refuse for a tier, are no other entry's.
    fn other_names(&mut self, ids: &HashMap<String, String>) {
        let mut before = HashMap::new();
        for alternatives in Alternatives::of(self.file) {
            for one in alternatives.each() {
                let path = format!("{}.was", one.path);
                if let Some(Id(was)) = &one.own.was {
                    if let Some(other) = ids.get(was) {
                        let text = format!("{} is the id of {other}, whose counts are its own; drop it", shown(was));
                        self.wrong(Code::RepeatedId, path, text);
                    } else if let Some(other) = before.insert(was.clone(), one.path.clone()) {
                        let text = format!("{other} was {} too, and counts go on in one place; drop it", shown(was));
                        self.wrong(Code::RepeatedId, path, text);
                    }
                }
                let refuses = |quota| quota == Quota::Blocked;
                let quotas = one.quotas();
                if !quotas.each().any(refuses) || quotas.each().all(refuses) {
                    continue;
                }
                let id = one.own.id.as_ref().map(|id| format!("{}.blocked", id.0));
                if let Some((id, other)) = id.and_then(|id| Some((ids.get(&id)?.clone(), id))) {
                    let text = format!(
                        "{} is the name of the rule for those who are blocked in {}; give it another",
                        shown(&other),
                        one.path
                    );
                    self.wrong(Code::RepeatedId, format!("{id}.id"), text);
                }
            }
        }
    }

    fn proxies(&mut self) {
        let Some(proxies) = &self.file.proxies else { return };
        match (&proxies.nets, &proxies.hops) {
            (Some(_), Some(_)) => {
                self.wrong(Code::Conflict, "proxies.hops", "not beside `nets`, which say more; drop `hops`");
            }
            (None, None) if !self.is_there("proxies.nets") && !self.is_there("proxies.hops") => {
                let text = "say which proxies are believed: `nets`, or `hops` where their addresses are not known";
                self.wrong(Code::MissingField, "proxies", text);
            }
            _ => {}
        }
        self.nets("proxies.nets", proxies.nets.as_ref().map(|nets| nets.0.as_slice()).unwrap_or_default());
    }

    /// Whether there is a list of this name, as far as it could be read.
    fn is_list(&self, name: &str) -> bool {
        self.is_there(&format!("lists{}", step(name, false)))
    }

    /// What is no network has to be the name of a list.
    fn nets(&mut self, path: &str, nets: &[Net]) {
        for (at, Net(text)) in nets.iter().enumerate() {
            if self.is_list(text) || parse_nets([text.as_str()]).is_ok() {
                continue;
            }
            // One alone needs no list around it.
            let item = format!("{path}[{at}]");
            let path = if self.is_there(&item) { item } else { path.into() };
            let lists: Vec<_> = self.file.lists.iter().flatten().map(|(name, _)| name.as_str()).collect();
            let meant = if lists.is_empty() { "there are none".into() } else { instead(text, &lists) };
            let text =
                format!("{} is neither a network, such as 10.0.0.0/8, nor one of the `lists`; {meant}", shown(text));
            self.wrong(Code::BadNetwork, path, text);
        }
    }

    fn id(&mut self, entry: &Entry, path: &str, ids: &mut HashMap<String, String>) {
        match &entry.id {
            Some(id) => {
                if let Some(first) = ids.insert(id.0.clone(), path.into()) {
                    let text = format!(
                        "{} is the id of {first} too, and counts belong to an id; give each its own",
                        shown(&id.0)
                    );
                    self.wrong(Code::RepeatedId, format!("{path}.id"), text);
                    ids.insert(id.0.clone(), first);
                }
            }
            None if !self.is_there(&format!("{path}.id")) => {
                self.wrong(Code::MissingField, path, "there is no `id`, which names the rule");
            }
            None => {}
        }
    }

    fn policy_match(&mut self, alternatives: &Alternatives<'_>) {
        let paths: Vec<_> = alternatives
            .entries
            .iter()
            .enumerate()
            .map(|(at, entry)| (entry, format!("{}.entries[{at}]", alternatives.path)))
            .collect();
        for (entry, path) in [(alternatives.policy, alternatives.path.clone())].into_iter().chain(paths) {
            let Some(matching) = &entry.matching else { continue };
            for (field, nets) in [("client", &matching.client), ("peer", &matching.peer)] {
                let nets = nets.as_ref().map(|nets| nets.0.as_slice()).unwrap_or_default();
                self.nets(&format!("{path}.match.{field}"), nets);
            }
            if matching.client.is_some() {
                self.needs_proxies(&format!("{path}.match.client"), "peer");
            }
            for name in matching.header.iter().flatten().map(|(name, _)| name) {
                if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
                    let path = format!("{path}.match.header{}", step(name, false));
                    self.wrong(
                        Code::BadName,
                        path,
                        format!("{} is no name of a header; use letters, digits and -", shown(name)),
                    );
                }
            }
        }
    }

    fn needs_proxies(&mut self, path: &str, instead: &str) {
        if self.file.proxies.is_none() && !self.is_there("proxies") {
            let text = format!(
                "the client's address is known only behind named proxies; say `proxies`, or use \"{instead}\" where there are none"
            );
            self.wrong(Code::MissingField, path, text);
        }
    }

    fn same_matches(&mut self, each: &[Alternative<'_>]) {
        let none = BTreeMap::new();
        let lists = self.file.lists.as_ref().unwrap_or(&none);
        // The policy's own match is the precondition of all its entries: its own entry is for whatever is left.
        let matching =
            |one: &Alternative<'_>| matching::Alternatives::of(one.policy.and(one.own.matching.as_ref()), lists);
        let sets: Vec<_> = each.iter().map(matching).collect();
        for (at, (set, alternative)) in sets.iter().zip(each).enumerate() {
            if self.is_there(&format!("{}.match", alternative.path)) && alternative.own.matching.is_none() {
                continue;
            }
            if let Some((_, first)) = sets.iter().zip(each).take(at).find(|(other, _)| set.meets(other)) {
                let place = if alternative.own.matching.is_some() { ".match" } else { "" };
                let text = format!(
                    "for the same requests as {}, so that neither is more specific; say how they differ",
                    first.path
                );
                self.wrong(Code::SameMatch, format!("{}{place}", alternative.path), text);
            }
        }
    }
}
