//! Requests that wait for a place in flight: in turn, for so long, and out of the way at once when they give up.

mod layer;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tokio_test::{assert_pending, task::Spawn};
use tollgate::{
    Decision, Key, Limit, Limiter, Rule,
    decision::Wait,
    store::{MemoryStore, Receipt},
    time::ManualClock,
};

use crate::{
    random::{Random, each_seed, from_env},
    support::limiter,
};

/// A request: whose, and how many places it takes.
type Ask = (u64, u64);

const LONGEST: Duration = Duration::from_secs(5);

/// A rule of `places` for each client, for which up to `most` wait.
fn queued(places: u64, most: usize) -> Rule<Ask> {
    Rule::new("places", Limit::in_flight(places), |ask: &Ask| Some(Key::from(ask.0)))
        .cost(|ask: &Ask| ask.1)
        .queue(most, LONGEST)
}

type Acquired = Result<(Decision, Receipt), tollgate::Error>;

/// Asks for a place, as far as that goes.
macro_rules! acquire {
    ($limiter:expr, $ask:expr) => {
        tokio_test::task::spawn(async { $limiter.acquire_receipt(&$ask).await })
    };
}

#[track_caller]
fn got<F: Future<Output = Acquired>>(waiting: &mut Spawn<F>) -> Receipt {
    match waiting.poll() {
        Poll::Ready(Ok((decision, receipt))) => {
            assert!(decision.is_allowed(), "{decision:?}");
            receipt
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused<F: Future<Output = Acquired>>(waiting: &mut Spawn<F>) -> Decision {
    match waiting.poll() {
        Poll::Ready(Ok((decision, _))) => {
            assert!(!decision.is_allowed(), "{decision:?}");
            decision
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn places_go_to_those_who_wait_in_the_order_in_which_they_came() {
    let clock = ManualClock::new();
    let limiter = limiter(vec![queued(1, 9)], &clock);
    let ask = (7, 1);
    let mut held = got(&mut acquire!(limiter, ask));
    let mut waiting: VecDeque<_> = (0..4).map(|_| acquire!(limiter, ask)).collect();
    for one in &mut waiting {
        assert_pending!(one.poll());
    }
    assert_eq!(limiter.waiting("places"), Some(4));
    let other = (8, 1);
    drop(got(&mut acquire!(limiter, other)));
    while let Some(mut first) = waiting.pop_front() {
        // Who is first now may have been called for more places than were taken.
        assert_pending!(first.poll(), "nothing is free yet");
        drop(held);
        assert!(first.is_woken());
        for later in &mut waiting {
            assert!(!later.is_woken());
            assert_pending!(later.poll());
        }
        held = got(&mut first);
    }
    assert_eq!(limiter.waiting("places"), Some(0));
    drop(held);
    drop(got(&mut acquire!(limiter, ask)));
}

#[test]
fn nobody_overtakes_those_who_wait() {
    let clock = ManualClock::new();
    let limiter = limiter(vec![queued(1, 9)], &clock);
    let ask = (7, 1);
    let held = got(&mut acquire!(limiter, ask));
    let mut first = acquire!(limiter, ask);
    assert_pending!(first.poll());
    drop(held);
    // The place is free, and who waits was called and has not asked yet.
    let mut newcomer = acquire!(limiter, ask);
    assert_pending!(newcomer.poll());
    let (decision, _none) = limiter.reserve_now(&ask).unwrap();
    assert!(!decision.is_allowed(), "who does not wait is refused");
    assert_eq!((decision.status().as_u16(), decision.retry_after_secs()), (429, Some(1)));
    assert_eq!(decision.violated().collect::<Vec<_>>(), ["places"]);
    let held = got(&mut first);
    assert!(newcomer.is_woken());
    assert_pending!(newcomer.poll());
    drop(held);
    drop(got(&mut newcomer));
    assert!(limiter.reserve_now(&ask).unwrap().0.is_allowed());
}

/// B47 (a).
#[test]
fn who_gives_up_is_out_of_the_way_at_once() {
    let clock = ManualClock::new();
    let limiter = limiter(vec![queued(2, 9)], &clock);
    let (one, both) = ((7, 1), (7, 2));
    let held = [got(&mut acquire!(limiter, one)), got(&mut acquire!(limiter, one))];
    let mut wants_both = acquire!(limiter, both);
    let mut wants_one = acquire!(limiter, one);
    assert_pending!(wants_both.poll());
    assert_pending!(wants_one.poll());
    let [first, second] = held;
    drop(first);
    assert_pending!(wants_both.poll(), "who is first waits for all it needs");
    assert_pending!(wants_one.poll(), "and nobody passes it");
    drop(wants_both);
    assert!(wants_one.is_woken());
    let third = got(&mut wants_one);
    drop((second, third));
    drop(got(&mut acquire!(limiter, both)));
}

/// Whoever is dropped when it was called already passes the call on: the place is neither lost nor given twice.
#[test]
fn who_gives_up_when_it_was_called_passes_it_on() {
    let clock = ManualClock::new();
    let limiter = limiter(vec![queued(1, 9)], &clock);
    let ask = (7, 1);
    let held = got(&mut acquire!(limiter, ask));
    let [mut first, mut second, mut third] = [(); 3].map(|()| acquire!(limiter, ask));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    assert_pending!(third.poll());
    drop(held);
    assert!(first.is_woken());
    drop(first);
    assert!(second.is_woken());
    let held = got(&mut second);
    assert!(third.is_woken());
    assert_pending!(third.poll());
    drop(held);
    drop(got(&mut third));
}

#[test]
fn who_waits_too_long_is_refused_as_without_a_queue() {
    let clock = ManualClock::new();
    let plain = limiter(
        vec![Rule::new("places", Limit::in_flight(1), |ask: &Ask| Some(Key::from(ask.0))).cost(|ask: &Ask| ask.1)],
        &clock,
    );
    let limiter = limiter(vec![queued(1, 9)], &clock);
    let ask = (7, 1);
    let _held = [got(&mut acquire!(plain, ask)), got(&mut acquire!(limiter, ask))];
    let expected = refused(&mut acquire!(plain, ask));
    let mut first = acquire!(limiter, ask);
    assert_pending!(first.poll());
    clock.advance(Duration::from_secs(1));
    let mut second = acquire!(limiter, ask);
    assert_pending!(second.poll());
    clock.advance(LONGEST - Duration::from_secs(1) - Duration::from_nanos(1));
    assert_pending!(first.poll());
    clock.advance(Duration::from_nanos(1));
    assert!(first.is_woken());
    let decision = refused(&mut first);
    assert_eq!(
        format!("{:?}", decision.rules().collect::<Vec<_>>()),
        format!("{:?}", expected.rules().collect::<Vec<_>>())
    );
    assert_eq!((decision.refusal(), decision.wait()), (expected.refusal(), Some(Wait::Unknown)));
    assert_pending!(second.poll());
    clock.advance(Duration::from_secs(1));
    let _ = refused(&mut second);
    assert_eq!(limiter.waiting("places"), Some(0));
}

#[test]
fn where_the_line_is_full_a_request_is_refused_at_once() {
    let clock = ManualClock::new();
    let limiter = limiter(vec![queued(1, 2)], &clock);
    let ask = (7, 1);
    let held = got(&mut acquire!(limiter, ask));
    let mut waiting = [(); 2].map(|()| acquire!(limiter, ask));
    for one in &mut waiting {
        assert_pending!(one.poll());
    }
    let decision = refused(&mut acquire!(limiter, ask));
    assert_eq!((decision.status().as_u16(), decision.retry_after_secs()), (429, Some(1)));
    drop(held);
    // A place is free, but not for it.
    let decision = refused(&mut acquire!(limiter, ask));
    assert_eq!(decision.tightest().unwrap().verdict.remaining, 0);
    // More than there is room for at all is no reason to wait.
    let too_many = (8, 2);
    assert_eq!(refused(&mut acquire!(limiter, too_many)).wait(), Some(Wait::Never));
}

/// Each is judged anew, whole, at its turn: what another rule refuses then is refused, and the place goes to the next.
#[test]
fn at_its_turn_a_request_is_judged_by_all_rules() {
    let clock = ManualClock::new();
    let rate = Rule::global("rate", Limit::per_hour(2)).cost(|ask: &Ask| ask.0 / 10);
    let by_ten = Rule::new("places", Limit::in_flight(1), |ask: &Ask| Some(Key::from(ask.0 % 10))).queue(9, LONGEST);
    let limiter = limiter(vec![rate, by_ten], &clock);
    let (free, dear) = ((7, 1), (17, 1));
    let held = got(&mut acquire!(limiter, dear));
    let [mut second, mut third] = [(); 2].map(|()| acquire!(limiter, dear));
    let mut last = acquire!(limiter, free);
    assert_pending!(second.poll());
    assert_pending!(third.poll());
    assert_pending!(last.poll());
    drop(held);
    let held = got(&mut second);
    drop(held);
    let decision = refused(&mut third);
    assert_eq!(decision.violated().collect::<Vec<_>>(), ["rate"]);
    assert_eq!(decision.retry_after(), Some(Duration::from_secs(1_800)));
    drop(got(&mut last));
    // And where another rule refuses from the start nobody waits.
    let _held = got(&mut acquire!(limiter, free));
    assert_eq!(refused(&mut acquire!(limiter, dear)).violated().collect::<Vec<_>>(), ["rate", "places"]);
}

/// A line for each client, and one for all. Who waits for its own place is in nobody else's way, and only the first of
/// each client stands in the line for all, so that nobody can fill it.
#[test]
fn who_waits_for_two_rules_stands_in_one_line_after_the_other() {
    let clock = ManualClock::new();
    let all = Rule::global("all", Limit::in_flight(2)).queue(9, LONGEST);
    let limiter = limiter(vec![queued(1, 9), all], &clock);
    let waiting = || (limiter.waiting("places").unwrap(), limiter.waiting("all").unwrap());
    let (busy, other, third, fourth) = ((7, 1), (8, 1), (9, 1), (10, 1));
    let busys = got(&mut acquire!(limiter, busy));
    let others = got(&mut acquire!(limiter, other));
    let mut many: Vec<_> = (0..3).map(|_| acquire!(limiter, busy)).collect();
    for one in &mut many {
        assert_pending!(one.poll());
    }
    assert_eq!(waiting(), (3, 0), "its own place is taken");
    let mut late = acquire!(limiter, third);
    assert_pending!(late.poll());
    assert_eq!(waiting(), (4, 1));
    drop(others);
    let lates = got(&mut late);
    // Both are taken; another one waits for any, and the busy client's own place is free.
    let mut later = acquire!(limiter, fourth);
    assert_pending!(later.poll());
    assert_eq!(waiting(), (4, 1));
    drop(lates);
    drop(busys);
    assert!(many[0].is_woken() && later.is_woken());
    assert_pending!(many[0].poll(), "the other one came first to the line for all");
    assert_eq!(waiting(), (4, 2));
    let laters = got(&mut later);
    let busys = got(&mut many[0]);
    assert_pending!(many[1].poll());
    drop((laters, busys));
    drop(got(&mut many[1]));
    drop(got(&mut many[2]));
    assert_eq!(waiting(), (0, 0));
}

/// Places that are freed by others, of whom nobody hears here.
#[test]
fn who_is_first_asks_again_from_time_to_time() {
    let clock = ManualClock::new();
    let store = MemoryStore::new();
    let shared = || Limiter::builder([queued(1, 9)]).clock(clock.clone()).store(store.clone()).build().unwrap();
    let (here, elsewhere) = (shared(), shared());
    let ask = (7, 1);
    let held = got(&mut acquire!(elsewhere, ask));
    let [mut first, mut second] = [(); 2].map(|()| acquire!(here, ask));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    drop(held);
    clock.advance(Duration::from_millis(99));
    assert_pending!(first.poll());
    clock.advance(Duration::from_millis(1));
    assert!(first.is_woken());
    assert_pending!(second.poll());
    drop(got(&mut first));
    drop(got(&mut second));
}

/// B47 (a): nothing is left of ten thousand that gave up.
#[test]
fn ten_thousand_that_give_up_leave_nothing_behind() {
    let clock = ManualClock::new();
    let limiter = limiter(vec![queued(2, 5)], &clock);
    // Each is ten thousand clients.
    each_seed(from_env("TOLLGATE_RUNS", 4).min(2_000), |random: &mut Random| {
        let mut held: Vec<(u64, Receipt)> = Vec::new();
        let mut waiting: Vec<(u64, Spawn<_>)> = Vec::new();
        for _ in 0..10_000 {
            match random.below(4) {
                0 if !held.is_empty() => drop(held.swap_remove(random.below(held.len() as u64) as usize)),
                1 if !waiting.is_empty() => drop(waiting.remove(random.below(waiting.len() as u64) as usize)),
                _ => {
                    let (limiter, ask) = (limiter.clone(), (random.below(3), 1 + random.below(2)));
                    let one = tokio_test::task::spawn(Box::pin(async move { limiter.acquire_receipt(&ask).await }));
                    waiting.push((ask.1, one));
                }
            }
            let mut still = Vec::new();
            for (cost, mut one) in waiting.drain(..) {
                match one.poll() {
                    Poll::Pending => still.push((cost, one)),
                    Poll::Ready(answer) => {
                        let (decision, receipt) = answer.unwrap();
                        if decision.is_allowed() {
                            held.push((cost, receipt));
                        }
                    }
                }
            }
            waiting = still;
            let running: u64 = held.iter().map(|(cost, _)| cost).sum();
            assert!(running <= 3 * 2, "{running}");
        }
        drop((held, waiting));
        assert_eq!(limiter.waiting("places"), Some(0));
        for client in 0..3 {
            let (decision, _receipt) = limiter.reserve_now(&(client, 2)).unwrap();
            assert!(decision.is_allowed(), "the next lone request runs at once: {decision:?}");
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_threads_there_are_never_more_than_the_places_and_everybody_gets_one() {
    // However slow the machine is.
    let limiter = Arc::new(Limiter::new([queued(3, 1_000).queue(1_000, Duration::from_secs(3_600))]));
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for task in 0..200_u64 {
        let (limiter, running, most) = (Arc::clone(&limiter), Arc::clone(&running), Arc::clone(&most));
        tasks.push(tokio::spawn(async move {
            let ask = (7, 1);
            if task % 4 == 0 {
                // Gives up after a few polls, or holds what it was given.
                let asking = limiter.acquire_receipt(&ask);
                tokio::select! {
                    biased;
                    _ = tokio::task::yield_now() => return 0,
                    _ = asking => return 0,
                }
            }
            let (decision, receipt) = limiter.acquire_receipt(&ask).await.unwrap();
            assert!(decision.is_allowed());
            let now = running.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::SeqCst);
            drop(receipt);
            1
        }));
    }
    let mut ran = 0;
    for task in tasks {
        ran += task.await.unwrap();
    }
    assert_eq!(ran, 150);
    assert!(most.load(Ordering::SeqCst) <= 3, "{most:?}");
    assert_eq!(limiter.waiting("places"), Some(0));
    assert!(limiter.reserve_now(&(7, 3)).unwrap().0.is_allowed(), "all places are free");
}
