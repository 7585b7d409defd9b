//! Requests that wait for a place in flight.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use smallvec::SmallVec;

use super::{Generation, Intent, Judgement, Judging, Limiter, Unanswered};
use crate::{
    decision::{Decision, Refusal, Ruling, Wait},
    error::Error,
    key::KeyId,
    observe::{Observed, Waits},
    rule::Applies,
    store::{Queue, Receipt, Ticket},
    time::{BoxFuture, Clock},
};

/// How often who is first in all its lines asks without being called: places are freed that nobody here hears of, by
/// other processes and other limiters.
const ASKS_AGAIN: Duration = Duration::from_millis(100);

/// The line of a rule for one key.
struct Line {
    rule: usize,
    queue: Arc<Queue>,
    key: KeyId,
}

/// A place in the line of a rule.
struct Standing {
    rule: usize,
    ticket: Ticket,
    /// Counts it among those who wait.
    _waits: Waits,
}

/// A request that waits for its turn.
///
/// It stands in the line of the first rule that has no place for it; first there, and with a place of that rule within
/// reach, also in that of the next one that has none, or in which others wait. So a client that waits for itself is in
/// nobody else's way. Lines are joined in the order of the rules, and the next one only by who is first in those
/// before, so that two can never wait for each other. First in all its lines a request is judged, as a whole, and again
/// whenever it is called. Dropped, it has left every line, and the next are called.
pub(crate) struct Waiting {
    stands: SmallVec<[Standing; 1]>,
    /// Lines that it does not stand in yet, the next one last.
    ahead: SmallVec<[Line; 1]>,
    /// The last rule whose line it has to stand in.
    up_to: usize,
    /// Whether something has happened since it asked last.
    called: bool,
    /// Whether it was judged already, so that nothing refuses it but what may end.
    judged: bool,
    longest: BoxFuture<'static, ()>,
    again: BoxFuture<'static, ()>,
    asked: Option<(Purpose, BoxFuture<'static, Answer>)>,
}

type Answer = Result<Judgement, Box<Unanswered>>;

/// What the store is asked for.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    /// To see whether anything else refuses it, before it stands in anybody's way.
    Enter,
    /// To start.
    Start,
    /// To see whether it has to stand in another line before it may start.
    Look,
    /// To tell why it does not: it has waited too long for a place of this rule, or may not wait for one.
    Tell(usize),
}

impl Waiting {
    /// Polls for the answer to act on: the request passes, or is refused after all.
    pub(crate) fn poll<Req>(&mut self, cx: &mut Context<'_>, rules: &Generation<Req>, request: &Req) -> Poll<Answer> {
        loop {
            let (purpose, answer) = match &mut self.asked {
                Some((purpose, answer)) => {
                    let asked = (*purpose, ready!(answer.as_mut().poll(cx)));
                    self.asked = None;
                    asked
                }
                None => {
                    let purpose = ready!(self.poll_turn(cx, &*rules.core.clock, &rules.observed));
                    let intent = match purpose {
                        Purpose::Enter => Intent::Enter,
                        Purpose::Start => Intent::Again,
                        Purpose::Look | Purpose::Tell(_) => Intent::Peek,
                    };
                    let mut decision = rules.undecided();
                    match rules.judge(request, intent, &mut decision) {
                        Judging::Ready(answer) => (purpose, answer.map(|receipt| Judgement { decision, receipt })),
                        Judging::Pending(answer) => {
                            self.asked = Some((purpose, answer));
                            continue;
                        }
                    }
                }
            };
            match (purpose, answer) {
                (_, Err(unanswered)) => return Poll::Ready(Err(unanswered)),
                (Purpose::Tell(rule), Ok(mut judgement)) => {
                    judgement.decision.refuse_for_place(rule, &rules.core.info);
                    return Poll::Ready(Ok(judgement));
                }
                (purpose, Ok(mut judgement)) => {
                    let lacks = rules.lacks_place(&judgement.decision);
                    match (purpose, lacks) {
                        (Purpose::Start, None) => return Poll::Ready(Ok(judgement)),
                        (_, None) if !judgement.decision.is_allowed() => return Poll::Ready(Ok(judgement)),
                        (Purpose::Enter, _) => {
                            if let Some(Err(full)) = self.join(&rules.observed) {
                                judgement.decision.refuse_for_place(full, &rules.core.info);
                                return Poll::Ready(Ok(judgement));
                            }
                        }
                        (Purpose::Start, Some(rule)) => self.up_to = self.up_to.max(rule),
                        (_, lacks) => self.looked(lacks),
                    }
                }
            }
        }
    }

    /// What a look says of the next line: where there is a place of every rule whose line it is first in, it may join
    /// it.
    fn looked(&mut self, lacks: Option<usize>) {
        let busy = self.ahead.iter().rev().find(|line| line.queue.is_busy(line.key));
        if lacks.is_none_or(|lacks| lacks > self.up_to) {
            self.called = true;
            if let Some(busy) = busy {
                self.up_to = busy.rule;
            }
        }
    }

    /// Joins the next line that it has to stand in, if there is one; an error is the rule whose line is full.
    fn join(&mut self, observed: &Observed) -> Option<Result<(), usize>> {
        if self.ahead.last()?.rule > self.up_to {
            return None;
        }
        let Line { rule, queue, key } = self.ahead.pop()?;
        let Some(ticket) = queue.join(key) else { return Some(Err(rule)) };
        self.stands.push(Standing { rule, ticket, _waits: observed.waits(rule) });
        Some(Ok(()))
    }

    /// Ready when it is time to ask, and for what.
    fn poll_turn(&mut self, cx: &mut Context<'_>, clock: &dyn Clock, observed: &Observed) -> Poll<Purpose> {
        if !std::mem::replace(&mut self.judged, true) {
            return Poll::Ready(Purpose::Enter);
        }
        loop {
            let mut first = true;
            for standing in &self.stands {
                match standing.ticket.poll_first(cx) {
                    Poll::Ready(called) => self.called |= called,
                    Poll::Pending => first = false,
                }
            }
            if first {
                match self.join(observed) {
                    Some(Ok(())) => continue,
                    Some(Err(full)) => return Poll::Ready(Purpose::Tell(full)),
                    None => {}
                }
                if self.again.as_mut().poll(cx).is_ready() {
                    // Polled when it has asked in vain.
                    (self.called, self.again) = (true, clock.sleep(ASKS_AGAIN));
                }
                if std::mem::take(&mut self.called) {
                    let others_wait = self.ahead.iter().any(|line| line.queue.is_busy(line.key));
                    return Poll::Ready(if others_wait { Purpose::Look } else { Purpose::Start });
                }
            }
            ready!(self.longest.as_mut().poll(cx));
            return Poll::Ready(Purpose::Tell(self.stands.last().map_or(self.up_to, |standing| standing.rule)));
        }
    }
}

impl<Req> Limiter<Req> {
    /// Returns how many requests wait for a place of the rule `name` at the moment, over all keys. `None` where no rule
    /// that [has a queue](crate::Rule::queue) has this name.
    pub fn waiting(&self, name: &str) -> Option<usize> {
        let rules = self.in_force();
        let queues = rules.core.queues.as_deref()?;
        Some(queues.get(rules.rules.position(name)?)?.as_ref()?.waiting())
    }
}

impl<Req> Generation<Req> {
    /// How a request has to wait that nothing was said of yet, because others wait before it.
    #[inline]
    pub(crate) fn behind_others(&self, request: &Req) -> Option<Box<Waiting>> {
        let queues = self.core.queues.as_deref()?;
        let anybody_waits = queues.iter().flatten().any(|queue| queue.waiting() > 0);
        if anybody_waits { self.behind(request) } else { None }
    }

    /// How a request has to wait that was refused, where all it lacks is a place that others may free.
    #[inline]
    pub(crate) fn for_places(&self, request: &Req, decision: &Decision) -> Option<Box<Waiting>> {
        self.core.queues.as_deref()?;
        let rule = self.lacks_place(decision)?;
        let mut waiting = self.wait(self.lines(request), rule);
        waiting.judged = true;
        Some(waiting)
    }

    #[cold]
    fn behind(&self, request: &Req) -> Option<Box<Waiting>> {
        let lines = self.lines(request);
        let busy = lines.iter().find(|line| line.queue.is_busy(line.key))?.rule;
        Some(self.wait(lines, busy))
    }

    /// How a request is judged that does not wait, and the rule for whose place others do, so that it must not take
    /// one.
    #[inline]
    pub(super) fn reserves(&self, request: &Req) -> (Intent, Option<usize>) {
        match self.behind_others(request) {
            Some(waiting) => (Intent::Enter, Some(waiting.up_to)),
            None => (Intent::Reserve, None),
        }
    }

    #[inline]
    pub(super) fn refuse_behind(&self, others_wait: Option<usize>, decision: &mut Decision) {
        if let Some(rule) = others_wait {
            decision.refuse_for_place(rule, &self.core.info);
        }
    }

    /// Writes the answer to a request that waits for places into `decision`, and returns the receipt.
    pub(super) async fn judge_in_line(
        &self,
        request: &Req,
        decision: &mut Decision,
    ) -> Result<Option<Box<Receipt>>, Error> {
        let mut waiting = match self.behind_others(request) {
            Some(waiting) => waiting,
            None => {
                let receipt = self.judge(request, Intent::StartOrHold, decision).wait(decision).await?;
                match self.for_places(request, decision) {
                    Some(waiting) => waiting,
                    None => return Ok(receipt),
                }
            }
        };
        let judgement = poll_fn(|cx| waiting.poll(cx, self, request)).await?;
        *decision = judgement.decision;
        Ok(judgement.receipt)
    }

    fn wait(&self, mut lines: SmallVec<[Line; 1]>, up_to: usize) -> Box<Waiting> {
        let clock = &self.core.clock;
        let longest = lines.iter().map(|line| line.queue.longest()).min().unwrap_or_default();
        lines.reverse();
        Box::new(Waiting {
            stands: SmallVec::new(),
            ahead: lines,
            up_to,
            called: false,
            judged: false,
            longest: clock.sleep(longest),
            again: clock.sleep(ASKS_AGAIN),
            asked: None,
        })
    }

    /// The lines that a request has to stand in, in the order of the rules.
    fn lines(&self, request: &Req) -> SmallVec<[Line; 1]> {
        let core = &self.core;
        let queues = core.queues.iter().flat_map(|queues| queues.iter());
        let rules = self.rules.enforcing().iter().enumerate().zip(queues);
        let lines = rules.filter_map(|((rule, (of, reported)), queue)| {
            let queue = Arc::clone(queue.as_ref()?);
            match of.applies(request, &core.secret, reported) {
                Some(Applies::Yes { key, cost, usable: true, .. }) if cost > 0 => Some(Line { rule, queue, key }),
                _ => None,
            }
        });
        lines.collect()
    }

    /// The first rule that has no place for a request, where it was refused only by such rules, and may wait for all of
    /// them.
    fn lacks_place(&self, decision: &Decision) -> Option<usize> {
        let queues = self.core.queues.as_deref()?;
        if !matches!(decision.refusal(), Some(Refusal::Limited | Refusal::Overload)) {
            return None;
        }
        let refuse = || decision.asked().iter().filter(|ruling| !ruling.passes());
        let only_lacks_places = refuse().all(|ruling| {
            let counted = ruling.source().has_numbers() && !ruling.untracked();
            let has_queue = queues.get(ruling.rule()).is_some_and(Option::is_some);
            counted && has_queue && ruling.refuses_for() == Some(Wait::Unknown)
        });
        let first = refuse().map(Ruling::rule).min();
        first.filter(|_| only_lacks_places)
    }
}
