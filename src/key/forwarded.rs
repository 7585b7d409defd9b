//! Reading forwarding headers. Every byte sequence gives addresses or "unknown", in bounded work.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use smallvec::SmallVec;

/// What one element of a forwarding header says of a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hop {
    /// Its address, an IPv4-mapped one as the IPv4 it is.
    Address(IpAddr),
    /// Anything else: hidden on purpose, or not to be read.
    Unknown,
}

impl From<Option<IpAddr>> for Hop {
    fn from(address: Option<IpAddr>) -> Self {
        address.map_or(Self::Unknown, |address| Self::Address(address.to_canonical()))
    }
}

/// No honest line is longer.
const MAX_LINE: usize = 8 * 1024;

/// Reads an address alone, with a port, or in brackets: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`,
/// `[2001:db8::1]:80`.
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim_matches([' ', '\t']);
    without_port(text).or_else(|| text.parse::<SocketAddr>().ok().map(|addr| addr.ip()))
}

fn without_port(text: &str) -> Option<IpAddr> {
    match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        Some(inner) => inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => text.parse().ok(),
    }
}

/// Reads an address that always has a port after its last colon, brackets or not, as `CloudFront-Viewer-Address` does.
pub(super) fn address_before_port(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim_matches([' ', '\t']);
    let (host, port) = text.rsplit_once(':')?;
    is_number(port).then(|| without_port(host)).flatten()
}

/// The hops of one line of `X-Forwarded-For`, nearest first. Empty elements are none (RFC 9110, 5.6.1).
pub(super) fn x_forwarded_for(line: &[u8]) -> impl Iterator<Item = Hop> {
    line.rsplit(|byte| *byte == b',')
        .filter(|element| !element.trim_ascii().is_empty())
        .map(|element| if element.len() > 64 { Hop::Unknown } else { address(element).into() })
}

/// The hops of one line of `Forwarded` (RFC 7239, 4), in its order; `None` where the line cannot be read.
///
/// Each line is read on its own. A quoted string never spans lines, so what a client sends on a line of its own cannot
/// swallow what a proxy adds on the next; where both are on one line and quotes do not add up, all of it is unknown.
pub(super) fn forwarded(line: &[u8]) -> Option<SmallVec<[Hop; 4]>> {
    if line.len() > MAX_LINE {
        return None;
    }
    let mut hops = SmallVec::new();
    let mut element = Element::default();
    let mut rest = line.trim_ascii();
    while !rest.is_empty() {
        let (pair, separator, after) = pair(rest)?;
        element.add(pair);
        if separator != Some(b';') {
            hops.extend(std::mem::take(&mut element).hop());
        }
        rest = after.trim_ascii_start();
    }
    hops.extend(element.hop());
    Some(hops)
}

/// One `name=value` of an element, or an empty one.
enum Pair<'a> {
    Empty,
    Bad,
    Of(&'a [u8], Cow<'a, [u8]>),
}

/// Reads up to the next separator and returns what follows it; `None` where quotes stand where none may.
fn pair(text: &[u8]) -> Option<(Pair<'_>, Option<u8>, &[u8])> {
    let ends = |byte: &u8| matches!(byte, b';' | b',');
    let name_ends = text.iter().position(|byte| ends(byte) || *byte == b'=').unwrap_or(text.len());
    let (name, rest) = text.split_at_checked(name_ends)?;
    if name.contains(&b'"') {
        return None;
    }
    let Some(rest) = rest.strip_prefix(b"=") else {
        let pair = if name.trim_ascii().is_empty() { Pair::Empty } else { Pair::Bad };
        return Some((pair, rest.first().copied(), rest.get(1..).unwrap_or_default()));
    };
    let (value, rest) = match rest.strip_prefix(b"\"") {
        Some(quoted) => {
            let (value, rest) = quoted_string(quoted)?;
            (Cow::Owned(value), rest.trim_ascii_start())
        }
        None => {
            let (value, rest) = rest.split_at_checked(rest.iter().position(ends).unwrap_or(rest.len()))?;
            if value.contains(&b'"') {
                return None;
            }
            (Cow::Borrowed(value.trim_ascii_end()), rest)
        }
    };
    if rest.first().is_some_and(|byte| !ends(byte)) {
        return None;
    }
    let token =
        !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte));
    let pair = if token { Pair::Of(name, value) } else { Pair::Bad };
    Some((pair, rest.first().copied(), rest.get(1..).unwrap_or_default()))
}

/// Reads a quoted string behind its opening quote; `None` where it never ends.
fn quoted_string(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut value = Vec::new();
    let mut bytes = text.iter().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some((value, text.get(at + 1..)?)),
            b'\\' => value.push(*bytes.next()?.1),
            byte => value.push(*byte),
        }
    }
    None
}

/// One element: what its pairs have said so far.
#[derive(Default)]
struct Element {
    any: bool,
    bad: bool,
    of: Option<Hop>,
}

impl Element {
    fn add(&mut self, pair: Pair<'_>) {
        match pair {
            Pair::Empty => return,
            Pair::Bad => self.bad = true,
            Pair::Of(name, value) if name.eq_ignore_ascii_case(b"for") => {
                self.bad |= self.of.is_some();
                self.of = Some(node(&value));
            }
            Pair::Of(..) => {}
        }
        self.any = true;
    }

    /// The hop; none for an empty element.
    fn hop(self) -> Option<Hop> {
        let hop = if self.bad { Hop::Unknown } else { self.of.unwrap_or(Hop::Unknown) };
        self.any.then_some(hop)
    }
}

/// Reads a node (RFC 7239, 6): an IPv4 address, or an IPv6 address in brackets, with a port or a hidden one.
fn node(text: &[u8]) -> Hop {
    let read = || {
        let text = std::str::from_utf8(text).ok()?;
        let (host, port) = match text.strip_prefix('[') {
            Some(inner) => {
                let (host, rest) = inner.split_once(']')?;
                (IpAddr::V6(host.parse().ok()?), rest)
            }
            None => {
                let host = text.split(':').next()?;
                (IpAddr::V4(host.parse().ok()?), text.get(host.len()..)?)
            }
        };
        (port.is_empty() || is_port(port.strip_prefix(':')?)).then_some(host)
    };
    read().into()
}

fn is_number(text: &str) -> bool {
    matches!(text.len(), 1..=5) && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(hidden) => {
            !hidden.is_empty() && hidden.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        }
        None => is_number(text),
    }
}
