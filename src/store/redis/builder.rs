use std::{
    fmt,
    ops::RangeInclusive,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::runtime::Handle;

use super::{
    Inner, Lives, RedisStore, Settings, alarm::Alarm, connection::Link, giving_back::GivingBack, held::Held, names,
    source::Source,
};
use crate::{error::StoreError, key::Secret, time::Nanos};

/// After how long places may expire.
const PLACES_EXPIRE: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3_600);

/// Builds a [`RedisStore`].
#[must_use]
pub struct RedisStoreBuilder {
    client: Result<::redis::Client, StoreError>,
    secret: Secret,
    deployment: String,
    in_plain: bool,
    deadline: Duration,
    connect_timeout: Duration,
    longer: Option<Duration>,
    places_expire_after: Duration,
}

impl RedisStoreBuilder {
    pub(super) fn new(client: Result<::redis::Client, StoreError>, secret: Secret) -> Self {
        Self {
            client,
            secret,
            deployment: "tollgate".into(),
            in_plain: false,
            deadline: Duration::from_millis(25),
            connect_timeout: Duration::from_millis(250),
            longer: None,
            places_expire_after: Duration::from_secs(10),
        }
    }

    /// Sets the name that sets this deployment's keys apart from others' on the same server; `tollgate` unless set.
    /// Letters, digits, `-`, `_` and `.`. On a cluster all keys of one name are on one node.
    pub fn deployment(mut self, name: impl Into<String>) -> Self {
        self.deployment = name.into();
        self
    }

    /// Writes short keys (addresses, numbers, text of up to 15 bytes) as text, so that they can be found on the server.
    /// Keys may be personal data: unless asked for, a key's name shows nothing of it. Longer keys stay hidden.
    pub fn keys_in_plain(mut self) -> Self {
        self.in_plain = true;
        self
    }

    /// Sets how long a decision may take; 25 ms unless set. After it the caller has an error, and the server charges
    /// nothing any more.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets how long making a connection may take, with TLS and authentication; 250 ms unless set. No request waits for
    /// it.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Trusts the authorities of `pem`, one certificate or several, and no others; unless set, those that browsers
    /// trust. For a server whose certificate comes from an authority of one's own. The URL has to begin with
    /// `rediss://`.
    ///
    /// TLS uses the process's default provider of cryptography, as rustls calls it; where the program has installed
    /// none, building the store installs `ring`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tollgate::{key::Secret, store::RedisStore};
    ///
    /// # async fn connects() -> Result<(), Box<dyn std::error::Error>> {
    /// let authority = std::fs::read("/etc/ssl/our-authority.pem")?;
    /// let secret = Secret::new(*b"16 secret bytes!"); // from the environment or a vault
    /// let builder = RedisStore::builder("rediss://redis.internal:6379", secret).root_certificates(authority);
    /// let store = builder.connect().await?;
    /// assert!(store.is_connected());
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "redis-rustls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-rustls")))]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.client = self.client.and_then(|client| super::tls::trusting(&client, pem.into()));
        self
    }

    /// Sets how long a place [in flight](crate::Limit::in_flight) stays held when nothing more is heard of the process
    /// that holds it; 10 s unless set, from 100 ms to an hour. A process renews its places at a third of that.
    ///
    /// Shorter frees the places of a crashed process sooner; less than about fifteen times the
    /// [deadline](Self::deadline) leaves no time to replace a connection that is dead. Longer outlasts longer outages
    /// of the connection: places that were free meanwhile are taken again by their holders when it is back, even where
    /// others have them by then.
    pub fn places_expire_after(mut self, expiry: Duration) -> Self {
        self.places_expire_after = expiry;
        self
    }

    /// Goes by the limiter's clock, in whole microseconds, instead of the server's. **For tests**: processes whose
    /// clocks differ would turn each other's buckets back.
    ///
    /// Places in flight expire by the server's clock all the same.
    ///
    /// The server still drops keys by its own clock, which does not stop when a
    /// [`ManualClock`](crate::time::ManualClock) does; so keys live `longer` than they have to.
    pub fn time_from_clock(mut self, longer: Duration) -> Self {
        self.longer = Some(longer);
        self
    }

    /// Returns the store, which begins to connect in the background; until it is connected, decisions fail at once.
    ///
    /// # Errors
    ///
    /// Where the URL or the deployment's name is none, the URL begins with `rediss://` and the feature `redis-rustls`
    /// is off, a time is zero or out of its range, or this is not called in a tokio runtime: the store's tasks run
    /// there.
    pub fn build(self) -> Result<RedisStore, StoreError> {
        if !names::is_deployment(&self.deployment) {
            let name = self.deployment.escape_debug();
            return Err(StoreError::new(format!(
                "the deployment's name \"{name}\" goes into the names of keys; use letters, digits, - _ and ."
            )));
        }
        if self.deadline.is_zero() || self.connect_timeout.is_zero() {
            return Err(StoreError::new("a deadline of 0 leaves no time for an answer; use a few milliseconds"));
        }
        if !PLACES_EXPIRE.contains(&self.places_expire_after) {
            return Err(StoreError::new(format!(
                "places that expire after {:?} are given up too soon, or never; use 100 ms to an hour",
                self.places_expire_after
            )));
        }
        let runtime = Handle::try_current()
            .map_err(|error| StoreError::caused_by("the store's tasks need a tokio runtime; build it in one", error))?;
        let client = self.client?;
        #[cfg(feature = "redis-rustls")]
        super::tls::have_a_provider(&client);
        let settings = Settings {
            deadline: self.deadline,
            longer: self.longer,
            places_expire_after: self.places_expire_after,
            lives: Arc::new(Lives::random()),
        };
        let source = Source::new(&client, settings.clone(), self.connect_timeout)
            .map_err(|error| StoreError::caused_by("this client cannot connect to a Redis server", error))?;
        let link = Arc::new(Link::new());
        let held = Arc::new(Held::default());
        let (giving_back, changes) = GivingBack::new();
        // Ends by itself when the store is gone and all is given back.
        runtime.spawn(changes.run(Arc::clone(&link), settings.clone(), Arc::clone(&held)));
        let healer = runtime.spawn(source.heal(Arc::clone(&link))).abort_handle();
        let alarm = Alarm::new(self.deadline);
        let watch = runtime.spawn(Arc::clone(&alarm).run()).abort_handle();
        let inner = Inner {
            secret: self.secret,
            deployment: self.deployment,
            in_plain: self.in_plain,
            places: super::Places::default(),
            settings,
            link,
            giving_back,
            held,
            renewing: OnceLock::new(),
            runtime,
            alarm,
            healer,
            watch,
        };
        Ok(RedisStore { inner: Arc::new(inner) })
    }

    /// Returns the store once it is connected, or the reason why the first attempt failed.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build), and where the server cannot be reached or is a replica. To start without it, use
    /// [`build`](Self::build).
    pub async fn connect(self) -> Result<RedisStore, StoreError> {
        let store = self.build()?;
        store.inner.link.first_attempt().await?;
        Ok(store)
    }
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("deployment", &self.deployment)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// The time to judge at, in microseconds; `None` for the server's own.
    pub(super) fn now(&self, now: Nanos) -> Option<u64> {
        self.longer.map(|_| now.get() / 1_000)
    }

    /// How many milliseconds keys live longer than they have to.
    pub(super) fn longer(&self) -> u64 {
        let longer = self.longer.unwrap_or_default().as_millis();
        u64::try_from(longer).unwrap_or(u64::MAX).min(1 << 40)
    }
}
