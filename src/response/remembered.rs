//! Refusals that a thread has answered with before. In a flood many are alike: what a client is told is in whole
//! seconds.

use std::{cell::RefCell, sync::Arc};

use http::Response;

use super::{RefusalBody, prepared::Prepared, told::Numbers};
use crate::decision::RuleInfo;

/// How many are kept, by what they tell.
const KEPT: usize = 16;

thread_local! {
    static REMEMBERED: RefCell<[Place; KEPT]> = const { RefCell::new([const { Place { asked: None, kept: None } }; KEPT]) };
}

/// What the usual refusal by one rule depends on, in one layer and set of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Likeness {
    pub(super) rule: usize,
    pub(super) overload: bool,
    /// The wait in seconds.
    pub(super) secs: u64,
    /// Where they are told.
    pub(super) numbers: Option<Numbers>,
    /// Whether the lists of the IETF's fields are told.
    pub(super) lists: bool,
}

struct Place {
    /// What was asked for last in vain: what is asked for once is not worth a copy.
    asked: Option<Likeness>,
    kept: Option<Box<Kept>>,
}

struct Kept {
    layer: Prepared,
    rules: Arc<[RuleInfo]>,
    likeness: Likeness,
    response: Response<RefusalBody>,
}

/// Returns a copy of a refusal that was made before, or `make`s one.
#[inline]
pub(super) fn or_make(
    layer: &Prepared,
    rules: &Arc<[RuleInfo]>,
    likeness: Likeness,
    make: impl FnOnce() -> Response<RefusalBody>,
) -> Response<RefusalBody> {
    let at =
        usize::try_from(likeness.secs.wrapping_add(likeness.numbers.and_then(|numbers| numbers.reset).unwrap_or(0)));
    let at = at.unwrap_or(0) % KEPT;
    let known = REMEMBERED.try_with(|places| {
        let mut places = places.try_borrow_mut().ok()?;
        let place = places.get_mut(at)?;
        match &place.kept {
            Some(kept) if kept.is(layer, rules, likeness) => Some(Ok(kept.response.clone())),
            _ => Some(Err(place.asked.replace(likeness) == Some(likeness))),
        }
    });
    match known {
        Ok(Some(Ok(known))) => known,
        Ok(Some(Err(is_asked_again))) => {
            let response = make();
            if is_asked_again {
                let kept =
                    Kept { layer: layer.clone(), rules: Arc::clone(rules), likeness, response: response.clone() };
                keep(at, kept);
            }
            response
        }
        _ => make(),
    }
}

#[cold]
fn keep(at: usize, kept: Kept) {
    let kept = REMEMBERED.try_with(|places| {
        let mut places = places.try_borrow_mut().ok()?;
        places.get_mut(at)?.kept.replace(Box::new(kept))
    });
    // What was there before goes with no borrow held.
    drop(kept);
}

impl Kept {
    fn is(&self, layer: &Prepared, rules: &Arc<[RuleInfo]>, likeness: Likeness) -> bool {
        self.likeness == likeness && self.layer.is(layer) && Arc::ptr_eq(&self.rules, rules)
    }
}
