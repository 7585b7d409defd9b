use super::{
    Bucket, FixedWindow, FixedWindowState, LeakyBucket, Mark, Schedule, SlidingWindowCounter,
    SlidingWindowCounterState, TokenBucket,
};
use crate::{
    decision::{Outcome, Verdict, Wait},
    limit::Limit,
    time::Nanos,
};

/// A strategy whose state fits in a few words, nearly always.
///
/// Packing loses nothing: what does not fit is not packed. The latest time seen is not packed where it can be told for
/// many buckets together; any time that is not earlier, and that the clock has reached, will do.
pub(crate) trait Packed: Bucket<State: Copy> {
    /// The words. Zeros are a fresh state.
    type Words: Words;

    /// Returns `state` in words, or `None` where it needs more.
    fn pack(&self, state: &Self::State) -> Option<Self::Words>;

    /// Returns the state that `words` say, of a bucket that has seen no later time than `seen`.
    fn unpack(&self, words: Self::Words, seen: Nanos) -> Self::State;

    /// What [`at_once`](Self::at_once) needs of a limit, or `None` where it cannot judge under it.
    fn quick(&self, _limit: &Limit) -> Option<Quick> {
        None
    }

    /// Judges `cost` permits, and says what the words would be with them taken, as [`Bucket::look`] and
    /// [`Bucket::take`] would, where that can be done sooner; `None` where it cannot. `now` is not before what the
    /// bucket has seen.
    #[inline]
    fn at_once(&self, _words: Self::Words, _quick: &Quick, _now: Nanos, _cost: u64) -> Option<AtOnce<Self::Words>> {
        None
    }
}

/// A few words of 32 bits.
pub(crate) trait Words: Copy + Default + Send + Sync + 'static {
    /// Nothing, aligned as a table's slot with these words should be: so that one which fits in half a cache line never
    /// lies across two.
    type Align: Copy + Default + std::fmt::Debug + Send + Sync + 'static;
}

/// Half a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(crate) struct HalfLine;

impl Words for [u32; 3] {
    type Align = [HalfLine; 0];
}

impl Words for [u32; 4] {
    type Align = [u32; 0];
}

/// A limit of which a nanosecond drains one unit, so that units are nanoseconds: all those of a whole number of
/// nanoseconds a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quick {
    permit: u64,
    capacity: u64,
    /// The capacity in nanoseconds.
    full: u64,
}

/// What came of [`Packed::at_once`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AtOnce<W> {
    /// What is used before the charge, in nanoseconds.
    used: u64,
    /// What the charge adds.
    added: u64,
    /// The words with the charge taken, if it passes.
    pub(crate) taken: Option<W>,
}

impl<W> AtOnce<W> {
    /// The answer, and the mark, where the charge was taken.
    #[inline]
    pub(crate) fn took(&self, quick: &Quick, now: Nanos) -> (Verdict, Mark) {
        let used = self.used + self.added;
        (quick.verdict(Outcome::Pass, used), Mark::new(Nanos::new(now.get() + used), 0))
    }

    /// The same, of which nothing is to be written any more.
    #[inline]
    pub(crate) fn without_words(&self) -> AtOnce<()> {
        AtOnce { used: self.used, added: self.added, taken: self.taken.as_ref().map(|_| ()) }
    }

    /// The answer where the charge was not taken.
    #[inline]
    pub(crate) fn looked(&self, quick: &Quick) -> Verdict {
        let outcome = match self.taken {
            Some(_) => Outcome::Pass,
            None => Outcome::Refuse(Wait::For(Nanos::new(self.used + self.added - quick.full))),
        };
        quick.verdict(outcome, self.used)
    }
}

impl Quick {
    #[inline]
    fn verdict(&self, outcome: Outcome, used: u64) -> Verdict {
        let tokens = self.full.saturating_sub(used);
        let remaining = tokens / self.permit.max(1);
        let window = if remaining > 0 { tokens } else { used.saturating_sub(self.full - self.permit) };
        Verdict::new(outcome, self.capacity, remaining, Some(Nanos::new(used))).within(Nanos::new(window))
    }
}

#[inline]
fn halves(number: u64) -> [u32; 2] {
    #[allow(clippy::cast_possible_truncation, reason = "the two halves of a u64 fit in a u32 each")]
    [number as u32, (number >> 32) as u32]
}

#[inline]
fn whole(low: u32, high: u32) -> u64 {
    u64::from(low) | (u64::from(high) << 32)
}

#[inline]
fn pack_schedule(state: &Schedule) -> Option<[u32; 3]> {
    let (full_at, rest) = state.without_hole()?;
    let [low, high] = halves(full_at.get());
    Some([low, high, u32::try_from(rest).ok()?])
}

#[inline]
fn unpack_schedule([low, high, rest]: [u32; 3], seen: Nanos) -> Schedule {
    Schedule::full_at(Nanos::new(whole(low, high)), u64::from(rest), seen)
}

impl Packed for TokenBucket {
    type Words = [u32; 3];

    #[inline]
    fn pack(&self, state: &Schedule) -> Option<[u32; 3]> {
        pack_schedule(state)
    }

    #[inline]
    fn unpack(&self, words: [u32; 3], seen: Nanos) -> Schedule {
        unpack_schedule(words, seen)
    }

    fn quick(&self, limit: &Limit) -> Option<Quick> {
        let (permit, capacity) = (limit.permit(), limit.capacity());
        // A limit is checked to be full within half of what 64 bits hold.
        let full = capacity.checked_mul(permit).filter(|full| permit > 0 && *full >= permit)?;
        (limit.drain() == 1).then_some(Quick { permit, capacity, full })
    }

    /// In 64 bits, without a division.
    #[inline]
    fn at_once(&self, [low, high, rest]: [u32; 3], quick: &Quick, now: Nanos, cost: u64) -> Option<AtOnce<[u32; 3]>> {
        if rest != 0 || cost == 0 || cost > quick.capacity {
            return None;
        }
        let (used, added) = (whole(low, high).saturating_sub(now.get()), cost * quick.permit);
        let wanted = used.checked_add(added)?;
        if wanted > quick.full {
            return Some(AtOnce { used, added, taken: None });
        }
        let [low, high] = halves(now.get().checked_add(wanted)?);
        Some(AtOnce { used, added, taken: Some([low, high, 0]) })
    }
}

impl Packed for LeakyBucket {
    type Words = [u32; 3];

    #[inline]
    fn pack(&self, state: &Schedule) -> Option<[u32; 3]> {
        pack_schedule(state)
    }

    #[inline]
    fn unpack(&self, words: [u32; 3], seen: Nanos) -> Schedule {
        unpack_schedule(words, seen)
    }
}

impl Packed for FixedWindow {
    type Words = [u32; 3];

    fn pack(&self, state: &FixedWindowState) -> Option<[u32; 3]> {
        let [low, high] = halves(state.seen.get());
        Some([low, high, u32::try_from(state.count).ok()?])
    }

    fn unpack(&self, [low, high, count]: [u32; 3], _: Nanos) -> FixedWindowState {
        FixedWindowState { seen: Nanos::new(whole(low, high)), count: u64::from(count) }
    }
}

impl Packed for SlidingWindowCounter {
    type Words = [u32; 4];

    fn pack(&self, state: &SlidingWindowCounterState) -> Option<[u32; 4]> {
        let [low, high] = halves(state.seen.get());
        Some([low, high, u32::try_from(state.previous).ok()?, u32::try_from(state.current).ok()?])
    }

    fn unpack(&self, [low, high, previous, current]: [u32; 4], _: Nanos) -> SlidingWindowCounterState {
        SlidingWindowCounterState {
            seen: Nanos::new(whole(low, high)),
            previous: u64::from(previous),
            current: u64::from(current),
        }
    }
}
