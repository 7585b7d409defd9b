//! What is read is written, and read again as the same.

use std::{fs, path::Path};

use http::Request;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use tollgate::{
    Limiter,
    config::{Registry, Rules},
};

/// The published rule sets: text by name.
pub(super) fn published() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/rules");
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let toml = paths.filter(|path| path.extension().is_some_and(|end| end == "toml"));
    let read = |path: std::path::PathBuf| {
        (path.file_stem().unwrap().to_str().unwrap().into(), fs::read_to_string(path).unwrap())
    };
    toml.map(read).collect()
}

#[track_caller]
fn comes_back(rules: &Rules) {
    let json = serde_json::to_string(rules).unwrap();
    assert_eq!(Rules::from_json(&json).unwrap_or_else(|problems| panic!("{json}\n{problems}")), *rules);
    let toml = toml::to_string(rules).unwrap();
    assert_eq!(Rules::from_toml(&toml).unwrap_or_else(|problems| panic!("{toml}\n{problems}")), *rules);
    assert_eq!(serde_json::from_str::<Rules>(&json).unwrap(), *rules);
    assert_eq!(toml::from_str::<Rules>(&toml).unwrap(), *rules);
}

#[test]
fn the_published_rule_sets_come_back_from_both_formats() {
    let published = published();
    assert!(published.len() >= 7);
    for (_, text) in published {
        comes_back(&Rules::from_toml(&text).unwrap());
    }
}

/// Values that are right for a field, of both forms where there are two.
fn field() -> impl Strategy<Value = (&'static str, Json)> {
    let duration = prop_oneof![Just("1s"), Just("250ms"), Just("1h30m"), Just("7d")];
    let address = prop_oneof![Just("peer_addr"), Just("host"), Just("method"), Just("bearer_token")];
    prop_oneof![
        address.clone().prop_map(|name| ("key", json!(name))),
        address.prop_map(|name| (
            "key",
            json!({"first": [name, {"header": "x-a"}, {"all": ["host", {"cookie": "sid"}]}]})
        )),
        (1..1_000_u64, duration.clone()).prop_map(|(permits, period)| ("limit", json!(format!("{permits}/{period}")))),
        (1..100_u64).prop_map(|cost| ("cost", json!(cost))),
        any::<bool>().prop_map(|overload| ("overload", json!(overload))),
        Just(("count_only", json!("failures"))),
        Just(("count_only", json!([401, "5xx"]))),
        any::<bool>().prop_map(|unanswered| ("give_back_unanswered", json!(unanswered))),
        (400..600_u16).prop_map(|status| ("on_missing_key", json!({"refuse": status}))),
        Just(("on_missing_key", json!("share"))),
        (1..=100_u8).prop_map(|percent| ("on_store_failure", json!({"fallback_percent": percent}))),
        Just(("on_store_failure", json!("allow"))),
        prop_oneof![Just("fixed_window"), Just("sliding_window_counter")].prop_map(|name| ("algorithm", json!(name))),
        Just((
            "match",
            json!({"method": ["GET", "HEAD"], "path": "/a/{b}", "header": {"x-a": true, "x-b": ["1", "2"]}})
        )),
        Just(("match", json!({"peer": ["10.0.0.0/8", "office"], "host": "*.example.com", "condition": "preflight"}))),
    ]
}

proptest! {
    #[test]
    fn whatever_can_be_said_comes_back_and_can_be_built(said in proptest::collection::vec(field(), 0..8)) {
        let mut policy = json!({"id": "a", "key": "global", "limit": "1000/1s"});
        policy.as_object_mut().unwrap().extend(said.into_iter().map(|(name, value)| (name.to_owned(), value)));
        if policy["count_only"].is_null() {
            policy.as_object_mut().unwrap().remove("give_back_unanswered");
        }
        if policy["key"] == "global" {
            policy.as_object_mut().unwrap().remove("on_missing_key");
        }
        let file = json!({"lists": {"office": ["192.0.2.0/24"]}, "policies": [policy]});
        match Rules::from_json(&file.to_string()) {
            Ok(rules) => {
                comes_back(&rules);
                let rules = rules.build(&Registry::<()>::new()).unwrap();
                let limiter = Limiter::builder(rules).build();
                // Only a store that is guarded has a fallback.
                prop_assert!(limiter.is_ok() || policy["on_store_failure"].is_object(), "{limiter:?}");
            }
            // The one thing that cannot work here is a cost above a small limit.
            Err(problems) => prop_assert!(problems.iter().all(|one| one.path() == "policies[0].cost"), "{problems}"),
        }
    }

    /// What a rule file says may be anything: problems, never a panic, and what is accepted can be built.
    #[test]
    fn no_text_makes_it_panic(text in "[\\[\\]{}a-z0-9=\\.\"'/ \n,:_-]{0,80}") {
        for read in [Rules::from_toml(&text), Rules::from_json(&text)].into_iter().flatten() {
            let _ = read.build(&Registry::<()>::new());
        }
    }
}

#[test]
fn rules_are_a_part_of_a_programs_own_settings() {
    #[derive(serde::Deserialize)]
    struct Settings {
        port: u16,
        limits: Rules,
    }

    let text = "port = 80\n[[limits.policies]]\nid = 'a'\nkey = { query = 'user' }\nlimit = '1/1h'\n";
    let settings: Settings = toml::from_str(text).unwrap();
    assert_eq!(settings.port, 80);
    let limiter = Limiter::new(settings.limits.build(&Registry::new()).unwrap());
    let request = Request::get("/?user=ana").body(()).unwrap();
    assert!(limiter.check_now(&request).unwrap().is_allowed());
    assert!(!limiter.check_now(&request).unwrap().is_allowed());

    let broken = text.replace("1/1h", "1/1y").replace("id = 'a'", "");
    let Err(error) = toml::from_str::<Settings>(&broken) else { panic!("it was accepted") };
    let error = error.to_string();
    assert!(error.contains("policies[0].limit: ") && error.contains("there is no `id`"), "{error}");
}

/// A customer may be named by the key that it sends.
#[test]
fn what_debug_output_shows_of_a_file_is_no_key_of_anybody() {
    let rules = Rules::from_toml(
        r#"
        [[policies]]
        id = "account"
        key = { header = "x-api-key" }
        limit = "5/1m"
        customer = { header = "x-api-key" }
        customers.sk-live-1234 = "50/1m"
        "#,
    )
    .unwrap();
    let shown = format!("{rules:?}");
    assert!(shown.contains("policies: 1") && !shown.contains("sk-live"), "{shown}");
}
