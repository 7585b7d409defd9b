//! The connection: one, kept by a task in the background. Whoever asks takes it as it is, or fails at once.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU32, Ordering},
    },
    time::Duration,
};

use ::redis::{Cmd, RedisError, RedisResult, Value, aio::MultiplexedConnection};
use tokio::sync::{Notify, watch};

use super::{
    ticket::{Queue, Ticket},
    why::{self, NoConnection, refused},
};
use crate::{
    error::StoreError,
    observe,
    time::{Clock, SystemClock},
};

/// After so many questions in a row without an answer in time, a connection is taken for broken.
const FAILURES: u32 = 5;
/// A server's clock that is so much behind what was known of it was set; anything less is latency.
const SET_BACK: i64 = 1_000_000;

/// The connection in use, if any, and what is known of the server's clock.
pub(super) struct Link {
    current: Mutex<Current>,
    /// Tells the healer that the connection was given up.
    pub(super) lost: Notify,
    /// Tells the healer that somebody waits for a connection, so that it tries now.
    pub(super) wanted: Notify,
    up: watch::Sender<bool>,
    pub(super) clock: SystemClock,
    /// The server's clock less ours, in microseconds. Relaxed: any value that was ever true will do, and the next
    /// answer brings another.
    ahead: AtomicI64,
}

#[derive(Default)]
struct Current {
    live: Option<Arc<Live>>,
    why_not: Option<NoConnection>,
    /// The last way out that the log was told of since there was a connection.
    told: Option<&'static str>,
    /// Whether nobody will connect any more.
    over: bool,
}

/// A connection that worked when it was last heard of.
pub(super) struct Live {
    connection: MultiplexedConnection,
    /// What its task sends next.
    queue: Arc<Queue>,
    /// How many questions in a row found no answer in time. Relaxed: a count, and nothing else hangs on it.
    failures: AtomicU32,
}

impl Link {
    pub(super) fn new() -> Self {
        Self {
            current: Mutex::default(),
            lost: Notify::new(),
            wanted: Notify::new(),
            up: watch::Sender::new(false),
            clock: SystemClock::new(),
            ahead: AtomicI64::new(0),
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        // Nothing that can panic runs under this lock.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection, or why there is none. **Locking** for as long as copying a pointer takes.
    pub(super) fn live(&self) -> Result<Arc<Live>, StoreError> {
        let current = self.current();
        match (&current.live, &current.why_not) {
            (Some(live), _) => Ok(Arc::clone(live)),
            (None, Some(why)) => Err(why.error.clone()),
            (None, None) => Err(StoreError::new("there is no connection to Redis yet")),
        }
    }

    /// Waits until there is a connection; `None` where there will be none any more.
    pub(super) async fn wait_for_live(&self) -> Option<Arc<Live>> {
        let mut up = self.up.subscribe();
        loop {
            {
                let current = self.current();
                if current.live.is_some() || current.over {
                    return current.live.clone();
                }
            }
            // The sender is ours, so this cannot fail.
            let _ = up.changed().await;
        }
    }

    /// Waits until there is another connection than `live`.
    pub(super) async fn wait_for_another(&self, live: &Live) {
        let mut up = self.up.subscribe();
        while self.current().live.as_deref().is_none_or(|now| std::ptr::eq(now, live)) {
            // The sender is ours, so this cannot fail.
            let _ = up.changed().await;
        }
    }

    /// Whether `live` is the connection in use.
    pub(super) fn is_in_use(&self, live: &Live) -> bool {
        self.current().live.as_deref().is_some_and(|now| std::ptr::eq(now, live))
    }

    /// Tells of each attempt to connect from now on, and whether there is a connection then.
    pub(super) fn attempts(&self) -> watch::Receiver<bool> {
        self.up.subscribe()
    }

    /// Returns the connection, or what comes of one more attempt, which is made now. For those who ask rarely: not for
    /// requests.
    pub(super) async fn hurry(&self) -> Result<Arc<Live>, StoreError> {
        let mut up = self.up.subscribe();
        if let Ok(live) = self.live() {
            return Ok(live);
        }
        self.wanted.notify_one();
        // The sender is ours, so this cannot fail.
        let _ = up.changed().await;
        self.live()
    }

    /// Waits until there is a connection, or the first attempt has failed.
    pub(super) async fn first_attempt(&self) -> Result<(), StoreError> {
        let mut up = self.up.subscribe();
        loop {
            {
                let current = self.current();
                if current.live.is_some() {
                    return Ok(());
                }
                if let Some(why) = &current.why_not {
                    return Err(why.error.clone());
                }
            }
            let _ = up.changed().await;
        }
    }

    /// Says that nobody will connect any more. The connection there is may be used for as long as it lasts.
    pub(super) fn end(&self) {
        self.current().over = true;
        self.up.send_replace(false);
    }

    pub(super) fn publish(&self, live: Arc<Live>) {
        let mut current = self.current();
        current.live = Some(live);
        current.told = None;
        let recovered = current.why_not.take().is_some();
        drop(current);
        self.up.send_replace(true);
        if recovered {
            observe::connected_again();
        }
    }

    pub(super) fn could_not_connect(&self, why: NoConnection) {
        let mut current = self.current();
        // Once, and again where somebody has to do something, which was not so when it broke.
        let is_news = current.why_not.is_none() || why.way_out.is_some() && why.way_out != current.told;
        current.told = why.way_out.or(current.told);
        current.why_not = Some(why.clone());
        drop(current);
        self.up.send_replace(false);
        if is_news {
            observe::connection_lost(&why.error);
        }
    }

    /// Gives `live` up, if it is the connection in use still.
    fn give_up(&self, live: &Live, why: RedisError) {
        let mut current = self.current();
        if current.live.as_deref().is_none_or(|now| !std::ptr::eq(now, live)) {
            return;
        }
        let why = why::given_up(why);
        current.live = None;
        current.why_not = Some(why.clone());
        drop(current);
        self.lost.notify_one();
        observe::connection_lost(&why.error);
    }

    fn local_micros(&self) -> u64 {
        self.clock.now().get() / 1_000
    }

    /// What the server's clock shows when `span` has passed, in microseconds; a little less rather than more.
    pub(super) fn server_time_in(&self, span: Duration) -> u64 {
        let span = u64::try_from(span.as_micros()).unwrap_or(u64::MAX >> 12);
        self.local_micros().saturating_add_signed(self.ahead.load(Ordering::Relaxed)).saturating_add(span)
    }

    /// Learns from an answer what the server's clock shows: that, or a little more.
    ///
    /// The quickest answers tell best, so what is known is lowered slowly, unless the clock was set.
    pub(super) fn learn_time(&self, server: u64) {
        let Some(ahead) =
            i64::try_from(server).ok().and_then(|server| server.checked_sub_unsigned(self.local_micros()))
        else {
            return;
        };
        let known = self.ahead.load(Ordering::Relaxed);
        let over = known.saturating_sub(ahead);
        let next = if over <= 0 || over > SET_BACK { ahead } else { known - (over / 16).max(1) };
        if next != known {
            self.ahead.store(next, Ordering::Relaxed);
        }
    }
}

impl Live {
    pub(super) fn new(connection: MultiplexedConnection, queue: Arc<Queue>) -> Self {
        Self { connection, queue, failures: AtomicU32::new(0) }
    }

    /// Asks, together with whoever else asks at the moment.
    pub(super) fn ask(&self, ticket: &Arc<Ticket>) {
        self.queue.push(ticket);
    }

    /// Runs one command.
    pub(super) async fn command(&self, link: &Link, command: &Cmd) -> Result<Value, StoreError> {
        self.heard(link, self.send(command).await)
    }

    /// Runs one command, without consequences for the connection yet.
    pub(super) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        self.connection.clone().send_packed_command(command).await?.extract_error()
    }

    /// Sends several commands at once. An error of the server is the reply of its command.
    pub(super) async fn send_all(&self, link: &Link, commands: &::redis::Pipeline) -> Result<Vec<Value>, StoreError> {
        self.heard(link, self.connection.clone().send_packed_commands(commands, 0, commands.len()).await)
    }

    /// Draws the consequences of a reply for the connection.
    pub(super) fn heard<T>(&self, link: &Link, reply: RedisResult<T>) -> Result<T, StoreError> {
        let error = match reply {
            Ok(reply) => {
                if self.failures.load(Ordering::Relaxed) > 0 {
                    self.failures.store(0, Ordering::Relaxed);
                }
                return Ok(reply);
            }
            Err(error) => error,
        };
        if is_of_the_server(&error) || error.code().is_none() || error.is_unrecoverable_error() {
            link.give_up(self, error.clone());
        }
        Err(if error.code().is_some() { refused(error) } else { StoreError::caused_by("Redis gave no answer", error) })
    }

    /// Notes that the other side has closed it.
    pub(super) fn ended(&self, link: &Link) {
        let why = "the other side has closed the connection";
        link.give_up(self, std::io::Error::new(std::io::ErrorKind::ConnectionAborted, why).into());
    }

    /// Notes that an answer did not come in time.
    pub(super) fn timed_out(&self, link: &Link) {
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES {
            let why = "no answer in time, several times in a row";
            link.give_up(self, std::io::Error::new(std::io::ErrorKind::TimedOut, why).into());
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Whether an error says that no question to this server has an answer for now.
pub(super) fn is_of_the_server(error: &RedisError) -> bool {
    matches!(error.code(), Some("READONLY" | "LOADING" | "MASTERDOWN"))
}

/// A script's reply.
pub(super) fn bytes(reply: Value) -> Result<Vec<u8>, StoreError> {
    match reply {
        Value::BulkString(bytes) => Ok(bytes),
        Value::ServerError(error) => Err(refused(error.into())),
        _ => Err(StoreError::new("Redis sent a reply of another kind")),
    }
}
