//! How long a request may wait for a place in flight.

use std::{borrow::Cow, time::Duration};

use super::Rule;

/// How many may wait for each key, and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) most: usize,
    pub(crate) longest: Duration,
}

impl<Req> Rule<Req> {
    /// Lets a request wait for a place of a limit on what is [in flight](crate::Limit::in_flight), where the layer or
    /// [`acquire_receipt`](crate::Limiter::acquire_receipt) asks: up to `most` requests for each key, each for up to
    /// `longest`.
    ///
    /// The line is fair: places go to those who wait in the order in which they came, nobody overtakes them, and who is
    /// first waits for all that it needs. Where another rule refuses a request from the start it does not wait, and at
    /// its turn it is judged anew, as a whole, by all rules. Who gives up is out of the way at once. Where the line is
    /// full, or the longest wait is over, a request is refused as without a queue; so is one that does not wait
    /// ([`reserve`](crate::Limiter::reserve)) while others do.
    ///
    /// A request that lacks places of several rules stands in the line of the first, and only when it is first there
    /// and that rule has a place for it in that of the next. So a client that waits for itself holds up nobody else,
    /// and a line for all is shared fairly among clients that have lines of their own. The shortest of the longest
    /// waits is its own.
    ///
    /// Lines are this process's. Places that are freed by others are noticed within a tenth of a second.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Key, Limit, Limiter, Rule};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let exports = Rule::new("exports", Limit::in_flight(1), |tenant: &&str| Some(Key::from(*tenant)))
    ///     .queue(1, Duration::from_secs(30));
    /// let limiter = Limiter::new([exports]);
    /// let (_, first) = limiter.acquire_receipt(&"acme").await?;
    /// let (second, _) = tokio::join!(limiter.acquire_receipt(&"acme"), async {
    ///     assert_eq!(limiter.waiting("exports"), Some(1));
    ///     assert!(!limiter.acquire_receipt(&"acme").await.unwrap().0.is_allowed()); // there is room for one
    ///     drop(first);
    /// });
    /// assert!(second?.0.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn queue(mut self, most: usize, longest: Duration) -> Self {
        self.queue = Some(Patience { most, longest });
        self
    }

    pub(crate) fn patience(&self) -> Option<Patience> {
        self.queue
    }

    /// Says what cannot work of it.
    pub(super) fn check_queue(&self) -> Result<(), (&'static str, Cow<'static, str>)> {
        let problem = match self.queue {
            None => return Ok(()),
            Some(_) if !self.algorithm.holds_places() => {
                "a rate knows when a request passes, and needs no queue; use wait_up_to or LeakyBucket, or Limit::in_flight(n)"
            }
            Some(Patience { most: 0, .. }) => "nobody can wait in a queue of 0; drop it, or use at least 1",
            Some(Patience { longest: Duration::ZERO, .. }) => {
                "a request that may wait for 0 s never waits; drop it, or say how long"
            }
            Some(_) => return Ok(()),
        };
        Err(("queue", problem.into()))
    }
}
