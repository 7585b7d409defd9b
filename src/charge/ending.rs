//! What becomes of a charge when the request that it was for has ended.

use std::{fmt, sync::Arc};

use http::Response;

/// A question about how a request was answered.
pub(crate) type Condition = Arc<dyn Fn(&Response<()>) -> bool + Send + Sync>;

/// What becomes of a rule's charge once the request has started.
#[derive(Clone, Default)]
pub(crate) enum Ending {
    /// It stands.
    #[default]
    Stands,
    /// It is a place, which is free again when the response's body has ended; or when its head is there.
    Frees { at_head: bool },
    /// How the request was answered says whether it comes back.
    ByOutcome(ByOutcome),
}

/// When a charge comes back.
#[derive(Clone)]
pub(crate) struct ByOutcome {
    /// With which responses.
    pub(crate) comes_back: Condition,
    /// Whether without one.
    pub(crate) unanswered: bool,
}

impl Ending {
    /// Whether the charge stands whatever happens.
    pub(crate) fn stands(&self) -> bool {
        matches!(self, Self::Stands)
    }

    /// Whether it takes a response to know what becomes of it.
    pub(crate) fn is_by_outcome(&self) -> bool {
        matches!(self, Self::ByOutcome(_))
    }

    /// Whether it is a place.
    pub(crate) fn is_place(&self) -> bool {
        matches!(self, Self::Frees { .. })
    }

    /// Whether it is held until the response's body has ended.
    pub(crate) fn is_by_body(&self) -> bool {
        matches!(self, Self::Frees { at_head: false })
    }

    /// Whether the charge comes back where nothing more is heard of the request.
    pub(crate) fn comes_back_unanswered(&self) -> bool {
        match self {
            Self::Stands => false,
            Self::Frees { .. } => true,
            Self::ByOutcome(outcome) => outcome.unanswered,
        }
    }
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stands => f.write_str("Stands"),
            Self::Frees { at_head } => f.debug_struct("Frees").field("at_head", at_head).finish(),
            Self::ByOutcome(ByOutcome { unanswered, .. }) => {
                f.debug_struct("ByOutcome").field("unanswered", unanswered).finish_non_exhaustive()
            }
        }
    }
}
