//! Rules that count by how a request was answered.

use std::convert::Infallible;

use http::{Request, Response, StatusCode};
use tollgate::{
    Limiter, RateLimitLayer,
    config::{Registry, Rules},
};
use tower::{Layer, ServiceExt, service_fn};

const POLICY: &str = "[[policies]]\nid = 'a'\nkey = { header = 'x-account' }\nlimit = '2/1h'\n";

fn limiter(said: &str) -> Limiter<Request<String>> {
    let rules = Rules::from_toml(&format!("{POLICY}{said}\n")).unwrap_or_else(|problems| panic!("{problems}"));
    let registry = Registry::new().outcome("cached", |response| response.headers().contains_key("x-cache-hit"));
    Limiter::new(rules.build(&registry).unwrap())
}

/// Answers with these statuses one after the other, and says what clients get. A status of 0 is a cached answer.
fn answers(said: &str, statuses: &[u16]) -> Vec<u16> {
    let layer = RateLimitLayer::from(limiter(said));
    let ask = async |status: u16| {
        let service = layer.layer(service_fn(move |_: Request<String>| async move {
            let response = match status {
                0 => Response::builder().header("x-cache-hit", "1"),
                status => Response::builder().status(status),
            };
            Ok::<_, Infallible>(response.body(String::new()).unwrap())
        }));
        let request = Request::builder().header("x-account", "ana").body(String::new()).unwrap();
        service.oneshot(request).await.unwrap().status().as_u16()
    };
    tokio_test::block_on(async {
        let mut seen = Vec::new();
        for status in statuses {
            seen.push(ask(*status).await);
        }
        seen
    })
}

#[test]
fn only_what_is_said_counts() {
    let mixed = [200, 401, 302, 500, 200];
    assert_eq!(answers("count_only = 'failures'", &mixed), [200, 401, 302, 500, 429]);
    assert_eq!(answers("count_only = 401", &[200, 401, 403, 401, 200]), [200, 401, 403, 401, 429]);
    assert_eq!(answers("count_only = ['5xx', 401]", &mixed), [200, 401, 302, 500, 429]);
    assert_eq!(answers("count_only = '5xx'", &[401, 500, 401, 503, 200]), [401, 500, 401, 503, 429]);
    assert_eq!(answers("count_only = 'successes'", &[500, 200, 500, 204, 500]), [500, 200, 500, 204, 429]);
}

#[test]
fn what_is_said_to_come_back_comes_back() {
    assert_eq!(answers("give_back = 'cached'", &[0, 0, 0, 200, 200, 200]), [200, 200, 200, 200, 200, 429]);
    assert_eq!(
        answers("give_back = ['cached', '5xx', 404]", &[0, 500, 404, 200, 403, 200]),
        [200, 500, 404, 200, 403, 429]
    );
}

#[test]
fn a_request_without_an_answer_counts_unless_said_otherwise() {
    let left = |said| {
        let limiter = limiter(said);
        let request = Request::builder().header("x-account", "ana").body(String::new()).unwrap();
        drop(tokio_test::block_on(limiter.acquire_receipt(&request)).unwrap());
        limiter.peek_now(&request).unwrap().tightest().unwrap().verdict.remaining
    };
    assert_eq!(left("count_only = 'failures'"), 1);
    assert_eq!(left("count_only = 'failures'\ngive_back_unanswered = false"), 1);
    assert_eq!(left("count_only = 'failures'\ngive_back_unanswered = true"), 2);
}

#[test]
fn an_entry_that_says_anything_of_answers_takes_nothing_of_its_policys() {
    let said = "count_only = 'failures'\ngive_back_unanswered = true\n\
                [[policies.entries]]\nid = 'b'\nmatch = { method = 'PUT' }\n\
                [[policies.entries]]\nid = 'c'\nmatch = { method = 'POST' }\ngive_back = '2xx'\n\
                [[policies.entries]]\nid = 'd'\nmatch = { method = 'DELETE' }\nin_flight = 1\n";
    let limiter = limiter(said);
    let left = |method: &str, status: Option<StatusCode>| {
        let request = Request::builder().method(method).header("x-account", "ana").body(String::new()).unwrap();
        let (_, mut receipt) = limiter.reserve_now(&request).unwrap();
        if let Some(status) = status {
            receipt.judge(&Response::builder().status(status).body(()).unwrap());
        }
        drop(receipt);
        limiter
            .peek_now(&request)
            .unwrap()
            .tightest()
            .map(|rule| (rule.rule.to_owned(), rule.verdict.remaining))
            .unwrap()
    };
    assert_eq!(left("PUT", Some(StatusCode::OK)), ("b".into(), 2));
    assert_eq!(left("PUT", None), ("b".into(), 2));
    assert_eq!(left("PUT", Some(StatusCode::NOT_FOUND)), ("b".into(), 1));
    assert_eq!(left("POST", Some(StatusCode::OK)), ("c".into(), 2));
    assert_eq!(left("POST", None), ("c".into(), 1));
    assert_eq!(left("DELETE", Some(StatusCode::NOT_FOUND)), ("d".into(), 1));
}

#[test]
fn outcomes_are_among_the_names_to_register_and_hide_nothing_that_is_built_in() {
    let rules = Rules::from_toml(&format!("{POLICY}give_back = ['cached', '2xx', 'failures', 204]\n")).unwrap();
    assert_eq!(rules.names(), ["outcome \"cached\""]);
    let registry = Registry::<()>::new().outcome("4xx", |_| true).outcome("cached", |_| true);
    let problems = rules.build(&registry).unwrap_err().to_string();
    assert!(problems.starts_with("the program registers the outcome \"4xx\", which is built in"), "{problems}");
}
