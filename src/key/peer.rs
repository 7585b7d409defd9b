use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use http::{HeaderMap, Request, header};

use super::Key;
use crate::observe::{self, Once};

pub(super) const NOT_WIRED: &str = "no peer address: serve the router with \
    `app.into_make_service_with_connect_info::<SocketAddr>()`, or in tests add `MockConnectInfo(addr)` as a layer \
    outside the rate limit; without axum or tonic put a `SocketAddr` into the request's extensions";

/// Returns an extractor of the address of the socket's other end, IPv6 by /64.
///
/// It reads axum's `ConnectInfo<SocketAddr>` (then `MockConnectInfo<SocketAddr>`), tonic's connect info, or a
/// `SocketAddr` or `IpAddr` in the request's extensions, whichever is there first. Where none is, the key is
/// [unavailable](Key::unavailable): requests are answered with status 500 and the fix, not counted together in silence.
///
/// **Behind a reverse proxy this is the proxy's address**, one for all clients: use
/// [`client_addr`](super::client_addr). A forwarding header from a private peer is reported once, since it usually
/// means just that.
///
/// # Examples
///
/// ```
/// use std::net::SocketAddr;
/// use http::Request;
/// use tollgate::{Limit, Limiter, Rule, key};
///
/// let limiter = Limiter::new([Rule::new("address", Limit::per_minute(1), key::peer_addr())]);
/// let from = |addr: &str| {
///     let addr: SocketAddr = addr.parse().unwrap();
///     Request::builder().extension(addr).body(()).unwrap()
/// };
/// assert!(limiter.check_now(&from("[2001:db8::1]:1000"))?.is_allowed());
/// assert!(!limiter.check_now(&from("[2001:db8::2]:2000"))?.is_allowed()); // the same /64
/// assert!(limiter.check_now(&from("192.0.2.1:1000"))?.is_allowed());
/// # Ok::<(), tollgate::Error>(())
/// ```
pub fn peer_addr<B>() -> impl for<'a> Fn(&'a Request<B>) -> Option<Key<'a>> + Clone + Send + Sync + 'static {
    peer_addr_by(64)
}

/// Returns [`peer_addr`] with IPv6 by its first `v6_prefix` bits (at most 128).
pub fn peer_addr_by<B>(
    v6_prefix: u8,
) -> impl for<'a> Fn(&'a Request<B>) -> Option<Key<'a>> + Clone + Send + Sync + 'static {
    let reported = Arc::new(Once::default());
    move |request| {
        let Some(peer) = peer_of(request) else { return Some(const { Key::unavailable(NOT_WIRED) }) };
        if is_private(peer) && is_forwarded(request.headers()) {
            observe::unnamed_proxy(&reported);
        }
        Some(Key::address(peer, v6_prefix))
    }
}

/// The address of the socket's other end, an IPv4-mapped one as the IPv4 it is.
pub(crate) fn peer_of<B>(request: &Request<B>) -> Option<IpAddr> {
    let extensions = request.extensions();
    #[cfg(feature = "axum")]
    {
        use axum::extract::{ConnectInfo, connect_info::MockConnectInfo};
        if let Some(ConnectInfo(addr)) = extensions.get::<ConnectInfo<SocketAddr>>() {
            return Some(addr.ip().to_canonical());
        }
        if let Some(MockConnectInfo(addr)) = extensions.get::<MockConnectInfo<SocketAddr>>() {
            return Some(addr.ip().to_canonical());
        }
    }
    #[cfg(feature = "tonic")]
    if let Some(info) = extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return Some(info.remote_addr()?.ip().to_canonical());
    }
    if let Some(addr) = extensions.get::<SocketAddr>() {
        return Some(addr.ip().to_canonical());
    }
    extensions.get::<IpAddr>().map(IpAddr::to_canonical)
}

/// Whether the address is one that a proxy in front of us has, rather than a client on the internet.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_private() || v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

fn is_forwarded(headers: &HeaderMap) -> bool {
    headers.contains_key("x-forwarded-for") || headers.contains_key(header::FORWARDED)
}
