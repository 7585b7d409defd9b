use crate::{
    charge::{Charge, Slot, Take},
    key::KeyId,
    limit::Limit,
    time::Nanos,
};

/// A charge that does not borrow its slot, for as long as the store takes to answer.
pub(super) struct Asked {
    slot: Slot,
    key: KeyId,
    limit: Limit,
    cost: u64,
    keep: u64,
    max_delay: Nanos,
    votes: bool,
    take: Take,
}

impl Asked {
    pub(super) fn of(charge: &Charge<'_>) -> Self {
        let Charge { slot, key, limit, cost, keep, max_delay, votes, take } = *charge;
        Self { slot: slot.clone(), key, limit, cost, keep, max_delay, votes, take }
    }

    /// The same, but it is not taken.
    pub(super) fn only_looks(charge: &Charge<'_>) -> Self {
        Self { take: Take::Never, ..Self::of(charge) }
    }

    pub(super) fn charge(&self) -> Charge<'_> {
        let Self { slot, key, limit, cost, keep, max_delay, votes, take } = self;
        let (key, limit, cost, keep) = (*key, *limit, *cost, *keep);
        Charge { slot, key, limit, cost, keep, max_delay: *max_delay, votes: *votes, take: *take }
    }
}
