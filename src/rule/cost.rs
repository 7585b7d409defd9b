use std::sync::Arc;

use super::Ask;

/// How many permits a request takes.
pub(super) enum Cost<Req> {
    Fixed(u64),
    Of(Ask<Req, u64>),
}

impl<Req> Clone for Cost<Req> {
    fn clone(&self) -> Self {
        match self {
            Self::Fixed(cost) => Self::Fixed(*cost),
            Self::Of(cost) => Self::Of(Arc::clone(cost)),
        }
    }
}
