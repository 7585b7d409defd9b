//! One request's question: the names of its buckets and what is asked of them, and the future of its answer.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ::redis::Cmd;
use smallvec::SmallVec;

use super::{
    Inner,
    answer::{self, Answer},
    connection::Live,
    giving_back::Change,
    numbers::Numbers,
    script::{self, DECIDE, Part},
};
use crate::{
    bucket::Ask,
    charge::Verdicts,
    error::StoreError,
    limit::Limit,
    time::{BoxFuture, Nanos},
};

/// How long an answer that nobody waits for any more is still read, to give back what it charged.
const READ_LATE: Duration = Duration::from_secs(30);

/// What is asked of one bucket.
pub(super) struct Asked {
    pub(super) numbers: Numbers,
    pub(super) limit: Limit,
    pub(super) ask: Ask,
}

pub(super) struct Question {
    /// The call of the script, the names of the buckets in it.
    pub(super) command: Cmd,
    pub(super) asked: SmallVec<[Asked; 3]>,
    /// The limiter's own time, which what is given back is judged at where the store goes by it.
    pub(super) now: Nanos,
}

impl Question {
    /// Sends the question, and reads the answer.
    async fn ask(mut self, inner: Arc<Inner>, live: Arc<Live>) -> Result<(Verdicts, Self), StoreError> {
        let link = &inner.link;
        let mut again = true;
        loop {
            let reply = live.run(link, &DECIDE, &self.command).await?;
            match answer::read(&reply, &self.asked, inner.settings.longer.is_some())? {
                Answer::Judged(verdicts, server) => {
                    if let Some(server) = server {
                        link.learn_time(server);
                    }
                    return Ok((verdicts, self));
                }
                // The server's clock is ahead of what was known of it. Nothing was charged.
                Answer::TooLate(server) if again => {
                    link.learn_time(server);
                    let late = link.server_time_in(inner.settings.deadline);
                    self.command = script::with_late(&self.command, late);
                    again = false;
                }
                Answer::TooLate(_) => {
                    return Err(StoreError::new("Redis ran the script too late; nothing was charged"));
                }
            }
        }
    }

    /// Gives back what an answer that nobody waits for says was charged.
    fn give_back(&self, inner: &Inner, verdicts: &Verdicts) {
        for ((name, asked), judged) in script::names(&self.command).zip(&self.asked).zip(verdicts.iter()) {
            let Some(mark) = judged.mark else { continue };
            let part = Part { cost: asked.ask.cost, left: 0, mark, life: judged.stamp };
            let delays = asked.ask.max_delay > Nanos::ZERO;
            inner.giving_back.send(Change::back(name.to_vec(), asked.numbers, self.now, delays, part));
        }
    }
}

type Asking = BoxFuture<'static, Result<(Verdicts, Question), StoreError>>;

/// The future of an answer: it fails at the deadline. Dropped or too late, the answer is still awaited elsewhere, and what
/// it charged is given back.
pub(super) struct Deciding {
    inner: Arc<Inner>,
    live: Arc<Live>,
    asking: Option<Asking>,
    until: Nanos,
    /// The alarm's number, once it was set.
    alarm: Option<u64>,
}

impl Deciding {
    pub(super) fn new(inner: &Arc<Inner>, live: Arc<Live>, question: Question) -> Self {
        Self {
            inner: Arc::clone(inner),
            asking: Some(Box::pin(question.ask(Arc::clone(inner), Arc::clone(&live)))),
            live,
            until: inner.alarm.end(),
            alarm: None,
        }
    }
}

impl Future for Deciding {
    type Output = Result<Verdicts, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(asking) = &mut this.asking else {
            return Poll::Ready(Err(StoreError::new("an answer was asked for after it was given")));
        };
        if let Poll::Ready(answer) = asking.as_mut().poll(context) {
            this.asking = None;
            return Poll::Ready(answer.map(|(verdicts, _)| verdicts));
        }
        let alarm = &this.inner.alarm;
        match this.alarm {
            None => this.alarm = Some(alarm.set(this.until, context.waker().clone())),
            Some(number) if !alarm.is_past(this.until) => alarm.set_again(number, context.waker()),
            Some(_) => {
                this.live.timed_out(&this.inner.link);
                this.read_late();
                return Poll::Ready(Err(StoreError::new("Redis did not answer within the deadline")));
            }
        }
        Poll::Pending
    }
}

impl Deciding {
    /// Leaves the answer to a task of its own, which also goes on looking at the clock: whoever gave up sooner than the
    /// deadline must not hide that nothing comes.
    fn read_late(&mut self) {
        // What was never asked has no alarm.
        let Some(mut asking) = self.asking.take().filter(|_| self.alarm.is_some()) else { return };
        let (inner, live) = (Arc::clone(&self.inner), Arc::clone(&self.live));
        let watched = !inner.alarm.is_past(self.until);
        let left = if watched { inner.settings.deadline } else { Duration::ZERO };
        self.inner.runtime.spawn(async move {
            let answer = match tokio::time::timeout(left, &mut asking).await {
                Ok(answer) => Ok(answer),
                Err(_) => {
                    if watched {
                        live.timed_out(&inner.link);
                    }
                    tokio::time::timeout(READ_LATE, asking).await
                }
            };
            if let Ok(Ok((verdicts, question))) = answer {
                question.give_back(&inner, &verdicts);
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
