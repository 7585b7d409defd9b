//! One request's question: the names of its buckets and what is asked of them, and the future of its answer.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use smallvec::SmallVec;

use super::{
    Inner,
    answer::{self, Answer},
    connection::Live,
    giving_back::Change,
    numbers::{Kind, Numbers},
    script::{CHARGE, Doubles, Part},
    ticket::Ticket,
};
use crate::{bucket::Ask, charge::Verdicts, error::StoreError, limit::Limit, time::Nanos};

/// How long an answer that nobody waits for any more is still read, to give back what it charged.
pub(super) const READ_LATE: Duration = Duration::from_secs(30);

/// What is asked of one bucket.
pub(super) struct Asked {
    pub(super) numbers: Numbers,
    pub(super) limit: Limit,
    pub(super) ask: Ask,
    /// Where its name ends, in the names of all.
    pub(super) name_ends: usize,
}

pub(super) struct Question {
    /// The names of the buckets, one after the other.
    pub(super) names: Vec<u8>,
    pub(super) asked: SmallVec<[Asked; 3]>,
    /// What the script is told of each rule.
    pub(super) charges: Doubles,
    /// The server's time after which it may charge nothing. Relaxed: read by who was handed the question.
    pub(super) late: AtomicU64,
    /// The time to judge at, where that is not the server's own.
    pub(super) judged: Option<u64>,
    /// The limiter's own time, which what is given back is judged at where the store goes by it.
    pub(super) now: Nanos,
}

impl Question {
    pub(super) fn names(&self) -> impl Iterator<Item = &[u8]> {
        let begin = std::iter::once(0).chain(self.asked.iter().map(|asked| asked.name_ends));
        begin.zip(&self.asked).map(|(from, asked)| self.names.get(from..asked.name_ends).unwrap_or_default())
    }

    /// Each rule's algorithm, its bucket's name, and what the script is told of it.
    pub(super) fn rules(&self) -> impl Iterator<Item = (Kind, &[u8], &[u8])> {
        let kinds = self.asked.iter().map(|asked| asked.numbers.kind);
        kinds
            .zip(self.names())
            .zip(self.charges.as_bytes().chunks(CHARGE))
            .map(|((kind, name), told)| (kind, name, told))
    }

    fn read(&self, inner: &Inner, reply: &[u8]) -> Result<Answer, StoreError> {
        let answer = answer::read(reply, &self.asked, inner.settings.longer.is_some())?;
        if let Answer::Judged(_, Some(server)) | Answer::TooLate(server) = answer {
            inner.link.learn_time(server);
        }
        Ok(answer)
    }

    /// Notes the places that were taken: from now on this process holds them.
    fn hold(&self, inner: &Inner, verdicts: &Verdicts) {
        for ((name, asked), judged) in self.names().zip(&self.asked).zip(verdicts.iter()) {
            if asked.numbers.kind == Kind::InFlight && judged.mark.is_some() {
                inner.held.take(name, asked.numbers, judged.stamp, asked.numbers.amount(asked.ask.cost));
            }
        }
    }

    /// Whether places that were taken before `until` may expire before they are renewed for the first time: whoever
    /// waits was not polled for long, as futures in a stream's buffer are not while it is full.
    fn may_have_lost(&self, inner: &Inner, verdicts: &Verdicts, until: Nanos) -> bool {
        let mut all = self.asked.iter().zip(verdicts.iter());
        all.any(|(asked, judged)| asked.numbers.kind == Kind::InFlight && judged.mark.is_some())
            && inner.alarm.is_past(until.saturating_add((inner.settings.places_expire_after / 3).into()))
    }

    /// Gives back what an answer that nobody waits for says was charged.
    fn give_back(&self, inner: &Inner, verdicts: &Verdicts) {
        for ((name, asked), judged) in self.names().zip(&self.asked).zip(verdicts.iter()) {
            let Some(mark) = judged.mark else { continue };
            let (numbers, cost) = (&asked.numbers, asked.ask.cost);
            // As a holder is named.
            let cost = if numbers.kind == Kind::InFlight { numbers.amount(cost) } else { cost };
            let part = Part { cost, left: 0, mark, life: judged.stamp };
            let delays = asked.ask.max_delay > Nanos::ZERO;
            inner.giving_back.send(Change::back(name.to_vec(), asked.numbers, self.now, delays, part));
        }
    }
}

/// The future of an answer: it fails at the deadline. Dropped or too late, the question is taken back where it was not
/// sent yet; otherwise the answer is still awaited elsewhere, and what it charged is given back.
pub(super) struct Deciding {
    inner: Arc<Inner>,
    live: Arc<Live>,
    /// `None` once the answer was given.
    ticket: Option<Arc<Ticket>>,
    until: Nanos,
    /// The alarm's number, once the question was asked.
    alarm: Option<u64>,
    again: bool,
}

impl Deciding {
    pub(super) fn new(inner: &Arc<Inner>, live: Arc<Live>, question: Question) -> Self {
        let ticket = Some(Ticket::new(question));
        Self { inner: Arc::clone(inner), live, ticket, until: inner.alarm.end(), alarm: None, again: true }
    }
}

impl Future for Deciding {
    type Output = Result<Verdicts, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(ticket) = &this.ticket else {
            return Poll::Ready(Err(StoreError::new("an answer was asked for after it was given")));
        };
        let (inner, alarm) = (&this.inner, &this.inner.alarm);
        let asked = this.alarm.is_some();
        while let Poll::Ready(reply) = ticket.poll(context.waker()) {
            let answer = reply.and_then(|reply| ticket.question().read(inner, &reply));
            if let Ok(Answer::TooLate(_)) = answer
                && this.again
            {
                // The server's clock is ahead of what was known of it. Nothing was charged.
                this.again = false;
                ticket.question().late.store(inner.link.server_time_in(inner.settings.deadline), Ordering::Relaxed);
                ticket.wait_again();
                this.live.ask(ticket);
                continue;
            }
            let answered = Poll::Ready(match answer {
                Ok(Answer::Judged(verdicts, _)) if ticket.question().may_have_lost(inner, &verdicts, this.until) => {
                    ticket.question().give_back(inner, &verdicts);
                    Err(StoreError::new(
                        "nobody looked at the answer of Redis until the places that it granted were about to expire",
                    )
                    .of_one_request())
                }
                Ok(Answer::Judged(verdicts, _)) => {
                    ticket.question().hold(inner, &verdicts);
                    Ok(verdicts)
                }
                Ok(Answer::TooLate(_)) => Err(StoreError::new("Redis ran the script too late; nothing was charged")),
                Err(error) => Err(error),
            });
            this.ticket = None;
            return answered;
        }
        match this.alarm {
            None => this.alarm = Some(alarm.set(this.until, context.waker().clone())),
            Some(number) if !alarm.is_past(this.until) => alarm.set_again(number, context.waker()),
            Some(_) => {
                this.live.timed_out(&inner.link);
                this.read_late();
                return Poll::Ready(Err(StoreError::new("Redis did not answer within the deadline")));
            }
        }
        if !asked {
            this.live.ask(ticket);
        }
        Poll::Pending
    }
}

impl Deciding {
    /// Leaves the answer to a task of its own, which also goes on looking at the clock: whoever gave up sooner than the
    /// deadline must not hide that nothing comes.
    fn read_late(&mut self) {
        // What was never asked has no alarm.
        let Some(ticket) = self.ticket.take().filter(|_| self.alarm.is_some()) else { return };
        if !ticket.take_back() {
            return;
        }
        let (inner, live) = (Arc::clone(&self.inner), Arc::clone(&self.live));
        let watched = !inner.alarm.is_past(self.until);
        let left = if watched { inner.settings.deadline } else { Duration::ZERO };
        self.inner.runtime.spawn(async move {
            let answer = async || std::future::poll_fn(|context| ticket.poll(context.waker())).await;
            let reply = match tokio::time::timeout(left, answer()).await {
                Ok(reply) => Ok(reply),
                Err(_) => {
                    if watched {
                        live.timed_out(&inner.link);
                    }
                    tokio::time::timeout(READ_LATE, answer()).await
                }
            };
            let Ok(Ok(reply)) = reply else { return };
            if let Ok(Answer::Judged(verdicts, _)) = ticket.question().read(&inner, &reply) {
                ticket.question().give_back(&inner, &verdicts);
            }
        });
    }
}

impl Drop for Deciding {
    fn drop(&mut self) {
        if let Some(number) = self.alarm {
            self.inner.alarm.off(number);
        }
        self.read_late();
    }
}
