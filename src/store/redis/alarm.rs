//! The deadlines of all decisions on one timer: they have the same span, so they come in the order in which they were
//! set.
//!
//! A timer of its own for each decision would be most of what a decision costs the runtime, and nearly none of them
//! rings.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};

use tokio::sync::Notify;

use crate::time::{Clock, Nanos, SystemClock};

/// Wakes whoever waits at the end of a span.
pub(super) struct Alarm {
    span: Nanos,
    clock: SystemClock,
    waiting: Mutex<Waiting>,
    /// Tells a [task](Self::run) that sleeps for good that something was set.
    set: Notify,
}

#[derive(Default)]
struct Waiting {
    /// The number of the first in the list: how many were set before it.
    first: u64,
    /// When to wake whom, in order; nobody where the wait is over.
    list: VecDeque<(Nanos, Option<Waker>)>,
    /// Whether the task is sure to look again within a span.
    watched: bool,
}

impl Waiting {
    fn at(&mut self, number: u64) -> Option<&mut Option<Waker>> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.list.get_mut(place).map(|(_, waker)| waker)
    }

    fn drop_finished(&mut self) {
        while self.list.front().is_some_and(|(_, waker)| waker.is_none()) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) -> Option<Waker> {
        let (_, waker) = self.list.pop_front()?;
        self.first += 1;
        waker
    }
}

impl Alarm {
    pub(super) fn new(span: Duration) -> Arc<Self> {
        Arc::new(Self { span: span.into(), clock: SystemClock::new(), waiting: Mutex::default(), set: Notify::new() })
    }

    /// The end of a span that begins now.
    pub(super) fn end(&self) -> Nanos {
        self.clock.now().saturating_add(self.span)
    }

    pub(super) fn is_past(&self, end: Nanos) -> bool {
        self.clock.now() >= end
    }

    /// Nothing that can panic runs under this lock, and no waker.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes `waker` at an [end](Self::end), and returns a number for it. **Locking** for a few moves.
    pub(super) fn set(&self, at: Nanos, waker: Waker) -> u64 {
        let mut waiting = self.waiting();
        waiting.list.push_back((at, Some(waker)));
        let number = waiting.first + waiting.list.len() as u64 - 1;
        let watched = std::mem::replace(&mut waiting.watched, true);
        drop(waiting);
        if !watched {
            self.set.notify_one();
        }
        number
    }

    /// Wakes another one instead.
    pub(super) fn set_again(&self, number: u64, waker: &Waker) {
        if let Some(Some(known)) = self.waiting().at(number) {
            known.clone_from(waker);
        }
    }

    /// Forgets a wait that is over.
    pub(super) fn off(&self, number: u64) {
        let mut waiting = self.waiting();
        let waker = waiting.at(number).and_then(Option::take);
        waiting.drop_finished();
        drop(waiting);
        drop(waker);
    }

    /// Wakes those whose time has come, for ever.
    pub(super) async fn run(self: Arc<Self>) {
        let (mut seen, mut due) = (0, Vec::new());
        loop {
            let next = {
                let (now, mut waiting) = (self.clock.now(), self.waiting());
                while waiting.list.front().is_some_and(|(at, _)| *at <= now) {
                    due.extend(waiting.drop_first());
                }
                let idle = waiting.list.is_empty() && waiting.first == seen;
                seen = waiting.first;
                waiting.watched = !idle;
                // What is set while nothing waits has its time after a span.
                let next = waiting.list.front().map_or(self.span, |(at, _)| at.saturating_sub(now));
                (!idle).then(|| next.into())
            };
            due.drain(..).for_each(Waker::wake);
            match next {
                Some(pause) => tokio::time::sleep(pause).await,
                None => self.set.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        task::Wake,
    };

    use super::*;

    const SPAN: Duration = Duration::from_millis(25);

    #[derive(Default)]
    struct Rings(AtomicU32);

    impl Wake for Rings {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Rings {
        fn so_far(&self) -> u32 {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn set(alarm: &Alarm) -> (u64, Arc<Rings>) {
        let rings = Arc::new(Rings::default());
        (alarm.set(alarm.end(), Waker::from(Arc::clone(&rings))), rings)
    }

    async fn pass(time: Duration) {
        // Sleeping, so that the task has its turns on the way; time is paused.
        tokio::time::sleep(time).await;
    }

    #[tokio::test(start_paused = true)]
    async fn rings_at_the_end_of_a_span_and_not_before() {
        let alarm = Alarm::new(SPAN);
        tokio::spawn(Arc::clone(&alarm).run());
        // At once, a little later, after a while of nothing, and after a long one.
        for wait in [0, 3, 24, 26, 60, 500] {
            pass(Duration::from_millis(wait)).await;
            let (_, rings) = set(&alarm);
            pass(SPAN - Duration::from_millis(1)).await;
            assert_eq!(rings.so_far(), 0, "after {wait} ms");
            pass(Duration::from_millis(3)).await;
            assert_eq!(rings.so_far(), 1, "after {wait} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn is_silent_about_waits_that_are_over() {
        let alarm = Alarm::new(SPAN);
        tokio::spawn(Arc::clone(&alarm).run());
        let (first, one) = set(&alarm);
        pass(Duration::from_millis(10)).await;
        let ((second, two), (third, three)) = (set(&alarm), set(&alarm));
        alarm.off(second);
        assert_eq!(alarm.waiting().list.len(), 3, "one in front still waits");
        alarm.off(first);
        assert_eq!(alarm.waiting().list.len(), 1, "and then both are gone");
        let other = Arc::new(Rings::default());
        alarm.set_again(third, &Waker::from(Arc::clone(&other)));
        pass(SPAN * 2).await;
        let rings = [one, two, three, other].map(|rings| rings.so_far());
        assert_eq!(rings, [0, 0, 0, 1]);
        // What has rung is no number any more.
        alarm.off(third);
        assert!(alarm.waiting().list.is_empty());
    }
}
