/// What became of a request under one rule, as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleOutcome {
    /// It passed, and was charged.
    Allowed,
    /// The rule refused it.
    Refused,
    /// The rule refused it, and not the client but the whole is the cause.
    Overload,
    /// The rule would have let it pass, and another one refused it.
    RefusedByAnother,
    /// The store did not answer, and it passed by the rule's policy.
    DegradedOpen,
    /// The store did not answer, and it was refused by the rule's policy.
    DegradedClosed,
    /// The store did not answer, and it passed by the bucket in this process.
    Fallback,
    /// The store did not answer, and it was refused by the bucket in this process.
    FallbackRefused,
    /// It had no key for the rule, which did not apply to it or refused it for that.
    MissingKey,
    /// It passed, and would not have if the rule enforced.
    WouldRefuse,
}

#[cfg(feature = "metrics")]
impl RuleOutcome {
    pub(super) const ALL: [Self; 10] = [
        Self::Allowed,
        Self::Refused,
        Self::Overload,
        Self::RefusedByAnother,
        Self::DegradedOpen,
        Self::DegradedClosed,
        Self::Fallback,
        Self::FallbackRefused,
        Self::MissingKey,
        Self::WouldRefuse,
    ];

    /// The value of the label `outcome`.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Refused => "refused",
            Self::Overload => "overload",
            Self::RefusedByAnother => "refused_by_another",
            Self::DegradedOpen => "degraded_open",
            Self::DegradedClosed => "degraded_closed",
            Self::Fallback => "fallback",
            Self::FallbackRefused => "fallback_refused",
            Self::MissingKey => "missing_key",
            Self::WouldRefuse => "would_refuse",
        }
    }
}
