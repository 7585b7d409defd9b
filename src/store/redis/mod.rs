use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{runtime::Handle, task::AbortHandle};

use super::{Reply, Store};
use crate::{
    bucket::Ask,
    charge::{Charge, RuleSpec, Slot, Taken, Verdicts},
    error::{StoreError, Unsupported},
    key::{KeyId, Secret},
    time::Nanos,
};

mod alarm;
mod answer;
mod batch;
mod builder;
mod connection;
mod giving_back;
mod held;
mod names;
mod numbers;
mod place;
mod probe;
mod question;
mod script;
mod source;
mod talk;
mod ticket;
#[cfg(feature = "redis-rustls")]
mod tls;
mod why;

use alarm::Alarm;
pub use builder::RedisStoreBuilder;
use connection::Link;
use giving_back::{Back, Change, GivingBack};
use held::Held;
use numbers::Kind;
use place::{Place, Places};
use question::{Asked, Deciding, Question};
use script::{Doubles, Part};

/// Buckets on a Redis or Valkey server, so that many processes share one limit; clones share the connection.
///
/// **One round trip** decides a request, whatever the number of its rules: one script looks at all buckets and then
/// charges all or none, by the server's clock. Each key expires when its bucket is as good as new.
///
/// **A request never waits for a connection.** There is one, which a task in the background keeps: while it is down,
/// decisions fail at once. No decision takes longer than the [deadline](RedisStoreBuilder::deadline), and what was
/// given up charges nothing: the server knows the deadline, and what it charged just before comes back.
///
/// **Exact**, as in memory, to the microsecond. What does not fit into the whole numbers that Redis counts with is an
/// error when rules are bound: rates of large numbers without common factors over long periods, windows of no whole
/// number of microseconds, and buckets of one's own. From [`limit_for`](crate::Rule::limit_for) such a limit refuses as
/// one that can never pass.
///
/// **Places in flight** are held by the process that took them, which renews them in the background; those of a process
/// that ended are free after [a while](RedisStoreBuilder::places_expire_after).
///
/// **Giving back never waits** either: it is queued, and done a moment later. [`flush`](Self::flush) waits for it.
///
/// A store belongs to the tokio runtime it is built in, with I/O and time enabled: its tasks run there.
///
/// # Secret
///
/// Keys are hidden under a [`Secret`], which has to be **the same in all processes** that share the limit: 16 random
/// bytes from where the deployment's other secrets are. Under another secret a process counts alone.
///
/// # Examples
///
/// ```no_run
/// use tollgate::{Key, Limit, Limiter, Rule, key::Secret, store::RedisStore};
///
/// # async fn connects() -> Result<(), Box<dyn std::error::Error>> {
/// let secret = Secret::new(*b"16 secret bytes!"); // from the environment or a vault
/// let store = RedisStore::builder("redis://127.0.0.1:6379", secret).deployment("shop").connect().await?;
/// let rule = Rule::new("user", Limit::per_second(10), |id: &u64| Some(Key::from(*id)));
/// let limiter = Limiter::builder([rule]).store(store).build()?;
/// assert!(limiter.check(&7).await?.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    secret: Secret,
    deployment: String,
    in_plain: bool,
    places: Places,
    settings: Settings,
    link: Arc<Link>,
    giving_back: GivingBack,
    held: Arc<Held>,
    /// Renews what is held, from the first rule on that holds places.
    renewing: OnceLock<AbortHandle>,
    runtime: Handle,
    alarm: Arc<Alarm>,
    healer: AbortHandle,
    watch: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.healer.abort();
        self.link.end();
        self.watch.abort();
        if let Some(renewing) = self.renewing.get() {
            renewing.abort();
        }
    }
}

/// What decisions and the tasks go by.
#[derive(Clone)]
struct Settings {
    deadline: Duration,
    /// Where the time is the limiter's: how much longer keys live than they have to.
    longer: Option<Duration>,
    places_expire_after: Duration,
    lives: Arc<Lives>,
}

/// Numbers that no bucket has as its life yet: from a random one on.
struct Lives(AtomicU64);

impl Lives {
    fn random() -> Self {
        // The standard library seeds each `RandomState` from the system's randomness.
        Self(AtomicU64::new(RandomState::new().build_hasher().finish()))
    }

    /// Returns the next, from 1 to 2^53 - 1. Relaxed: numbers only have to differ.
    fn next(&self) -> u64 {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        // Spread, so that two processes that began close by do not follow each other.
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11).max(1)
    }
}

impl RedisStore {
    /// Returns a builder for a store on the server at `url`: `redis://`, `rediss://` (with the feature `redis-rustls`)
    /// or `unix://`, with user, password and database as usual.
    pub fn builder(url: &str, secret: Secret) -> RedisStoreBuilder {
        let client = ::redis::Client::open(url).map_err(|error| why::no_url(url, error));
        RedisStoreBuilder::new(client, secret)
    }

    /// Returns a builder for a store that connects as `client` does; settings of the TCP socket are ours.
    pub fn builder_for(client: ::redis::Client, secret: Secret) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Ok(client), secret)
    }

    /// Waits until all that was given back and settled so far has reached the server. Before a process ends, say, or in
    /// a test.
    ///
    /// # Errors
    ///
    /// Where the store's runtime has ended.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.inner.giving_back.done().await
    }

    /// Returns whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.inner.link.live().is_ok()
    }

    /// Waits until there is a connection.
    pub async fn connected(&self) {
        let _connected = self.inner.link.wait_for_live().await;
    }
}

impl Inner {
    fn name(&self, place: &Place, key: KeyId) -> Vec<u8> {
        let mut name = Vec::new();
        names::write(&mut name, &place.prefix, key, &self.secret, self.in_plain);
        name
    }

    fn question(&self, now: Nanos, charges: &[Charge<'_>]) -> Result<Question, StoreError> {
        let settings = &self.settings;
        let late = AtomicU64::new(self.link.server_time_in(settings.deadline));
        let (mut names, mut asked, mut told) = (Vec::new(), SmallVec::new(), Doubles::default());
        let mut seen: SmallVec<[&Place; 3]> = SmallVec::new();
        for charge in charges {
            let place = charge.slot.get::<Place>().ok_or_else(foreign_slot)?;
            if seen.iter().any(|other| std::ptr::eq(*other, place)) {
                // Neither would see the other's charge.
                return Err(StoreError::new("two charges of one request on one rule").of_one_request());
            }
            seen.push(place);
            let (numbers, charge) = place.countable(charge);
            script::push_charge(&mut told, &numbers, &charge);
            names::write(&mut names, &place.prefix, charge.key, &self.secret, self.in_plain);
            let ask = Ask::new(charge.cost).keep(charge.keep).max_delay(charge.max_delay);
            asked.push(Asked { numbers, limit: charge.limit, ask, name_ends: names.len() });
        }
        Ok(Question { names, asked, charges: told, late, judged: settings.now(now), now })
    }
}

fn foreign_slot() -> StoreError {
    StoreError::new("a slot of another kind of store").of_one_request()
}

impl Store for RedisStore {
    fn secret(&self) -> &Secret {
        &self.inner.secret
    }

    fn bind(&self, spec: &RuleSpec, _before: Option<&Slot>) -> Result<Slot, Unsupported> {
        let inner = &self.inner;
        let expiry = inner.settings.places_expire_after;
        let place = inner.places.find(spec, &inner.deployment, expiry)?;
        if place.numbers.kind == Kind::InFlight {
            let renewing = || inner.runtime.spawn(inner.giving_back.renewing(expiry / 3, &inner.link)).abort_handle();
            inner.renewing.get_or_init(renewing);
        }
        Ok(Slot::shared(place))
    }

    fn decide(&self, now: Nanos, charges: &[Charge<'_>], _: &mut Verdicts) -> Reply<(), Verdicts> {
        if charges.is_empty() {
            // Nothing is asked, so nobody has to be.
            return Reply::Ready(Ok(()));
        }
        let asked = self.inner.link.live().and_then(|live| Ok((live, self.inner.question(now, charges)?)));
        match asked {
            Ok((live, question)) => Reply::Pending(Box::pin(Deciding::new(&self.inner, live, question))),
            Err(error) => Reply::Ready(Err(error)),
        }
    }

    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64) {
        let standing = std::mem::replace(&mut taken.cost, cost);
        let slot = taken.slot.clone();
        let Some(place) = slot.get::<Place>() else { return };
        // What was charged by a limit that cannot be counted by was nothing, and may be settled to more.
        let numbers = place.numbers(&taken.limit).unwrap_or(place.numbers);
        if numbers.kind == Kind::InFlight {
            if standing == 0 {
                // Whoever held nothing begins to hold something.
                taken.stamp = self.inner.settings.lives.next();
            }
            let name = self.inner.name(place, taken.key);
            let (cost, left) = (numbers.amount(standing), numbers.amount(cost));
            let part = Part { cost, left, mark: taken.mark, life: taken.stamp };
            if let Some(part) = self.inner.held.change(&name, numbers, part) {
                let parts = vec![Back::Known(part)];
                self.inner.giving_back.send(Change::parts(name, numbers, now, false, parts));
            }
            return;
        }
        let Some(mut back) = standing.checked_sub(cost).filter(|back| *back > 0) else {
            if cost > standing {
                let (number, mark) = self.inner.giving_back.pending_mark();
                taken.added.push((cost - standing, mark));
                let name = self.inner.name(place, taken.key);
                self.inner.giving_back.send(Change::more(name, numbers, now, cost - standing, number));
            }
            return;
        };
        let mut parts = Vec::new();
        // What was charged last comes back first.
        while let Some((added, mark)) = taken.added.pop_if(|_| back > 0) {
            let part = back.min(added);
            back -= part;
            parts.extend(giving_back::added(part, added - part, mark));
            if added > part {
                taken.added.push((added - part, mark));
            }
        }
        if back > 0 {
            parts.push(Back::Known(Part { cost: back, left: cost, mark: taken.mark, life: taken.stamp }));
        }
        let name = self.inner.name(place, taken.key);
        self.inner.giving_back.send(Change::parts(name, numbers, now, taken.delays, parts));
    }

    fn reset(&self, slot: &Slot, key: KeyId) -> Reply<()> {
        let Some(place) = slot.get::<Place>() else {
            return Reply::Ready(Err(foreign_slot()));
        };
        if place.numbers.kind == Kind::InFlight {
            // What runs stays counted.
            return Reply::Ready(Ok(()));
        }
        let live = match self.inner.link.live() {
            Ok(live) => live,
            Err(error) => return Reply::Ready(Err(error)),
        };
        let (name, inner) = (self.inner.name(place, key), Arc::clone(&self.inner));
        let deleting = self.inner.runtime.spawn(async move {
            let mut delete = ::redis::cmd("DEL");
            delete.arg(name);
            let deleted = live.command(&inner.link, &delete);
            let Ok(deleted) = tokio::time::timeout(inner.settings.deadline, deleted).await else {
                live.timed_out(&inner.link);
                return Err(StoreError::new("Redis did not answer within the deadline"));
            };
            deleted.map(|_| ())
        });
        Reply::Pending(Box::pin(async move {
            deleting.await.map_err(|error| StoreError::caused_by("the store's runtime has ended", error))?
        }))
    }

    /// Connects at once where there is no connection, and then writes and looks: a replica and a server that is full
    /// let whoever only looks pass.
    fn probe(&self, now: Nanos, charge: Charge<'_>) -> Reply<(), Verdicts> {
        match self.inner.question(now, &[charge]) {
            Ok(question) => Reply::Pending(Box::pin(probe::ask(Arc::clone(&self.inner), question))),
            Err(error) => Reply::Ready(Err(error)),
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("deployment", &self.inner.deployment)
            .field("connected", &self.is_connected())
            .finish_non_exhaustive()
    }
}
