//! Who waits for a place in flight: a line for each key, first come, first served.
//!
//! A line gives nothing away itself. Whoever is first in it, and has been called, asks the store; where that has no
//! place yet it stays first. It is called when it gets to be first, and whenever a place of its key may be free. So
//! nothing is lost where a place is free between a refusal and the waiting: who joins an empty line is called, and asks
//! once more.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

#[cfg(tollgate_loom)]
use loom::sync::atomic::{AtomicUsize, Ordering, fence};
#[cfg(not(tollgate_loom))]
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use super::lock::Mutex;
use crate::key::{KeyHash, KeyId};

/// The lines of one rule, and how many may wait in one, and for how long.
pub(crate) struct Queue {
    most: usize,
    longest: Duration,
    waiters: Arc<Waiters>,
}

/// Who waits. A rule that is [reloaded](crate::Limiter::reload) with another queue goes on with those who stand in
/// line.
struct Waiters {
    /// How many wait in all lines. Raised before who waits asks the store, and read after a place was freed there. A
    /// fence on either side orders the two, whatever the store does: who frees a place and reads zero here was before
    /// anybody who then asks.
    waiting: AtomicUsize,
    /// **Locking**: for one look at one line. Nothing of a waker's runs under it, for it may lead back here.
    lines: Mutex<Lines>,
}

struct Lines {
    by_key: HashMap<KeyId, VecDeque<Waiter>, KeyHash>,
    next: u64,
}

struct Waiter {
    /// Ascending in a line.
    number: u64,
    /// Whether something has happened since it asked last.
    called: bool,
    waker: Option<Waker>,
}

/// A place in a line. Dropped, it is free, and who comes next is called.
pub(crate) struct Ticket {
    waiters: Arc<Waiters>,
    key: KeyId,
    number: u64,
}

impl Queue {
    /// A line of up to `most` for each key, in which nobody waits for longer than `longest`.
    pub(crate) fn new(most: usize, longest: Duration) -> Self {
        let by_key = HashMap::with_hasher(KeyHash::random());
        let lines = Mutex::new(Lines { by_key, next: 0 });
        Self { most, longest, waiters: Arc::new(Waiters { waiting: AtomicUsize::new(0), lines }) }
    }

    /// The same lines, for those who come from now on.
    pub(crate) fn going_on(&self, most: usize, longest: Duration) -> Self {
        Self { most, longest, waiters: Arc::clone(&self.waiters) }
    }

    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }

    /// How many wait, over all keys.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.waiting.load(Ordering::SeqCst)
    }

    /// Whether anybody waits in the line of `key`.
    pub(crate) fn is_busy(&self, key: KeyId) -> bool {
        self.waiting() > 0 && self.waiters.lines.lock().by_key.contains_key(&key)
    }

    /// Joins the line of `key` at its end; `None` where it is full.
    pub(crate) fn join(&self, key: KeyId) -> Option<Ticket> {
        let mut lines = self.waiters.lines.lock();
        let number = lines.next;
        let line = lines.by_key.entry(key).or_default();
        if line.len() >= self.most {
            if line.is_empty() {
                lines.by_key.remove(&key);
            }
            return None;
        }
        line.push_back(Waiter { number, called: line.is_empty(), waker: None });
        lines.next += 1;
        self.waiters.waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Some(Ticket { waiters: Arc::clone(&self.waiters), key, number })
    }

    /// Says that a place of `key` may be free: calls who is first.
    #[inline]
    pub(crate) fn call(&self, key: KeyId) {
        fence(Ordering::SeqCst);
        if self.waiting() > 0 {
            let waker = self.waiters.lines.lock().by_key.get_mut(&key).and_then(call_first);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// Calls who is first in a line, and returns who is to be woken.
fn call_first(line: &mut VecDeque<Waiter>) -> Option<Waker> {
    let first = line.front_mut()?;
    first.called = true;
    first.waker.take()
}

impl Ticket {
    /// Ready as soon as it is first in its line, with whether it was called since it asked last.
    pub(crate) fn poll_first(&self, cx: &mut Context<'_>) -> Poll<bool> {
        // The one is cloned before the lock is taken, and the other dropped when it is let go.
        let mut waker = Some(cx.waker().clone());
        let mut lines = self.waiters.lines.lock();
        let Some(line) = lines.by_key.get_mut(&self.key) else { return Poll::Ready(true) };
        let Ok(at) = line.binary_search_by_key(&self.number, |waiter| waiter.number) else { return Poll::Ready(true) };
        let Some(waiter) = line.get_mut(at) else { return Poll::Ready(true) };
        std::mem::swap(&mut waiter.waker, &mut waker);
        if at == 0 { Poll::Ready(std::mem::take(&mut waiter.called)) } else { Poll::Pending }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let (mut left, mut next) = (None, None);
        let mut lines = self.waiters.lines.lock();
        if let Some(line) = lines.by_key.get_mut(&self.key)
            && let Ok(at) = line.binary_search_by_key(&self.number, |waiter| waiter.number)
        {
            left = line.remove(at);
            self.waiters.waiting.fetch_sub(1, Ordering::SeqCst);
            // A place that it was called for may be there for the next.
            next = if at == 0 { call_first(line) } else { None };
            if line.is_empty() {
                lines.by_key.remove(&self.key);
            }
        }
        drop(lines);
        drop(left);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("most", &self.most).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Key, Secret};

    fn key(number: u64) -> KeyId {
        Key::from(number).id(&Secret::random())
    }

    fn poll(ticket: &Ticket) -> Poll<bool> {
        ticket.poll_first(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn who_came_first_is_called_first_and_stays_first_until_it_leaves() {
        let queue = Queue::new(3, Duration::MAX);
        let [first, second, third] = [(); 3].map(|()| queue.join(key(1)).unwrap());
        assert_eq!(poll(&first), Poll::Ready(true), "who joins an empty line asks");
        assert_eq!(poll(&first), Poll::Ready(false));
        queue.call(key(2));
        assert_eq!(poll(&first), Poll::Ready(false), "another key's place");
        queue.call(key(1));
        assert_eq!([poll(&first), poll(&second), poll(&third)], [Poll::Ready(true), Poll::Pending, Poll::Pending]);
        drop(second);
        assert_eq!([poll(&first), poll(&third)], [Poll::Ready(false), Poll::Pending]);
        queue.call(key(1));
        drop(first);
        assert_eq!(poll(&third), Poll::Ready(true), "the call went on to the next");
    }

    #[test]
    fn a_line_is_bounded_and_gone_when_nobody_waits() {
        let queue = Queue::new(2, Duration::MAX);
        let mut waiting: Vec<_> = (0..2).map(|_| queue.join(key(1)).unwrap()).collect();
        assert!(queue.join(key(1)).is_none());
        assert!(queue.is_busy(key(1)) && !queue.is_busy(key(2)));
        let other = queue.join(key(2)).unwrap();
        assert_eq!(queue.waiting(), 3);
        waiting.pop();
        waiting.push(queue.join(key(1)).unwrap());
        drop((waiting, other));
        assert_eq!(queue.waiting(), 0);
        assert!(queue.waiters.lines.lock().by_key.is_empty());
        assert!(Queue::new(0, Duration::MAX).join(key(1)).is_none());
    }
}
