//! When the store is asked, for how long, and who finds out that it answers again.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::runtime::Handle;

use super::{Inner, asked::Asked, circuit::Ticket, count, place_of};
use crate::{charge::Charge, error::StoreError, observe, store::Reply, time::Nanos};

/// How long a probe may take at least, whatever the deadline: it may have to connect first, and nobody waits for it.
const PATIENCE: Duration = Duration::from_millis(100);

impl Inner {
    /// Returns whether the store may be asked. While the circuit is open it may not, and is probed.
    pub(super) fn admit(self: &Arc<Self>, now: Nanos, charges: &[Charge<'_>]) -> Option<Ticket> {
        let ticket = self.circuit.ticket();
        // Where there is no runtime for a probe, requests have to find out.
        (!ticket.is_of_open_circuit() || !self.is_probed(now, charges)).then_some(ticket)
    }

    /// Starts a probe unless one runs, and returns whether one does.
    pub(super) fn is_probed(self: &Arc<Self>, now: Nanos, charges: &[Charge<'_>]) -> bool {
        let (Ok(runtime), Some(charge)) = (Handle::try_current(), charges.first()) else { return false };
        if self.circuit.begins_probing() {
            let probe = Probe { inner: Arc::downgrade(self), now, charge: Asked::only_looks(charge) };
            drop(runtime.spawn(probe.run()));
        }
        true
    }

    pub(super) fn has_closed(&self) {
        // The store may have come back without what it knew.
        self.refusals.clear();
        observe::circuit_closed(self.counts.degraded.load(Ordering::Relaxed));
    }

    async fn answers(&self, now: Nanos, charge: &Asked) -> bool {
        let reply = match place_of(&charge.charge()) {
            Some(place) => self.store.probe(now, Charge { slot: &place.slot, ..charge.charge() }),
            None => return false,
        };
        let answered = match reply {
            Reply::Ready(answer) => answer,
            Reply::Pending(reply) => in_time(self.deadline.max(PATIENCE), reply).await.map(|_| ()),
        };
        // What is wrong with the one that is asked for is not wrong with others.
        answered.map_or_else(|error| error.is_of_one_request(), |()| true)
    }
}

/// What comes of `reply` within `deadline`.
pub(super) async fn in_time<T>(
    deadline: Duration,
    reply: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    if Handle::try_current().is_err() {
        return reply.await;
    }
    match tokio::time::timeout(deadline, reply).await {
        Ok(answer) => answer,
        Err(_) => Err(StoreError::new("the store did not answer within the deadline")),
    }
}

/// The task that finds out when the store answers again. There is one at most, and none while the circuit is closed.
struct Probe {
    inner: Weak<Inner>,
    now: Nanos,
    charge: Asked,
}

impl Probe {
    async fn run(self) {
        loop {
            let Some(pause) = self.inner.upgrade().map(|inner| inner.circuit.next_pause()) else { return };
            tokio::time::sleep(pause).await;
            let Some(inner) = self.inner.upgrade() else { return };
            let ticket = inner.circuit.ticket();
            if !ticket.is_of_open_circuit() {
                return;
            }
            count(&inner.counts.probes);
            if inner.answers(self.now, &self.charge).await {
                if inner.circuit.close(ticket) {
                    inner.has_closed();
                }
                return;
            }
        }
    }
}

/// However it ends, even with its runtime, the next decision can start another one.
impl Drop for Probe {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            inner.circuit.ends_probing();
        }
    }
}
