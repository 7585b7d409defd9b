/// What it means that a rule refuses: [`Rule::mode`](crate::Rule::mode).
///
/// Only a rule that enforces is felt. The others have counts of their own, and are charged as if they enforced beside
/// those that do: when all that enforce let the request pass, and they do themselves. Nothing else depends on them: not
/// whether a request passes, is held, or how it is answered, not what clients are told of limits, and not what other
/// rules count. What they would have done is in [`Decision::shadows`](crate::Decision::shadows).
///
/// # Examples
///
/// ```
/// use tollgate::{Key, Limit, Limiter, Mode, Rule};
///
/// let limit = |mode| {
///     let rule = Rule::new("user", Limit::per_minute(1), |id: &u64| Some(Key::from(*id))).mode(mode);
///     let limiter = Limiter::new([rule]);
///     (0..3).filter(|_| limiter.check_now(&7).unwrap().is_allowed()).count()
/// };
/// assert_eq!(limit(Mode::Enforce), 1);
/// assert_eq!(limit(Mode::Warn), 3);
/// assert_eq!(limit(Mode::Shadow), 3);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// The request is refused.
    #[default]
    Enforce,
    /// It passes, and nobody outside is told.
    Shadow,
    /// It passes, and its response says so: `X-RateLimit-Warning`.
    Warn,
}
