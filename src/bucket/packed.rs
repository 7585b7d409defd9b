use super::{
    Bucket, FixedWindow, FixedWindowState, LeakyBucket, Schedule, SlidingWindowCounter, SlidingWindowCounterState,
    TokenBucket,
};
use crate::time::Nanos;

/// A strategy whose state fits in a few words, nearly always.
///
/// Packing loses nothing: what does not fit is not packed. The latest time seen is not packed where it can be told for
/// many buckets together; any time that is not earlier, and that the clock has reached, will do.
pub(crate) trait Packed: Bucket<State: Copy> {
    /// The words. Zeros are a fresh state.
    type Words: Copy + Default + Send + Sync + 'static;

    /// Returns `state` in words, or `None` where it needs more.
    fn pack(&self, state: &Self::State) -> Option<Self::Words>;

    /// Returns the state that `words` say, of a bucket that has seen no later time than `seen`.
    fn unpack(&self, words: Self::Words, seen: Nanos) -> Self::State;
}

fn halves(number: u64) -> [u32; 2] {
    #[allow(clippy::cast_possible_truncation, reason = "the two halves of a u64 fit in a u32 each")]
    [number as u32, (number >> 32) as u32]
}

fn whole(low: u32, high: u32) -> u64 {
    u64::from(low) | (u64::from(high) << 32)
}

fn pack_schedule(state: &Schedule) -> Option<[u32; 3]> {
    let (full_at, rest) = state.without_hole()?;
    let [low, high] = halves(full_at.get());
    Some([low, high, u32::try_from(rest).ok()?])
}

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
