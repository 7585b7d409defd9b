//! Whom a count belongs to: [`Key`], and ready-made extractors.
//!
//! A rule's key closure sees the whole request and returns `Option<Key>`: a key, or `None` where the rule does not
//! apply. The key borrows from the request; the limiter turns it into a fixed-size [`KeyId`] under the store's secret,
//! so a key allocates nothing and is kept nowhere in the clear.
//!
//! ```
//! use http::Request;
//! use tollgate::{Key, Limit, Rule, key};
//!
//! // By a header; by the account an outer layer put into the extensions; by both; by the first that is there.
//! struct Account(u64);
//! type Body = String;
//! let _: [Rule<Request<Body>>; 4] = [
//!     Rule::new("token", Limit::per_second(10), key::header("x-api-key")),
//!     Rule::new("account", Limit::per_second(10), key::extension(|account: &Account| Key::from(account.0))),
//!     Rule::new("both", Limit::per_second(5), key::all((
//!         key::extension(|account: &Account| Key::from(account.0)),
//!         key::from_fn(|request: &Request<Body>| Some(Key::from(request.uri().path()))),
//!     ))),
//!     Rule::new("either", Limit::per_second(5), key::first((key::header("x-api-key"), key::header("x-session")))),
//! ];
//! ```

mod client;
mod extract;
mod forwarded;
mod hash;
mod id;
mod peer;
mod plain;
mod request;

pub use client::{ParseNetError, TrustedProxies, client_addr};
pub(crate) use client::{contains, parse_nets};
#[cfg(feature = "config")]
pub(crate) use extract::{DynExtractor, all_of, first_of};
pub use extract::{Extractors, all, extension, first, from_fn, header};
pub(crate) use hash::KeyHash;
pub use id::{KeyId, Secret};
pub(crate) use peer::peer_of;
pub use peer::{peer_addr, peer_addr_by};
#[cfg(feature = "axum")]
pub use request::matched_path;
#[cfg(feature = "config")]
pub(crate) use request::try_path_router;
pub use request::{bearer_token, cookie, host, method, path_param, query};
pub(crate) use request::{header_name, host_of, path_router};

use std::{
    borrow::Cow,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use smallvec::SmallVec;

/// The identity a count belongs to, borrowed from the request.
///
/// It is made from text, bytes (those of a UUID, say: `Key::from(id.as_bytes())`), whole numbers, addresses, and tuples
/// of two or three of them.
///
/// Kinds never meet: the text `"7"` is another key than the number `7`, and an address is neither. The parts of a
/// tuple cannot run together: `("a:b", "c")` is not `("a", "b:c")`. Text and bytes are one kind.
///
/// `Debug` shows the kind and never the value, since keys may be personal data.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, key::Secret};
///
/// let secret = Secret::random();
/// assert_eq!(Key::from("ana").id(&secret), Key::from(String::from("ana")).id(&secret));
/// assert_ne!(Key::from("7").id(&secret), Key::from(7_u64).id(&secret));
/// assert_ne!(Key::from(("aa", "b")).id(&secret), Key::from(("a", "ab")).id(&secret));
/// assert!(Key::from("").is_empty());
/// assert_eq!(format!("{:?}", Key::from("ana")), "Key(text)");
/// ```
#[derive(Clone)]
pub struct Key<'a> {
    repr: Repr<'a>,
}

#[derive(Clone)]
enum Repr<'a> {
    One(Part<'a>),
    Many(Parts<'a>),
    Unavailable(&'static str),
}

/// Few enough that a key is moved as cheaply as it is made; more allocate.
type Parts<'a> = SmallVec<[Part<'a>; 3]>;

/// One part of a key.
#[derive(Clone)]
enum Part<'a> {
    Bytes(Cow<'a, [u8]>),
    /// Bytes that are never kept, however short.
    Secret(&'a [u8]),
    /// Little-endian, as all numbers here, so that a part needs no alignment.
    Number([u8; 16]),
    Negative([u8; 16]),
    Address(IpAddr, u8),
    /// Which of several extractors gave the parts that follow.
    Branch(u8),
}

impl<'a> Key<'a> {
    /// Returns a third answer beside a key and `None`: what has to be there is not. `reason` says what is missing and
    /// how to provide it; it is answered with status 500, unless the rule's
    /// [`on_missing_key`](crate::Rule::on_missing_key) says otherwise.
    pub const fn unavailable(reason: &'static str) -> Self {
        Self { repr: Repr::Unavailable(reason) }
    }

    /// Returns an address, IPv6 by its first `v6_prefix` bits (at most 128), an IPv4-mapped one as the IPv4 it is.
    ///
    /// One customer usually holds a whole /64, often a /56 or /48: counting single IPv6 addresses counts nothing.
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use tollgate::{Key, key::Secret};
    ///
    /// let id = |text: &str| Key::address(text.parse::<IpAddr>().unwrap(), 64).id(&Secret::new([7; 16]));
    /// assert_eq!(id("2001:db8:1:2:3:4:5:6"), id("2001:db8:1:2::9"));
    /// assert_ne!(id("2001:db8:1:2::9"), id("2001:db8:1:3::9"));
    /// assert_eq!(id("::ffff:192.0.2.1"), id("192.0.2.1"));
    /// ```
    #[inline]
    pub fn address(address: IpAddr, v6_prefix: u8) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Part::Address(IpAddr::V4(v4), 32).into(),
            IpAddr::V6(v6) => {
                let prefix = v6_prefix.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                Part::Address(IpAddr::V6((v6.to_bits() & mask).into()), prefix).into()
            }
        }
    }

    /// Returns a key for a credential: only a keyed hash of it is kept, however short it is.
    ///
    /// ```
    /// use tollgate::{Key, key::Secret};
    ///
    /// let secret = Secret::random();
    /// assert_eq!(Key::fingerprint(b"s3cret").id(&secret), Key::fingerprint(b"s3cret").id(&secret));
    /// assert!(!Key::fingerprint(b"s3cret").id(&secret).to_bytes().windows(3).any(|bytes| bytes == b"s3c"));
    /// ```
    pub const fn fingerprint(credential: &'a [u8]) -> Self {
        Self { repr: Repr::One(Part::Secret(credential)) }
    }

    /// Returns whether there is nothing in it: no bytes in any part. An empty key is treated as a missing one.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let empty = |part: &Part<'_>| match part {
            Part::Bytes(bytes) => bytes.is_empty(),
            Part::Secret(bytes) => bytes.is_empty(),
            Part::Branch(_) => true,
            Part::Number(_) | Part::Negative(_) | Part::Address(..) => false,
        };
        match &self.repr {
            Repr::One(part) => empty(part),
            Repr::Many(parts) => parts.iter().all(empty),
            Repr::Unavailable(_) => false,
        }
    }

    /// Returns why the key is unavailable, where it is.
    #[inline]
    pub fn unavailable_reason(&self) -> Option<&'static str> {
        match &self.repr {
            Repr::Unavailable(reason) => Some(reason),
            _ => None,
        }
    }

    /// Returns the key's fixed-size form under `secret`.
    #[inline]
    pub fn id(&self, secret: &Secret) -> KeyId {
        match &self.repr {
            Repr::One(part) => secret.one(part),
            Repr::Many(parts) => secret.many(parts),
            Repr::Unavailable(_) => KeyId::NONE,
        }
    }

    /// The fixed-size form of a key as most are: one part that is not empty, and owns nothing that would have to be
    /// dropped.
    #[inline(always)]
    pub(crate) fn usual(&self, secret: &Secret) -> Option<KeyId> {
        match &self.repr {
            Repr::One(Part::Bytes(Cow::Borrowed(bytes))) if !bytes.is_empty() => Some(secret.bytes(bytes)),
            Repr::One(Part::Address(IpAddr::V4(v4), _)) => Some(KeyId::of_v4(*v4)),
            Repr::One(Part::Number(number)) => Some(secret.number(number)),
            _ => None,
        }
    }

    /// What a rule finds in it.
    #[inline(never)]
    pub(crate) fn found(&self, secret: &Secret) -> Found {
        match &self.repr {
            Repr::Unavailable(reason) => Found::Unavailable(reason),
            _ if self.is_empty() => Found::Nothing,
            Repr::One(part) => Found::Id(secret.one(part)),
            Repr::Many(parts) => Found::Id(secret.many(parts)),
        }
    }

    /// Joins this key with another: the parts of both, in order. Unavailable if either is.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let repr = match (self.repr, other.repr) {
            (Repr::Unavailable(reason), _) | (_, Repr::Unavailable(reason)) => Repr::Unavailable(reason),
            (one, other) => {
                let mut parts = one.into_parts();
                parts.extend(other.into_parts());
                Repr::Many(parts)
            }
        };
        Self { repr }
    }
}

/// What there is in a key.
pub(crate) enum Found {
    Id(KeyId),
    /// It is empty.
    Nothing,
    Unavailable(&'static str),
}

impl<'a> Repr<'a> {
    fn into_parts(self) -> Parts<'a> {
        match self {
            Self::One(part) => SmallVec::from_iter([part]),
            Self::Many(parts) => parts,
            Self::Unavailable(_) => SmallVec::new(),
        }
    }
}

impl fmt::Debug for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.repr {
            Repr::One(Part::Bytes(_)) => "text",
            Repr::One(Part::Secret(_)) => "fingerprint",
            Repr::One(Part::Number(_) | Part::Negative(_)) => "number",
            Repr::One(Part::Address(..)) => "address",
            Repr::One(Part::Branch(_)) | Repr::Many(_) => "tuple",
            Repr::Unavailable(reason) => return write!(f, "Key(unavailable: {reason})"),
        };
        write!(f, "Key({kind})")
    }
}

impl<'a> From<Part<'a>> for Key<'a> {
    fn from(part: Part<'a>) -> Self {
        Self { repr: Repr::One(part) }
    }
}

impl<'a> From<&'a [u8]> for Key<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Part::Bytes(Cow::Borrowed(bytes)).into()
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Key<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        bytes.as_slice().into()
    }
}

impl<'a> From<&'a str> for Key<'a> {
    fn from(text: &'a str) -> Self {
        text.as_bytes().into()
    }
}

impl<'a> From<&'a String> for Key<'a> {
    fn from(text: &'a String) -> Self {
        text.as_bytes().into()
    }
}

impl From<String> for Key<'_> {
    fn from(text: String) -> Self {
        Part::Bytes(Cow::Owned(text.into_bytes())).into()
    }
}

impl From<Vec<u8>> for Key<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Part::Bytes(Cow::Owned(bytes)).into()
    }
}

impl<'a> From<Cow<'a, str>> for Key<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        match text {
            Cow::Borrowed(text) => text.into(),
            Cow::Owned(text) => text.into(),
        }
    }
}

macro_rules! from_number {
    ($($kind:ty),*) => {$(
        impl From<$kind> for Key<'_> {
            fn from(number: $kind) -> Self {
                Part::Number(u128::from(number).to_le_bytes()).into()
            }
        }
        impl From<&$kind> for Key<'_> {
            fn from(number: &$kind) -> Self {
                (*number).into()
            }
        }
    )*};
}
from_number!(u8, u16, u32, u64, u128);

impl From<usize> for Key<'_> {
    fn from(number: usize) -> Self {
        (number as u64).into()
    }
}

macro_rules! from_signed {
    ($($kind:ty),*) => {$(
        impl From<$kind> for Key<'_> {
            /// A number that is not negative is the same key as the unsigned one.
            fn from(number: $kind) -> Self {
                match u128::try_from(number) {
                    Ok(number) => Part::Number(number.to_le_bytes()).into(),
                    Err(_) => Part::Negative(i128::from(number).unsigned_abs().to_le_bytes()).into(),
                }
            }
        }
        impl From<&$kind> for Key<'_> {
            fn from(number: &$kind) -> Self {
                (*number).into()
            }
        }
    )*};
}
from_signed!(i32, i64);

/// The whole address, an IPv4-mapped one as the IPv4 it is. For clients use [`Key::address`], which groups IPv6.
impl From<IpAddr> for Key<'_> {
    fn from(address: IpAddr) -> Self {
        Key::address(address, 128)
    }
}

impl From<Ipv4Addr> for Key<'_> {
    fn from(address: Ipv4Addr) -> Self {
        IpAddr::V4(address).into()
    }
}

impl From<Ipv6Addr> for Key<'_> {
    fn from(address: Ipv6Addr) -> Self {
        IpAddr::V6(address).into()
    }
}

impl<'a, A: Into<Key<'a>>, B: Into<Key<'a>>> From<(A, B)> for Key<'a> {
    fn from((a, b): (A, B)) -> Self {
        a.into().and(b.into())
    }
}

impl<'a, A: Into<Key<'a>>, B: Into<Key<'a>>, C: Into<Key<'a>>> From<(A, B, C)> for Key<'a> {
    fn from((a, b, c): (A, B, C)) -> Self {
        a.into().and(b.into()).and(c.into())
    }
}

#[cfg(test)]
mod tests;
