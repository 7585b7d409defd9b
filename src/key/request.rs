use std::borrow::Cow;

use http::{HeaderName, Request, header};
use matchit::{InsertError, Router};
use percent_encoding::percent_decode_str;

use super::Key;

/// Returns an extractor of the bearer token in `Authorization` (RFC 6750, 2.1), as a [fingerprint](Key::fingerprint).
/// Where there is none, or another scheme, the key is missing.
///
/// Count by a token only once it was found to be valid; before that, whoever makes up tokens has as many counts.
///
/// # Examples
///
/// ```
/// use http::Request;
/// use tollgate::{Limit, Limiter, Rule, key};
///
/// let limiter = Limiter::new([Rule::new("token", Limit::per_minute(1), key::bearer_token())]);
/// let request = |value| Request::builder().header("authorization", value).body(()).unwrap();
/// assert!(limiter.check_now(&request("Bearer abc"))?.is_allowed());
/// assert!(!limiter.check_now(&request("bearer  abc"))?.is_allowed());
/// assert!(limiter.check_now(&request("Bearer abd"))?.is_allowed());
/// # Ok::<(), tollgate::Error>(())
/// ```
pub fn bearer_token<B>() -> impl for<'a> Fn(&'a Request<B>) -> Option<Key<'a>> + Clone + Send + Sync + 'static {
    |request| {
        let value = request.headers().get(header::AUTHORIZATION)?.as_bytes();
        let (scheme, token) = value.split_at_checked(7)?;
        let token = token.trim_ascii();
        (scheme.eq_ignore_ascii_case(b"Bearer ") && !token.is_empty()).then(|| Key::fingerprint(token))
    }
}

/// Returns an extractor of a cookie's value (RFC 6265, 5.4), as a [fingerprint](Key::fingerprint); of several cookies
/// of the name the first. An absent or empty one is a missing key.
///
/// # Examples
///
/// ```
/// use http::Request;
/// use tollgate::{Limit, Limiter, Rule, key};
///
/// let limiter = Limiter::new([Rule::new("session", Limit::per_minute(1), key::cookie("sid"))]);
/// let request = |value| Request::builder().header("cookie", value).body(()).unwrap();
/// assert!(limiter.check_now(&request("theme=dark; sid=s1"))?.is_allowed());
/// assert!(!limiter.check_now(&request("sid=s1"))?.is_allowed());
/// # Ok::<(), tollgate::Error>(())
/// ```
pub fn cookie<B>(
    name: impl Into<Cow<'static, str>>,
) -> impl for<'a> Fn(&'a Request<B>) -> Option<Key<'a>> + Clone + Send + Sync + 'static {
    let name = name.into();
    move |request| {
        let lines = request.headers().get_all(header::COOKIE).iter();
        let mut pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
        let value = pairs.find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        (!value.is_empty()).then(|| Key::fingerprint(value))
    }
}

/// Returns an extractor of the request's method.
pub fn method<B>() -> impl for<'a> Fn(&'a Request<B>) -> Option<Key<'a>> + Clone + Send + Sync + 'static {
    |request| Some(Key::from(request.method().as_str()))
}

/// Returns an extractor of the host the request is for, from its URI or its `Host`: in lower case, without a port or a
/// dot at the end. A client chooses it freely; list the hosts you serve with [`when::host`](crate::when::host).
///
/// # Examples
///
/// ```
/// use http::Request;
/// use tollgate::{Limit, Limiter, Rule, key};
///
/// let limiter = Limiter::new([Rule::new("host", Limit::per_minute(1), key::host())]);
/// let request = |host| Request::builder().header("host", host).body(()).unwrap();
/// assert!(limiter.check_now(&request("Example.com:8080"))?.is_allowed());
/// assert!(!limiter.check_now(&request("example.com."))?.is_allowed());
/// # Ok::<(), tollgate::Error>(())
/// ```
pub fn host<B>() -> impl for<'a> Fn(&'a Request<B>) -> Option<Key<'a>> + Clone + Send + Sync + 'static {
    |request| host_of(request).map(Key::from)
}

/// The host in lower case, without port and final dot.
pub(crate) fn host_of<B>(request: &Request<B>) -> Option<Cow<'_, str>> {
    let in_header = || request.headers().get(header::HOST)?.to_str().ok();
    let authority = request.uri().authority().map(http::uri::Authority::as_str).or_else(in_header)?;
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match authority.rsplit_once(':') {
        // A colon inside brackets is part of an IPv6 address.
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    let lower = !host.bytes().any(|byte| byte.is_ascii_uppercase());
    Some(if lower { Cow::Borrowed(host) } else { Cow::Owned(host.to_ascii_lowercase()) })
}

/// Returns an extractor of a query parameter's value, decoded, so that another spelling is no other key; of several of
/// the name the first. An absent or empty one is a missing key.
///
/// # Examples
///
/// ```
/// use http::Request;
/// use tollgate::{Limit, Limiter, Rule, key};
///
/// let limiter = Limiter::new([Rule::new("project", Limit::per_minute(1), key::query("project"))]);
/// let request = |uri| Request::builder().uri(uri).body(()).unwrap();
/// assert!(limiter.check_now(&request("/?page=1&project=a%20b"))?.is_allowed());
/// assert!(!limiter.check_now(&request("/?project=a+b"))?.is_allowed());
/// # Ok::<(), tollgate::Error>(())
/// ```
pub fn query<B>(
    name: impl Into<Cow<'static, str>>,
) -> impl for<'a> Fn(&'a Request<B>) -> Option<Key<'a>> + Clone + Send + Sync + 'static {
    let name = name.into();
    move |request| {
        let pairs = form_urlencoded::parse(request.uri().query()?.as_bytes());
        let (_, value) = pairs.into_iter().find(|(known, _)| *known == *name)?;
        Some(Key::from(value))
    }
}

/// How many parameters a path pattern may have: as many as the router has letters for, and none of its own.
const MOST_PARAMETERS: usize = 25;

/// A router with this pattern alone, or what is wrong with the pattern.
pub(crate) fn try_path_router(pattern: &str) -> Result<Router<()>, String> {
    let old = |segment: &&str| segment.starts_with([':', '*']);
    match pattern.split('/').find(old) {
        _ if !pattern.starts_with('/') => {
            return Err(format!("path pattern \"{pattern}\" matches no path; begin it with \"/\""));
        }
        Some(segment) => {
            return Err(format!(
                "path pattern \"{pattern}\": \"{segment}\" is no parameter; write {{name}} or {{*name}}"
            ));
        }
        None => {}
    }
    // Which the router does not return as an error.
    if pattern.replace("{{", "").matches('{').count() > MOST_PARAMETERS {
        return Err(format!(
            "path pattern \"{pattern}\" has more than {MOST_PARAMETERS} parameters, the most there may be"
        ));
    }
    let mut router = Router::new();
    match router.insert(pattern, ()) {
        Ok(()) => Ok(router),
        Err(error) => Err(format!("path pattern \"{pattern}\": {}", unreadable(&error))),
    }
}

/// What the router says of a pattern that it cannot read, with the way out.
fn unreadable(error: &InsertError) -> Cow<'static, str> {
    match error {
        InsertError::InvalidParam => {
            "a parameter needs a name and both braces, as in {name}; write a brace itself as {{ or }}".into()
        }
        InsertError::InvalidParamSegment => {
            "a segment has one parameter at most, and at its end; write \"/{first}/{second}\", or \"/v{number}\"".into()
        }
        InsertError::InvalidCatchAll => {
            "{*name} takes the rest of the path, so it is a whole segment and the last one".into()
        }
        other => other.to_string().into(),
    }
}

/// A router with this pattern alone.
///
/// # Panics
///
/// Where no path could ever match it.
#[track_caller]
#[allow(clippy::panic, reason = "documented by its callers, at their callers' line")]
pub(crate) fn path_router(pattern: &str) -> Router<()> {
    match try_path_router(pattern) {
        Ok(router) => router,
        Err(problem) => panic!("{problem}"),
    }
}

/// The name of a header, whatever its case.
///
/// # Panics
///
/// Where it is none.
#[track_caller]
#[allow(clippy::panic, reason = "documented by its callers, at their callers' line")]
pub(crate) fn header_name(name: &str) -> HeaderName {
    match HeaderName::from_bytes(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("\"{}\" is no header name; use letters, digits and -", name.escape_debug()),
    }
}

/// Returns an extractor of a parameter of the path, decoded. `pattern` is in axum's syntax, such as `/users/{id}`;
/// where it does not match, the key is missing.
///
/// # Panics
///
/// Where `pattern` cannot be read, or has no parameter `name`.
///
/// # Examples
///
/// ```
/// use http::Request;
/// use tollgate::{Limit, Limiter, Rule, key};
///
/// let limiter = Limiter::new([Rule::new("shop", Limit::per_minute(1), key::path_param("/shops/{shop}/{*rest}", "shop"))]);
/// let request = |uri| Request::builder().uri(uri).body(()).unwrap();
/// assert!(limiter.check_now(&request("/shops/ana/orders"))?.is_allowed());
/// assert!(!limiter.check_now(&request("/shops/%61na/items/7"))?.is_allowed());
/// assert!(limiter.check_now(&request("/elsewhere"))?.tightest().is_none()); // does not apply
/// # Ok::<(), tollgate::Error>(())
/// ```
#[track_caller]
pub fn path_param<B>(
    pattern: &str,
    name: impl Into<Cow<'static, str>>,
) -> impl for<'a> Fn(&'a Request<B>) -> Option<Key<'a>> + Clone + Send + Sync + 'static {
    let (router, name) = (path_router(pattern), name.into());
    assert!(
        pattern.contains(&format!("{{{name}}}")) || pattern.contains(&format!("{{*{name}}}")),
        "path pattern \"{pattern}\" has no parameter \"{name}\"; write it as {{{name}}}"
    );
    move |request| {
        let value = router.at(request.uri().path()).ok()?.params.get(&*name)?;
        Some(match Cow::from(percent_decode_str(value)) {
            Cow::Borrowed(bytes) => Key::from(bytes),
            Cow::Owned(bytes) => Key::from(bytes),
        })
    }
}

/// Returns an extractor of the route that axum matched, such as `/users/{id}`: one count per route. Where no route
/// matched (or the layer is outside the router) the key is missing.
#[cfg(feature = "axum")]
pub fn matched_path<B>() -> impl for<'a> Fn(&'a Request<B>) -> Option<Key<'a>> + Clone + Send + Sync + 'static {
    |request| request.extensions().get::<axum::extract::MatchedPath>().map(|path| Key::from(path.as_str()))
}
