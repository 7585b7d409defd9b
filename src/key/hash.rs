use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use super::KeyId;

/// Hashes a [`KeyId`] to find its place in a table: a folded multiplication under two random words, and another one of
/// what came out.
///
/// The first alone draws a straight line where keys are numbers that follow each other, and for a few random words a
/// line that keeps meeting the same places.
///
/// For an index only. Which keys are equal is decided by their ids; somebody who could guess the words could make a
/// table slow, and nothing else.
#[derive(Debug, Clone)]
pub(crate) struct KeyHash {
    words: (u64, u64),
}

impl KeyHash {
    /// Returns a hash that no other table has.
    pub(crate) fn random() -> Self {
        if cfg!(tollgate_loom) {
            // Where a bucket is decides what is done about it, and a model has to do the same each time it is run.
            return Self { words: (0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f) };
        }
        // The standard library seeds each `RandomState` from the system's randomness.
        let word = || RandomState::new().build_hasher().finish();
        Self { words: (word(), word()) }
    }
}

impl BuildHasher for KeyHash {
    type Hasher = FoldedHasher;

    fn build_hasher(&self) -> FoldedHasher {
        FoldedHasher { words: self.words, hash: 0 }
    }
}

pub(crate) struct FoldedHasher {
    words: (u64, u64),
    hash: u64,
}

impl Hasher for FoldedHasher {
    fn write(&mut self, bytes: &[u8]) {
        // A `KeyId` is written as one chunk of 16 bytes.
        for chunk in bytes.chunks(16) {
            let mut both = [0; 16];
            for (to, from) in both.iter_mut().zip(chunk) {
                *to = *from;
            }
            self.write_u128(u128::from_le_bytes(both));
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "the two halves of a u128 fit in a u64 each")]
    #[inline]
    fn write_u128(&mut self, both: u128) {
        let (low, high) = (both as u64 ^ self.words.0 ^ self.hash, (both >> 64) as u64 ^ self.words.1);
        self.hash = folded(low, high);
    }

    #[inline]
    fn finish(&self) -> u64 {
        folded(self.hash, 0x9e37_79b9_7f4a_7c15)
    }
}

/// The two halves of a product, one over the other.
#[allow(clippy::cast_possible_truncation, reason = "the two halves of a u128 fit in a u64 each")]
#[inline]
fn folded(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

impl Hash for KeyId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.bits());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Key, Secret};

    /// How much the numbers of keys in 1,024 places differ, of 16 a place: 1 where each key's place is drawn.
    fn spread(places: impl Iterator<Item = u64>) -> f64 {
        let mut counts = [0_i32; 1_024];
        for place in places {
            counts[usize::try_from(place).unwrap()] += 1;
        }
        counts.iter().map(|count| f64::from(count - 16).powi(2)).sum::<f64>() / (1_024.0 * 16.0)
    }

    #[test]
    fn spreads_keys_as_if_each_place_was_drawn_however_much_they_are_alike() {
        for turn in 0..30 {
            let (hash, secret) = (KeyHash::random(), Secret::random());
            for (kind, key) in [
                ("one after the other", (|number| Key::from(number)) as fn(u64) -> Key<'static>),
                ("a shard of eight", |number| Key::from(number * 8 + 3)),
                ("ids with a time in front", |number| Key::from(number << 22 | 1 << 60)),
                ("what differs at the top", |number| Key::from(number << 48)),
                ("hosts of a network", |number| {
                    Key::from(std::net::IpAddr::from((10_u128 << 120 | u128::from(number)).to_be_bytes()))
                }),
                ("texts", |number| Key::from(format!("user-{number:05}"))),
            ] {
                let hashes = || (0..16 * 1_024).map(|number| hash.hash_one(key(number).id(&secret)));
                // Shards go by the upper bits, slots by others.
                for (bits, shift) in [("upper", 54), ("middle", 32), ("lower", 0)] {
                    let spread = spread(hashes().map(|hash| hash >> shift & 1_023));
                    assert!((0.7..1.3).contains(&spread), "{turn}: {kind}, {bits} bits: {spread}");
                }
            }
        }
    }
}
