//! What is given back and settled: a queue, and the task that sends it. Whoever gives back never waits.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ::redis::Cmd;
use tokio::sync::{mpsc, oneshot};

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
/// How many places of one key are renewed by one call: the server does nothing else meanwhile.
const RENEWED_AT_ONCE: usize = 256;
/// A stopped server may run what it was sent when it goes on, so it is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

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

    /// Has all places that are held renewed again and again: after each `pause`, or when there is a connection again.
    ///
    /// By the task that gives back, so that no renewal overtakes what frees a place.
    pub(super) fn renewing(&self, pause: Duration) -> impl Future<Output = ()> + Send + use<> {
        let queue = self.queue.clone();
        async move {
            loop {
                tokio::time::sleep(pause).await;
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
        let mut messages = Vec::with_capacity(AT_ONCE);
        while self.0.recv_many(&mut messages, AT_ONCE).await > 0 {
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
                        sending.send(std::mem::take(&mut batch)).await;
                        sending.renew().await;
                        let _ = done.send(());
                    }
                }
            }
            sending.send(batch).await;
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

    /// Renews all places that are held. What does not get through has another chance soon.
    async fn renew(&mut self) {
        let Some(live) = self.link.wait_for_live().await else { return };
        let mut renewals = self.held.all().into_iter().flat_map(|(name, numbers, parts)| {
            let call = |parts: &[Part]| Change::renewal(name.clone(), numbers, parts);
            parts.chunks(RENEWED_AT_ONCE).map(call).collect::<Vec<_>>()
        });
        loop {
            let batch: Vec<_> = renewals.by_ref().take(AT_ONCE).collect();
            if batch.is_empty() || !self.send_over(&live, batch).await.is_empty() {
                return;
            }
        }
    }

    /// Returns what has to be sent again.
    async fn send_over(&mut self, live: &Live, batch: Vec<Change>) -> Vec<Change> {
        let mut pipeline = ::redis::pipe();
        let calls: Vec<_> = batch.iter().map(|change| self.call(change)).collect();
        for call in &calls {
            pipeline.add_command(call.clone());
        }
        let sent = tokio::time::timeout(PATIENCE, live.send_all(&self.link, &pipeline)).await;
        let Ok(Ok(replies)) = sent else {
            // It may have run, so it is not sent again. Who has which places can be said twice, over another connection.
            let is_up = self.link.live().is_ok_and(|up| std::ptr::eq(&*up, live));
            let is_repeated = |change: &Change| !is_up && change.numbers.kind == Kind::InFlight;
            let (again, lost): (Vec<_>, Vec<_>) = batch.into_iter().partition(is_repeated);
            if !lost.is_empty() {
                observe::not_given_back(&self.lost);
            }
            return again;
        };
        let mut again = Vec::new();
        for ((change, call), reply) in batch.into_iter().zip(calls).zip(replies) {
            let mut reply = reply.extract_error();
            if reply.as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT")) {
                reply = match tokio::time::timeout(PATIENCE, live.eval(&by_text(&call, &ADJUST))).await {
                    Ok(reply) => reply,
                    Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
                };
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
