//! The lock of the dense table's shards: the standard library's, or loom's where the protocol is modelled.

use std::sync::PoisonError;

#[cfg(tollgate_loom)]
use loom::sync::{Mutex as Inner, MutexGuard};
#[cfg(not(tollgate_loom))]
use std::sync::{Mutex as Inner, MutexGuard};

pub(super) struct Mutex<T>(Inner<T>);

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Inner::new(value))
    }

    /// **Locking**: until the guard is dropped. A thread that panicked under the lock, which no bucket of ours does, has
    /// left whole entries behind.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
