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
    in_place_of: Option<usize>,
}

impl Asked {
    pub(super) fn of(charge: &Charge<'_>) -> Self {
        let Charge { slot, key, limit, cost, keep, max_delay, votes, take, in_place_of } = *charge;
        Self { slot: slot.clone(), key, limit, cost, keep, max_delay, votes, take, in_place_of }
    }

    /// The same, alone and not taken.
    pub(super) fn only_looks(charge: &Charge<'_>) -> Self {
        Self { take: Take::Never, in_place_of: None, ..Self::of(charge) }
    }

    pub(super) fn charge(&self) -> Charge<'_> {
        let Self { ref slot, key, limit, cost, keep, max_delay, votes, take, in_place_of } = *self;
        Charge { slot, key, limit, cost, keep, max_delay, votes, take, in_place_of }
    }
}
