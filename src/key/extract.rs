use http::{HeaderMap, HeaderName, HeaderValue, Request};
use smallvec::SmallVec;

use super::{Key, Part, Repr};

/// Returns an extractor of a header's value, as bytes. A header that is absent or empty is a missing key; of several
/// lines of the same name the first counts.
///
/// Only for headers that a client cannot choose freely, such as one that authentication has checked: whoever can pick
/// the value picks whose count is used. For forwarding headers this is never right.
///
/// # Panics
///
/// Where `name` is not a valid header name.
///
/// # Examples
///
/// ```
/// use http::Request;
/// use tollgate::{Limit, Limiter, Rule, key};
///
/// let limiter = Limiter::new([Rule::new("api-key", Limit::per_minute(1), key::header("x-api-key"))]);
/// let request = Request::builder().header("x-api-key", "k1").body(())?;
/// assert!(limiter.check_now(&request)?.is_allowed());
/// assert!(!limiter.check_now(&request)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn header<B>(name: &str) -> impl for<'a> Fn(&'a Request<B>) -> Option<Key<'a>> + Clone + Send + Sync + 'static {
    let name = super::header_name(name);
    move |request| Some(Key::from(first_value(request.headers(), &name)?.as_bytes()))
}

/// Up to how many fields are looked through: to compare so many names costs less than to hash one.
const FEW_FIELDS: usize = 8;

/// Returns the first value of `name`, as [`HeaderMap::get`] does. A call of its own, so that what is made of the value
/// is not.
#[inline(never)]
fn first_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    if headers.len() > FEW_FIELDS {
        return headers.get(name);
    }
    headers.iter().find_map(|(other, value)| (other == name).then_some(value))
}

/// Returns an extractor of a key from a value in the request's extensions, such as the user that authentication left
/// there. A missing value is a missing key.
///
/// # Examples
///
/// ```
/// use http::Request;
/// use tollgate::{Key, Limit, Limiter, Rule, key};
///
/// #[derive(Clone)]
/// struct User {
///     id: String,
/// }
///
/// let by_user = key::extension(|user: &User| Key::from(&user.id));
/// let limiter = Limiter::new([Rule::new("user", Limit::per_minute(1), by_user)]);
/// let request = Request::builder().extension(User { id: "ana".into() }).body(())?;
/// assert!(limiter.check_now(&request)?.is_allowed());
/// assert!(!limiter.check_now(&request)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn extension<T, B>(
    key: impl for<'a> Fn(&'a T) -> Key<'a> + Clone + Send + Sync + 'static,
) -> impl for<'a> Fn(&'a Request<B>) -> Option<Key<'a>> + Clone + Send + Sync + 'static
where
    T: Send + Sync + 'static,
{
    move |request| request.extensions().get::<T>().map(&key)
}

/// Returns `key` itself, so that a closure can stand where its type is not known from the place alone: in the tuple of
/// [`all`] or [`first`].
///
/// # Examples
///
/// ```
/// use http::Request;
/// use tollgate::{Key, key};
///
/// let by_path = key::from_fn(|request: &Request<()>| Some(Key::from(request.uri().path())));
/// let by_token_and_path = key::all((key::header("x-api-key"), by_path));
/// assert!(by_token_and_path(&Request::new(())).is_none());
/// ```
pub fn from_fn<Req, F>(key: F) -> F
where
    F: for<'a> Fn(&'a Req) -> Option<Key<'a>> + Clone + Send + Sync + 'static,
{
    key
}

/// Several extractors: a tuple of two to four. Sealed.
pub trait Extractors<Req>: sealed::Sealed<Req> {}

mod sealed {
    use super::Key;

    pub trait Sealed<Req> {
        fn all<'a>(&self, request: &'a Req) -> Option<Key<'a>>;
        fn first<'a>(&self, request: &'a Req) -> Option<Key<'a>>;
    }
}

/// Returns an extractor that joins several into one key; a missing key if one of them is missing or empty.
///
/// # Examples
///
/// ```
/// use http::Request;
/// use tollgate::{Limit, Limiter, Rule, key};
///
/// let by_both = key::all((key::header("x-tenant"), key::header("x-user")));
/// let limiter = Limiter::new([Rule::new("user", Limit::per_minute(1), by_both)]);
/// let request = |tenant, user| Request::builder().header("x-tenant", tenant).header("x-user", user).body(()).unwrap();
/// assert!(limiter.check_now(&request("a", "1"))?.is_allowed());
/// assert!(limiter.check_now(&request("b", "1"))?.is_allowed());
/// assert!(!limiter.check_now(&request("a", "1"))?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn all<Req, E>(extractors: E) -> impl for<'a> Fn(&'a Req) -> Option<Key<'a>> + Clone + Send + Sync + 'static
where
    E: Extractors<Req> + Clone + Send + Sync + 'static,
{
    move |request| extractors.all(request)
}

/// Returns an extractor that tries several in order and takes the first key that is there. A key that is empty or
/// [unavailable](Key::unavailable) is passed over while there is another to try.
///
/// The same value found by another extractor is another key, so a client cannot use up a count by sending somebody's
/// credential where an address is expected.
///
/// # Examples
///
/// ```
/// use http::Request;
/// use tollgate::{Limit, Limiter, Rule, key};
///
/// let by_either = key::first((key::header("x-user"), key::header("x-session")));
/// let limiter = Limiter::new([Rule::new("who", Limit::per_minute(1), by_either)]);
/// let request = |name| Request::builder().header(name, "7").body(()).unwrap();
/// assert!(limiter.check_now(&request("x-user"))?.is_allowed());
/// assert!(limiter.check_now(&request("x-session"))?.is_allowed());
/// assert!(!limiter.check_now(&request("x-user"))?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn first<Req, E>(extractors: E) -> impl for<'a> Fn(&'a Req) -> Option<Key<'a>> + Clone + Send + Sync + 'static
where
    E: Extractors<Req> + Clone + Send + Sync + 'static,
{
    move |request| extractors.first(request)
}

/// An extractor whose type is not known.
#[cfg(feature = "config")]
pub(crate) type DynExtractor<Req> = std::sync::Arc<dyn for<'a> Fn(&'a Req) -> Option<Key<'a>> + Send + Sync>;

/// As [`all`], of any number of extractors.
#[cfg(feature = "config")]
pub(crate) fn all_of<'a, Req>(extractors: &[DynExtractor<Req>], request: &'a Req) -> Option<Key<'a>> {
    let mut keys = extractors.iter().map(|extractor| extractor(request).filter(|key| !key.is_empty()));
    let first = keys.next()??;
    keys.try_fold(first, |joined, key| Some(joined.and(key?)))
}

/// As [`first`], of any number of extractors up to 255.
#[cfg(feature = "config")]
pub(crate) fn first_of<'a, Req>(extractors: &[DynExtractor<Req>], request: &'a Req) -> Option<Key<'a>> {
    let mut unavailable = None;
    for (number, extractor) in (0..=u8::MAX).zip(extractors) {
        match extractor(request) {
            Some(key) if key.unavailable_reason().is_some() => unavailable = unavailable.or(Some(key)),
            Some(key) if !key.is_empty() => return Some(branch(number, key)),
            _ => {}
        }
    }
    unavailable
}

/// The key of the extractor number `branch` among several.
fn branch(branch: u8, key: Key<'_>) -> Key<'_> {
    match key.repr {
        Repr::Unavailable(_) => key,
        repr => {
            let mut parts = SmallVec::from_iter([Part::Branch(branch)]);
            parts.extend(repr.into_parts());
            Key { repr: Repr::Many(parts) }
        }
    }
}

macro_rules! extractors {
    ($($name:ident $at:literal),+) => {
        impl<Req, $($name),+> Extractors<Req> for ($($name,)+)
        where
            $($name: for<'a> Fn(&'a Req) -> Option<Key<'a>>,)+
        {
        }

        impl<Req, $($name),+> sealed::Sealed<Req> for ($($name,)+)
        where
            $($name: for<'a> Fn(&'a Req) -> Option<Key<'a>>,)+
        {
            #[allow(non_snake_case, reason = "the type parameters name the parts of the tuple")]
            fn all<'a>(&self, request: &'a Req) -> Option<Key<'a>> {
                let ($($name,)+) = self;
                let mut joined: Option<Key<'a>> = None;
                $(
                    let key = $name(request).filter(|key| !key.is_empty())?;
                    joined = Some(match joined {
                        Some(before) => before.and(key),
                        None => key,
                    });
                )+
                joined
            }

            #[allow(non_snake_case, reason = "the type parameters name the parts of the tuple")]
            fn first<'a>(&self, request: &'a Req) -> Option<Key<'a>> {
                let ($($name,)+) = self;
                let mut unavailable = None;
                $(
                    match $name(request) {
                        Some(key) if key.unavailable_reason().is_some() => unavailable = unavailable.or(Some(key)),
                        Some(key) if !key.is_empty() => return Some(branch($at, key)),
                        _ => {}
                    }
                )+
                unavailable
            }
        }
    };
}
extractors!(A 0, B 1);
extractors!(A 0, B 1, C 2);
extractors!(A 0, B 1, C 2, D 3);

#[cfg(test)]
mod tests {
    use http::header;

    use super::*;

    #[test]
    fn the_first_value_is_found_among_few_fields_and_among_many() {
        let names = [header::HOST, HeaderName::from_static("x-api-key"), HeaderName::from_static("x-api-kez")];
        for others in 0..2 * FEW_FIELDS {
            let mut headers = HeaderMap::new();
            for (number, name) in names.iter().enumerate() {
                headers.append(name, HeaderValue::from(number));
                headers.append(name, HeaderValue::from_static("another"));
            }
            for number in 0..others {
                headers.insert(HeaderName::try_from(format!("x-other-{number}")).unwrap(), HeaderValue::from(number));
            }
            for name in &names {
                assert_eq!(first_value(&headers, name), headers.get(name), "{name} and {others} others");
            }
            assert_eq!(first_value(&headers, &header::ACCEPT), None);
            assert_eq!(first_value(&headers, &HeaderName::from_static("x-api-ke")), None);
            // Removed from the middle, the last field takes its place.
            headers.remove(&names[0]);
            headers.remove(&names[1]);
            assert_eq!(first_value(&headers, &names[1]), None);
            assert_eq!(first_value(&headers, &names[2]), Some(&HeaderValue::from_static("2")));
        }
    }
}
