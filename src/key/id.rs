use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    net::{IpAddr, Ipv4Addr},
};

use siphasher::sip128::{Hasher128, SipHasher13};

use super::Part;

/// A key's fixed-size form: 16 bytes that a store can keep.
///
/// One tag byte and up to 15 bytes exactly (addresses, IPv6 prefixes, numbers, short text), or a tagged 120 bits of a
/// keyed SipHash-1-3-128 for everything longer. Equal keys have equal ids under one [`Secret`]; different keys have
/// different ids, but for a chance of 2^-60 among 2^30 long keys, which nobody can improve without the secret.
// Two words, lower first, and not an array: words are handed on in registers, where bytes go through memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyId(u64, u64);

/// The kind in a tag's upper half; the lower half is the number of bytes.
mod kind {
    pub(super) const NONE: u8 = 0x00;
    pub(super) const HASH: u8 = 0x10;
    pub(super) const BYTES: u8 = 0x20;
    pub(super) const NUMBER: u8 = 0x30;
    pub(super) const NEGATIVE: u8 = 0x40;
    pub(super) const V4: u8 = 0x50;
    pub(super) const V6: u8 = 0x60;
    pub(super) const BRANCH: u8 = 0x70;
    pub(super) const SECRET: u8 = 0x80;
    #[cfg(feature = "redis")]
    pub(super) const VEIL: u8 = 0x90;
}

impl KeyId {
    /// The one key of a rule that has no key.
    pub const NONE: Self = Self::of(kind::NONE as u128);

    /// `bytes` as they are, where they fit.
    #[inline]
    fn exact(kind: u8, bytes: &[u8]) -> Option<Self> {
        Some(Self::whole(kind, short(bytes)?, bytes.len()))
    }

    /// The first `length` bytes of `value`, of which there are at most 15, and the others are zero.
    #[inline]
    fn whole(kind: u8, value: u128, length: usize) -> Self {
        Self::of(value << 8 | u128::from(kind) | length as u128)
    }

    #[inline]
    pub(super) fn of_v4(address: Ipv4Addr) -> Self {
        Self::whole(kind::V4, u32::from_le_bytes(address.octets()).into(), address.octets().len())
    }

    /// Returns the id with these bits.
    #[allow(clippy::cast_possible_truncation, reason = "the two halves of a u128 fit in a u64 each")]
    #[inline]
    pub(crate) const fn of(bits: u128) -> Self {
        Self(bits as u64, (bits >> 64) as u64)
    }

    /// Its bits: the tag is the lowest byte.
    #[allow(clippy::cast_lossless, reason = "`From` is no const function")]
    #[inline]
    pub(crate) const fn bits(self) -> u128 {
        self.0 as u128 | (self.1 as u128) << 64
    }

    /// Returns the bytes, the tag first.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.bits().to_le_bytes()
    }

    /// Returns the key as text, where the id holds it: kind and value, with nothing in it but letters, digits, `.`,
    /// `-`, `_`, one `:` between the two, and `%` before the hexadecimal digits of any other byte.
    #[cfg(feature = "redis")]
    pub(crate) fn readable(&self) -> Option<String> {
        let bytes = self.to_bytes();
        let (tag, rest) = bytes.split_first()?;
        let bytes = rest.get(..usize::from(tag & 0x0f))?;
        let number = || {
            let mut all = [0; 16];
            for (to, from) in all.iter_mut().zip(bytes) {
                *to = *from;
            }
            u128::from_le_bytes(all)
        };
        let (kind, value) = match tag & 0xf0 {
            kind::BYTES => ("text", bytes.to_vec()),
            kind::NUMBER => ("number", number().to_string().into_bytes()),
            kind::NEGATIVE => ("number", format!("-{}", number()).into_bytes()),
            kind::V4 => ("ip", std::net::Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).to_string().into_bytes()),
            kind::V6 => {
                let (prefix, bytes) = bytes.split_first()?;
                let mut all = [0; 16];
                for (to, from) in all.iter_mut().zip(bytes) {
                    *to = *from;
                }
                ("ip", format!("{}/{prefix}", std::net::Ipv6Addr::from(all)).into_bytes())
            }
            _ => return None,
        };
        let mut text = format!("{kind}:");
        for byte in value {
            match byte {
                b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'.' | b'-' | b'_' => text.push(char::from(byte)),
                other => text.push_str(&format!("%{other:02X}")),
            }
        }
        Some(text)
    }
}

/// Shows nothing of the key.
impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyId(..)")
    }
}

/// The secret that long keys are fingerprinted under, so that nobody outside can look for two keys that share a count.
#[derive(Clone)]
pub struct Secret {
    /// The hash after the secret and nothing else.
    plain: SipHasher13,
    /// The same after the mark of what most long keys are, so that only their bytes are left to hash.
    bytes: SipHasher13,
    secret: SipHasher13,
}

/// What is hashed first, a whole word: what follows.
const fn mark(kind: u8) -> [u8; 8] {
    [kind, 0, 0, 0, 0, 0, 0, 1]
}

/// The mark of a tuple, which no kind has.
const TUPLE: u8 = 0xff;

impl Secret {
    /// Returns the secret made of `bytes`: the same in every process that is given the same.
    pub fn new(bytes: [u8; 16]) -> Self {
        Self::from(SipHasher13::new_with_key(&bytes))
    }

    /// Returns a secret that no other process has.
    pub fn random() -> Self {
        // The standard library seeds each `RandomState` from the system's randomness.
        let word = || RandomState::new().build_hasher().finish();
        Self::from(SipHasher13::new_with_keys(word(), word()))
    }

    /// Hides even an id that holds its key exactly.
    #[cfg(feature = "redis")]
    pub(crate) fn veil(&self, id: KeyId) -> [u8; 16] {
        // No kind of a key has this mark, so no key's own hash is ever met.
        let mut hasher = marked(self.plain, kind::VEIL);
        hasher.write(&id.to_bytes());
        hasher.finish128().as_bytes()
    }

    #[inline]
    pub(super) fn one(&self, part: &Part<'_>) -> KeyId {
        match part {
            Part::Bytes(bytes) => self.bytes(bytes),
            Part::Address(IpAddr::V4(v4), _) => KeyId::of_v4(*v4),
            Part::Number(number) => self.number(number),
            _ => self.other(part),
        }
    }

    #[inline]
    pub(super) fn bytes(&self, bytes: &[u8]) -> KeyId {
        KeyId::exact(kind::BYTES, bytes).unwrap_or_else(|| self.long(bytes))
    }

    #[inline]
    pub(super) fn number(&self, number: &[u8; 16]) -> KeyId {
        match (u128::from_le_bytes(*number), shortest(number).len()) {
            (number, length @ ..16) => KeyId::whole(kind::NUMBER, number, length),
            _ => self.other(&Part::Number(*number)),
        }
    }

    #[inline(never)]
    fn long(&self, bytes: &[u8]) -> KeyId {
        let mut hasher = self.bytes;
        hasher.write(bytes);
        finish(&hasher)
    }

    #[inline(never)]
    fn other(&self, part: &Part<'_>) -> KeyId {
        with_bytes(part, |kind, bytes| {
            let exact = if kind == kind::SECRET { None } else { KeyId::exact(kind, bytes) };
            exact.unwrap_or_else(|| {
                let mut hasher = match kind {
                    kind::BYTES => self.bytes,
                    kind::SECRET => self.secret,
                    _ => marked(self.plain, kind),
                };
                // SipHash tells messages of different lengths apart, so the bytes alone will do.
                hasher.write(bytes);
                finish(&hasher)
            })
        })
    }

    pub(super) fn many(&self, parts: &[Part<'_>]) -> KeyId {
        let mut hasher = marked(self.plain, TUPLE);
        for part in parts {
            with_bytes(part, |kind, bytes| frame(&mut hasher, kind, bytes));
        }
        finish(&hasher)
    }
}

impl From<SipHasher13> for Secret {
    fn from(plain: SipHasher13) -> Self {
        Self { plain, bytes: marked(plain, kind::BYTES), secret: marked(plain, kind::SECRET) }
    }
}

fn marked(mut hasher: SipHasher13, kind: u8) -> SipHasher13 {
    hasher.write(&mark(kind));
    hasher
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Kind and length go before the bytes, so parts cannot run together.
fn frame(hasher: &mut SipHasher13, kind: u8, bytes: &[u8]) {
    let mut head = [kind; 9];
    for (to, from) in head.iter_mut().skip(1).zip((bytes.len() as u64).to_le_bytes()) {
        *to = from;
    }
    hasher.write(&head);
    hasher.write(bytes);
}

fn finish(hasher: &SipHasher13) -> KeyId {
    let hash = hasher.finish128();
    let bits = u128::from(hash.h1) | (u128::from(hash.h2) << 64);
    KeyId::of((bits << 8) | u128::from(kind::HASH))
}

#[inline]
fn with_bytes<T>(part: &Part<'_>, then: impl FnOnce(u8, &[u8]) -> T) -> T {
    match part {
        Part::Bytes(bytes) => then(kind::BYTES, bytes),
        Part::Secret(bytes) => then(kind::SECRET, bytes),
        Part::Number(number) => then(kind::NUMBER, shortest(number)),
        Part::Negative(number) => then(kind::NEGATIVE, shortest(number)),
        Part::Address(IpAddr::V4(v4), _) => then(kind::V4, &v4.octets()),
        Part::Address(IpAddr::V6(v6), prefix) => {
            // The prefix's length and its bytes: 9 bytes for a /64, exact up to a /112.
            let mut bytes = [0; 17];
            let length = usize::from(prefix.div_ceil(8));
            if let Some((first, rest)) = bytes.split_first_mut() {
                *first = *prefix;
                for (to, from) in rest.iter_mut().zip(v6.octets()).take(length) {
                    *to = from;
                }
            }
            then(kind::V6, bytes.get(..=length).unwrap_or(&bytes))
        }
        Part::Branch(branch) => then(kind::BRANCH, &[*branch]),
    }
}

/// Without the zeros at the end, which are a little-endian number's upper bytes.
#[inline]
fn shortest(bytes: &[u8; 16]) -> &[u8] {
    let zeros = u128::from_le_bytes(*bytes).leading_zeros() / 8;
    let length = bytes.len() - usize::try_from(zeros).unwrap_or(0);
    bytes.get(..length.max(1)).unwrap_or(bytes)
}

/// Up to 15 bytes as one number; `None` of more. Read in two words that overlap, which is quicker than one by one.
#[inline]
fn short(bytes: &[u8]) -> Option<u128> {
    let length = bytes.len();
    if length > 15 {
        return None;
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let (first, last) = (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
        return Some(u128::from(first) | u128::from(last) << (8 * (length - 8)));
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        return Some(u128::from(first) | u128::from(last) << (8 * (length - 4)));
    }
    Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u128::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_fifteen_bytes_are_kept_as_they_are() {
        let bytes: Vec<u8> = (1..=16).collect();
        for length in 0..=16 {
            let bytes = &bytes[..length];
            let id = KeyId::exact(kind::BYTES, bytes);
            assert_eq!(id.is_some(), length < 16);
            if let Some(id) = id {
                assert_eq!(usize::from(id.to_bytes()[0]), usize::from(kind::BYTES) | length);
                assert_eq!(&id.to_bytes()[1..=length], bytes);
                assert!(id.to_bytes()[1 + length..].iter().all(|rest| *rest == 0));
            }
        }
    }
}
