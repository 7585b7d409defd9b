//! What a rule file says, as plain data. The documentation of the fields is the schema's too.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    amount::{self, Amount},
    duration::{self, Span},
    forms::{either, tables, words},
    node::{Node, Value},
    outcome::Outcome,
    problem::{Code, closest, instead, shown},
    read::{Count, Fields, Many, Number, Read, Reader, is_not},
    shape::{FieldShape, Shape},
    texts::{Header, Host, Id, MethodName, Net, Path, Text},
};

tables! {
    /// A whole rule file.
    File {
        /// The schema of this file, for editors; it is not read.
        schema = "$schema": Text,
        /// The proxies in front of the service: what `client_addr` and `match.client` believe.
        proxies = "proxies": Proxies,
        /// Lists of addresses and networks, to be named in `match.peer` and `match.client`.
        lists = "lists": BTreeMap<String, Vec<Net>>,
        /// The policies. A request passes all that apply to it, or is refused and charged by none.
        policies = "policies": Vec<Policy>,
    }

    /// Which proxies are believed, and which header they write.
    Proxies {
        /// The addresses and networks of the proxies. Not beside `hops`.
        nets = "nets": Many<Net>,
        /// How many proxies there are, wherever they are. Not beside `nets`.
        hops = "hops": Number<1, 64>,
        /// The header that they write: "x-forwarded-for" (which it is unless said), "forwarded", or one that holds a
        /// single address, such as "cf-connecting-ip".
        header = "header": Header,
        /// IPv6 clients are grouped by their first so many bits; 64 unless said.
        v6_prefix = "v6_prefix": Number<1, 128>,
    }

    /// A policy's own entry, or one of its exceptions.
    Entry {
        /// The name of the rule: in header fields, logs and metrics. Counts belong to it, so it should not change.
        id = "id": Id,
        /// The id that the rule had before: its counts go on from there.
        was = "was": Id,
        /// Which requests it is for; all of the policy's unless said. Of a policy's entries the most specific one wins.
        matching = "match": Match,
        /// What is counted by: "global", "peer_addr", "client_addr", "bearer_token", "host", "method", "matched_path",
        /// the name of a registered key, or a table.
        key = "key": Key,
        /// How much: a number beside `period`, a text such as "100/1m" or "10/s", "unlimited" or "blocked".
        limit = "limit": Amount,
        /// Per how long, such as "1s", "1h30m" or "7d". Only beside a `limit` that is a number.
        period = "period": Span,
        /// How much may be used at once after a pause, in all. The queue's depth for a leaky bucket.
        burst = "burst": Count,
        /// How many requests may run at once, instead of a `limit`.
        in_flight = "in_flight": Count,
        /// Where the name of a request's tier comes from.
        tier = "tier": Origin,
        /// The limit of each tier. A request of another tier, or of none, has the entry's own.
        tiers = "tiers": BTreeMap<String, Allowance>,
        /// Where the name of a request's customer comes from.
        customer = "customer": Origin,
        /// The limit of single customers, which goes before that of their tier.
        customers = "customers": BTreeMap<String, Allowance>,
        /// How it counts; "token_bucket" unless said.
        algorithm = "algorithm": Algorithm,
        /// How many permits a request takes: a number, or the name of a registered cost. One unless said.
        cost = "cost": Cost,
        /// How long a request may be held for its turn instead of being refused. For the token bucket only.
        wait_up_to = "wait_up_to": Span,
        /// Which answers a request counts with: what it took comes back with all others. A status, such as 401, a
        /// class, such as "4xx", "failures" (all from 400 on), "successes" (all below), the name of a registered
        /// outcome, or a list of these.
        count_only = "count_only": Many<Outcome>,
        /// Which answers a request does not count with: as `count_only`, and not beside it.
        give_back = "give_back": Many<Outcome>,
        /// Whether it does not count without an answer either, because the client left or something failed. Only beside
        /// one of the two.
        give_back_unanswered = "give_back_unanswered": bool,
        /// Whether it is enforced; "enforce" unless said. In "shadow" it counts beside the others and refuses nothing,
        /// which is seen in the log and in the decision; with "warn" the client is told too.
        mode = "mode": Mode,
        /// Whether a refusal is not the client's fault but that of all together: 503 instead of 429.
        overload = "overload": bool,
        /// What happens to a request without a key. Unless said, the rule does not apply to it, which is reported once.
        on_missing_key = "on_missing_key": MissingKey,
        /// What happens while the store does not answer; the store's own policy unless said.
        on_store_failure = "on_store_failure": StoreFailure,
    }

    /// Which requests an entry is for. All that is said has to hold; of a list one item.
    Match {
        /// The client's address, behind `proxies`: addresses, networks, names of lists.
        client = "client": Many<Net>,
        /// The address of the socket's other end: addresses, networks, names of lists.
        peer = "peer": Many<Net>,
        /// Values that the program has registered, by their names.
        values = "values": BTreeMap<String, Many<Text>>,
        /// Headers by their names: a value, a list of values, true (there, with any value) or false (not there).
        header = "header": BTreeMap<String, HeaderMatch>,
        /// Conditions that the program has registered; "preflight" is built in. All have to hold.
        condition = "condition": Many<Text>,
        /// The host, without a port: "api.example.com", or "*.example.com" for all hosts below.
        host = "host": Many<Host>,
        /// The path, as a pattern in axum's syntax: "/", "/users/{id}", "/files/{*path}".
        path = "path": Many<Path>,
        /// The method, such as "POST".
        method = "method": Many<MethodName>,
    }

    /// A key that needs more than a name: exactly one of these (and `path` beside `path_param`).
    KeyTable {
        /// The value of this header. Only for one that a client cannot choose freely.
        header = "header": Header,
        /// The value of this cookie.
        cookie = "cookie": Text,
        /// The value of this query parameter.
        query = "query": Text,
        /// The value of this parameter of `path`.
        path_param = "path_param": Text,
        /// The pattern that has the parameter, such as "/shops/{shop}/{*rest}".
        path = "path": Path,
        /// The peer's address, IPv6 by its first so many bits instead of 64.
        peer_addr_by = "peer_addr_by": Number<1, 128>,
        /// The client's address behind `proxies`, IPv6 by its first so many bits.
        client_addr_by = "client_addr_by": Number<1, 128>,
        /// All of these together; missing if one is.
        all = "all": Vec<Key>,
        /// The first of these that is there.
        first = "first": Vec<Key>,
    }

    /// Where a value comes from that needs more than a name.
    OriginTable {
        /// The value of this header. Only for one that a client cannot choose freely.
        header = "header": Header,
    }

    /// How much, for a tier or a customer.
    AllowanceTable {
        /// How much: a number beside `period`, a text such as "100/1m", "unlimited" or "blocked".
        limit = "limit": Amount,
        /// Per how long. Only beside a `limit` that is a number.
        period = "period": Span,
        /// How much may be used at once after a pause, in all.
        burst = "burst": Count,
    }

    /// A refusal of requests without a key.
    Refusal {
        /// With this status, from 400 to 599.
        refuse = "refuse": Number<400, 599>,
    }

    /// This process's own count while the store does not answer. One of the two.
    Fallback {
        /// Under so many hundredths of the limit.
        fallback_percent = "fallback_percent": Number<1, 100>,
        /// Under one part in so many processes of the limit.
        fallback_one_in = "fallback_one_in": Number<1, { u32::MAX as u64 }>,
    }
}

words! {
    /// How a rule counts.
    Algorithm {
        TokenBucket = "token_bucket",
        FixedWindow = "fixed_window",
        SlidingWindowLog = "sliding_window_log",
        SlidingWindowCounter = "sliding_window_counter",
        LeakyBucket = "leaky_bucket",
    }

    /// What it means that a rule refuses.
    Mode {
        Enforce = "enforce",
        Shadow = "shadow",
        Warn = "warn",
    }

    /// What happens to a request without a key, but for a refusal.
    MissingKeyWord or "a table such as { refuse = 401 }" {
        Skip = "skip",
        Share = "share",
    }

    /// What happens while the store does not answer, but for a fallback.
    StoreFailureWord or "a table such as { fallback_percent = 25 }" {
        Allow = "allow",
        Refuse = "refuse",
    }
}

either! {
    /// What is counted by.
    Key { Name(Text), Table(Box<KeyTable>) } "the name of a key, or a table such as { header = \"x-api-key\" }";
    /// Where a tier's or a customer's name comes from.
    Origin { Name(Text), Table(OriginTable) } "the name of a registered value, or a table such as { header = \"x-plan\" }";
    /// How much, for a tier or a customer.
    Allowance { Short(Amount), Table(AllowanceTable) } "a text such as \"100/1m\", or a table such as { limit = 100, period = \"1m\", burst = 20 }";
    /// What happens to a request without a key.
    MissingKey { Word(MissingKeyWord), Refuse(Refusal) } "\"skip\", \"share\", or a table such as { refuse = 401 }";
    /// What happens while the store does not answer.
    StoreFailure { Word(StoreFailureWord), Fallback(Fallback) } "\"allow\", \"refuse\", or a table such as { fallback_percent = 25 }";
}

/// A policy: its own entry, and the exceptions to it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Policy {
    #[serde(flatten)]
    pub(super) own: Entry,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) entries: Vec<Entry>,
}

impl Read for Policy {
    fn shape() -> Shape {
        let mut fields = Entry::fields();
        fields.push(FieldShape {
            name: "entries",
            doc: &[" The exceptions: what an entry does not say, it takes from the policy."],
            shape: Vec::<Entry>::shape,
        });
        Shape::Table { name: "Policy", fields }
    }

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        let names: Vec<_> = Entry::NAMES.iter().copied().chain(["entries"]).collect();
        let fields = reader.table::<Self>(node, &names)?;
        let own = Entry::of(&fields, reader);
        Some(Self { own, entries: fields.read("entries", reader).unwrap_or_default() })
    }
}

/// A number, or the name of a registered cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Cost {
    Fixed(Count),
    Name(Text),
}

impl Read for Cost {
    fn shape() -> Shape {
        Shape::Either(vec![Count::shape(), Shape::Text { expected: "the name of a registered cost", pattern: None }])
    }

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        match node.value {
            Value::Text(_) => Text::read(node, reader).map(Self::Name),
            Value::Number(_) | Value::Other(_) => Count::read(node, reader).map(Self::Fixed),
            _ => {
                reader.wrong_type::<Self>(node);
                None
            }
        }
    }
}

/// What a header has to be.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum HeaderMatch {
    There(bool),
    Is(Many<Text>),
}

impl Read for HeaderMatch {
    fn shape() -> Shape {
        Shape::Either(vec![Shape::Bool, Many::<Text>::shape()])
    }

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        match node.value {
            Value::Bool(there) => Some(Self::There(there)),
            Value::Text(_) | Value::List(_) => Many::read(node, reader).map(Self::Is),
            _ => {
                reader.wrong_type::<Self>(node);
                None
            }
        }
    }
}

impl Read for Amount {
    fn shape() -> Shape {
        let text = Shape::Text { expected: "a text such as \"100/1m\"", pattern: Some(amount::PATTERN) };
        Shape::Either(vec![Count::shape(), text])
    }

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        match &node.value {
            Value::Text(text) => {
                Self::parse(text).map_err(|problem| reader.wrong(node.at, Code::BadLimit, problem)).ok()
            }
            Value::Number(0) => {
                reader.wrong(node.at, Code::OutOfRange, "0 would refuse everything; use at least 1, or \"blocked\"");
                None
            }
            Value::Number(_) | Value::Other(_) => Count::read(node, reader).map(|permits| Self::Permits(permits.0)),
            _ => {
                reader.wrong(node.at, Code::WrongType, is_not(node, amount::EXPECTED));
                None
            }
        }
    }
}

impl Read for Span {
    fn shape() -> Shape {
        Shape::Text { expected: duration::EXPECTED, pattern: Some(duration::PATTERN) }
    }

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        match &node.value {
            Value::Text(text) => {
                Self::parse(text).map_err(|problem| reader.wrong(node.at, Code::BadDuration, problem)).ok()
            }
            Value::Number(number) => {
                let text =
                    format!("{number} has no unit; write \"{number}s\" for seconds, or \"ms\", \"m\", \"h\" or \"d\"");
                reader.wrong(node.at, Code::WrongType, text);
                None
            }
            _ => {
                reader.wrong_type::<Self>(node);
                None
            }
        }
    }
}

impl<T: Read> Read for Box<T> {
    fn shape() -> Shape {
        T::shape()
    }

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        T::read(node, reader).map(Self::new)
    }
}
