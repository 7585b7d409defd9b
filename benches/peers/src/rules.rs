//! Several rules at once, and many of which few apply.

use std::net::IpAddr;

use tollgate::{Key, Limiter, Rule};

use crate::{
    harness::{Contestant, Report, Scale, fence, interleave},
    keys::Stream,
    subjects::{Quota, limiter, passes},
};

pub fn run(scale: Scale, report: &mut Report) {
    let cases = [
        ("64_keys", 64, scale.pick(20_000, 300_000)),
        ("many_keys", scale.pick(200_000, 1_000_000), scale.pick(20_000, 300_000)),
    ];
    let times = cases.map(|(_, keys, count)| three(keys, scale, count));
    report.table("Rules at once, ns per check", &cases.map(|(case, ..)| case));
    for (at, (name, _)) in makes().iter().enumerate() {
        report.row(name, &times.each_ref().map(|times| times[at]));
    }
    for ((case, ..), times) in cases.into_iter().zip(&times) {
        let [one, three, refused, governors] = times[..] else { panic!("four contestants") };
        report.ratio(format!("three_rules_over_one_{case}"), three, one);
        report.ratio(format!("three_rules_refused_over_one_{case}"), refused, one);
        report.ratio(format!("three_rules_over_three_governors_{case}"), three, governors);
        report.ratio(format!("three_rules_refused_over_three_governors_{case}"), refused, governors);
    }
    many(scale, report);
}

/// Who asks.
struct Client {
    name: String,
    address: IpAddr,
}

fn clients(keys: u32, seed: u64) -> Vec<Client> {
    let Stream { texts, addresses } = Stream::shuffled(keys, seed);
    texts.into_iter().zip(addresses).map(|(name, address)| Client { name, address }).collect()
}

type Check = Box<dyn Fn(&Client) -> bool>;

type Make = fn() -> Check;

/// Everybody's name, and how it is made; the third rule of the third one grants only one request.
fn makes() -> [(&'static str, Make); 4] {
    [
        ("tollgate, one rule", || checked(limiter([by_name()]))),
        ("tollgate, three rules", || checked(limiter([by_name(), by_address(), shared(Quota::PLENTY)]))),
        ("tollgate, three, third refuses", || checked(limiter([by_name(), by_address(), shared(Quota::ONE)]))),
        ("three governors", || {
            let quota = Quota::PLENTY.governors();
            let names = governor::DefaultKeyedRateLimiter::<String>::keyed(quota);
            let addresses = governor::DefaultKeyedRateLimiter::<IpAddr>::keyed(quota);
            let all = governor::DefaultDirectRateLimiter::direct(quota);
            Box::new(move |client| {
                names.check_key(&client.name).is_ok()
                    && addresses.check_key(&client.address).is_ok()
                    && all.check().is_ok()
            })
        }),
    ]
}

fn by_name() -> Rule<Client> {
    Rule::new("name", Quota::PLENTY.ours(), |client: &Client| Some(Key::from(&client.name)))
}

fn by_address() -> Rule<Client> {
    Rule::new("address", Quota::PLENTY.ours(), |client: &Client| Some(Key::from(client.address)))
}

fn shared(quota: Quota) -> Rule<Client> {
    Rule::global("all", quota.ours())
}

fn checked(limiter: Limiter<Client>) -> Check {
    Box::new(move |client| passes(&limiter, client))
}

fn three(keys: u32, scale: Scale, count: usize) -> Vec<f64> {
    let checks = makes().map(|(_, make)| make());
    let order = clients(keys, 11);
    let passed = checks.each_ref().map(|check| order.iter().filter(|client| check(client)).count());
    assert_eq!(passed, [keys as usize, keys as usize, 1, keys as usize], "the third rule of one grants one");
    let asked = clients(keys, 12);
    let contestants = checks.iter().map(|check| {
        let mut at = 0;
        let asked = &asked;
        Contestant::timed(move |count| {
            for _ in 0..count {
                std::hint::black_box(check(&asked[at]));
                at = (at + 1) % asked.len();
                fence();
            }
        })
    });
    interleave(&mut contestants.collect::<Vec<_>>(), scale.rounds(), count)
}

/// Rules of which three apply and the others' conditions are false.
fn many(scale: Scale, report: &mut Report) {
    const RULES: [usize; 4] = [1, 10, 100, 1_000];
    let client = Client { name: "client00000007".into(), address: [192, 0, 2, 7].into() };
    let limiters = RULES.map(|rules| {
        limiter((0..rules).map(|at| {
            let rule =
                Rule::new(format!("rule{at}"), Quota::PLENTY.ours(), |client: &Client| Some(Key::from(&client.name)));
            // The compiler must not know the answer, and each rule has a condition.
            let applies = at < 3;
            rule.when(move |client| client.address.is_ipv4() == std::hint::black_box(applies))
        }))
    });
    let contestants = limiters.iter().map(|limiter| {
        let client = &client;
        Contestant::timed(move |count| {
            for _ in 0..count {
                assert!(passes(limiter, client));
            }
        })
    });
    let times = interleave(&mut contestants.collect::<Vec<_>>(), scale.pick(9, 31), scale.pick(2_000, 20_000));
    report.table(
        "Many rules, three of which apply, ns per check",
        &RULES.map(|rules| rules.to_string()).each_ref().map(|text| &**text),
    );
    report.row("tollgate", &times);
    let each = |from: usize, to: usize| (times[to] - times[from]) / (RULES[to] - RULES[from]) as f64;
    report.value("ns", "condition_that_is_false", each(1, 3));
    // Linear: as much for each of the last hundreds as for each of the first.
    report.ratio("condition_linear", each(2, 3), each(1, 2));
}
