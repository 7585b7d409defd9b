use std::{
    fmt,
    net::{AddrParseError, IpAddr},
    sync::Arc,
};

use http::{HeaderMap, HeaderName, Request, header};
use ipnet::IpNet;

use super::{
    Key,
    forwarded::{Hop, address, address_before_port, forwarded, x_forwarded_for},
    peer::{NOT_WIRED, peer_of},
};

/// Which proxies are believed, and which **one** header they write.
///
/// Only what a believed proxy has written is read: all lines of the header, from the right, up to the first hop that is
/// no believed proxy. That hop is the client. A hop that cannot be read ends the walk at the last address that could be
/// trusted. There is no falling back to another header: whatever the proxies do not write, a client can.
///
/// # Examples
///
/// ```
/// use tollgate::key::TrustedProxies;
///
/// let nginx = TrustedProxies::nets(["10.0.0.0/8", "fd00::/8"]); // X-Forwarded-For from these
/// let rfc7239 = TrustedProxies::nets(["10.0.0.0/8"]).forwarded();
/// let cloudflare = TrustedProxies::nets(["173.245.48.0/20", "103.21.244.0/22"]).header("cf-connecting-ip");
/// let two_load_balancers = TrustedProxies::hops(2);
/// assert!(TrustedProxies::try_nets(["10.0.0.0/33"]).is_err());
/// # let _ = (nginx, rfc7239, cloudflare, two_load_balancers);
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct TrustedProxies {
    who: Who,
    source: Source,
    v6_prefix: u8,
}

#[derive(Debug, Clone)]
enum Who {
    Nets(Arc<[IpNet]>),
    Hops(usize),
}

#[derive(Debug, Clone)]
enum Source {
    XForwardedFor,
    Forwarded,
    Single(HeaderName),
}

/// No chain of proxies is longer; what is further left is not read.
const MAX_HOPS: usize = 64;

/// An address or network that cannot be read: which one, and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseNetError(Box<str>);

impl fmt::Display for ParseNetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\"{}\" is no network; write an address, or one with a prefix length, such as 10.0.0.0/8 or fd00::/8",
            self.0.escape_debug()
        )
    }
}

impl std::error::Error for ParseNetError {}

/// Reads addresses and networks, an IPv4-mapped one as the IPv4 it is.
pub(crate) fn parse_nets<'a>(nets: impl IntoIterator<Item = &'a str>) -> Result<Arc<[IpNet]>, ParseNetError> {
    let parse = |text: &str| {
        let alone = |text: &str| Ok::<_, AddrParseError>(IpNet::from(text.parse::<IpAddr>()?.to_canonical()));
        text.parse::<IpNet>().ok().map(canonical).or_else(|| alone(text).ok()).ok_or_else(|| ParseNetError(text.into()))
    };
    nets.into_iter().map(parse).collect()
}

/// A network of IPv4-mapped addresses as the IPv4 network it is.
fn canonical(net: IpNet) -> IpNet {
    let v4 = |address: IpAddr| match address.to_canonical() {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    };
    let mapped = net.prefix_len().checked_sub(96).zip(v4(net.addr())).filter(|_| net.addr().is_ipv6());
    mapped.and_then(|(prefix, v4)| ipnet::Ipv4Net::new(v4, prefix).ok()).map_or(net, IpNet::V4)
}

pub(crate) fn contains(nets: &[IpNet], address: IpAddr) -> bool {
    nets.iter().any(|net| net.contains(&address))
}

impl TrustedProxies {
    /// Believes the proxies with addresses in `nets` (addresses, or networks such as `10.0.0.0/8`). A peer that is not
    /// among them is the client itself, whatever headers it sends. The header is `X-Forwarded-For` unless set.
    ///
    /// # Panics
    ///
    /// Where a network cannot be read; [`try_nets`](Self::try_nets) returns that as an error.
    #[track_caller]
    pub fn nets<'a>(nets: impl IntoIterator<Item = &'a str>) -> Self {
        match Self::try_nets(nets) {
            Ok(proxies) => proxies,
            #[allow(clippy::panic, reason = "documented, at the caller's line, with a fallible twin")]
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`nets`](Self::nets).
    ///
    /// # Errors
    ///
    /// Where a network cannot be read.
    pub fn try_nets<'a>(nets: impl IntoIterator<Item = &'a str>) -> Result<Self, ParseNetError> {
        Ok(Self::believing(Who::Nets(parse_nets(nets)?)))
    }

    /// Believes the last `hops` proxies, the peer among them, wherever they are: the client is the `hops`-th element
    /// from the right. Where there are fewer, or it cannot be read, it is the peer; with 0 it always is.
    ///
    /// Whoever can reach the service **directly** can then write the header himself. Use [`nets`](Self::nets) where the
    /// proxies' addresses are known.
    pub fn hops(hops: usize) -> Self {
        Self::believing(Who::Hops(hops))
    }

    fn believing(who: Who) -> Self {
        Self { who, source: Source::XForwardedFor, v6_prefix: 64 }
    }

    /// Reads `Forwarded` (RFC 7239) instead of `X-Forwarded-For`.
    pub fn forwarded(mut self) -> Self {
        self.source = Source::Forwarded;
        self
    }

    /// Reads a header that holds one address, such as `cf-connecting-ip` or `x-real-ip`. Where it is there twice, or
    /// holds anything else, the client is the peer.
    ///
    /// # Panics
    ///
    /// Where `name` is not a valid header name.
    #[track_caller]
    pub fn header(mut self, name: &str) -> Self {
        self.source = Source::Single(super::header_name(name));
        self
    }

    /// Groups IPv6 clients by their first `v6_prefix` bits; 64 unless set.
    pub fn v6_prefix(mut self, v6_prefix: u8) -> Self {
        self.v6_prefix = v6_prefix;
        self
    }

    /// The client's address, given the peer's.
    pub(crate) fn client(&self, headers: &HeaderMap, peer: IpAddr) -> IpAddr {
        let peer = peer.to_canonical();
        match (&self.who, &self.source) {
            (Who::Nets(nets), _) if !contains(nets, peer) => peer,
            (Who::Hops(0), _) => peer,
            (_, Source::Single(name)) => single(headers, name).unwrap_or(peer),
            (who, Source::XForwardedFor) => {
                let lines = headers.get_all("x-forwarded-for").iter().rev();
                who.walk(peer, lines.flat_map(|line| x_forwarded_for(line.as_bytes())))
            }
            (who, Source::Forwarded) => {
                let lines = headers.get_all(header::FORWARDED).iter().rev();
                who.walk(
                    peer,
                    lines.take(MAX_HOPS).flat_map(|line| {
                        let hops = forwarded(line.as_bytes());
                        // A line that cannot be read is a hop that is not known, and ends the walk.
                        hops.unwrap_or_else(|| smallvec::smallvec![Hop::Unknown]).into_iter().rev()
                    }),
                )
            }
        }
    }
}

impl Who {
    /// Walks the hops, nearest first, and returns the client.
    fn walk(&self, peer: IpAddr, mut hops: impl Iterator<Item = Hop>) -> IpAddr {
        match self {
            Self::Hops(count) => {
                match count.checked_sub(1).filter(|_| *count <= MAX_HOPS).and_then(|at| hops.nth(at)) {
                    Some(Hop::Address(address)) => address,
                    _ => peer,
                }
            }
            Self::Nets(nets) => {
                let mut nearest = peer;
                for hop in hops.take(MAX_HOPS) {
                    match hop {
                        Hop::Unknown => break,
                        Hop::Address(address) => nearest = address,
                    }
                    if !contains(nets, nearest) {
                        break;
                    }
                }
                nearest
            }
        }
    }
}

/// The one address of a header; `None` unless it is there once and holds just that.
fn single(headers: &HeaderMap, name: &HeaderName) -> Option<IpAddr> {
    let mut lines = headers.get_all(name).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    let line = line.as_bytes();
    if line.len() > 64 {
        return None;
    }
    let read = if name == "cloudfront-viewer-address" { address_before_port(line) } else { address(line) };
    read.map(|address| address.to_canonical())
}

/// Returns an extractor of the client's address behind named proxies, IPv6 by /64 (or
/// [`v6_prefix`](TrustedProxies::v6_prefix)).
///
/// Where the peer's own address is not known, the key is [unavailable](Key::unavailable), as with
/// [`peer_addr`](super::peer_addr).
///
/// # Examples
///
/// ```
/// use std::net::IpAddr;
/// use http::Request;
/// use tollgate::{Limit, Limiter, Rule, key::{self, TrustedProxies}};
///
/// let by_client = key::client_addr(TrustedProxies::nets(["10.0.0.0/8"]));
/// let limiter = Limiter::new([Rule::new("client", Limit::per_minute(1), by_client)]);
/// let request = |forwarded_for: &str| {
///     let proxy: IpAddr = [10, 0, 0, 1].into();
///     Request::builder().extension(proxy).header("x-forwarded-for", forwarded_for).body(()).unwrap()
/// };
/// assert!(limiter.check_now(&request("198.51.100.7"))?.is_allowed());
/// assert!(!limiter.check_now(&request("6.6.6.6, 198.51.100.7"))?.is_allowed()); // what the client adds is not read
/// assert!(limiter.check_now(&request("203.0.113.9"))?.is_allowed());
/// # Ok::<(), tollgate::Error>(())
/// ```
pub fn client_addr<B>(
    proxies: TrustedProxies,
) -> impl for<'a> Fn(&'a Request<B>) -> Option<Key<'a>> + Clone + Send + Sync + 'static {
    move |request| {
        let Some(peer) = peer_of(request) else { return Some(const { Key::unavailable(NOT_WIRED) }) };
        Some(Key::address(proxies.client(request.headers(), peer), proxies.v6_prefix))
    }
}

#[cfg(test)]
mod tests;
