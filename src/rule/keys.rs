//! What a rule counts by.

use std::mem::ManuallyDrop;

use crate::key::{Found, Key, Secret};

/// A rule's key closure, and what the rule does with its key: behind one call, so that a key that is used at once is
/// never put together.
pub(super) trait KeyOf<Req>: Send + Sync {
    /// The request's key as it is.
    fn key<'a>(&self, request: &'a Req) -> Option<Key<'a>>;
    /// The request's key in its fixed-size form under `secret`.
    fn found(&self, request: &Req, secret: &Secret) -> Found;
}

/// A closure.
pub(super) struct By<F>(pub(super) F);

impl<Req, F> KeyOf<Req> for By<F>
where
    F: for<'a> Fn(&'a Req) -> Option<Key<'a>> + Send + Sync,
{
    fn key<'a>(&self, request: &'a Req) -> Option<Key<'a>> {
        (self.0)(request)
    }

    fn found(&self, request: &Req, secret: &Secret) -> Found {
        // A key that has a usual form has nothing in it to be dropped, which the compiler does not always see.
        let key = ManuallyDrop::new((self.0)(request));
        match key.as_ref().and_then(|key| key.usual(secret)) {
            Some(id) => Found::Id(id),
            None => ManuallyDrop::into_inner(key).map_or(Found::Nothing, |key| key.found(secret)),
        }
    }
}
