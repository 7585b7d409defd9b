//! The lock of the dense table's shards and of what a request holds: parking_lot's, or loom's where the protocol is
//! modelled.

#[cfg(tollgate_loom)]
use std::sync::PoisonError;

#[cfg(tollgate_loom)]
use loom::sync::Mutex as Inner;
#[cfg(tollgate_loom)]
pub(super) use loom::sync::MutexGuard;
#[cfg(not(tollgate_loom))]
use parking_lot::Mutex as Inner;
#[cfg(not(tollgate_loom))]
pub(super) use parking_lot::MutexGuard;

pub(super) struct Mutex<T>(Inner<T>);

/// How often a held lock is asked for again before the thread sleeps. What is done under it takes less time than waking
/// up, so who holds it is nearly done, unless it was interrupted.
#[cfg(not(tollgate_loom))]
const TRIES: u32 = 16;

/// How long a thread waits before it asks again, in pauses of the processor: for about as long as a few decisions take.
/// Asked for at once, the line that the lock is on goes to and fro for each decision; so it stays with one thread for
/// several.
#[cfg(not(tollgate_loom))]
const PAUSES: u32 = 32;

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Inner::new(value))
    }

    /// **Locking**: until the guard is dropped. A thread that panicked under the lock, which none of ours does, has
    /// left whole entries behind.
    #[inline]
    #[cfg(not(tollgate_loom))]
    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        match self.0.try_lock() {
            Some(guard) => guard,
            None => self.lock_held(),
        }
    }

    #[cold]
    #[cfg(not(tollgate_loom))]
    fn lock_held(&self) -> MutexGuard<'_, T> {
        for tried in 0..TRIES {
            for _ in 0..PAUSES << tried.min(3) {
                std::hint::spin_loop();
            }
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
        }
        self.0.lock()
    }

    /// As above, and one thing less to model.
    #[cfg(tollgate_loom)]
    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
