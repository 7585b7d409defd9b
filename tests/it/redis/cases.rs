//! The cases from the field and the timelines, counted on a server: what is right in memory is right there.

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::AtomicU64, atomic::Ordering},
};

use tokio::runtime::Runtime;
use tollgate::{
    Key, Limit, Limiter, Rule, Unsupported,
    bucket::{FixedWindow, SlidingWindowCounter, SlidingWindowLog},
    charge::{Charge, RuleSpec, Slot, Taken, Verdicts},
    key::{KeyId, Secret},
    store::{RedisStore, Reply, Store},
    time::Nanos,
};

use super::{Duration, by_the_clock, comes_to, secret, server::Server, until};
use crate::{
    cases::{clock, counting, giving_back, keys, numbers, remaining, rules, waiting},
    engine::{Kind, Shared, elsewhere},
    timelines,
};

/// Blocks until the server has answered, so that those who ask at once can ask it.
struct Blocking {
    store: RedisStore,
    runtime: Arc<Runtime>,
}

impl Store for Blocking {
    fn secret(&self) -> &Secret {
        self.store.secret()
    }

    fn bind(&self, spec: &RuleSpec, before: Option<&Slot>) -> Result<Slot, Unsupported> {
        self.store.bind(spec, before)
    }

    fn decide(&self, now: Nanos, charges: &[Charge<'_>], verdicts: &mut Verdicts) -> Reply<(), Verdicts> {
        match self.store.decide(now, charges, verdicts) {
            Reply::Ready(answer) => Reply::Ready(answer),
            Reply::Pending(reply) => Reply::Ready(self.runtime.block_on(reply).map(|judged| *verdicts = judged)),
        }
    }

    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64) {
        self.store.adjust(now, taken, cost);
        self.runtime.block_on(self.store.flush()).unwrap();
    }

    fn reset(&self, slot: &Slot, key: KeyId) -> Reply<()> {
        match self.store.reset(slot, key) {
            Reply::Ready(answer) => Reply::Ready(answer),
            Reply::Pending(reply) => Reply::Ready(self.runtime.block_on(reply)),
        }
    }
}

/// Runs `test` with limiters that count on `server`, each in a deployment of its own.
fn on(server: &Server, runtime: &Arc<Runtime>, test: impl FnOnce()) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let before = NUMBER.load(Ordering::Relaxed);
    let (url, runtime) = (server.url(), Arc::clone(runtime));
    let make = move || {
        let name = format!("case-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let store = by_the_clock(&url).deployment(name).connect_timeout(Duration::from_secs(5));
        let store = runtime.block_on(store.connect()).unwrap();
        Shared(Arc::new(Blocking { store, runtime: Arc::clone(&runtime) }))
    };
    elsewhere(make, test);
    assert!(NUMBER.load(Ordering::Relaxed) > before, "it asked nobody");
}

fn runtime() -> Arc<Runtime> {
    Arc::new(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap())
}

type Case = (&'static str, fn());

macro_rules! case {
    ($($name:ident)::+) => {
        (stringify!($($name)::+), $($name)::+ as fn())
    };
}

/// Those that ask a limiter of one store. `memory` is about that store's own bounds, `forwarding` asks nobody, and
/// instead of `threads` there are processes in `exact`. The random ones are what `differential` does.
const CASES: &[Case] = &[
    case!(clock::a_bucket_goes_on_refilling_after_the_clock_was_set_back_an_hour),
    case!(clock::a_bucket_that_is_only_looked_at_after_the_step_opens_in_time),
    case!(clock::a_window_goes_on_after_the_clock_was_set_back_an_hour),
    case!(clock::a_step_of_the_clock_mints_nothing_under_any_strategy),
    case!(clock::extreme_steps_do_not_panic_or_lock_anybody_out),
    case!(clock::windows_are_cut_in_utc),
    case!(clock::the_same_minute_of_another_day_is_another_window),
    case!(clock::thirty_days_are_exactly_2_592_000_seconds),
    case!(clock::giving_back_after_the_clock_was_set_back_mints_nothing),
    case!(counting::a_log_entry_stops_counting_exactly_one_window_after_it),
    case!(counting::every_strategy_frees_its_permit_exactly_when_it_says),
    case!(counting::an_idle_hour_buys_no_more_than_the_capacity),
    case!(counting::no_strategy_saves_up_while_it_is_idle),
    case!(counting::a_pause_shorter_than_the_refill_buys_exactly_its_share),
    case!(counting::requests_of_one_instant_are_counted_one_by_one),
    case!(counting::one_of_two_entries_of_one_instant_comes_back_alone),
    case!(counting::every_strategy_counts_requests_of_one_instant_one_by_one),
    case!(counting::sixteen_connections_at_one_instant_are_counted_one_by_one),
    case!(counting::requests_within_one_second_are_not_one_entry),
    case!(giving_back::what_comes_back_is_what_was_charged_once),
    case!(giving_back::what_time_has_refilled_and_the_cap_has_cut_off_does_not_come_back),
    case!(giving_back::a_charge_is_worth_less_the_more_of_it_time_has_refilled),
    case!(giving_back::settling_changes_the_charge_by_the_difference),
    case!(giving_back::a_settled_charge_can_still_be_given_back),
    case!(giving_back::a_window_takes_back_only_what_still_counts_in_it),
    case!(giving_back::a_charge_under_several_rules_comes_back_under_all),
    case!(keys::parts_that_join_to_the_same_text_are_different_keys),
    case!(keys::keys_that_begin_alike_or_are_long_are_different_keys),
    case!(keys::the_same_key_under_two_rules_has_two_counts),
    case!(numbers::half_a_day_refills_half_of_a_daily_bucket),
    case!(numbers::a_window_of_a_year_keeps_its_count_for_the_year),
    case!(numbers::two_thousand_requests_exactly_on_time_all_pass),
    case!(numbers::four_thousand_per_second_is_one_every_250_microseconds),
    case!(remaining::remaining_grows_again_while_time_passes),
    case!(remaining::remaining_changes_at_the_nanosecond_at_which_the_cost_would_pass),
    case!(remaining::every_strategy_has_everything_again_after_a_long_pause),
    case!(remaining::a_refusal_tells_what_is_left_and_leaves_it),
    case!(remaining::a_cost_above_the_capacity_is_told_that_it_can_never_pass),
    case!(remaining::no_strategy_makes_anybody_wait_for_what_never_fits),
    case!(remaining::the_burst_and_not_the_rate_decides_what_never_fits),
    case!(remaining::who_would_wait_is_told_at_once_that_it_can_never_pass),
    case!(remaining::one_rule_that_says_never_hides_the_wait_of_another),
    case!(rules::a_request_refused_by_one_rule_is_charged_by_none_in_either_order),
    case!(rules::no_pair_of_strategies_charges_a_refused_request),
    case!(rules::a_refusal_by_the_last_of_five_rules_charges_none_of_the_four_before),
    case!(rules::clones_of_a_limiter_have_one_count_on_all_connections_and_routes),
    case!(rules::limiters_on_one_store_share_the_counts_of_rules_of_equal_name_only),
    case!(waiting::the_wait_is_until_the_request_fits_not_until_the_bucket_is_full),
    case!(waiting::a_log_waits_for_the_oldest_entries_that_make_room),
    case!(waiting::the_wait_of_a_log_grows_with_the_cost_entry_by_entry),
    case!(waiting::the_wait_of_every_strategy_follows_its_own_clock_and_cost),
    case!(waiting::a_window_waits_for_its_end_not_for_its_length),
    case!(waiting::the_told_seconds_are_rounded_up_and_at_least_one),
    case!(waiting::the_told_wait_is_never_below_the_true_one_however_often_it_is_asked),
];

// Those that a server cannot run, and why:
//
// a nanosecond decides, and the server counts microseconds:
// - `clock::a_step_of_just_under_a_second_is_no_time_and_of_a_second_is_a_new_start`
// - `counting::a_log_entry_in_the_middle_of_a_window_lasts_one_window_too`
// - `waiting::the_wait_uses_the_burst_whatever_the_rate_is`
// - `numbers::the_name_of_every_constructor_is_what_it_does`
// - `numbers::rates_of_billions_a_second_and_one_in_a_century_are_exact`
//
// what does not fit into the whole numbers of the server is an error there:
// - `waiting::the_told_seconds_are_digits_only`
// - `numbers::no_product_of_rate_and_time_wraps_under_any_strategy`
// - `numbers::long_windows_count_to_the_nanosecond_under_every_strategy`
//
// it looks into a memory store:
// - `numbers::a_bucket_is_kept_exactly_as_long_as_it_differs_from_a_fresh_one`
// - `rules::a_refusal_by_a_rule_for_all_costs_no_client_anything`

#[test]
fn the_cases_from_the_field_are_right_on_a_server() {
    let (server, runtime) = (Server::start(), runtime());
    let only = std::env::var("TOLLGATE_CASE").ok();
    let mut wrong = BTreeSet::new();
    for (name, case) in CASES.iter().filter(|(name, _)| only.as_deref().is_none_or(|only| name.contains(only))) {
        if catch_unwind(AssertUnwindSafe(|| on(&server, &runtime, case))).is_err() {
            wrong.insert(*name);
        }
    }
    assert_eq!(wrong, BTreeSet::new());
}

#[test]
fn the_timelines_are_kept_on_a_server() {
    let (server, runtime) = (Server::start(), runtime());
    let mut skipped = Vec::new();
    for kind in Kind::ALL {
        on(&server, &runtime, || {
            skipped.extend(timelines::run(kind).into_iter().map(|name| (kind.snake_case(), name)))
        });
    }
    // A million permits times a day in microseconds is more than the server counts to.
    let too_much = [("sliding_window_counter", "half a day of a daily million".to_owned())];
    assert_eq!(skipped, too_much);
}

const WINDOW: Duration = Duration::from_secs(2);

/// B33, alisaifee/limits#14, linagora/cozy-stack#2250, PatchMon/PatchMon#868: a count that lost its lifetime refused
/// its client for ever.
#[test]
fn a_key_that_lost_its_expiry_limits_nobody_for_ever() {
    let (server, runtime) = (Server::start(), runtime());
    let limiter = runtime.block_on(async {
        let store =
            RedisStore::builder(&server.url(), secret()).deadline(Duration::from_secs(5)).connect().await.unwrap();
        let of = |name: &'static str| {
            let kind = name.to_owned();
            Rule::new(name, Limit::new(3, WINDOW), |_: &&str| Some(Key::from(1_u64))).when(move |asks| *asks == kind)
        };
        let rules = [
            of("token"),
            of("fixed").algorithm(FixedWindow),
            of("log").algorithm(SlidingWindowLog),
            of("counter").algorithm(SlidingWindowCounter),
        ];
        Limiter::builder(rules).store(store).build().unwrap()
    });
    let allowed = |name| runtime.block_on(limiter.check(&name)).unwrap().is_allowed();
    let names = ["token", "fixed", "log", "counter"];
    for name in names {
        while allowed(name) {}
    }
    let keys: Vec<String> = server.run(&["KEYS", "*"]);
    assert_eq!(keys.len(), 4, "{keys:?}");
    for key in &keys {
        // One that ends in this moment has nothing to lose.
        let _: u32 = server.run(&["PERSIST", key]);
    }
    // Nothing but the time is looked at meanwhile: whoever looked at the keys might mend them.
    let old_at = server.now() + 2 * WINDOW + WINDOW / 4;
    runtime.block_on(until("all are old by the server's clock", async || server.now() >= old_at));
    for name in names {
        assert!(allowed(name), "{name}: refused for ever");
    }
    let keys: Vec<String> = server.run(&["KEYS", "*"]);
    assert!(keys.len() == 4 && keys.iter().all(|key| server.run::<i64>(&["PTTL", key]) > 0), "{keys:?}");
}

/// B37, spring-cloud/spring-cloud-gateway#248, timebug/lua-resty-redis-ratelimit#9, vutran1710/PyrateLimiter#151: keys
/// of one decision on different slots.
#[test]
fn the_keys_of_one_request_are_on_one_slot_of_a_cluster() {
    let server = Server::start_with(&["--cluster-enabled", "yes"]);
    server.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let runtime = runtime();
    runtime.block_on(async {
        let is_up = async || server.run::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
        until("the cluster is up", is_up).await;
        let store = RedisStore::builder(&server.url(), secret()).deadline(Duration::from_secs(5)).keys_in_plain();
        let store = store.connect().await.unwrap();
        let rules = [
            Rule::new("burst", Limit::per_second(5), |client: &&str| Some(Key::from(*client))),
            Rule::new("daily", Limit::per_day(3), |client| Some(Key::from(*client))),
            Rule::global("all", Limit::per_day(100)),
        ];
        let limiter = Limiter::builder(rules).store(store.clone()).build().unwrap();
        // Braces in a client's key change nothing.
        for client in ["203.0.113.7", "a}b", "{x}", "}{", "{"] {
            for nth in 0..5 {
                assert_eq!(limiter.check(&client).await.unwrap().is_allowed(), nth < 3, "{client}");
            }
        }
        let decision = limiter.peek(&"somebody else").await.unwrap();
        assert_eq!(crate::engine::remaining_of(&decision, "all"), 85);
        store.flush().await.unwrap();
    });
    let keys: Vec<String> = server.run(&["KEYS", "*"]);
    let slots: BTreeSet<u32> = keys.iter().map(|key| server.run(&["CLUSTER", "KEYSLOT", key])).collect();
    assert!(keys.len() >= 6 && slots.len() == 1, "{keys:?} on {slots:?}");
}

/// B39, openlinker-project/openlinker#2019: a server that hangs, or takes connections and never answers, and fifty
/// requests at once. What they are answered is in `stack`; here, that they wait at the same time and not one after the
/// other.
#[test]
fn fifty_requests_to_a_server_that_hangs_wait_together() {
    let deadline = Duration::from_millis(100);
    let (server, runtime) = (Server::start(), runtime());
    runtime.block_on(async {
        let store = RedisStore::builder(&server.url(), secret()).deadline(deadline).connect().await.unwrap();
        let rule = Rule::new("hang", Limit::per_day(1_000), |_: &u64| Some(Key::from(1_u64)));
        let limiter = Limiter::builder([rule]).store(store.clone()).build().unwrap();
        assert!(limiter.check(&0).await.unwrap().is_allowed());
        server.stop();
        let begun = std::time::Instant::now();
        let asked: Vec<_> = (0..50_u64)
            .map(|nth| {
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.check(&nth).await.is_err() })
            })
            .collect();
        for asked in asked {
            assert!(asked.await.unwrap());
        }
        let took = begun.elapsed();
        server.go_on();
        println!("50 requests to a server that hangs: {took:?}");
        assert!((deadline..10 * deadline).contains(&took), "{took:?}");
        store.connected().await;
        // What is run late charges nothing, and what was charged comes back.
        comes_to("what is left", Some(999), async || {
            store.flush().await.unwrap();
            limiter.peek(&0).await.ok().map(|decision| decision.tightest().unwrap().verdict.remaining)
        })
        .await;
    });
}
