//! The connection's task: it sends what waits, in as few calls as it can, and hands out the answers.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Wake, Waker},
};

use ::redis::{Cmd, RedisError, RedisResult, Value, aio::MultiplexedConnection};

use super::{
    Settings,
    batch::Batch,
    connection::{Link, Live, bytes, is_of_the_server},
    question::READ_LATE,
    script::by_text,
    ticket::Queue,
};
use crate::{error::StoreError, time::BoxFuture};

/// How often the task goes round before others have their turn.
const TURNS: usize = 3;

type Reply = BoxFuture<'static, RedisResult<Value>>;

/// The task of one connection.
pub(super) struct Talk {
    connection: MultiplexedConnection,
    /// What reads and writes the socket; `None` where a task of the client's own does, or once it has ended.
    driver: Option<BoxFuture<'static, ()>>,
    drives: bool,
    waking: Arc<Waking>,
    queue: Arc<Queue>,
    settings: Settings,
    /// Whose failures are counted. Neither is kept alive by its task.
    live: Weak<Live>,
    link: Weak<Link>,
    asked: VecDeque<(Batch, Reply)>,
    /// Whether several asked the last time.
    crowded: bool,
    /// Whether others had their turn to ask.
    yielded: bool,
    /// When this ends though answers are missing, once nobody asks any more.
    patience: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Future for Talk {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        // The runtime would run this right behind the first task that asks. Where others ask too, they go first: to the
        // end of the queue.
        if !this.yielded && (this.crowded || !this.asked.is_empty()) && !this.queue.is_empty() {
            this.yielded = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        this.yielded = false;
        let open = this.turn(context);
        if open {
            return Poll::Pending;
        }
        // Nobody asks any more; what was asked is still read, since what it charged comes back.
        let patience = this.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(READ_LATE)));
        if this.asked.is_empty() || patience.as_mut().poll(context).is_ready() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Talk {
    pub(super) fn new(
        connection: MultiplexedConnection,
        driver: Option<BoxFuture<'static, ()>>,
        queue: Arc<Queue>,
        settings: Settings,
        live: Weak<Live>,
        link: Weak<Link>,
    ) -> Self {
        let (asked, crowded, yielded, patience) = (VecDeque::new(), false, false, None);
        let (drives, waking) = (driver.is_some(), Arc::default());
        Self { connection, driver, drives, waking, queue, settings, live, link, asked, crowded, yielded, patience }
    }

    /// Sends what waits, and reads what has come. Returns whether more can be asked.
    fn turn(&mut self, context: &mut Context<'_>) -> bool {
        let Some(mut driver) = self.driver.take() else {
            let open = self.send(context);
            self.hand_out(context);
            return open;
        };
        self.waking.begin(context.waker());
        let waker = Waker::from(Arc::clone(&self.waking));
        let mut open = true;
        for _ in 0..TURNS {
            open = self.send(context);
            self.waking.look();
            if driver.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                drop(driver);
                self.drives = false;
                self.hand_out(context);
                self.ended();
                return open;
            }
            self.hand_out(context);
            if !self.waking.again() {
                break;
            }
        }
        self.waking.end();
        self.driver = Some(driver);
        open
    }

    /// Sends all that waits. Returns whether more can come.
    fn send(&mut self, context: &mut Context<'_>) -> bool {
        let mut taken = Vec::new();
        let open = self.queue.take(&mut taken, context.waker());
        if !taken.is_empty() {
            self.crowded = taken.len() > 1;
        }
        let mut waiting = taken.into_iter();
        while let Some(batch) = Batch::next(&mut waiting) {
            let call = batch.call(self.settings.longer(), self.settings.lives.next());
            self.begin(batch, call, context);
        }
        open
    }

    fn begin(&mut self, batch: Batch, call: Cmd, context: &mut Context<'_>) {
        let mut reply: Reply = Box::pin(ask(self.connection.clone(), call));
        // The first poll hands the call to the driver; there is no answer yet.
        match self.poll(&mut reply, context) {
            Poll::Pending => self.asked.push_back((batch, reply)),
            Poll::Ready(reply) => self.answer(batch, reply, context),
        }
    }

    /// Answers come in the order of their questions.
    fn hand_out(&mut self, context: &mut Context<'_>) {
        while let Some((batch, mut reply)) = self.asked.pop_front() {
            match self.poll(&mut reply, context) {
                Poll::Ready(reply) => self.answer(batch, reply, context),
                Poll::Pending => return self.asked.push_front((batch, reply)),
            }
        }
    }

    /// Looks for an answer. Where the driver is our own, answers are looked for behind each of its turns, and nobody
    /// has to be woken for them.
    fn poll(&self, reply: &mut Reply, context: &mut Context<'_>) -> Poll<RedisResult<Value>> {
        if self.drives {
            return reply.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        reply.as_mut().poll(context)
    }

    fn answer(&mut self, batch: Batch, reply: RedisResult<Value>, context: &mut Context<'_>) {
        let error = match reply {
            Ok(Value::ServerError(error)) => RedisError::from(error),
            Ok(reply) => {
                let _whom_it_concerns_is_told = self.heard(of_the_server(&reply).map_or(Ok(()), Err));
                return answer_each(batch, reply);
            }
            Err(error) => error,
        };
        if error.code() == Some("NOSCRIPT") {
            let call = batch.call(self.settings.longer(), self.settings.lives.next());
            let script = batch.script();
            return self.begin(batch, by_text(&call, script), context);
        }
        if batch.tickets.len() > 1 && error.code().is_some() && !is_of_the_server(&error) {
            // Nothing ran. Whom it concerns is found out by asking for each alone.
            for ticket in batch.tickets {
                ticket.again_alone();
                self.queue.push(&ticket);
            }
            return;
        }
        if let Err(why) = self.heard(Err(error)) {
            batch.tickets.iter().for_each(|ticket| ticket.answer(Err(why.clone())));
        }
    }

    /// Nobody needs to ask first to find out.
    fn ended(&self) {
        if let (Some(live), Some(link)) = (self.live.upgrade(), self.link.upgrade()) {
            live.ended(&link);
        }
    }

    fn heard(&self, reply: RedisResult<()>) -> Result<(), StoreError> {
        if let (Some(live), Some(link)) = (self.live.upgrade(), self.link.upgrade()) {
            return live.heard(&link, reply);
        }
        reply.map_err(|error| StoreError::caused_by("the connection to Redis has ended", error))
    }
}

async fn ask(connection: MultiplexedConnection, call: Cmd) -> RedisResult<Value> {
    let mut connection = connection;
    connection.send_packed_command(&call).await
}

/// An error among several answers that says that this server has none for now.
fn of_the_server(reply: &Value) -> Option<RedisError> {
    let Value::Array(replies) = reply else { return None };
    let errors = replies.iter().filter_map(|reply| match reply {
        Value::ServerError(error) => Some(RedisError::from(error.clone())),
        _ => None,
    });
    errors.into_iter().find(is_of_the_server)
}

fn answer_each(batch: Batch, reply: Value) {
    let tickets = batch.tickets;
    match (tickets.as_slice(), reply) {
        ([ticket], reply) => ticket.answer(bytes(reply)),
        (tickets, Value::Array(replies)) if replies.len() == tickets.len() => {
            for (ticket, reply) in tickets.iter().zip(replies) {
                ticket.answer(bytes(reply));
            }
        }
        (tickets, _) => {
            let why = StoreError::new("Redis sent a reply of another kind");
            tickets.iter().for_each(|ticket| ticket.answer(Err(why.clone())));
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.queue.end();
        let why = StoreError::new("the connection to Redis has ended");
        for (batch, _) in self.asked.drain(..) {
            batch.tickets.iter().for_each(|ticket| ticket.answer(Err(why.clone())));
        }
    }
}

/// Wakes the task for its driver; while it is at work it only goes round again. The runtime would wake another thread
/// for a task that wakes itself.
#[derive(Default)]
struct Waking(Mutex<Work>);

#[derive(Default)]
struct Work {
    task: Option<Waker>,
    at_work: bool,
    again: bool,
}

impl Waking {
    /// Nothing that can panic runs under this lock, and no waker.
    fn work(&self) -> MutexGuard<'_, Work> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, task: &Waker) {
        let mut work = self.work();
        work.at_work = true;
        match &mut work.task {
            Some(known) => known.clone_from(task),
            none => *none = Some(task.clone()),
        }
    }

    /// What happened so far is looked at next.
    fn look(&self) {
        self.work().again = false;
    }

    /// Whether something has happened meanwhile; where nothing has, the work is over.
    fn again(&self) -> bool {
        let mut work = self.work();
        work.at_work = work.again;
        work.again
    }

    /// Ends work that would have gone on.
    fn end(&self) {
        let mut work = self.work();
        if std::mem::take(&mut work.at_work)
            && let Some(task) = work.task.clone()
        {
            drop(work);
            task.wake();
        }
    }
}

impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut work = self.work();
        work.again = true;
        let task = work.task.clone().filter(|_| !work.at_work);
        drop(work);
        if let Some(task) = task {
            task.wake();
        }
    }
}
