//! What few shards have: buckets that are not in the dense table, and another limit than most.

use std::collections::HashMap;

use super::{
    dense::{Dense, Slot},
    table::Entry,
};
use crate::{
    bucket::{Bucket, Packed, Quick},
    key::{KeyHash, KeyId},
    limit::Limit,
};

/// What the buckets of a dense table are judged under.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) limit: Limit,
    /// For judging by the shortest way, where there is one.
    pub(super) quick: Option<Quick>,
}

impl Terms {
    pub(super) fn new(bucket: &impl Packed, limit: Limit) -> Self {
        Self { limit, quick: bucket.quick(&limit) }
    }
}

/// What a shard keeps beside its dense table.
pub(super) struct Beside<B: Packed> {
    /// Those of the dense table, where they are others than the shard began with.
    pub(super) terms: Option<Terms>,
    /// Dense tables of limits that the rule had before, the latest last.
    pub(super) former: Vec<Former<B>>,
    /// Buckets that no slot can say.
    pub(super) wide: HashMap<KeyId, Entry<<B as Bucket>::State>, KeyHash>,
}

/// A dense table of a limit that the rule had before.
pub(super) struct Former<B: Packed> {
    pub(super) limit: Limit,
    pub(super) dense: Dense<B::Words>,
}

/// How many limits that a rule had before have dense tables. What is left of older ones is kept beside them.
const FORMER: usize = 3;

impl<B: Packed> Beside<B> {
    pub(super) fn new(hash: KeyHash) -> Self {
        Self { terms: None, former: Vec::new(), wide: HashMap::with_hasher(hash) }
    }

    /// Whether there are no buckets in it.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.wide.is_empty() && self.former.is_empty()
    }

    /// Gives memory back that is not needed, and returns whether nothing is left.
    pub(super) fn tidy(&mut self) -> bool {
        self.former.retain(|former| former.dense.len() > 0);
        if self.wide.is_empty() {
            self.wide.shrink_to_fit();
        }
        self.is_empty() && self.terms.is_none()
    }

    /// Keeps a table of a limit that is in force no more, and unpacks the oldest where there are too many.
    pub(super) fn keep_former(
        &mut self,
        former: Former<B>,
        unpack: impl Fn(&Slot<B::Words>, &Limit) -> Entry<<B as Bucket>::State>,
    ) {
        self.former.push(former);
        self.former.retain(|former| former.dense.len() > 0);
        while self.former.len() > FORMER {
            let Former { limit, dense } = self.former.remove(0);
            self.wide.extend(dense.slots().map(|slot| (slot.key(), unpack(slot, &limit))));
        }
    }
}
