//! What a rule was before the rules were reloaded.

use std::borrow::Cow;

use super::Rule;

impl<Req> Rule<Req> {
    /// Says under which name the rule was known before: its counts go on from there, in a
    /// [reload](crate::Limiter::reload) and in a store that outlives the process. No other rule of the set may have
    /// that name.
    pub fn was(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.was = Some(name.into());
        self
    }

    /// Whether it counts as `other` does, as far as that can be compared.
    pub(crate) fn counts_as(&self, other: &Self) -> bool {
        self.name == other.name
            && self.limit == other.limit
            && self.algorithm == other.algorithm
            && self.is_keyed() == other.is_keyed()
    }

    pub(crate) fn former_name(&self) -> Option<&str> {
        self.was.as_deref()
    }
}
