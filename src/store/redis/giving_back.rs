//! What is given back and settled: a queue, and the task that sends it. Whoever gives back never waits.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
    vec,
};

use ::redis::{Cmd, Value};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{
    Settings,
    answer::read_added,
    connection::{Link, Live, bytes},
    held::Held,
    numbers::{Kind, Numbers},
    script::{ADJUST, Adjustment, Part, by_text, call},
};
use crate::{
    bucket::Mark,
    error::StoreError,
    observe::{self, Once},
    time::Nanos,
};

/// How many changes may wait for the connection. More are lost, which is only strict: what is not given back comes back
/// with time.
const WAITING: usize = 16_384;
/// How many are sent at once.
const AT_ONCE: usize = 64;
/// How many charges that were made when others were settled are remembered, so that they may be given back.
const REMEMBERED: usize = 4_096;
/// How many places are renewed at once: the server does nothing else meanwhile, and decisions wait behind it.
const RENEWED_AT_ONCE: usize = 256;
/// A stopped server may run what it was sent when it goes on, so it is waited for, unless there is another connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// A connection counts as failing once more whenever it has been silent for such a part of the time in which places
/// expire: given up after five in a row, it leaves time to renew them over another one.
const SILENT: u32 = 15;

/// Stands in a mark's fraction for a charge whose mark only the task knows; no real one is that large.
const PENDING: u64 = u64::MAX;

/// A part of a charge that comes back.
#[derive(Debug, Clone, Copy)]
pub(super) enum Back {
    /// One whose mark is known.
    Known(Part),
    /// One that was charged when a charge was settled to more: its number, and what comes back and still stands.
    Added { number: u64, cost: u64, left: u64 },
}

/// A change of what a charge stands at.
pub(super) struct Change {
    name: Vec<u8>,
    numbers: Numbers,
    now: Nanos,
    delays: bool,
    what: What,
}

enum What {
    More { number: u64, cost: u64 },
    Back(Vec<Back>),
}

impl Change {
    pub(super) fn back(name: Vec<u8>, numbers: Numbers, now: Nanos, delays: bool, part: Part) -> Self {
        Self { name, numbers, now, delays, what: What::Back(vec![Back::Known(part)]) }
    }

    pub(super) fn parts(name: Vec<u8>, numbers: Numbers, now: Nanos, delays: bool, parts: Vec<Back>) -> Self {
        Self { name, numbers, now, delays, what: What::Back(parts) }
    }

    /// Nothing but more time for the places in `parts`.
    fn renewal(name: Vec<u8>, numbers: Numbers, parts: &[Part]) -> Self {
        let parts = parts.iter().copied().map(Back::Known).collect();
        Self::parts(name, numbers, Nanos::ZERO, false, parts)
    }

    pub(super) fn more(name: Vec<u8>, numbers: Numbers, now: Nanos, cost: u64, number: u64) -> Self {
        Self { name, numbers, now, delays: false, what: What::More { number, cost } }
    }
}

enum Message {
    Change(Change),
    Done(oneshot::Sender<()>),
    /// All places that are held by then are to be renewed.
    Renew(oneshot::Sender<()>),
}

/// The near end of the queue.
pub(super) struct GivingBack {
    queue: mpsc::Sender<Message>,
    /// Relaxed: numbers only have to differ.
    next: AtomicU64,
    full: Once,
}

impl GivingBack {
    pub(super) fn new() -> (Self, Changes) {
        let (queue, changes) = mpsc::channel(WAITING);
        (Self { queue, next: AtomicU64::new(0), full: Once::default() }, Changes(changes))
    }

    /// Appends a change, unless too many wait already.
    pub(super) fn send(&self, change: Change) {
        if self.queue.try_send(Message::Change(change)).is_err() {
            observe::not_given_back(&self.full);
        }
    }

    /// Waits until all that was appended so far was answered.
    pub(super) async fn done(&self) -> Result<(), StoreError> {
        let gone = || StoreError::new("the task that gives back has ended");
        let (done, is_done) = oneshot::channel();
        self.queue.send(Message::Done(done)).await.map_err(|_| gone())?;
        is_done.await.map_err(|_| gone())
    }

    /// Has all places that are held renewed again and again: after each `pause`, and as soon as there is another
    /// connection, since it may lead to a server that has forgotten them.
    ///
    /// By the task that gives back, so that no renewal overtakes what frees a place.
    pub(super) fn renewing(&self, pause: Duration, link: &Link) -> impl Future<Output = ()> + Send + use<> {
        let (queue, mut attempts) = (self.queue.clone(), link.attempts());
        async move {
            loop {
                let another = async { while attempts.changed().await.is_ok() && !*attempts.borrow_and_update() {} };
                let _in_any_case = timeout(pause, another).await;
                let (done, is_done) = oneshot::channel();
                if queue.send(Message::Renew(done)).await.is_err() || is_done.await.is_err() {
                    return;
                }
            }
        }
    }

    /// A mark for what will be charged in addition, until the server has told the real one.
    pub(super) fn pending_mark(&self) -> (u64, Mark) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number, Mark::new(Nanos::new(number), PENDING))
    }
}

/// The part of an added charge at `mark` that comes back.
pub(super) fn added(cost: u64, left: u64, mark: Mark) -> Option<Back> {
    (mark.fraction == PENDING).then_some(Back::Added { number: mark.at.get(), cost, left })
}

/// The far end of the queue.
pub(super) struct Changes(mpsc::Receiver<Message>);

/// Who is to be renewed still, by the names of keys.
struct Renewal {
    lists: vec::IntoIter<(Vec<u8>, Vec<u64>)>,
    done: oneshot::Sender<()>,
}

/// The task's own.
struct Sending {
    link: Arc<Link>,
    settings: Settings,
    held: Arc<Held>,
    /// Charges that were made when others were settled: their numbers, marks and lives. The oldest are forgotten.
    added: VecDeque<(u64, Mark, u64)>,
    lost: Once,
}

impl Changes {
    /// Sends changes in their order until nobody can append any more.
    pub(super) async fn run(mut self, link: Arc<Link>, settings: Settings, held: Arc<Held>) {
        let mut sending = Sending { link, settings, held, added: VecDeque::new(), lost: Once::default() };
        let (mut messages, mut renewal) = (Vec::with_capacity(AT_ONCE), None::<Renewal>);
        loop {
            if renewal.is_none() && self.0.recv_many(&mut messages, AT_ONCE).await == 0 {
                return;
            }
            // What ends while there is much to renew has its turn in between.
            while messages.len() < AT_ONCE
                && let Ok(message) = self.0.try_recv()
            {
                messages.push(message);
            }
            let mut batch = Vec::new();
            for message in messages.drain(..) {
                match message {
                    Message::Change(change) => {
                        // What gives back something that was just charged waits for its mark.
                        if change.needs(&batch) {
                            sending.send(std::mem::take(&mut batch)).await;
                        }
                        batch.push(change);
                    }
                    Message::Done(done) => {
                        sending.send(std::mem::take(&mut batch)).await;
                        let _ = done.send(());
                    }
                    Message::Renew(done) => {
                        let lists = sending.held.lists(RENEWED_AT_ONCE).into_iter();
                        renewal = Some(Renewal { lists, done });
                    }
                }
            }
            sending.send(batch).await;
            renewal = match renewal {
                Some(renewal) => sending.renew(renewal).await,
                None => None,
            };
        }
    }
}

impl Change {
    fn needs(&self, batch: &[Self]) -> bool {
        let What::Back(parts) = &self.what else { return false };
        batch.iter().any(|earlier| {
            matches!(earlier.what, What::More { number, .. }
                if parts.iter().any(|part| matches!(part, Back::Added { number: of, .. } if *of == number)))
        })
    }
}

impl Sending {
    /// Sends a batch, over as many connections as it takes to have it run once.
    async fn send(&mut self, mut batch: Vec<Change>) {
        while !batch.is_empty() {
            let Some(live) = self.link.wait_for_live().await else {
                // The store is gone, and nobody connects for it any more.
                return observe::not_given_back(&self.lost);
            };
            batch = self.send_over(&live, batch).await;
        }
    }

    /// Renews some of the places that are held, and returns the rest. What does not get through has another chance
    /// soon.
    async fn renew(&mut self, mut renewal: Renewal) -> Option<Renewal> {
        if let Some(live) = self.link.wait_for_live().await {
            let (mut batch, mut places) = (Vec::new(), 0);
            while batch.len() < AT_ONCE
                && places < RENEWED_AT_ONCE
                && let Some((name, lives)) = renewal.lists.next()
            {
                // Looked up now: what ends after this is said behind it.
                let Some((numbers, parts)) = self.held.still(&name, &lives) else { continue };
                places += parts.len();
                batch.push(Change::renewal(name, numbers, &parts));
            }
            while !batch.is_empty() && self.link.is_in_use(&live) {
                batch = self.send_over(&live, batch).await;
            }
            if batch.is_empty() && renewal.lists.len() > 0 {
                return Some(renewal);
            }
            // Over another connection all are renewed, from the first on.
        }
        let _ = renewal.done.send(());
        None
    }

    /// Returns what has to be sent again.
    async fn send_over(&mut self, live: &Live, batch: Vec<Change>) -> Vec<Change> {
        let calls: Vec<_> = batch.iter().map(|change| self.call(change)).collect();
        let Some(replies) = self.answers(live, &calls).await else { return self.unanswered(live, batch) };
        let (mut again, mut knows_the_script) = (Vec::new(), true);
        for ((change, call), reply) in batch.into_iter().zip(calls).zip(replies) {
            let mut reply = reply.extract_error();
            if reply.as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT")) {
                if !std::mem::replace(&mut knows_the_script, false) {
                    // Nothing ran, and the server has the script since the first of them.
                    again.push(change);
                    continue;
                }
                let by_text = [by_text(&call, &ADJUST)];
                let Some(replied) = self.answers(live, &by_text).await.and_then(|mut replies| replies.pop()) else {
                    again.extend(self.unanswered(live, vec![change]));
                    continue;
                };
                reply = replied.extract_error();
            }
            let nothing_ran =
                reply.as_ref().is_err_and(|error| matches!(error.code(), Some("READONLY" | "LOADING" | "MASTERDOWN")));
            match live.heard(&self.link, reply) {
                Ok(reply) => self.remember(&change, reply),
                Err(_) if nothing_ran => again.push(change),
                Err(_) => observe::not_given_back(&self.lost),
            }
        }
        again
    }

    /// Returns the server's answers to `calls`; `None` where there are none, and will be none over this connection.
    async fn answers(&self, live: &Live, calls: &[Cmd]) -> Option<Vec<Value>> {
        let (link, settings) = (&*self.link, &self.settings);
        let mut pipeline = ::redis::pipe();
        for call in calls {
            pipeline.add_command(call.clone());
        }
        let tick = (settings.places_expire_after / SILENT).max(settings.deadline).min(PATIENCE / 5);
        let no_more = async {
            // Whoever only holds places asks nothing else that would show that the connection is dead.
            while timeout(tick, link.wait_for_another(live)).await.is_err() {
                live.timed_out(link);
            }
            // What is on its way may come still.
            tokio::time::sleep(settings.deadline).await;
        };
        let (mut sending, mut no_more) = (pin!(live.send_all(link, &pipeline)), pin!(no_more));
        let answers = poll_fn(|context| match sending.as_mut().poll(context) {
            Poll::Ready(answers) => Poll::Ready(answers.ok()),
            Poll::Pending => no_more.as_mut().poll(context).map(|()| None),
        });
        timeout(PATIENCE, answers).await.ok().flatten()
    }

    /// What was not answered may have run, so it is not sent again. Who has which places can be said twice, over
    /// another connection.
    fn unanswered(&self, live: &Live, batch: Vec<Change>) -> Vec<Change> {
        let is_up = self.link.is_in_use(live);
        let is_repeated = |change: &Change| !is_up && change.numbers.kind == Kind::InFlight;
        let (again, lost): (Vec<_>, Vec<_>) = batch.into_iter().partition(is_repeated);
        if !lost.is_empty() {
            observe::not_given_back(&self.lost);
        }
        again
    }

    fn call(&self, change: &Change) -> Cmd {
        let (more, parts) = match &change.what {
            What::More { cost, .. } => (*cost, Vec::new()),
            What::Back(parts) => (0, parts.iter().filter_map(|part| self.part(part)).collect()),
        };
        let adjustment = Adjustment {
            now: self.settings.now(change.now),
            life: self.settings.lives.next(),
            longer: self.settings.longer(),
            numbers: change.numbers,
            more,
            delays: change.delays,
            parts: &parts,
        };
        let mut command = call(&ADJUST, 1);
        command.arg(change.name.as_slice()).arg(adjustment.args().as_bytes());
        command
    }

    fn part(&self, part: &Back) -> Option<Part> {
        match *part {
            Back::Known(part) => Some(part),
            Back::Added { number, cost, left } => {
                let (_, mark, life) = self.added.iter().rev().find(|(added, ..)| *added == number)?;
                Some(Part { cost, left, mark: *mark, life: *life })
            }
        }
    }

    fn remember(&mut self, change: &Change, reply: ::redis::Value) {
        let What::More { number, .. } = change.what else { return };
        if let Ok((mark, life)) = bytes(reply).and_then(|reply| read_added(&reply)) {
            if self.added.len() >= REMEMBERED {
                self.added.pop_front();
            }
            self.added.push_back((number, mark, life));
        }
    }
}
