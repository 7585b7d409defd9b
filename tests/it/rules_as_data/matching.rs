//! The most specific match wins: against a model that spells every list out.

use std::{collections::BTreeMap, net::IpAddr};

use http::Request;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use tollgate::{
    Limiter, Rule,
    config::{Registry, Rules},
};

/// A match with one item of each list, as the guide counts it.
#[derive(Clone, Debug, Default)]
struct One {
    peer: Option<String>,
    value: Option<String>,
    headers: BTreeMap<String, Option<String>>,
    paid: bool,
    host: Option<String>,
    path: Option<String>,
    method: Option<String>,
}

/// What is asked.
#[derive(Clone, Debug)]
struct Asked {
    peer: IpAddr,
    value: Option<String>,
    headers: BTreeMap<String, String>,
    paid: bool,
    host: String,
    path: String,
    method: String,
}

#[derive(Clone)]
struct Found {
    value: Option<String>,
    paid: bool,
}

impl Asked {
    fn request(&self) -> Request<()> {
        let mut request = Request::builder().method(&*self.method).uri(&*self.path).header("host", &self.host);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let found = Found { value: self.value.clone(), paid: self.paid };
        request.extension(self.peer).extension(found).body(()).unwrap()
    }
}

fn prefix(net: &str) -> (IpAddr, u32) {
    let (address, bits) = net.split_once('/').unwrap_or((net, if net.contains(':') { "128" } else { "32" }));
    (address.parse().unwrap(), bits.parse().unwrap())
}

/// Bit by bit.
fn has(net: &str, address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let ((net, length), address) = (prefix(net), bits(address));
    let net = bits(net);
    let bit = |bytes: &[u8], at: u32| bytes[at as usize / 8] >> (7 - at % 8) & 1;
    net.len() == address.len() && (0..length).all(|at| bit(&net, at) == bit(&address, at))
}

fn fits(pattern: &str, path: &str) -> bool {
    let (pattern, path): (Vec<_>, Vec<_>) = (pattern.split('/').collect(), path.split('/').collect());
    let rest = pattern.last().is_some_and(|last| last.starts_with("{*"));
    let same = |(one, other): (&&str, &&str)| one == other || one.starts_with('{') && !other.is_empty();
    match rest {
        true => {
            path.len() >= pattern.len()
                && !path[pattern.len() - 1..].join("/").is_empty()
                && pattern[..pattern.len() - 1].iter().zip(&path).all(same)
        }
        false => path.len() == pattern.len() && pattern.iter().zip(&path).all(same),
    }
}

impl One {
    fn matches(&self, asked: &Asked) -> bool {
        let host = |host: &str| match host.strip_prefix("*.") {
            Some(below) => asked.host.ends_with(&format!(".{below}")),
            None => asked.host == host,
        };
        self.peer.as_ref().is_none_or(|net| has(net, asked.peer))
            && self.value.as_ref().is_none_or(|value| asked.value.as_ref() == Some(value))
            && self.headers.iter().all(|(name, value)| {
                asked.headers.get(name).is_some_and(|sent| value.as_ref().is_none_or(|value| value == sent))
            })
            && (!self.paid || asked.paid)
            && self.host.as_deref().is_none_or(host)
            && self.path.as_ref().is_none_or(|pattern| fits(pattern, &asked.path))
            && self.method.as_ref().is_none_or(|method| *method == asked.method)
    }

    /// The order that the guide gives, as one list of numbers.
    fn rank(&self) -> Vec<u32> {
        let segment = |text: &str| match text {
            rest if rest.starts_with("{*") => 1,
            parameter if parameter.starts_with('{') => 2,
            _ => 3,
        };
        let mut rank = vec![
            self.peer.as_ref().map_or(0, |net| 1 + prefix(net).1),
            u32::from(self.value.is_some()),
            self.headers.values().map(|value| 1 + u32::from(value.is_some())).sum(),
            u32::from(self.paid),
            self.host.as_ref().map_or(0, |host| if host.starts_with('*') { host.len() as u32 } else { 1_000 }),
        ];
        let mut path: Vec<_> = self.path.iter().flat_map(|path| path.split('/').skip(1)).map(segment).collect();
        path.resize(4, 0);
        rank.extend(path);
        rank.push(u32::from(self.method.is_some()));
        rank
    }
}

fn one_of(items: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    proptest::sample::subsequence(items, 0..=2).prop_map(|items| items.iter().map(ToString::to_string).collect())
}

/// A match as it is written, with up to two items of each list.
fn written() -> impl Strategy<Value = Json> {
    (
        one_of(&["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "0.0.0.0/0", "192.0.2.0/24", "2001:db8::/32", "::/0"]),
        one_of(&["a", "b"]),
        proptest::collection::btree_map(
            prop_oneof![Just("x-a"), Just("x-b")],
            prop_oneof![Just(json!(true)), Just(json!("1")), Just(json!(["1", "2"]))],
            0..=2,
        ),
        any::<bool>(),
        one_of(&["a.example.com", "*.example.com", "*.com", "b.example"]),
        one_of(&["/", "/a", "/{x}", "/{*rest}", "/a/b", "/a/{x}", "/{x}/b", "/a/{*rest}", "/{x}/{y}", "/a/{x}/c"]),
        one_of(&["GET", "POST"]),
    )
        .prop_map(|(peer, value, header, paid, host, path, method)| {
            let mut written = json!({});
            let mut put = |name: &str, list: Vec<String>| {
                if !list.is_empty() {
                    written[name] = json!(list);
                }
            };
            put("peer", peer);
            put("host", host);
            put("path", path);
            put("method", method);
            if !value.is_empty() {
                written["values"] = json!({"plan": value});
            }
            if !header.is_empty() {
                written["header"] = json!(header);
            }
            if paid {
                written["condition"] = json!("paid");
            }
            written
        })
}

fn asked() -> impl Strategy<Value = Asked> {
    let text = |items: &'static [&'static str]| proptest::sample::select(items).prop_map(String::from);
    let address = proptest::sample::select(
        &["10.1.2.3", "10.1.9.9", "10.9.9.9", "192.0.2.1", "198.51.100.1", "2001:db8::1", "fd00::1"][..],
    );
    (
        address.prop_map(|address| address.parse().unwrap()),
        proptest::option::of(text(&["a", "b", "c"])),
        proptest::collection::btree_map(text(&["x-a", "x-b"]), text(&["1", "2", "3"]), 0..=2),
        any::<bool>(),
        text(&["a.example.com", "b.example.com", "b.example", "other"]),
        text(&["/", "/a", "/b", "/a/b", "/b/b", "/a/c", "/a/b/c", "/b/x/y"]),
        text(&["GET", "POST", "PUT"]),
    )
        .prop_map(|(peer, value, headers, paid, host, path, method)| Asked {
            peer,
            value,
            headers,
            paid,
            host,
            path,
            method,
        })
}

/// Every choice of one item from each list.
fn spelled_out(written: &Json) -> Vec<One> {
    let list = |json: &Json| match json {
        Json::Null => vec![None],
        Json::Array(items) => items.iter().map(|item| Some(item.as_str().unwrap().to_owned())).collect(),
        Json::Bool(_) => vec![None],
        one => vec![Some(one.as_str().unwrap().to_owned())],
    };
    let mut all = vec![One { paid: written.get("condition").is_some(), ..One::default() }];
    let mut each = |items: Vec<Option<String>>, put: &dyn Fn(&mut One, Option<String>)| {
        let spelled = all.iter().flat_map(|one| {
            items.iter().map(|item| {
                let mut one = one.clone();
                put(&mut one, item.clone());
                one
            })
        });
        all = spelled.collect();
    };
    each(list(&written["peer"]), &|one, item| one.peer = item);
    each(list(&written["values"]["plan"]), &|one, item| one.value = item);
    each(list(&written["host"]), &|one, item| one.host = item);
    each(list(&written["path"]), &|one, item| one.path = item);
    each(list(&written["method"]), &|one, item| one.method = item);
    for (name, value) in written["header"].as_object().into_iter().flatten() {
        each(list(value), &|one, item| {
            one.headers.insert(name.clone(), item);
        });
    }
    all
}

fn built(entries: &[Json]) -> Result<Vec<Rule<Request<()>>>, tollgate::config::Problems> {
    let entry =
        |(at, matching): (usize, &Json)| json!({"id": format!("e{at}"), "match": matching, "limit": "1000000/s"});
    let entries: Vec<_> = entries.iter().enumerate().map(entry).collect();
    let file = json!({"policies": [{"id": "base", "key": "global", "limit": "1000000/s", "entries": entries}]});
    let registry = Registry::new()
        .value("plan", |request: &Request<()>| request.extensions().get::<Found>()?.value.as_deref().map(Into::into))
        .condition("paid", |request: &Request<()>| request.extensions().get::<Found>().is_some_and(|found| found.paid));
    Rules::from_json(&file.to_string())?.build(&registry)
}

/// The entry that the model says: of all that match the greatest, and of equal ones the first.
fn model(entries: &[Json], asked: &Asked) -> String {
    let mut best: Option<(Vec<u32>, usize)> = None;
    for (at, entry) in entries.iter().enumerate() {
        for one in spelled_out(entry).into_iter().filter(|one| one.matches(asked)) {
            if best.as_ref().is_none_or(|(rank, _)| one.rank() > *rank) {
                best = Some((one.rank(), at));
            }
        }
    }
    best.map_or("base".into(), |(_, at)| format!("e{at}"))
}

/// Whether two entries have a choice from their lists in common.
fn meet(one: &Json, other: &Json) -> bool {
    let others: Vec<_> = spelled_out(other).iter().map(canonical).collect();
    spelled_out(one).iter().any(|one| others.contains(&canonical(one)))
}

fn canonical(one: &One) -> String {
    let path = one.path.as_deref().map(|path| path.replace("{x}", "{}").replace("{y}", "{}"));
    format!("{:?}", One { path, ..one.clone() })
}

proptest! {
    #![proptest_config({
        let cases = crate::random::from_env("TOLLGATE_RUNS", 500) as u32;
        // One in six pairs of matches says nothing of which is the stricter one.
        ProptestConfig { max_global_rejects: cases, ..ProptestConfig::with_cases(cases) }
    })]

    #[test]
    fn the_most_specific_match_wins(
        entries in proptest::collection::vec(written(), 0..5),
        asked in proptest::collection::vec(asked(), 1..20),
    ) {
        let same = entries.iter().enumerate().any(|(at, one)| {
            one.as_object().unwrap().is_empty() || entries[..at].iter().any(|other| meet(one, other))
        });
        match built(&entries) {
            Err(problems) => {
                prop_assert!(same, "{problems}");
                prop_assert!(problems.iter().all(|one| one.code() == tollgate::config::Code::SameMatch), "{problems}");
            }
            Ok(rules) => {
                prop_assert!(!same, "{entries:?}");
                let limiter = Limiter::new(rules);
                for asked in &asked {
                    let decision = limiter.check_now(&asked.request()).unwrap();
                    let names: Vec<_> = decision.rules().map(|rule| rule.rule).collect();
                    prop_assert_eq!(&names, &[&*model(&entries, asked)], "{:?}\n{:?}", asked, entries);
                }
            }
        }
    }

    /// What is for fewer requests, by a condition more, goes first, wherever it stands.
    #[test]
    fn one_condition_more_is_more_specific(
        loose in written(),
        more in written(),
        asked in proptest::collection::vec(asked(), 1..50),
        swapped in any::<bool>(),
    ) {
        let mut strict = loose.clone();
        for (name, value) in more.as_object().unwrap() {
            if strict.get(name).is_none() {
                strict[name] = value.clone();
            }
        }
        prop_assume!(strict != loose && !loose.as_object().unwrap().is_empty());
        let (entries, name) = if swapped { ([strict.clone(), loose], "e0") } else { ([loose, strict.clone()], "e1") };
        let limiter = Limiter::new(built(&entries).unwrap());
        for asked in asked.iter().filter(|asked| spelled_out(&strict).iter().any(|one| one.matches(asked))) {
            let decision = limiter.check_now(&asked.request()).unwrap();
            prop_assert_eq!(decision.tightest().unwrap().rule, name, "{:?}", asked);
        }
    }
}

#[test]
fn an_entry_takes_from_its_policy_what_it_does_not_say() {
    let rules = Rules::from_toml(
        r#"
        [[policies]]
        id = "account"
        match = { path = "/api/{*rest}" }
        key = { header = "x-account" }
        limit = "10/1m"
        burst = 20
        cost = 2
        on_missing_key = { refuse = 401 }

        [[policies.entries]]
        id = "uploads"
        match = { method = "PUT" }
        limit = 4
        period = "1m"

        [[policies.entries]]
        id = "by-shop"
        match = { method = "DELETE" }
        key = { header = "x-shop" }
        "#,
    )
    .unwrap();
    let limiter = Limiter::new(rules.build(&Registry::new()).unwrap());
    let ask = |method, name, value| {
        let request = Request::builder().method(method).uri("/api/x").header(name, value).body(()).unwrap();
        let decision = limiter.check_now(&request).unwrap();
        (
            decision.status().as_u16(),
            decision.tightest().map(|rule| (rule.rule.to_owned(), rule.verdict.limit, rule.verdict.remaining)),
        )
    };
    // The amount is the entry's own, with no burst of the policy's; the key, the cost and the rest are the policy's.
    assert_eq!(ask("GET", "x-account", "a"), (200, Some(("account".into(), 20, 18))));
    assert_eq!(ask("PUT", "x-account", "a"), (200, Some(("uploads".into(), 4, 2))));
    assert_eq!(ask("PUT", "x-other", "a"), (401, None));
    // An entry without an amount has the policy's, and a count of its own.
    assert_eq!(ask("DELETE", "x-shop", "s"), (200, Some(("by-shop".into(), 20, 18))));
    let elsewhere = Request::get("/").body(()).unwrap();
    assert!(limiter.check_now(&elsewhere).unwrap().tightest().is_none());
}

#[test]
fn a_customer_goes_before_its_tier_and_who_changes_tier_keeps_what_was_used() {
    let rules = Rules::from_toml(
        r#"
        [[policies]]
        id = "account"
        key = { header = "x-account" }
        limit = "10/1h"
        tier = { header = "x-plan" }
        tiers.pro = "100/1h"
        tiers.staff = "unlimited"
        tiers.fraud = "blocked"
        customer = { header = "x-account" }
        customers.acme = { limit = 50, period = "1h", burst = 5 }
        customers."big corp" = "unlimited"
        "#,
    )
    .unwrap();
    let limiter = Limiter::new(rules.build(&Registry::new()).unwrap());
    let ask = |account, plan| {
        let request = Request::builder().header("x-account", account).header("x-plan", plan).body(()).unwrap();
        let decision = limiter.check_now(&request).unwrap();
        let told = decision.tightest().map(|rule| (rule.rule.to_owned(), rule.verdict.limit, rule.verdict.remaining));
        (decision.is_allowed(), told, decision.retry_after())
    };
    let passes = |limit, remaining| (true, Some(("account".to_owned(), limit, remaining)), None);
    assert_eq!(ask("ana", "none"), passes(10, 9));
    assert_eq!(ask("ana", "pro"), passes(100, 98));
    assert_eq!(ask("ana", "no such plan"), passes(10, 7));
    assert_eq!(ask("ben", "staff"), (true, None, None));
    assert_eq!(ask("acme", "pro"), passes(5, 4));
    assert_eq!(ask("acme", "fraud"), passes(5, 3));
    assert_eq!(ask("big corp", "none"), (true, None, None));
    assert_eq!(ask("eve", "fraud"), (false, Some(("account.blocked".into(), 0, 0)), None));
}

#[test]
fn each_algorithm_and_each_policy_of_failure_is_the_one_that_is_said() {
    let algorithms = ["token_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter"];
    let policies: Vec<_> = algorithms
        .iter()
        .map(|name| json!({"id": name, "key": "global", "limit": "2/1h", "algorithm": name, "overload": true}))
        .chain([
            json!({"id": "leaky_bucket", "key": "global", "limit": "2/1h", "burst": 3, "algorithm": "leaky_bucket"}),
        ])
        .collect();
    let rules = Rules::from_json(&json!({"policies": policies}).to_string()).unwrap();
    let rules = rules.build(&Registry::<()>::new()).unwrap();
    for rule in &rules {
        let shown = format!("{rule:?}");
        assert!(shown.contains(&format!("algorithm: \"{}\"", rule.name().replace('_', " "))), "{shown}");
        assert_eq!(shown.contains("overload: true"), rule.name() != "leaky_bucket", "{shown}");
    }
}

#[test]
fn a_rule_with_another_id_goes_on_from_the_counts_of_the_old_one() {
    let rules = |head: &str| {
        let rules = Rules::from_toml(&format!("[[policies]]\n{head}\nkey = 'host'\nlimit = '1/1h'\n")).unwrap();
        rules.build(&Registry::new()).unwrap()
    };
    let store = tollgate::store::MemoryStore::new();
    let limiter = |head| Limiter::builder(rules(head)).store(store.clone()).build().unwrap();
    let request = Request::builder().header("host", "a.example").body(()).unwrap();
    let before = limiter("id = 'old'");
    assert!(before.check_now(&request).unwrap().is_allowed());
    let decision = limiter("id = 'new'\nwas = 'old'").check_now(&request).unwrap();
    assert_eq!(decision.violated().collect::<Vec<_>>(), ["new"]);
}

#[test]
fn a_rule_that_is_tried_refuses_nothing_and_neither_does_a_tried_block() {
    let rules = Rules::from_toml(
        "[[policies]]\nid = 'a'\nkey = 'global'\nlimit = '1/1h'\nmode = 'shadow'\n\
         [[policies.entries]]\nid = 'b'\nmatch = { method = 'POST' }\nlimit = 'blocked'\n\
         [[policies.entries]]\nid = 'c'\nmatch = { method = 'PUT' }\nlimit = 'blocked'\nmode = 'enforce'\n",
    )
    .unwrap();
    let limiter = Limiter::new(rules.build(&Registry::new()).unwrap());
    let ask = |method| {
        let decision = limiter.check_now(&Request::builder().method(method).body(()).unwrap()).unwrap();
        let would: Vec<_> = decision.shadows().map(|shadow| (shadow.rule.to_owned(), shadow.would_refuse())).collect();
        (decision.is_allowed(), would)
    };
    assert_eq!(ask("GET"), (true, vec![("a".into(), false)]));
    assert_eq!(ask("GET"), (true, vec![("a".into(), true)]));
    assert_eq!(ask("POST"), (true, vec![("b".into(), true)]));
    assert_eq!(ask("PUT"), (false, vec![]));
}
