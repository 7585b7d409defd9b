//! The fields of the usual refusal. Only the numbers change from one to the next, and copying a map is quicker than
//! putting each field into it.

use std::sync::{Arc, OnceLock};

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::{
    digits,
    headers::{LIMIT, REMAINING, RESET},
    problem,
    told::Numbers,
};

/// What is the same in all refusals of a layer; made by the first.
#[derive(Debug, Clone, Default)]
pub(super) struct Prepared(Arc<[OnceLock<Usual>; 2]>);

#[derive(Debug)]
struct Usual {
    fields: HeaderMap,
    /// What each field is, in the map's own order.
    kinds: Vec<Kind>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Same,
    RetryAfter,
    Limit,
    Remaining,
    Reset,
}

impl Prepared {
    /// Whether it is of the same layer.
    #[inline]
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The fields of a refusal with a problem document, that may be asked again in `secs` and tells these numbers, if
    /// any.
    pub(super) fn fields(&self, secs: u64, numbers: Option<(Numbers, u64)>) -> HeaderMap {
        let [without, with] = &*self.0;
        let usual = if numbers.is_some() { with } else { without };
        let Usual { fields, kinds } = usual.get_or_init(|| Usual::new(numbers.is_some()));
        let mut fields = fields.clone();
        for (kind, value) in kinds.iter().zip(fields.values_mut()) {
            let number = match (kind, &numbers) {
                (Kind::RetryAfter, _) => secs,
                (Kind::Limit, Some((numbers, _))) => numbers.limit,
                (Kind::Remaining, Some((numbers, _))) => numbers.remaining,
                (Kind::Reset, Some((_, reset))) => *reset,
                _ => continue,
            };
            *value = digits::value(number);
        }
        fields
    }
}

impl Usual {
    fn new(has_numbers: bool) -> Self {
        let number = HeaderValue::from_static("0");
        // With room for what servers and layers further out add; the copies of a larger map cost more.
        let mut fields = HeaderMap::with_capacity(if has_numbers { 8 } else { 6 });
        fields.insert(header::CONTENT_TYPE, problem::content_type(false));
        fields.insert(header::RETRY_AFTER, number.clone());
        fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if has_numbers {
            for name in [LIMIT, REMAINING, RESET] {
                fields.insert(name, number.clone());
            }
        }
        let kinds = fields.keys().map(Kind::of).collect();
        Self { fields, kinds }
    }
}

impl Kind {
    fn of(name: &HeaderName) -> Self {
        match name {
            name if *name == header::RETRY_AFTER => Self::RetryAfter,
            name if *name == LIMIT => Self::Limit,
            name if *name == REMAINING => Self::Remaining,
            name if *name == RESET => Self::Reset,
            _ => Self::Same,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_own_number() {
        let prepared = Prepared::default();
        for (secs, limit, remaining, reset) in [(1, 2, 3, 4), (90_000, 80_000, 70_000, 60_000)] {
            let numbers = Numbers { limit, remaining, reset: Some(reset) };
            let fields = prepared.fields(secs, Some((numbers, reset)));
            let of = |name: &str| fields[name].to_str().unwrap().parse::<u64>().unwrap();
            assert_eq!(of("retry-after"), secs);
            assert_eq!((of("x-ratelimit-limit"), of("x-ratelimit-remaining")), (limit, remaining));
            assert_eq!((of("x-ratelimit-reset"), fields.len()), (reset, 6));
            assert_eq!(
                (fields["cache-control"].as_bytes(), fields["content-type"].as_bytes()),
                (b"no-store".as_slice(), b"application/problem+json".as_slice())
            );
            let fields = prepared.fields(secs, None);
            assert_eq!((fields["retry-after"].to_str().unwrap(), fields.len()), (secs.to_string().as_str(), 3));
        }
    }
}
