use crate::time::Nanos;

/// How long the same request has to wait until a rule lets it pass, if nothing else happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// It passes then, and not one nanosecond earlier.
    For(Nanos),
    /// Some time that nobody knows: something else than time has to happen.
    Unknown,
    /// It can never pass: it costs more than the limit can hold.
    Never,
}

impl Wait {
    /// The one that holds where two rules refuse: never before the longer wait, and that before an unknown one.
    pub(super) fn or_longer(self, other: Self) -> Self {
        match (self, other) {
            (Self::Never, _) | (_, Self::Never) => Self::Never,
            (Self::For(one), Self::For(other)) => Self::For(one.max(other)),
            (known @ Self::For(_), Self::Unknown) | (Self::Unknown, known) => known,
        }
    }

    /// In whole seconds, at least 1; 1 where it is not known.
    pub(crate) const fn retry_after_secs(self) -> Option<u64> {
        match self {
            Self::For(wait) if wait.as_secs_ceil() > 1 => Some(wait.as_secs_ceil()),
            Self::For(_) | Self::Unknown => Some(1),
            Self::Never => None,
        }
    }
}

/// What one rule says of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It passes now.
    Pass,
    /// It passes, and has to be held for this long first.
    Delay(Nanos),
    /// It does not pass.
    Refuse(Wait),
}

impl Outcome {
    /// Returns whether the request passes, at once or after a delay.
    pub const fn passes(self) -> bool {
        matches!(self, Self::Pass | Self::Delay(_))
    }
}

/// One rule's answer and its numbers: what a [`Bucket`](crate::bucket::Bucket) returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// Whether the request passes, and when it would.
    pub outcome: Outcome,
    /// The limit as clients are told it: the capacity of a bucket, the permits of a window.
    pub limit: u64,
    /// The largest cost that would pass now, at once and without waiting, from 0 to `limit`.
    pub remaining: u64,
    /// How long until nothing is used any more, or until the window ends; `None` where time alone does not tell.
    pub reset: Option<Nanos>,
    /// The time within which no more than `remaining` can be used, for the `t` of the IETF fields; `reset` unless set.
    pub effective_window: Option<Nanos>,
    /// Whether the key had no place of its own, because the store holds as many keys as it may.
    pub untracked: bool,
    /// Where the answer comes from.
    pub source: Source,
}

/// Where a verdict comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Source {
    /// The store judged it by the key's bucket.
    #[default]
    Store,
    /// The store refused the same before, and the wait that it told is not over: [`Guarded`](crate::store::Guarded).
    Remembered,
    /// Nobody judged it, because a remembered refusal by another rule had settled the request, or because the key of a
    /// rule that does not [enforce](crate::Mode) was missing. Its numbers say nothing.
    Unasked,
    /// The store did not answer, and a bucket in this process judged it in its place.
    Fallback,
    /// The store did not answer, and the rule's failure policy says what happens then. Its numbers say nothing.
    Policy,
}

impl Source {
    /// Returns whether the store was needed and did not answer.
    pub const fn is_degraded(self) -> bool {
        matches!(self, Self::Fallback | Self::Policy)
    }

    /// Returns whether somebody counted, so that the verdict's numbers say something.
    pub const fn has_numbers(self) -> bool {
        !matches!(self, Self::Unasked | Self::Policy)
    }

    /// Whether the limit told is the rule's own, and not a share of it.
    pub(crate) const fn tells_whole_limit(self) -> bool {
        self.has_numbers() && !matches!(self, Self::Fallback)
    }
}

impl Verdict {
    /// Returns a verdict for a key that has a place of its own.
    pub const fn new(outcome: Outcome, limit: u64, remaining: u64, reset: Option<Nanos>) -> Self {
        Self { outcome, limit, remaining, reset, effective_window: reset, untracked: false, source: Source::Store }
    }

    /// Sets the time within which no more than `remaining` can be used.
    #[must_use]
    pub const fn within(mut self, effective_window: Nanos) -> Self {
        self.effective_window = Some(effective_window);
        self
    }

    /// Sets where the verdict comes from.
    #[must_use]
    pub const fn from_source(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// Returns the verdict as seen by a thread whose own time is `lag` earlier than the bucket's.
    #[must_use]
    pub(crate) fn seen_from_before(mut self, lag: Nanos) -> Self {
        self.outcome = match self.outcome {
            Outcome::Delay(wait) => Outcome::Delay(wait.saturating_add(lag)),
            Outcome::Refuse(Wait::For(wait)) => Outcome::Refuse(Wait::For(wait.saturating_add(lag))),
            other => other,
        };
        self.reset = self.reset.map(|reset| reset.saturating_add(lag));
        self.effective_window = self.effective_window.map(|window| window.saturating_add(lag));
        self
    }
}
