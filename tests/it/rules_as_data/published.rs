//! The rule sets that large services have published, as files, and what they decide.

use std::{net::IpAddr, time::Duration};

use futures_util::future::join_all;
use http::{Request, request::Builder};
use tollgate::{
    Decision, Key, Limiter,
    config::{Registry, Rules},
    decision::Wait,
    time::{ManualClock, Nanos},
};

/// What authentication has found out.
#[derive(Clone, Copy)]
pub(crate) struct Account {
    pub(crate) name: &'static str,
    pub(crate) plan: &'static str,
    pub(crate) mode: &'static str,
}

fn account(request: &Request<()>) -> Option<&Account> {
    request.extensions().get()
}

fn header_of<'a>(request: &'a Request<()>, name: &str) -> Option<&'a str> {
    request.headers().get(name)?.to_str().ok()
}

fn number_of(request: &Request<()>, name: &str) -> u64 {
    header_of(request, name).map_or(1, |number| number.parse().unwrap())
}

/// What a program would register for all of these files.
fn registry() -> Registry<()> {
    let by_name = |request: &Request<()>| account(request).map(|account| account.name);
    Registry::new()
        .key("account", move |request| by_name(request).map(Key::from))
        .key("consumer", move |request| by_name(request).map(Key::from))
        .key("user", move |request| by_name(request).map(Key::from))
        .key("mode", |request| account(request).map(|account| Key::from(account.mode)))
        .key("registered-domain", |request| header_of(request, "x-domain").map(Key::from))
        .key("identifier", |request| header_of(request, "x-identifier").map(Key::from))
        .key("set-of-names", |request| header_of(request, "x-names").map(Key::from))
        .value("account", move |request| by_name(request).map(Into::into))
        .value("consumer", move |request| by_name(request).map(Into::into))
        .value("plan", |request| account(request).map(|account| account.plan.into()))
        .value("mode", |request| account(request).map(|account| account.mode.into()))
        .value("registered-domain", |request| header_of(request, "x-domain").map(Into::into))
        .condition("renewal", |request| request.headers().contains_key("x-replaces"))
        .cost("hits", |request| number_of(request, "x-hits"))
        .cost("points", |request| number_of(request, "x-points"))
}

pub(crate) fn rules(name: &str) -> Vec<tollgate::Rule<Request<()>>> {
    let path = format!("{}/examples/rules/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let rules = Rules::from_path(path).unwrap_or_else(|problems| panic!("{problems}"));
    rules.build(&registry()).unwrap_or_else(|problems| panic!("{problems}"))
}

/// A limiter with the rules of a file, whose clock starts at a window's edge.
struct Desk {
    limiter: Limiter<Request<()>>,
    clock: ManualClock,
}

impl Desk {
    fn new(name: &str) -> Self {
        let clock = ManualClock::at(Nanos::ZERO);
        let limiter = Limiter::builder(rules(name)).clock(clock.clone()).build().unwrap();
        Self { limiter, clock }
    }

    /// A request that has ended before the next one comes.
    fn runs(&self, request: Builder) -> Decision {
        let (decision, receipt) = self.limiter.reserve_now(&request.body(()).unwrap()).unwrap();
        receipt.keep();
        decision
    }

    /// Asks at this many seconds, and says what was decided in words.
    #[track_caller]
    fn ask(&self, at: u64, request: Builder, expected: &str) {
        self.clock.set(Nanos::from_secs(at));
        assert_eq!(said(&self.runs(request)), expected);
    }

    /// Asks so many times at once, all of which pass.
    #[track_caller]
    fn passes(&self, at: u64, times: u64, request: impl Fn() -> Builder) {
        self.clock.set(Nanos::from_secs(at));
        for number in 1..=times {
            let decision = self.runs(request());
            assert!(decision.is_allowed(), "{number} of {times}: {}", said(&decision));
        }
    }
}

/// `ok: rule remaining, ..` of the rules that know time, `no: rule wait, ..` of those that refuse, or `free` where no
/// rule applies.
fn said(decision: &Decision) -> String {
    let whole = |nanos: Nanos| format!("{:?}", Duration::from(nanos));
    if decision.is_allowed() {
        let timed = decision.rules().filter(|rule| !rule.limit.is_in_flight());
        let each: Vec<_> = timed.map(|rule| format!("{} {}", rule.rule, rule.verdict.remaining)).collect();
        return if each.is_empty() { "free".into() } else { format!("ok: {}", each.join(", ")) };
    }
    let wait = |wait| match wait {
        Wait::For(nanos) => whole(nanos),
        Wait::Never => "never".into(),
        _ => "unknown".into(),
    };
    let refused = decision.rules().filter_map(|rule| match rule.verdict.outcome {
        tollgate::decision::Outcome::Refuse(until) => Some(format!("{} {}", rule.rule, wait(until))),
        _ => None,
    });
    format!("no: {}", refused.collect::<Vec<_>>().join(", "))
}

fn from(address: &str) -> Builder {
    Request::builder().extension(address.parse::<IpAddr>().unwrap())
}

fn of(name: &'static str, plan: &'static str, mode: &'static str) -> Builder {
    from("192.0.2.1").extension(Account { name, plan, mode })
}

/// Cases C01.
#[test]
fn envoy() {
    let desk = Desk::new("envoy");
    desk.ask(0, from("192.0.2.1").uri("/"), "ok: address 9");
    desk.passes(0, 9, || from("192.0.2.1").uri("/"));
    desk.ask(0, from("192.0.2.1").uri("/"), "no: address 1s");
    desk.ask(0, from("192.0.2.2").uri("/"), "ok: address 9");
    desk.ask(0, from("192.0.2.10").uri("/"), "ok: address.partner 99");
    desk.ask(0, from("192.0.2.66").uri("/"), "no: address.banned never");
    desk.ask(0, from("192.0.2.99").uri("/"), "free");
    desk.ask(0, from("2001:db8:99::7").uri("/"), "free");
    // Both rules of a message count, or none does.
    let message = || from("192.0.2.3").method("POST").uri("/messages").header("x-number", "555");
    let marketing = || message().header("x-kind", "marketing");
    desk.ask(1, marketing().header("x-hits", "4"), "ok: address 9, messages 96, messages.marketing 1");
    desk.ask(1, marketing().header("x-hits", "2"), "no: messages.marketing 86399s");
    desk.ask(1, message(), "ok: address 8, messages 95");
    desk.ask(1, marketing().header("x-hits", "6"), "no: messages.marketing never");
    desk.ask(86_400, marketing(), "ok: address 9, messages 99, messages.marketing 4");
    // What is tried refuses nothing, and is seen.
    let tried = |request: Builder| {
        let decision = desk.runs(request);
        let would =
            decision.shadows().map(|shadow| (shadow.rule.to_owned(), shadow.would_refuse())).collect::<Vec<_>>();
        (decision.is_allowed(), would)
    };
    let would = |refuse| (true, vec![("messages.all".to_owned(), refuse)]);
    let other = || from("192.0.2.5").method("POST").uri("/messages").header("x-number", "556");
    assert_eq!([tried(other()), tried(other()), tried(other())], [would(false), would(false), would(true)]);
    // A client that is known, or its address.
    let login = || from("192.0.2.4").uri("/login");
    desk.ask(86_400, login().header("x-client-id", "c1"), "ok: address 9, client 999");
    desk.ask(86_400, login(), "ok: address 8, login 2");
    desk.passes(86_400, 2, login);
    desk.ask(86_400, login(), "no: login 60s");
    desk.ask(86_400, login().header("x-client-id", "c1"), "ok: address 5, client 998");
}

/// Cases C03.
#[test]
fn kong() {
    let desk = Desk::new("kong");
    let by_key = || from("192.0.2.1").uri("/").header("x-api-key", "k1");
    desk.ask(0, by_key(), "ok: second 4, hour 999");
    desk.passes(0, 4, by_key);
    desk.ask(0, by_key(), "no: second 1s");
    // The same address without the key, and a consumer, have counts of their own.
    desk.ask(0, from("192.0.2.1").uri("/"), "ok: second 4, hour 999");
    desk.ask(0, of("ana", "", "").uri("/").header("x-api-key", "k1"), "ok: second 4, hour 999");
    // What was refused by the second was not charged to the hour.
    desk.ask(1, by_key(), "ok: second 4, hour 994");
    // Numbers of their own.
    let acme = || of("acme", "", "").uri("/");
    desk.ask(1, acme(), "ok: second 49, hour 9999");
    desk.passes(1, 49, acme);
    desk.ask(1, acme(), "no: second 1s");
    desk.ask(1, of("internal", "", "").uri("/"), "free");
    for second in 2..201 {
        desk.passes(second, 5, || from("192.0.2.9").uri("/"));
    }
    desk.passes(201, 5, || from("192.0.2.9").uri("/"));
    desk.ask(202, from("192.0.2.9").uri("/"), "no: hour 3398s");
    desk.ask(3_600, from("192.0.2.9").uri("/"), "ok: second 4, hour 999");
    desk.ask(3_601, from("192.0.2.8").uri("/reports/2026"), "ok: second 4, hour 999, reports 99");
}

/// Cases C05. What waits for its turn is held, so time is tokio's here.
#[tokio::test(start_paused = true)]
async fn nginx() {
    let limiter = Limiter::builder(rules("nginx")).build().unwrap();
    let at_once = async |count: usize, request: &dyn Fn() -> Builder| {
        let requests: Vec<_> = (0..count).map(|_| request().header("host", "a.example").body(()).unwrap()).collect();
        // Each ends as soon as its turn has come.
        let runs = async |request| limiter.acquire_receipt(request).await.map(|(decision, _)| decision);
        let decisions = join_all(requests.iter().map(runs)).await;
        let told = decisions.into_iter().map(|decision| {
            let decision = decision.unwrap();
            if decision.is_allowed() { format!("{:?}", decision.delay()) } else { said(&decision) }
        });
        told.collect::<Vec<_>>()
    };
    // One at once, three that wait, and the queue is full.
    assert_eq!(at_once(5, &|| from("192.0.2.1").uri("/")).await, ["0ns", "2s", "4s", "6s", "no: address 2s"]);
    // An address of the allow list has only its server's limit.
    let internal = at_once(101, &|| from("10.1.2.3").uri("/")).await;
    assert_eq!(internal.iter().filter(|told| *told == "0ns").count(), 100);
    assert_eq!(internal[100], "no: server 10ms");
    tokio::time::sleep(Duration::from_secs(60)).await;
    // Nine at once, four paced, the rest refused.
    let searches = at_once(14, &|| from("192.0.2.2").uri("/search")).await;
    assert_eq!(searches[..9], ["0ns"; 9]);
    assert_eq!(searches[9..13], ["2s", "4s", "6s", "8s"]);
    assert_eq!(searches[13], "no: address.search 2s");
    tokio::time::sleep(Duration::from_secs(60)).await;
    // The allow list goes before the path.
    assert_eq!(at_once(50, &|| from("fd00::7").uri("/search")).await, ["0ns"; 50]);
    // Another server's count is its own.
    let other = from("10.1.2.3").uri("/").header("host", "b.example").body(()).unwrap();
    assert_eq!(said(&limiter.reserve_now(&other).unwrap().0), "ok: server 99");
    // Five connections of one address, and no sixth until one is closed.
    let download = from("192.0.2.7").uri("/").header("host", "c.example").body(()).unwrap();
    let mut open = Vec::new();
    for expected in ["ok: address 0, server 99"; 5].into_iter().chain(["no: connections unknown"]) {
        let (decision, receipt) = limiter.acquire_receipt(&download).await.unwrap();
        assert_eq!(said(&decision), expected);
        open.push(receipt);
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    open.remove(0).keep();
    assert_eq!(said(&limiter.acquire_receipt(&download).await.unwrap().0), "ok: address 0, server 99");
}

/// Cases C08.
#[test]
fn stripe() {
    let desk = Desk::new("stripe");
    let live = || of("acme", "", "live");
    let test = || of("acme", "", "test");
    desk.ask(0, live().uri("/v1/charges"), "ok: read 99");
    desk.ask(0, live().method("POST").uri("/v1/charges"), "ok: write 99");
    desk.ask(0, test().uri("/v1/charges"), "ok: read.test 24");
    desk.passes(0, 24, || test().uri("/v1/charges"));
    desk.ask(0, test().uri("/v1/charges"), "no: read.test 40ms");
    desk.ask(0, live().uri("/v1/charges"), "ok: read 98");
    // A file counts as a file and as a read.
    desk.ask(0, live().uri("/v1/files/f1"), "ok: read 97, files.read 19");
    desk.passes(0, 19, || live().uri("/v1/files"));
    desk.ask(0, live().uri("/v1/files"), "no: files.read 50ms");
    desk.ask(0, live().uri("/v1/charges"), "ok: read 77");
    desk.ask(0, live().method("POST").uri("/v1/files"), "ok: write 98, files.write 19");
    desk.ask(0, live().uri("/v1/customers/search"), "ok: read 76, search 19");
    // Meter events are apart in live mode, and only there.
    desk.ask(0, live().method("POST").uri("/v1/billing/meter_events"), "ok: write.meter_events 999");
    desk.ask(0, test().method("POST").uri("/v1/billing/meter_events"), "ok: write.test 24");
    desk.passes(0, 23, || test().method("POST").uri("/v1/charges"));
    desk.ask(0, test().method("DELETE").uri("/v1/charges/c1"), "ok: write.test 0");
    desk.ask(0, test().method("POST").uri("/v1/charges"), "no: write.test 40ms");
    desk.ask(0, of("other", "", "test").method("POST").uri("/v1/charges"), "ok: write.test 24");
    // One meter event of a customer and meter at a time.
    let event = |meter| {
        live().method("POST").uri("/v1/billing/meter_events").header("x-customer", "c").header("x-meter", meter)
    };
    let (_, running) = desk.limiter.reserve_now(&event("m1").body(()).unwrap()).unwrap();
    desk.ask(0, event("m1"), "no: meter_events.running unknown");
    desk.ask(0, event("m2"), "ok: write.meter_events 997");
    running.keep();
    desk.ask(0, event("m1"), "ok: write.meter_events 996");
}

/// Cases C10.
#[test]
fn shopify() {
    let desk = Desk::new("shopify");
    let shop = |app: &'static str, plan| of("", plan, "").header("x-app", app).header("x-shop", "s1");
    let rest = || shop("a1", "basic").uri("/admin/api/2026-01/products.json");
    desk.ask(0, rest(), "ok: rest 39");
    desk.passes(0, 39, rest);
    desk.ask(0, rest(), "no: rest 500ms");
    desk.ask(1, rest(), "ok: rest 1");
    desk.ask(1, shop("a2", "basic").uri("/admin/api/2026-01/products.json"), "ok: rest 39");
    desk.ask(1, shop("a2", "plus").uri("/admin/api/2026-01/products.json"), "ok: rest 398");
    // A query costs its points, and counts for GraphQL alone.
    let query = |points: &'static str| {
        shop("a1", "basic").method("POST").uri("/admin/api/2026-01/graphql.json").header("x-points", points)
    };
    desk.ask(1, query("600"), "ok: graphql 400");
    desk.ask(1, query("600"), "no: graphql 4s");
    desk.ask(5, query("600"), "ok: graphql 0");
    desk.ask(5, query("1001"), "no: graphql never");
    desk.ask(5, query("1"), "no: graphql 20ms");
    let plus = shop("a3", "plus").method("POST").uri("/admin/api/2026-01/graphql.json").header("x-points", "1001");
    desk.ask(5, plus, "ok: graphql 8999");
    desk.ask(5, from("192.0.2.1").uri("/"), "free");
}

/// What a program does once it knows what a query has really cost.
#[test]
fn of_a_query_that_cost_less_the_rest_comes_back() {
    let desk = Desk::new("shopify");
    let query = of("", "basic", "").header("x-app", "a1").header("x-shop", "s1").header("x-points", "600");
    let query = query.uri("/admin/api/2026-01/graphql.json").body(()).unwrap();
    let (decision, mut receipt) = desk.limiter.reserve_now(&query).unwrap();
    assert_eq!(said(&decision), "ok: graphql 400");
    assert!(receipt.settle_rule("graphql", 100));
    receipt.keep();
    assert_eq!(said(&desk.limiter.check_now(&query).unwrap()), "ok: graphql 300");
}

/// Cases C12.
#[test]
fn letsencrypt() {
    let desk = Desk::new("letsencrypt");
    let account = |address: &'static str| move || from(address).method("POST").uri("/acme/new-acct");
    desk.ask(0, account("192.0.2.1")(), "ok: accounts 9");
    desk.passes(0, 9, account("192.0.2.1"));
    desk.ask(0, account("192.0.2.1")(), "no: accounts 1080s");
    desk.ask(1_080, account("192.0.2.1")(), "ok: accounts 0");
    desk.ask(1_080, account("2001:db8:1:1::1")(), "ok: accounts 9, accounts.range 499");
    desk.ask(1_080, account("2001:db8:1:2::2")(), "ok: accounts 9, accounts.range 498");
    let order = |who, domain, names| {
        of(who, "", "").method("POST").uri("/acme/new-order").header("x-domain", domain).header("x-names", names)
    };
    desk.ask(0, order("ana", "a.example", "a"), "ok: orders 299, certificates.domain 49, certificates.names 4");
    desk.passes(0, 4, || order("ana", "a.example", "a"));
    desk.ask(0, order("ana", "a.example", "a"), "no: certificates.names 120960s");
    desk.ask(0, order("ana", "a.example", "a,b"), "ok: orders 294, certificates.domain 44, certificates.names 4");
    desk.ask(0, order("hosting", "a.example", "a,c"), "ok: orders 9999, certificates.domain 43, certificates.names 4");
    desk.ask(0, order("ana", "dyn.example", "x"), "ok: orders 293, certificates.names 4");
    desk.ask(0, order("ana", "a.example", "a,d").header("x-replaces", "c1"), "ok: certificates.names 4");
    desk.ask(120_960, order("ana", "a.example", "a"), "ok: orders 299, certificates.domain 49, certificates.names 0");
    // Of an account's validations of a name only those that fail count.
    let validate = |who, status: u16, expected: &str| {
        let request = of(who, "", "").method("POST").uri("/acme/chall/c1").header("x-identifier", "a.example");
        let (decision, mut receipt) = desk.limiter.reserve_now(&request.body(()).unwrap()).unwrap();
        assert_eq!(said(&decision), expected);
        receipt.judge(&http::Response::builder().status(status).body(()).unwrap());
    };
    for (status, left) in [(200, 4), (200, 4), (403, 4), (403, 3), (200, 2), (400, 2), (403, 1), (500, 0)] {
        validate("ana", status, &format!("ok: validations.failed {left}"));
    }
    validate("ana", 200, "no: validations.failed 720s");
    validate("ben", 200, "ok: validations.failed 4");
}

/// Cases C13.
#[test]
fn dockerhub() {
    let desk = Desk::new("dockerhub");
    let manifest = "/v2/library/alpine/manifests/latest";
    let anonymous = || from("198.51.100.1").uri(manifest);
    desk.ask(0, anonymous(), "ok: pulls 99, abuse 2999");
    desk.passes(0, 99, anonymous);
    desk.ask(0, anonymous(), "no: pulls 216s");
    desk.ask(0, from("198.51.100.1").method("HEAD").uri(manifest), "ok: abuse 2899");
    desk.ask(0, from("198.51.100.1").uri("/v2/library/alpine/blobs/b1"), "ok: abuse 2898");
    desk.ask(0, from("198.51.100.1").uri("/v2/alpine/manifests/latest"), "no: pulls 216s");
    // Signed in it is the user that counts, wherever he is.
    desk.ask(0, of("ana", "personal", "").uri(manifest), "ok: pulls 199, abuse 2999");
    desk.ask(0, of("ben", "personal", "").uri(manifest), "ok: pulls 199, abuse 2998");
    desk.ask(0, of("cleo", "pro", "").uri(manifest), "ok: abuse 2997");
    // An address of IPv6 is its /64.
    desk.ask(0, from("2001:db8::1").uri(manifest), "ok: pulls 99, abuse 2999");
    desk.ask(0, from("2001:db8::2").uri(manifest), "ok: pulls 98, abuse 2998");
    desk.ask(216, anonymous(), "ok: pulls 0, abuse 2999");
}
