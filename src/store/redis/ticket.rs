//! What one waits with for an answer, and the queue of those that are not sent yet.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, Waker},
};

use super::question::Question;
use crate::error::StoreError;

/// One question, and where its answer will be.
pub(super) struct Ticket {
    question: Question,
    /// Whether it has to go by itself. Relaxed: set before it is queued again, under the queue's lock.
    alone: AtomicBool,
    state: Mutex<State>,
}

enum State {
    Waiting {
        sent: bool,
        waker: Option<Waker>,
    },
    Answered(Result<Vec<u8>, StoreError>),
    /// Nobody waits, or the answer was taken.
    Over,
}

impl Ticket {
    pub(super) fn new(question: Question) -> Arc<Self> {
        let state = Mutex::new(State::Waiting { sent: false, waker: None });
        Arc::new(Self { question, alone: AtomicBool::new(false), state })
    }

    pub(super) fn question(&self) -> &Question {
        &self.question
    }

    /// Nothing that can panic runs under this lock, and no waker.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Relaxed)
    }

    /// Makes it wait for being sent again, by itself.
    pub(super) fn again_alone(&self) {
        if let State::Waiting { sent, .. } = &mut *self.state() {
            *sent = false;
        }
        self.alone.store(true, Ordering::Relaxed);
    }

    /// Notes that it is sent, unless nobody waits for the answer any more.
    pub(super) fn begin(&self) -> bool {
        match &mut *self.state() {
            State::Waiting { sent, .. } => {
                *sent = true;
                true
            }
            _ => false,
        }
    }

    pub(super) fn answer(&self, answer: Result<Vec<u8>, StoreError>) {
        let before = std::mem::replace(&mut *self.state(), State::Answered(answer));
        if let State::Waiting { waker: Some(waker), .. } = before {
            waker.wake();
        }
    }

    /// Takes the answer, or has `waker` woken when it comes.
    pub(super) fn poll(&self, waker: &Waker) -> Poll<Result<Vec<u8>, StoreError>> {
        let mut state = self.state();
        match &mut *state {
            State::Waiting { waker: Some(known), .. } => known.clone_from(waker),
            State::Waiting { waker: none, .. } => *none = Some(waker.clone()),
            _ => match std::mem::replace(&mut *state, State::Over) {
                State::Answered(answer) => return Poll::Ready(answer),
                _ => return Poll::Ready(Err(StoreError::new("an answer was asked for after it was given"))),
            },
        }
        Poll::Pending
    }

    /// Makes an answer that was taken not be one: it will be asked again.
    pub(super) fn wait_again(&self) {
        *self.state() = State::Waiting { sent: false, waker: None };
    }

    /// Takes it back where it was not sent. Returns whether an answer is still to be read.
    pub(super) fn take_back(&self) -> bool {
        let mut state = self.state();
        match &mut *state {
            State::Waiting { sent: true, .. } | State::Answered(Ok(_)) => true,
            _ => {
                *state = State::Over;
                false
            }
        }
    }
}

/// Questions that are not sent yet.
#[derive(Default)]
pub(super) struct Queue(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    tickets: Vec<Arc<Ticket>>,
    /// The connection's task, where it sleeps.
    task: Option<Waker>,
    closed: bool,
}

impl Queue {
    /// Nothing that can panic runs under this lock, and no waker.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a question, unless nobody would send it. **Locking** for a few moves.
    pub(super) fn push(&self, ticket: &Arc<Ticket>) {
        let mut waiting = self.waiting();
        if waiting.closed {
            drop(waiting);
            return ticket.answer(Err(StoreError::new("the connection to Redis has ended")));
        }
        waiting.tickets.push(Arc::clone(ticket));
        // One is enough for all that follow, until the task looks.
        let task = waiting.task.take();
        drop(waiting);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Whether anything waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting().tickets.is_empty()
    }

    /// Exchanges all that waits for `none`, and has `waker` woken for the next. Returns whether more can come.
    pub(super) fn take(&self, none: &mut Vec<Arc<Ticket>>, waker: &Waker) -> bool {
        let mut waiting = self.waiting();
        std::mem::swap(&mut waiting.tickets, none);
        match &mut waiting.task {
            Some(known) => known.clone_from(waker),
            task => *task = Some(waker.clone()),
        }
        !waiting.closed
    }

    /// Says that nobody will ask any more.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting();
        waiting.closed = true;
        let task = waiting.task.take();
        drop(waiting);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Ends it: what waits has no answer, and what comes later neither.
    pub(super) fn end(&self) {
        let mut waiting = self.waiting();
        waiting.closed = true;
        let tickets = std::mem::take(&mut waiting.tickets);
        drop(waiting);
        for ticket in tickets {
            ticket.answer(Err(StoreError::new("the connection to Redis has ended")));
        }
    }
}
