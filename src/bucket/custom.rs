use std::{any::Any, fmt, sync::Arc};

use super::{Algorithm, Ask, Bucket, GivenBack, Mark, Used};
use crate::{decision::Verdict, limit::Limit, time::Nanos};

/// A [`Bucket`] of the user's own, whatever its state. Its state costs one allocation a key.
///
/// Two are equal when they are clones of one value.
#[derive(Clone)]
pub struct CustomBucket(Arc<dyn Erased>);

/// The state of a [`CustomBucket`].
pub struct CustomState(Box<dyn AnyState>);

trait AnyState: Any + Send + Sync {
    fn duplicate(&self) -> Box<dyn AnyState>;
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<S: Any + Clone + Send + Sync> AnyState for S {
    fn duplicate(&self) -> Box<dyn AnyState> {
        Box::new(self.clone())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Clone for CustomState {
    fn clone(&self) -> Self {
        Self((*self.0).duplicate())
    }
}

impl fmt::Debug for CustomState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomState")
    }
}

/// [`Bucket`] without its state's type. A state that is not the bucket's own, which the tables never mix up, is taken
/// as a fresh one.
trait Erased: Send + Sync + fmt::Debug {
    fn fresh(&self, limit: &Limit, now: Nanos) -> CustomState;
    fn look(&self, state: &CustomState, limit: &Limit, now: Nanos, ask: Ask) -> Verdict;
    fn take(&self, state: &mut CustomState, limit: &Limit, now: Nanos, ask: Ask) -> (Verdict, Mark);
    fn give_back(&self, state: &mut CustomState, limit: &Limit, now: Nanos, charge: GivenBack);
    fn used(&self, state: &CustomState, limit: &Limit, now: Nanos) -> Used;
    fn with_used(&self, limit: &Limit, used: Used, now: Nanos) -> CustomState;
    fn fresh_at(&self, state: &CustomState, limit: &Limit) -> Nanos;
    fn seen(&self, state: &CustomState) -> Nanos;
    fn under(&self, state: &CustomState, old: &Limit, new: &Limit, now: Nanos) -> CustomState;
    fn check(&self, limit: &Limit) -> Result<(), &'static str>;
}

fn own<B: Bucket>(state: &CustomState) -> Option<&B::State> {
    (*state.0).as_any().downcast_ref()
}

fn own_mut<'a, B: Bucket>(
    bucket: &B,
    state: &'a mut CustomState,
    limit: &Limit,
    now: Nanos,
) -> Option<&'a mut B::State> {
    if own::<B>(state).is_none() {
        state.0 = Box::new(bucket.fresh(limit, now));
    }
    (*state.0).as_any_mut().downcast_mut()
}

impl<B: Bucket> Erased for B {
    fn fresh(&self, limit: &Limit, now: Nanos) -> CustomState {
        CustomState(Box::new(Bucket::fresh(self, limit, now)))
    }
    fn look(&self, state: &CustomState, limit: &Limit, now: Nanos, ask: Ask) -> Verdict {
        match own::<B>(state) {
            Some(state) => Bucket::look(self, state, limit, now, ask),
            None => Bucket::look(self, &Bucket::fresh(self, limit, now), limit, now, ask),
        }
    }
    fn take(&self, state: &mut CustomState, limit: &Limit, now: Nanos, ask: Ask) -> (Verdict, Mark) {
        match own_mut(self, state, limit, now) {
            Some(state) => Bucket::take(self, state, limit, now, ask),
            None => (Bucket::look(self, &Bucket::fresh(self, limit, now), limit, now, ask), Mark::default()),
        }
    }
    fn give_back(&self, state: &mut CustomState, limit: &Limit, now: Nanos, charge: GivenBack) {
        if let Some(state) = own_mut(self, state, limit, now) {
            Bucket::give_back(self, state, limit, now, charge);
        }
    }
    fn used(&self, state: &CustomState, limit: &Limit, now: Nanos) -> Used {
        own::<B>(state).map_or(Used::ZERO, |state| Bucket::used(self, state, limit, now))
    }
    fn with_used(&self, limit: &Limit, used: Used, now: Nanos) -> CustomState {
        CustomState(Box::new(Bucket::with_used(self, limit, used, now)))
    }
    fn fresh_at(&self, state: &CustomState, limit: &Limit) -> Nanos {
        own::<B>(state).map_or(Nanos::ZERO, |state| Bucket::fresh_at(self, state, limit))
    }
    fn seen(&self, state: &CustomState) -> Nanos {
        own::<B>(state).map_or(Nanos::ZERO, |state| Bucket::seen(self, state))
    }
    fn under(&self, state: &CustomState, old: &Limit, new: &Limit, now: Nanos) -> CustomState {
        match own::<B>(state) {
            Some(state) => CustomState(Box::new(Bucket::under(self, state, old, new, now))),
            None => Erased::fresh(self, new, now),
        }
    }
    fn check(&self, limit: &Limit) -> Result<(), &'static str> {
        Bucket::check(self, limit)
    }
}

impl CustomBucket {
    /// Wraps `bucket`.
    pub fn new<B: Bucket>(bucket: B) -> Self {
        Self(Arc::new(bucket))
    }
}

impl PartialEq for CustomBucket {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for CustomBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Bucket for CustomBucket {
    type State = CustomState;

    fn fresh(&self, limit: &Limit, now: Nanos) -> CustomState {
        self.0.fresh(limit, now)
    }
    fn look(&self, state: &CustomState, limit: &Limit, now: Nanos, ask: Ask) -> Verdict {
        self.0.look(state, limit, now, ask)
    }
    fn take(&self, state: &mut CustomState, limit: &Limit, now: Nanos, ask: Ask) -> (Verdict, Mark) {
        self.0.take(state, limit, now, ask)
    }
    fn give_back(&self, state: &mut CustomState, limit: &Limit, now: Nanos, charge: GivenBack) {
        self.0.give_back(state, limit, now, charge);
    }
    fn used(&self, state: &CustomState, limit: &Limit, now: Nanos) -> Used {
        self.0.used(state, limit, now)
    }
    fn with_used(&self, limit: &Limit, used: Used, now: Nanos) -> CustomState {
        self.0.with_used(limit, used, now)
    }
    fn fresh_at(&self, state: &CustomState, limit: &Limit) -> Nanos {
        self.0.fresh_at(state, limit)
    }
    fn seen(&self, state: &CustomState) -> Nanos {
        self.0.seen(state)
    }
    fn under(&self, state: &CustomState, old: &Limit, new: &Limit, now: Nanos) -> CustomState {
        self.0.under(state, old, new, now)
    }
    fn check(&self, limit: &Limit) -> Result<(), &'static str> {
        self.0.check(limit)
    }
    fn into_algorithm(self) -> Algorithm {
        Algorithm::Custom(self)
    }
}
