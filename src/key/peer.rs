use std::net::SocketAddr;

use axum::extract::{ConnectInfo, connect_info::MockConnectInfo};
use http::Request;

use super::Key;

const NOT_WIRED: &str = "no peer address: serve the router with \
    `app.into_make_service_with_connect_info::<SocketAddr>()`, or in tests add `MockConnectInfo(addr)` as a layer \
    outside the rate limit";

/// Returns an extractor of the address of the socket's other end, IPv6 by /64.
///
/// It reads axum's `ConnectInfo<SocketAddr>`, and `MockConnectInfo<SocketAddr>` where that is not there. Where neither
/// is, the key is [unavailable](Key::unavailable): requests are answered with status 500 and the fix, not counted
/// together in silence. Behind a reverse proxy this is the proxy's address.
///
/// # Examples
///
/// ```
/// use std::net::SocketAddr;
/// use axum::extract::ConnectInfo;
/// use http::Request;
/// use tollgate::{Limit, Limiter, Rule, key};
///
/// let limiter = Limiter::new([Rule::new("address", Limit::per_minute(1), key::peer_addr())]);
/// let from = |addr: &str| {
///     let addr: SocketAddr = addr.parse().unwrap();
///     Request::builder().extension(ConnectInfo(addr)).body(()).unwrap()
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
    move |request| {
        let extensions = request.extensions();
        let connected = extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(addr)| addr);
        let addr =
            connected.or_else(|| extensions.get::<MockConnectInfo<SocketAddr>>().map(|MockConnectInfo(addr)| addr));
        Some(addr.map_or(const { Key::unavailable(NOT_WIRED) }, |addr| Key::address(addr.ip(), v6_prefix)))
    }
}
