//! Many processes and one limit: not one request more, not one less.

use std::process::{Command, Stdio};

use tollgate::{Key, Limit, Limiter, Rule, bucket::FixedWindow};

use super::{Duration, RedisStore, secret, server::Server};

const PROCESSES: usize = 3;
const TASKS: u64 = 64;
const ROUNDS: u64 = 10;
const LIMIT: u64 = 1_000;

/// Whether the request meets the rule that always refuses.
#[derive(Clone, Copy)]
struct Request {
    round: u64,
    refused: bool,
}

/// Asks from 64 tasks until the limit must be used up, and returns how many passed in each round.
async fn hammer(url: &str, processes: u64) -> Vec<u64> {
    let patient = Duration::from_secs(20);
    let store = RedisStore::builder(url, secret()).deadline(patient).connect_timeout(patient).connect().await.unwrap();
    let first = Rule::new("first", Limit::per_day(LIMIT), |request: &Request| Some(Key::from(request.round)));
    let never = Rule::new("never", Limit::per_day(1), |request: &Request| Some(Key::from(request.round)))
        .algorithm(FixedWindow)
        .cost(|_| 2)
        .when(|request| request.refused);
    let limiter = Limiter::builder([first, never]).store(store).build().unwrap();
    let mut passed = Vec::new();
    for round in 0..ROUNDS {
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move {
                    let mut passed = 0;
                    for number in 0..2 * (LIMIT / TASKS / processes + 5) {
                        let request = Request { round, refused: number % 2 == 1 };
                        let allowed = limiter.check(&request).await.unwrap().is_allowed();
                        assert!(!(allowed && request.refused), "one rule refuses");
                        passed += u64::from(allowed);
                    }
                    passed
                })
            })
            .collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.unwrap();
        }
        passed.push(sum);
    }
    passed
}

/// Alone it is one process; told a server by another one it is one of many, and says how many passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_admits_exactly_the_limit() {
    if let Ok(url) = std::env::var("TOLLGATE_HAMMER") {
        let passed = hammer(&url, PROCESSES as u64).await;
        println!("passed: {}", passed.iter().map(u64::to_string).collect::<Vec<_>>().join(" "));
        return;
    }
    let server = Server::start();
    assert_eq!(hammer(&server.url(), 1).await, [LIMIT; ROUNDS as usize]);
}

#[test]
fn three_processes_of_64_tasks_admit_exactly_the_limit_ten_times_over() {
    let server = Server::start();
    let children: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["redis::exact::one_process_admits_exactly_the_limit", "--exact", "--nocapture"]);
            command.env("TOLLGATE_HAMMER", server.url()).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut sums = [0; ROUNDS as usize];
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        let (_, passed) = text.split_once("passed: ").expect("the process says how many passed");
        let passed = passed.lines().next().unwrap().split(' ');
        for (sum, passed) in sums.iter_mut().zip(passed) {
            *sum += passed.parse::<u64>().unwrap();
        }
    }
    assert_eq!(sums, [LIMIT; ROUNDS as usize]);
    let keys: Vec<String> = server.run(&["KEYS", "*"]);
    assert_eq!(keys.len(), ROUNDS as usize, "one for each round, and none of the rule that refused: {keys:?}");
    assert!(keys.iter().all(|key| key.starts_with("tg1:{tollgate}:first:t:#")), "{keys:?}");
}
