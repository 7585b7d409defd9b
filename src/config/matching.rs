//! Which requests an entry is for, and which of several entries is the most specific.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use http::{HeaderName, Method, Request};
use ipnet::IpNet;
use matchit::Router;

use super::{
    data::{HeaderMatch, Match},
    read::Many,
    registry::{Condition, Origin},
    texts::{Net, Text},
};
use crate::key::{TrustedProxies, host_of, parse_nets, peer_of, try_path_router};

/// How specific an entry is for a request that it matches: the greater, the more. Compared from the first field on, so
/// whoever asks goes before what is asked for.
///
/// A match with one condition more than another, or with a narrower one in one place, is always greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Rank<'m> {
    /// Bits of the narrowest network that has the client's address; an IPv4 one as the IPv6 it would be mapped to.
    client: u16,
    /// The same of the peer's.
    peer: u16,
    /// How many registered values.
    values: usize,
    /// Two for a header with a value, one for one that is there or not there.
    headers: usize,
    /// How many conditions.
    conditions: usize,
    /// Whether it is the very host, and how long the name is.
    host: (bool, usize),
    /// The path, segment by segment.
    path: &'m [Segment],
    /// Whether methods are named.
    method: bool,
}

/// A segment of a path pattern: more is more specific.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Segment {
    Rest,
    Parameter,
    /// A parameter with so much text around it.
    Mixed(usize),
    Literal,
}

fn segments(pattern: &str) -> Vec<Segment> {
    let segment = |text: &str| match (text.find('{'), text.find('}')) {
        (Some(0), Some(_)) if text.starts_with("{*") => Segment::Rest,
        (Some(from), Some(to)) if from < to => match text.len() - (to - from) - 1 {
            0 => Segment::Parameter,
            around => Segment::Mixed(around),
        },
        _ => Segment::Literal,
    };
    pattern.split('/').skip(1).map(segment).collect()
}

/// The pattern with its parameters' names left out: two that are equal match the same paths.
pub(super) fn nameless(pattern: &str) -> String {
    let (mut out, mut inside) = (String::new(), false);
    for char in pattern.chars() {
        match char {
            '{' => (inside, _) = (true, out.push('{')),
            '}' => (inside, _) = (false, out.push('}')),
            '*' if inside && out.ends_with('{') => out.push('*'),
            other if !inside => out.push(other),
            _ => {}
        }
    }
    out
}

/// The networks that are named in a match, lists and all. What cannot be read was told of before.
pub(super) fn nets(named: &Many<Net>, lists: &BTreeMap<String, Vec<Net>>) -> Vec<IpNet> {
    let mut found = Vec::new();
    for Net(text) in &named.0 {
        match lists.get(text.as_str()) {
            Some(list) => found.extend(list.iter().filter_map(|Net(text)| parse_nets([text.as_str()]).ok())),
            None => found.extend(parse_nets([text.as_str()]).ok()),
        }
    }
    found.iter().flat_map(|nets| nets.iter().copied()).collect()
}

/// A match, ready to be asked.
pub(super) struct Matcher<B> {
    client: Option<(TrustedProxies, Vec<IpNet>)>,
    peer: Option<Vec<IpNet>>,
    values: Vec<(Origin<B>, BTreeSet<String>)>,
    headers: Vec<(HeaderName, HeaderMatch)>,
    conditions: Vec<Condition<B>>,
    hosts: Option<Vec<String>>,
    paths: Option<Vec<(Router<()>, Vec<Segment>)>>,
    methods: Option<Vec<Method>>,
}

/// What a match refers to by name.
pub(super) struct Named<'n, B> {
    pub(super) lists: &'n BTreeMap<String, Vec<Net>>,
    pub(super) proxies: Option<&'n TrustedProxies>,
    pub(super) value: &'n dyn Fn(&str) -> Option<Origin<B>>,
    pub(super) condition: &'n dyn Fn(&str) -> Option<Condition<B>>,
}

impl<B> Matcher<B> {
    /// What cannot be found was told of before, and is left out.
    pub(super) fn new(matching: &Match, named: &Named<'_, B>) -> Self {
        let texts = |many: &Many<Text>| many.0.iter().map(|Text(text)| text.clone()).collect();
        let header = |(name, is): (&String, &HeaderMatch)| Some((name.parse().ok()?, is.clone()));
        let path = |pattern: &str| Some((try_path_router(pattern).ok()?, segments(pattern)));
        let value = |(name, is): (&String, &Many<Text>)| Some(((named.value)(name)?, texts(is)));
        Self {
            client: named.proxies.cloned().zip(matching.client.as_ref().map(|client| nets(client, named.lists))),
            peer: matching.peer.as_ref().map(|peer| nets(peer, named.lists)),
            values: matching.values.iter().flatten().filter_map(value).collect(),
            headers: matching.header.iter().flatten().filter_map(header).collect(),
            conditions: {
                let names = matching.condition.iter().flat_map(|condition| &condition.0);
                names.filter_map(|Text(name)| (named.condition)(name)).collect()
            },
            hosts: matching.host.as_ref().map(|hosts| hosts.0.iter().map(|host| host.0.clone()).collect()),
            paths: matching.path.as_ref().map(|paths| paths.0.iter().filter_map(|at| path(&at.0)).collect()),
            methods: matching.method.as_ref().map(|methods| {
                methods.0.iter().filter_map(|method| Method::from_bytes(method.0.as_bytes()).ok()).collect()
            }),
        }
    }

    /// How specific it is for the request, or `None` where it does not match. What is cheap is asked first.
    pub(super) fn rank(&self, request: &Request<B>) -> Option<Rank<'_>> {
        let mut rank =
            Rank { headers: 0, conditions: self.conditions.len(), values: self.values.len(), ..Rank::default() };
        if let Some(methods) = &self.methods {
            rank.method = methods.contains(request.method()).then_some(true)?;
        }
        if let Some(paths) = &self.paths {
            let path = request.uri().path();
            let matching = paths.iter().filter(|(router, _)| router.at(path).is_ok());
            rank.path = matching.map(|(_, segments)| segments.as_slice()).max()?;
        }
        for (name, is) in &self.headers {
            rank.headers += header_rank(request, name, is)?;
        }
        if let Some(hosts) = &self.hosts {
            let asked = host_of(request)?;
            rank.host = hosts.iter().filter_map(|host| host_rank(host, &asked)).max()?;
        }
        if self.peer.is_some() || self.client.is_some() {
            let address = peer_of(request)?;
            if let Some(nets) = &self.peer {
                rank.peer = narrowest(nets, address)?;
            }
            if let Some((proxies, nets)) = &self.client {
                rank.client = narrowest(nets, proxies.client(request.headers(), address))?;
            }
        }
        let holds = self.conditions.iter().all(|condition| condition(request));
        let is = |(value, allowed): &(Origin<B>, BTreeSet<String>)| {
            value(request).is_some_and(|value: Cow<'_, str>| allowed.contains(&*value))
        };
        (holds && self.values.iter().all(is)).then_some(rank)
    }
}

fn header_rank<B>(request: &Request<B>, name: &HeaderName, is: &HeaderMatch) -> Option<usize> {
    let mut lines = request.headers().get_all(name).iter();
    let (matches, rank) = match is {
        HeaderMatch::There(there) => (lines.next().is_some() == *there, 1),
        HeaderMatch::Is(values) => {
            (lines.any(|line| values.0.iter().any(|Text(value)| value.as_bytes() == line.as_bytes())), 2)
        }
    };
    matches.then_some(rank)
}

fn host_rank(pattern: &str, host: &str) -> Option<(bool, usize)> {
    match pattern.strip_prefix('*') {
        // With its dot, so that a star stands for at least one label.
        Some(below) => (host.len() > below.len() && host.ends_with(below)).then_some((false, below.len())),
        None => (host == pattern).then_some((true, pattern.len())),
    }
}

/// The length of the longest prefix, more by one so that `::/0` is more than nothing.
fn narrowest(nets: &[IpNet], address: IpAddr) -> Option<u16> {
    let bits = |net: &IpNet| u16::from(net.prefix_len()) + if net.addr().is_ipv4() { 97 } else { 1 };
    nets.iter().filter(|net| net.contains(&address)).map(bits).max()
}

/// Alternatives of which the most specific wins; of equally specific ones the first.
pub(super) struct Choice<B>(pub(super) Vec<Matcher<B>>);

impl<B> Choice<B> {
    /// Whether entry number `at` is the one for this request. Nothing is kept between two entries' questions: an entry
    /// that does not match says so at once, and few do.
    pub(super) fn is(&self, at: usize, request: &Request<B>) -> bool {
        let Some(own) = self.0.get(at).and_then(|matcher| matcher.rank(request)) else { return false };
        let beaten = |(number, other): (usize, &Matcher<B>)| {
            number != at && other.rank(request).is_some_and(|rank| rank > own || rank == own && number < at)
        };
        !self.0.iter().enumerate().any(beaten)
    }
}

/// A match with each list as a set, to be compared with others.
pub(super) struct Alternatives {
    client: Option<BTreeSet<String>>,
    peer: Option<BTreeSet<String>>,
    values: BTreeMap<String, BTreeSet<String>>,
    headers: BTreeMap<String, BTreeSet<String>>,
    conditions: BTreeSet<String>,
    hosts: Option<BTreeSet<String>>,
    paths: Option<BTreeSet<String>>,
    methods: Option<BTreeSet<String>>,
}

impl Alternatives {
    pub(super) fn of(matching: Option<&Match>, lists: &BTreeMap<String, Vec<Net>>) -> Self {
        let none = Match::default();
        let matching = matching.unwrap_or(&none);
        let addresses = |named: &Many<Net>| nets(named, lists).iter().map(|net| net.trunc().to_string()).collect();
        let texts = |many: &Many<Text>| many.0.iter().map(|text| text.0.clone()).collect();
        let header = |(name, is): (&String, &HeaderMatch)| {
            // What no header can be, so that it cannot be meant.
            let is = match is {
                HeaderMatch::There(there) => BTreeSet::from([format!("\n{there}")]),
                HeaderMatch::Is(values) => texts(values),
            };
            (name.to_ascii_lowercase(), is)
        };
        Self {
            client: matching.client.as_ref().map(addresses),
            peer: matching.peer.as_ref().map(addresses),
            values: matching.values.iter().flatten().map(|(name, is)| (name.clone(), texts(is))).collect(),
            headers: matching.header.iter().flatten().map(header).collect(),
            conditions: matching.condition.as_ref().map(texts).unwrap_or_default(),
            hosts: matching.host.as_ref().map(|many| many.0.iter().map(|host| host.0.clone()).collect()),
            paths: matching.path.as_ref().map(|many| many.0.iter().map(|path| nameless(&path.0)).collect()),
            methods: matching.method.as_ref().map(|many| many.0.iter().map(|method| method.0.clone()).collect()),
        }
    }

    /// Whether some one choice from the lists of both is the same, so that neither is more specific there.
    pub(super) fn meets(&self, other: &Self) -> bool {
        fn meet(one: &BTreeSet<String>, other: &BTreeSet<String>) -> bool {
            one.intersection(other).next().is_some()
        }
        let both = |one: &Option<BTreeSet<String>>, other: &Option<BTreeSet<String>>| match (one, other) {
            (None, None) => true,
            (Some(one), Some(other)) => meet(one, other),
            _ => false,
        };
        let all = |one: &BTreeMap<String, BTreeSet<String>>, other: &BTreeMap<String, BTreeSet<String>>| {
            one.len() == other.len()
                && one.iter().all(|(name, is)| other.get(name).is_some_and(|other| meet(is, other)))
        };
        both(&self.client, &other.client)
            && both(&self.peer, &other.peer)
            && all(&self.values, &other.values)
            && all(&self.headers, &other.headers)
            && self.conditions == other.conditions
            && both(&self.hosts, &other.hosts)
            && both(&self.paths, &other.paths)
            && both(&self.methods, &other.methods)
    }
}
