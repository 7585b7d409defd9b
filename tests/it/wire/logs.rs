//! What is written to the log: mistakes in the wiring once, with the way out, and never whom a count belongs to.

use tollgate::{
    Key, MissingKey,
    bucket::FixedWindow,
    key::{self, TrustedProxies},
    store::MemoryStore,
};

use super::*;
use crate::support;

/// The lines that this crate logs while `work` runs.
fn logged(work: impl FnOnce()) -> Vec<String> {
    support::logged(tracing::Level::TRACE, work)
}

/// Those that report more than a refusal.
fn reports(work: impl FnOnce()) -> Vec<String> {
    logged(work).into_iter().filter(|line| !line.starts_with("DEBUG") && !line.contains("request refused")).collect()
}

fn many() -> Limit {
    Limit::per_minute(1_000)
}

#[test]
fn a_mistake_in_the_wiring_is_reported_once_with_the_way_out() {
    let nets = || TrustedProxies::nets(["10.0.0.0/8"]);
    let small = || MemoryStore::builder().max_keys(1).build();
    const ROWS: usize = 8;
    // what is wrong, the rules, one request after the other; how it is reported
    let rows: [(&str, Rule<Request>, fn(usize) -> Request, &str, &[&str]); ROWS] = [
        (
            "a proxy that nobody named",
            Rule::new("r", many(), key::peer_addr()),
            |at| from([10, 0, 0, at as u8].into(), "x-forwarded-for", &["198.51.100.7"]),
            "WARN",
            &["TrustedProxies::nets"],
        ),
        (
            "a key that is not there",
            Rule::new("r", many(), key::header("x-key")),
            |_| request(Method::GET, &[]),
            "WARN",
            &["rule=\"r\"", "on_missing_key"],
        ),
        (
            "an empty key",
            Rule::new("r", many(), key::header("x-key")),
            |_| request(Method::GET, &[("x-key", b"")]),
            "WARN",
            &["rule=\"r\"", "on_missing_key"],
        ),
        (
            "a peer that nobody wired",
            Rule::new("r", many(), key::peer_addr()),
            |_| request(Method::GET, &[]),
            "ERROR",
            &["rule=\"r\"", "into_make_service_with_connect_info", "MockConnectInfo"],
        ),
        (
            "a peer that nobody wired, behind proxies",
            Rule::new("r", many(), key::client_addr(nets())),
            |_| request(Method::GET, &[("x-forwarded-for", b"198.51.100.7")]),
            "ERROR",
            &["rule=\"r\"", "into_make_service_with_connect_info"],
        ),
        (
            "a limit that cannot be run",
            Rule::global("r", many()).limit_for(|_| Limit::per_second(0)),
            |_| request(Method::GET, &[]),
            "ERROR",
            &["rule=\"r\"", "limit_for", "limit=0/s", "problem=limit: 0 permits would refuse everything"],
        ),
        (
            "a limit that its algorithm does not take",
            Rule::global("r", many()).algorithm(FixedWindow).limit_for(|_| Limit::per_second(5).burst(9)),
            |_| request(Method::GET, &[]),
            "ERROR",
            &["rule=\"r\"", "limit=5/s burst 9", "problem=burst: a window has no burst of its own"],
        ),
        (
            "a table that is full",
            Rule::new("r", many(), key::peer_addr()),
            |at| from([203, 0, 113, at as u8].into(), "x-other", &[]),
            "WARN",
            &["rule=\"r\"", "max_keys"],
        ),
    ];
    assert_eq!(rows.len(), ROWS);
    for (wrong, rule, request, level, says) in rows {
        let mut builder = Limiter::builder([rule]).clock(ManualClock::new());
        if wrong.contains("table") {
            builder = builder.store(small());
        }
        let server = over(builder.build().unwrap().into(), hello());
        let lines = reports(|| (0..200).for_each(|at| drop(send(&server.clone(), request(at)))));
        assert_eq!(lines.len(), 1, "{wrong}: {lines:?}");
        assert!(lines[0].starts_with(level), "{wrong}: {lines:?}");
        for part in says {
            assert!(lines[0].contains(part), "{wrong}: {part} in {lines:?}");
        }
    }
}

#[test]
fn each_rule_reports_for_itself() {
    let by = |name: &'static str| Rule::new(name, many(), key::header("x-key"));
    let server = limited([by("one"), by("two")]);
    let lines = reports(|| (0..3).for_each(|_| drop(get(&server))));
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("\"one\"") && lines[1].contains("\"two\""), "{lines:?}");
}

/// A key that may be missing and one that must be there are two things to report, whichever comes first.
#[test]
fn a_rule_without_a_key_still_reports_a_peer_that_nobody_wired() {
    let server = limited([Rule::new("r", many(), key::all((key::header("x-key"), key::peer_addr())))]);
    let lines = reports(|| {
        for _ in 0..3 {
            assert_eq!(get(&server).status, 200);
            assert_eq!(send(&server, request(Method::GET, &[("x-key", b"k")])).status, 500);
        }
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("WARN") && lines[1].starts_with("ERROR"), "{lines:?}");
}

#[test]
fn only_a_private_peer_with_a_forwarding_field_is_taken_for_a_proxy() {
    const ROWS: usize = 16;
    let rows: [(&str, &'static str, bool); ROWS] = [
        ("10.0.0.1", "x-forwarded-for", true),
        ("10.0.0.1", "forwarded", true),
        ("172.16.0.1", "x-forwarded-for", true),
        ("192.168.1.1", "x-forwarded-for", true),
        ("127.0.0.1", "x-forwarded-for", true),
        ("169.254.1.1", "x-forwarded-for", true),
        ("::ffff:10.0.0.1", "x-forwarded-for", true),
        ("::1", "forwarded", true),
        ("fd00::1", "x-forwarded-for", true),
        ("fe80::1", "x-forwarded-for", true),
        ("10.0.0.1", "x-other", false),
        ("203.0.113.9", "x-forwarded-for", false),
        ("172.32.0.1", "x-forwarded-for", false),
        ("2001:db8::1", "forwarded", false),
        ("::ffff:203.0.113.9", "x-forwarded-for", false),
        ("::", "x-forwarded-for", false),
    ];
    assert_eq!(rows.len(), ROWS);
    for (peer, name, reported) in rows {
        let server = limited([Rule::new("r", many(), key::peer_addr())]);
        let lines = reports(|| drop(send(&server, from(peer.parse().unwrap(), name, &["198.51.100.7"]))));
        assert_eq!(lines.len(), usize::from(reported), "{peer} {name}: {lines:?}");
    }
    // Where the proxy is named there is nothing to say.
    let server = limited([Rule::new("r", many(), key::client_addr(TrustedProxies::nets(["10.0.0.0/8"])))]);
    let named = || drop(send(&server, from([10, 0, 0, 1].into(), "x-forwarded-for", &["198.51.100.7"])));
    assert!(reports(named).is_empty());
}

/// Keys are personal data: not in any line, at any level, nor in what `Debug` shows.
#[test]
fn no_line_of_the_log_has_a_key_in_it() {
    const MARKS: [&str; 4] = ["m4rk", "bTRyaw", "203.0.113.77", "2001:db8:77"];
    let limit = Limit::per_minute(1);
    let rules = || {
        [
            Rule::new("peer", limit, key::peer_addr()),
            Rule::new("header", limit, key::header("x-key")),
            Rule::new("token", limit, key::bearer_token()),
            Rule::new("cookie", limit, key::cookie("sid")),
            Rule::new("host", limit, key::host()),
            Rule::new("query", limit, key::query("q")),
            Rule::new("path", limit, key::path_param("/{id}", "id")),
            Rule::new("own", limit, |request: &Request| Some(Key::from((request.uri().path(), 7_u8)))),
        ]
    };
    let with_key = |peer: &str| {
        let mut request = Request::builder().uri("/m4rk?q=m4rk").body(Body::empty()).unwrap();
        for (name, value) in [
            ("x-key", "m4rk"),
            ("authorization", "Bearer m4rk"),
            ("cookie", "sid=m4rk"),
            ("host", "m4rk.example"),
            ("x-forwarded-for", "2001:db8:77::1"),
        ] {
            request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        request.extensions_mut().insert(peer.parse::<IpAddr>().unwrap());
        request
    };
    let mut shown = Vec::new();
    let lines = logged(|| {
        let limiter = Limiter::builder(rules()).clock(ManualClock::new()).build().unwrap();
        let layer = RateLimitLayer::from(limiter.clone());
        let server = over(layer.clone(), hello());
        for peer in ["203.0.113.77", "2001:db8:77::1", "10.0.0.1"] {
            for _ in 0..3 {
                let answer = send(&server, with_key(peer));
                shown.push(format!("{:?} {}", answer.headers, answer.body));
            }
        }
        let (decision, receipt) = limiter.reserve_now(&with_key("203.0.113.78")).unwrap();
        shown.push(format!("{decision:?} {receipt:?} {limiter:?} {layer:?} {:?}", rules()));
        // And where something is wrong with it.
        let full = MemoryStore::builder().max_keys(1).build();
        shown.push(format!("{full:?}"));
        let bad = Rule::new("bad", limit, key::header("x-key")).limit_for(|_| Limit::per_second(0));
        let small = Limiter::builder(rules().into_iter().chain([bad])).store(full).build().unwrap();
        for peer in ["203.0.113.77", "2001:db8:77::1"] {
            drop(send(&over(small.clone().into(), hello()), with_key(peer)));
        }
    });
    // The log was on: it tells of refusals, by rule.
    assert!(lines.iter().filter(|line| line.contains("request refused")).count() >= 8, "{lines:?}");
    for line in lines.iter().chain(&shown) {
        for mark in MARKS {
            assert!(!line.contains(mark), "{mark} in {line}");
        }
    }
}

#[test]
fn a_client_that_keeps_on_is_a_line_a_second_for_each_rule() {
    let clock = ManualClock::new();
    let rules =
        ["one", "two"].map(|name| Rule::new(name, Limit::per_day(1), |id: &u64| Some(tollgate::Key::from(*id))));
    let limiter = Limiter::builder(rules).clock(clock.clone()).build().unwrap();
    let told = |level: &str, lines: &[String]| -> Vec<String> {
        let refusals = lines.iter().filter(|line| line.starts_with(level) && line.contains("request refused"));
        refusals.map(|line| line.split("refused ").last().unwrap().to_owned()).collect()
    };
    let ask = |times: usize| {
        logged(|| {
            for _ in 0..times {
                let _ = limiter.check_now(&7).unwrap();
            }
        })
    };
    let first = ask(6);
    let line = |rule: &str, untold: u32| format!("rule=\"{rule}\" status=429 untold={untold}");
    assert_eq!(told("INFO", &first), [line("one", 0), line("two", 0)]);
    assert_eq!(told("DEBUG", &first).len(), 8, "{first:?}");
    clock.advance(std::time::Duration::from_millis(999));
    assert_eq!(told("INFO", &ask(10)), [""; 0]);
    clock.advance(std::time::Duration::from_millis(1));
    assert_eq!(told("INFO", &ask(10)), [line("one", 14), line("two", 14)]);
}

/// Though it is no count that refuses: clients are told as much as before, and whoever reads the log which rule it was.
#[test]
fn a_refusal_for_a_missing_key_names_the_rule_that_wants_it() {
    let keyed = |name: &'static str, status: u16| {
        Rule::new(name, Limit::per_day(9), move |id: &u64| (*id != u64::from(status)).then(|| Key::from(*id)))
            .on_missing_key(MissingKey::Refuse(status.try_into().unwrap()))
    };
    // One rule, several plain ones, and one of which more than its bucket is asked.
    let dear = keyed("dear", 402).limit_for(|_| Limit::per_day(3));
    let queued = Rule::new("queued", Limit::in_flight(1), |_: &u64| None)
        .on_missing_key(MissingKey::Refuse(403_u16.try_into().unwrap()))
        .queue(2, std::time::Duration::from_secs(1));
    for (rules, name, status) in [
        (vec![keyed("only", 401)], "only", 401),
        (vec![keyed("first", 400), keyed("second", 401)], "second", 401),
        (vec![keyed("first", 400), dear], "dear", 402),
        (vec![keyed("first", 400), queued], "queued", 403),
    ] {
        let clock = ManualClock::new();
        let limiter = Limiter::builder(rules).clock(clock.clone()).build().unwrap();
        let refused = |times: usize| {
            let lines = logged(|| {
                for _ in 0..times {
                    let id = u64::from(status);
                    let decision = limiter.check_now(&id).or_else(|_| Ok(limiter.reserve_now(&id)?.0));
                    let decision = decision.unwrap_or_else(|why: tollgate::Error| panic!("{why}"));
                    assert_eq!((decision.violated().count(), decision.rules().count()), (0, 0));
                    assert_eq!((decision.status().as_u16(), decision.wait()), (status, None));
                    assert!(!decision.is_degraded());
                }
            });
            lines.into_iter().filter(|line| line.contains("request refused")).collect::<Vec<_>>()
        };
        let line = |untold: u32| format!("request refused rule=\"{name}\" status={status} untold={untold}");
        let first = refused(3);
        assert!(first[0].starts_with("INFO") && first[0].ends_with(&line(0)), "{first:?}");
        for later in &first[1..] {
            assert!(later.starts_with("DEBUG") && later.contains(&format!("rule=\"{name}\"")), "{first:?}");
        }
        clock.advance(std::time::Duration::from_secs(1));
        let then = refused(1);
        assert!(then[0].starts_with("INFO") && then[0].ends_with(&line(2)), "{then:?}");
    }
}
