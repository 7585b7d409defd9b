use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use super::KeyId;

/// Hashes a [`KeyId`] to find its place in a table: one folded multiplication under two random words.
///
/// For an index only. Which keys are equal is decided by their ids; somebody who could guess the words could make a table
/// slow, and nothing else.
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
    fn write_u128(&mut self, both: u128) {
        let (low, high) = (both as u64 ^ self.words.0 ^ self.hash, (both >> 64) as u64 ^ self.words.1);
        let product = u128::from(low) * u128::from(high);
        self.hash = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

impl Hash for KeyId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(u128::from_le_bytes(*self.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Key, Secret};

    #[test]
    fn spreads_keys_over_few_places() {
        let (hash, secret) = (KeyHash::random(), Secret::random());
        let mut places = [0_u32; 64];
        for number in 0..64_000_u64 {
            let hash = hash.hash_one(Key::from(number).id(&secret));
            places[usize::try_from(hash >> 40 & 63).unwrap()] += 1;
        }
        assert!(places.iter().all(|count| (700..1_300).contains(count)), "{places:?}");
    }
}
