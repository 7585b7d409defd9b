//! Places whose process lives, whatever becomes of its connection and its server.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use tollgate::{
    FailurePolicy, Key, Limit, Limiter, Rule,
    charge::Share,
    store::{Guarded, Receipt, Store},
};

use super::{Duration, RedisStore, RedisStoreBuilder, proxy::Proxy, secret, server::Server, until};

const PATIENCE: Duration = Duration::from_secs(10);
/// Long enough for a busy machine to notice that a connection is dead, to make another one and to renew in time.
const EXPIRY: Duration = Duration::from_secs(6);

fn limiter(store: impl Store) -> Limiter<u64> {
    let rules = [Rule::new("client", Limit::in_flight(1), |client: &u64| Some(Key::from(*client)))];
    Limiter::builder(rules).store(store).build().unwrap()
}

fn builder(url: &str) -> RedisStoreBuilder {
    RedisStore::builder(url, secret()).deadline(PATIENCE).connect_timeout(PATIENCE)
}

/// Another process, which is patient and has a connection of its own.
async fn others(server: &Server) -> Limiter<u64> {
    limiter(builder(&server.url()).connect().await.unwrap())
}

async fn enter(limiter: &Limiter<u64>, client: u64) -> Option<Receipt> {
    let (decision, receipt) = limiter.reserve(&client).await.unwrap();
    decision.is_allowed().then_some(receipt)
}

async fn is_free(limiter: &Limiter<u64>, client: u64) -> bool {
    limiter.peek(&client).await.unwrap().is_allowed()
}

/// Looks again and again whether anybody else would get the place of client 1, for twice as long as it would last by
/// itself.
async fn stays_held(there: &Limiter<u64>) {
    let begin = Instant::now();
    while begin.elapsed() < EXPIRY * 2 {
        assert!(!is_free(there, 1).await, "free after {:?}, and its process lives", begin.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_connection_has_swallowed_keeps_no_place_from_being_renewed_over_the_next() {
    let server = Server::start();
    let proxy = Proxy::before(server.address()).await;
    let impatient = builder(&proxy.url()).deadline(Duration::from_millis(100)).places_expire_after(EXPIRY);
    let store = impatient.connect().await.unwrap();
    let (here, there) = (limiter(store.clone()), others(&server).await);
    let (held, ended) = (enter(&here, 1).await, enter(&here, 2).await);
    assert!(held.is_some() && ended.is_some());
    proxy.swallow_existing();
    drop(ended);
    until("the connection is given up", async || here.reserve(&3).await.is_ok()).await;
    assert_eq!(proxy.connects(), 2);
    let still_held = tokio::spawn({
        let there = there.clone();
        async move { stays_held(&there).await }
    });
    until("what was swallowed is said again", async || is_free(&there, 2).await).await;
    still_held.await.unwrap();
    drop(held);
    store.flush().await.unwrap();
    assert!(is_free(&there, 1).await);
}

/// Nothing is asked that would show it: a job that runs for hours, say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_only_holds_notices_by_itself_that_its_connection_is_dead() {
    let server = Server::start();
    let proxy = Proxy::before(server.address()).await;
    let impatient = builder(&proxy.url()).deadline(Duration::from_millis(100)).places_expire_after(EXPIRY);
    let (here, there) = (limiter(impatient.connect().await.unwrap()), others(&server).await);
    let held = enter(&here, 1).await;
    assert!(held.is_some());
    proxy.swallow_existing();
    stays_held(&there).await;
    assert_eq!(proxy.connects(), 2);
    drop(held);
    until("over the next connection it is freed", async || is_free(&there, 1).await).await;
}

/// Nobody asks anything, and the next renewal after a pause would be twenty minutes away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_empty_hears_at_once_what_runs() {
    let mut server = Server::start();
    let hourly = builder(&server.url()).places_expire_after(Duration::from_secs(3_600));
    let store = hourly.connect().await.unwrap();
    let here = limiter(store.clone());
    let held = enter(&here, 1).await;
    assert!(held.is_some());
    server.kill();
    server.start_again(&[]);
    assert!(server.comes_up());
    let there = others(&server).await;
    until("the place is held again", async || !is_free(&there, 1).await).await;
    drop(held);
    store.flush().await.unwrap();
    assert!(is_free(&there, 1).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_grants_no_place_and_keeps_those_that_are_held() {
    let server = Server::start();
    let store = builder(&server.url()).places_expire_after(EXPIRY).connect().await.unwrap();
    let (here, there) = (limiter(store.clone()), others(&server).await);
    let (held, ended) = (enter(&here, 1).await, enter(&here, 2).await);
    server.run::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let refused = here.reserve(&3).await.unwrap_err();
    assert!(format!("{refused:?}").contains("OOM"), "{refused:?}");
    drop(ended);
    store.flush().await.unwrap();
    assert!(is_free(&there, 2).await);
    stays_held(&there).await;
    drop(held);
    store.flush().await.unwrap();
    assert_eq!(server.run::<u64>(&["DBSIZE"]), 0);
}

/// A stream's buffer does not poll its futures while whoever reads the stream is at work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_nobody_looked_at_until_its_place_was_free_again_is_none() {
    let server = Server::start();
    let (deadline, short) = (Duration::from_millis(100), Duration::from_millis(300));
    let store = builder(&server.url()).deadline(deadline).places_expire_after(short);
    let (here, there) = (limiter(store.connect().await.unwrap()), others(&server).await);
    let running = AtomicU64::new(0);
    let mut asked = Box::pin(here.reserve(&1));
    until("the place is taken", async || {
        // Asked anew where the machine took too long to ask.
        asked = Box::pin(here.reserve(&1));
        assert!(futures_util::poll!(&mut asked).is_pending());
        let taken = until("in time", async || !is_free(&there, 1).await);
        tokio::time::timeout(deadline, taken).await.is_ok()
    })
    .await;
    until("nobody renews the place", async || is_free(&there, 1).await).await;
    let other = enter(&there, 1).await;
    running.fetch_add(u64::from(other.is_some()), Ordering::Relaxed);
    let answer = asked.await;
    running.fetch_add(u64::from(answer.is_ok_and(|(decision, _)| decision.is_allowed())), Ordering::Relaxed);
    assert_eq!(running.into_inner(), 1, "two run");
    assert!(!is_free(&there, 1).await, "what was given back was the other's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_of_a_fallback_frees_none_on_the_server_when_that_is_back() {
    let mut server = Server::start();
    let redis = builder(&server.url()).connect().await.unwrap();
    let share = FailurePolicy::Fallback(Share::WHOLE);
    let here = limiter(Guarded::builder(redis.clone(), share).deadline(PATIENCE).build());
    server.kill();
    until("it is gone", async || !redis.is_connected()).await;
    let (decision, granted_here) = here.reserve(&1).await.unwrap();
    assert!(decision.is_allowed() && decision.is_degraded());
    server.start_again(&[]);
    assert!(server.comes_up());
    redis.connected().await;
    let there = others(&server).await;
    let held = enter(&there, 1).await;
    assert!(held.is_some(), "what was granted meanwhile is not told");
    drop(granted_here);
    redis.flush().await.unwrap();
    assert!(!is_free(&there, 1).await);
    drop(held);
}

#[test]
fn receipts_that_outlive_their_runtime_are_free_with_the_expiry_and_nobody_hangs() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (here, held) = runtime.block_on(async {
        let store = builder(&server.url()).places_expire_after(Duration::from_millis(500)).connect().await.unwrap();
        let here = limiter(store);
        let held = [enter(&here, 1).await, enter(&here, 2).await];
        (here, held)
    });
    assert!(held.iter().all(Option::is_some));
    drop(runtime);
    // Nobody is there any more who could tell the server.
    drop(held);
    let other = tokio::runtime::Runtime::new().unwrap();
    other.block_on(here.reserve(&3)).expect_err("its tasks are gone");
    drop(here);
    other.block_on(until("nothing is left", async || server.run::<u64>(&["DBSIZE"]) == 0));
}
