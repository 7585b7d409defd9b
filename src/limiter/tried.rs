//! What rules that do not enforce are asked, and what is kept of their answers.

use super::{
    Generation, Limiter,
    core::{Charges, Intent},
};
use crate::{
    charge::{Charge, Take},
    decision::{Decision, Difference, Differences, Ruling},
    observe,
    rule::Applies,
};

impl<Req> Limiter<Req> {
    /// Returns how often the rule `name`, which does not [enforce](crate::Mode), agreed with what is in force, and how
    /// often it did not, since this limiter has had a rule of this name that does not. `None` where no rule that does
    /// not enforce has this name.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Limit, Limiter, Rule};
    ///
    /// let limiter = Limiter::new([
    ///     Rule::new("user", Limit::per_minute(3), |id: &u64| Some(Key::from(*id))),
    ///     Rule::shadow_of("user", Limit::per_minute(2)).named("user-2"),
    /// ]);
    /// for _ in 0..10 {
    ///     let _ = limiter.check_now(&7)?;
    /// }
    /// let differences = limiter.differences("user-2").unwrap();
    /// assert_eq!((differences.both_pass, differences.both_refuse), (2, 7));
    /// assert_eq!((differences.would_refuse, differences.would_pass), (1, 0));
    /// assert!(limiter.differences("user").is_none());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn differences(&self, name: &str) -> Option<Differences> {
        let rules = &self.in_force().rules;
        Some(rules.tally(rules.position(name)?)?.get())
    }

    /// Whether a rule [warns](crate::Mode::Warn).
    pub(crate) fn warns(&self) -> bool {
        self.in_force().rules.tried().any(|(_, (rule, _))| rule.warns())
    }
}

impl<Req> Generation<Req> {
    /// Asks the rules that do not enforce, after those that do.
    #[cold]
    pub(super) fn ask_tried<'a>(
        &'a self,
        request: &Req,
        intent: Intent,
        decision: &mut Decision,
        charges: &mut Charges<'a>,
    ) {
        let core = &self.core;
        for ((at, (rule, reported)), info) in
            self.rules.tried().zip(core.info.iter().skip(self.rules.enforcing().len()))
        {
            let Some(bound) = core.bound.get(at) else { continue };
            let (beside, applies) = match info.live {
                Some(live) => {
                    // At the same key and cost. Where the live rule cannot be asked, this one is not either.
                    let asked = decision.asked();
                    let Some(beside) = asked.iter().position(|ruling| ruling.rule() == live) else { continue };
                    let number = asked.iter().take(beside).filter(|ruling| ruling.is_usable()).count();
                    let charge = charges.get(number).zip(asked.get(beside)).filter(|(_, live)| live.is_usable());
                    let Some((Charge { key, cost, .. }, _)) = charge else { continue };
                    let (limit, usable) = rule.other_limit(request, reported);
                    (Some((beside, number)), Applies::Yes { key: *key, limit, cost: *cost, usable })
                }
                None => match rule.applies(request, &core.secret, reported) {
                    Some(applies) => (None, applies),
                    None => continue,
                },
            };
            match applies {
                Applies::NoKey => self.missing_key(at, intent),
                Applies::Yes { key, limit, cost, usable } => {
                    decision
                        .ask_tried(Ruling::asked(at, cost, limit.as_ref(), usable), beside.map(|(beside, _)| beside));
                    if usable {
                        let mut charge = bound.charge(key, limit.unwrap_or(*rule.made_with()), cost, intent);
                        // Nobody would tell how it ends.
                        if intent == Intent::Start && !core.stands(at) {
                            charge.take = Take::Never;
                        }
                        // What ends with a request is nothing where there was none.
                        let in_place_of = beside.map(|(_, number)| number).filter(|_| core.stands(at));
                        charges.push(Charge { votes: false, in_place_of, ..charge });
                    }
                }
                Applies::Refused { .. } => decision.ask_tried(Ruling::without_key(at), None),
            }
        }
    }

    /// Counts and logs what rules that do not enforce would have done otherwise.
    #[cold]
    pub(super) fn report_tried(&self, decision: &Decision) {
        self.observed.decided(decision.shadow_outcomes());
        for (rule, shadow) in decision.numbered_shadows() {
            if let Some(tally) = self.rules.tally(rule) {
                shadow.count(tally);
            }
            match shadow.difference() {
                Some(Difference::WouldRefuse) => observe::would_refuse(shadow.rule),
                Some(Difference::WouldPass) => observe::would_pass(shadow.rule),
                None => {}
            }
        }
    }
}
