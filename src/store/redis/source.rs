//! Where connections come from, and the task in the background that keeps one.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Arc, Weak},
    time::Duration,
};

use ::redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, RedisResult, Value,
    aio::MultiplexedConnection,
    cmd,
    io::tcp::{
        TcpSettings,
        socket2::{SockRef, TcpKeepalive},
    },
};
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use super::{
    Settings,
    answer::{self, Answer},
    connection::{Link, Live, bytes},
    script::{DECIDE, begin, by_text, call},
    talk::Talk,
    ticket::Queue,
    why,
};
use crate::time::{BoxFuture, Clock, Nanos};

const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A connection that broke sooner than this is followed by a pause.
const SOON: Nanos = Nanos::SECOND;

/// Where connections come from.
pub(super) struct Source {
    client: Client,
    config: AsyncConnectionConfig,
    settings: Settings,
    timeout: Duration,
}

impl Source {
    /// Opens `client`'s connections, with the socket set up for small questions that cannot wait.
    pub(super) fn new(client: &Client, settings: Settings, timeout: Duration) -> RedisResult<Self> {
        let alive = TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
        let socket = TcpSettings::default().set_nodelay(true).set_keepalive(alive.with_retries(3));
        #[cfg(target_os = "linux")]
        let socket = socket.set_user_timeout(Duration::from_secs(2));
        let client = Client::open(client.get_connection_info().clone().set_tcp_settings(socket))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024);
        Ok(Self { client, config, settings, timeout })
    }

    /// Opens a connection. Sockets without TLS are ours, since then the task that writes to them is ours too.
    async fn open(&self, link: &Arc<Link>) -> RedisResult<Arc<Live>> {
        let info = self.client.get_connection_info();
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                let (socket, options) = (SockRef::from(&stream), info.tcp_settings());
                socket.set_tcp_nodelay(options.nodelay())?;
                if let Some(alive) = options.keepalive() {
                    socket.set_tcp_keepalive(alive)?;
                }
                #[cfg(target_os = "linux")]
                socket.set_tcp_user_timeout(options.user_timeout())?;
                self.over(stream, link).await
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => self.over(UnixStream::connect(path).await?, link).await,
            _ => {
                let connection = self.client.get_multiplexed_async_connection_with_config(&self.config).await?;
                Ok(self.live(connection, None, link))
            }
        }
    }

    async fn over<S>(&self, stream: S, link: &Arc<Link>) -> RedisResult<Arc<Live>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let info = self.client.get_connection_info().redis_settings();
        let (connection, driver) = MultiplexedConnection::new_with_config(info, stream, self.config.clone()).await?;
        Ok(self.live(connection, Some(Box::pin(driver)), link))
    }

    fn live(
        &self,
        connection: MultiplexedConnection,
        driver: Option<BoxFuture<'static, ()>>,
        link: &Arc<Link>,
    ) -> Arc<Live> {
        let (queue, settings) = (Arc::new(Queue::default()), self.settings.clone());
        Arc::new_cyclic(|live| {
            let (asks, link) = (Arc::clone(&queue), Arc::downgrade(link));
            tokio::spawn(Talk::new(connection.clone(), driver, asks, settings, Weak::clone(live), link));
            Live::new(connection, queue)
        })
    }

    /// Connects, and makes sure that the server is a master and runs the script.
    async fn connect(&self, link: &Arc<Link>) -> RedisResult<Arc<Live>> {
        let live = self.open(link).await?;
        match live.send(&cmd("ROLE")).await {
            Ok(Value::Array(role)) if role.first() == Some(&Value::BulkString(b"master".to_vec())) => {}
            // Who may not ask finds out by the first charge.
            Err(error) if error.code() == Some("NOPERM") => {}
            Ok(_) => return Err((::redis::ErrorKind::Client, why::IS_REPLICA).into()),
            Err(error) => return Err(error),
        }
        // Asks nothing: the server keeps the script and tells its time.
        let mut nothing = call(&DECIDE, 0);
        nothing.arg(begin(0, u64::MAX, None, 0, 0).as_bytes());
        let reply = live.send(&by_text(&nothing, &DECIDE)).await?;
        match bytes(reply).ok().and_then(|reply| answer::read(&reply, &[], false).ok()) {
            Some(Answer::Judged(_, Some(server))) => link.learn_time(server),
            _ => return Err((::redis::ErrorKind::Client, "the script did not run as it should").into()),
        }
        Ok(live)
    }

    /// Keeps a connection, for ever. The only one that ever connects.
    pub(super) async fn heal(self, link: Arc<Link>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let attempt = tokio::time::timeout(self.timeout, self.connect(&link)).await;
            let late = || std::io::Error::new(std::io::ErrorKind::TimedOut, "no connection in time").into();
            match attempt.unwrap_or_else(|_| Err(late())) {
                Ok(live) => {
                    let since = link.clock.now();
                    link.publish(live);
                    link.lost.notified().await;
                    if link.clock.now().saturating_sub(since) >= SOON {
                        // It was a good one: try again at once.
                        pause = FIRST_PAUSE;
                        continue;
                    }
                }
                Err(error) => {
                    link.could_not_connect(why::no_connection(self.client.get_connection_info().addr(), error));
                }
            }
            let _wanted_or_over = tokio::time::timeout(some_of(pause), link.wanted.notified()).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    }
}

/// From a half to nine tenths of `pause`, so that many processes do not come back at once.
fn some_of(pause: Duration) -> Duration {
    // The standard library seeds each `RandomState` anew.
    let random = RandomState::new().build_hasher().finish();
    pause / 2 + pause.saturating_mul(u32::try_from(random % 41).unwrap_or(0)) / 100
}
