//! Conditions for [`Rule::when`](crate::Rule::when): which requests a rule applies to.
//!
//! Each is a closure over the request, and so is any of your own.
//!
//! ```
//! use http::{Method, Request};
//! use tollgate::{Limit, Rule, key, when};
//!
//! // Uploads, but not from the office.
//! let uploads = when::all((
//!     when::method(Method::POST),
//!     when::path("/files/{*path}"),
//!     when::not(when::peer_in(["192.0.2.0/24"])),
//! ));
//! let _: Rule<Request<String>> = Rule::new("uploads", Limit::per_minute(2), key::header("x-account")).when(uploads);
//! ```

use http::{Method, Request, header};

use crate::key::{TrustedProxies, contains, header_name, host_of, parse_nets, path_router, peer_of};

/// Returns whether the request has this method.
pub fn method<B>(method: Method) -> impl Fn(&Request<B>) -> bool + Clone + Send + Sync + 'static {
    move |request| request.method() == method
}

/// Returns whether the request is for this host: compared in lower case, without a port or a dot at the end.
pub fn host<B>(host: &'static str) -> impl Fn(&Request<B>) -> bool + Clone + Send + Sync + 'static {
    move |request| host_of(request).is_some_and(|asked| asked.eq_ignore_ascii_case(host))
}

/// Returns whether the request's path matches `pattern`, in axum's syntax: `/`, `/users/{id}`, `/files/{*path}`. The
/// path is compared as it was sent, percent-encodings and all, as axum does.
///
/// Inside axum's `Router::nest` a layer sees the path **without** the prefix.
///
/// # Panics
///
/// Where `pattern` cannot be read.
///
/// # Examples
///
/// ```
/// use http::Request;
/// use tollgate::when;
///
/// let user = when::path("/users/{id}");
/// let request = |uri| Request::builder().uri(uri).body(()).unwrap();
/// assert!(user(&request("/users/7?full=1")));
/// assert!(!user(&request("/users/7/posts")));
/// ```
#[track_caller]
pub fn path<B>(pattern: &'static str) -> impl Fn(&Request<B>) -> bool + Clone + Send + Sync + 'static {
    let router = path_router(pattern);
    move |request| router.at(request.uri().path()).is_ok()
}

/// Returns whether the request has this header, whatever its value.
///
/// # Panics
///
/// Where `name` is not a valid header name.
#[track_caller]
pub fn header<B>(name: &'static str) -> impl Fn(&Request<B>) -> bool + Clone + Send + Sync + 'static {
    let name = header_name(name);
    move |request| request.headers().contains_key(&name)
}

/// Returns whether one of the request's lines of this header has just this value.
///
/// # Panics
///
/// Where `name` is not a valid header name.
#[track_caller]
pub fn header_is<B>(
    name: &'static str,
    value: &'static str,
) -> impl Fn(&Request<B>) -> bool + Clone + Send + Sync + 'static {
    let name = header_name(name);
    move |request| request.headers().get_all(&name).iter().any(|line| line.as_bytes() == value.as_bytes())
}

/// Returns whether the peer's address is in one of `nets` (addresses or networks). False where it is not known.
///
/// # Panics
///
/// Where a network cannot be read.
///
/// # Examples
///
/// ```
/// use std::net::IpAddr;
/// use http::Request;
/// use tollgate::when;
///
/// let office = when::peer_in(["192.0.2.0/24", "2001:db8::/32"]);
/// let from = |addr: &str| Request::builder().extension(addr.parse::<IpAddr>().unwrap()).body(()).unwrap();
/// assert!(office(&from("::ffff:192.0.2.9")));
/// assert!(!office(&from("198.51.100.9")));
/// ```
#[track_caller]
pub fn peer_in<B, const N: usize>(
    nets: [&str; N],
) -> impl Fn(&Request<B>) -> bool + Clone + Send + Sync + use<B, N> + 'static {
    client_in(TrustedProxies::hops(0), nets)
}

/// Returns whether the client's address, behind these proxies, is in one of `nets` (addresses or networks). False where
/// it is not known.
///
/// # Panics
///
/// Where a network cannot be read.
#[track_caller]
pub fn client_in<B, const N: usize>(
    proxies: TrustedProxies,
    nets: [&str; N],
) -> impl Fn(&Request<B>) -> bool + Clone + Send + Sync + use<B, N> + 'static {
    let nets = match parse_nets(nets) {
        Ok(nets) => nets,
        #[allow(clippy::panic, reason = "documented, at the caller's line")]
        Err(error) => panic!("{error}"),
    };
    move |request| peer_of(request).is_some_and(|peer| contains(&nets, proxies.client(request.headers(), peer)))
}

/// Returns whether the request is a CORS preflight: `OPTIONS` with `Origin` and `Access-Control-Request-Method`.
///
/// Anyone can send one, so a limit that lets them pass wants another, by address, further out.
pub fn preflight<B>() -> impl Fn(&Request<B>) -> bool + Clone + Send + Sync + 'static {
    |request| {
        let headers = request.headers();
        request.method() == Method::OPTIONS
            && headers.contains_key(header::ORIGIN)
            && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
    }
}

/// Returns whether the condition does not hold.
pub fn not<Req>(
    condition: impl Fn(&Req) -> bool + Clone + Send + Sync + 'static,
) -> impl Fn(&Req) -> bool + Clone + Send + Sync + 'static {
    move |request| !condition(request)
}

/// Returns whether all conditions of a tuple of two to four hold.
pub fn all<Req, C>(conditions: C) -> impl Fn(&Req) -> bool + Clone + Send + Sync + 'static
where
    C: Conditions<Req> + Clone + Send + Sync + 'static,
{
    move |request| conditions.all(request)
}

/// Returns whether one of the conditions of a tuple of two to four holds.
///
/// # Examples
///
/// ```
/// use http::{Method, Request};
/// use tollgate::when;
///
/// let writes = when::any((when::method(Method::POST), when::method(Method::PUT)));
/// assert!(writes(&Request::post("/").body(()).unwrap()));
/// assert!(!writes(&Request::get("/").body(()).unwrap()));
/// ```
pub fn any<Req, C>(conditions: C) -> impl Fn(&Req) -> bool + Clone + Send + Sync + 'static
where
    C: Conditions<Req> + Clone + Send + Sync + 'static,
{
    move |request| conditions.any(request)
}

/// Several conditions: a tuple of two to four. Sealed.
pub trait Conditions<Req>: sealed::Sealed<Req> {}

mod sealed {
    pub trait Sealed<Req> {
        fn all(&self, request: &Req) -> bool;
        fn any(&self, request: &Req) -> bool;
    }
}

macro_rules! conditions {
    ($($name:ident),+) => {
        impl<Req, $($name: Fn(&Req) -> bool),+> Conditions<Req> for ($($name,)+) {}

        impl<Req, $($name: Fn(&Req) -> bool),+> sealed::Sealed<Req> for ($($name,)+) {
            #[allow(non_snake_case, reason = "the type parameters name the parts of the tuple")]
            fn all(&self, request: &Req) -> bool {
                let ($($name,)+) = self;
                $($name(request))&&+
            }

            #[allow(non_snake_case, reason = "the type parameters name the parts of the tuple")]
            fn any(&self, request: &Req) -> bool {
                let ($($name,)+) = self;
                $($name(request))||+
            }
        }
    };
}
conditions!(A, B);
conditions!(A, B, C);
conditions!(A, B, C, D);

#[cfg(test)]
mod tests {
    use super::*;

    fn panics(make: impl FnOnce() + std::panic::UnwindSafe) -> String {
        let error = std::panic::catch_unwind(make).unwrap_err();
        error.downcast_ref::<String>().unwrap().clone()
    }

    #[test]
    fn patterns_that_match_nothing_and_names_that_are_none_say_so() {
        let path = |pattern: &'static str| panics(move || drop(path::<()>(pattern)));
        assert!(path("login").contains("begin it with"));
        assert!(path("/users/:id").contains("write {name}"));
        assert!(path("/files/*path").contains("write {name}"));
        assert!(path("/a/{").contains("/a/{"));
        assert!(panics(|| drop(header::<()>("no name"))).contains("\"no name\" is no header name"));
        let capitals = header("X-Account");
        assert!(capitals(&Request::builder().header("x-account", "7").body(()).unwrap()));
    }
}
