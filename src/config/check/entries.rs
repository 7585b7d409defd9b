use super::{
    super::{
        amount::Amount,
        data::{Cost, StoreFailure},
        problem::Code,
        resolve::{Alternative, Quota},
    },
    Checker,
};
use crate::{limit::Limit, rule::too_dear};

impl Checker<'_> {
    pub(super) fn alternative(&mut self, one: &Alternative<'_>) {
        let (amount, path) = one.amount();
        let quotas = one.quotas();
        let counts = amount.in_flight.is_some() || quotas.each().any(|quota| matches!(quota, Quota::Limit(_)));
        self.tiers(amount, path);
        if amount.in_flight.is_some() {
            self.in_flight(one, amount, path);
        } else {
            self.limit(one, amount, path);
        }
        let word = amount.limit.filter(|limit| !limit.is_limit());
        if let (Some(word), false) = (word, counts) {
            self.of_no_use(one, word);
            return;
        }
        self.key(one);
        self.outcomes(one);
        if let Some((Cost::Fixed(cost), path)) = one.said("cost", |entry| &entry.cost) {
            let limits = quotas.each().filter_map(|quota| match quota {
                Quota::Limit(limit) => Some(limit),
                _ => None,
            });
            let least = limits
                .chain(amount.in_flight.map(|places| Limit::in_flight(places.0)))
                .min_by_key(Limit::capacity)
                .filter(|least| cost.0 > least.capacity());
            if let Some(least) = least {
                self.wrong(Code::CannotWork, path, too_dear(cost.0, &least));
            }
        }
        if let Some((StoreFailure::Fallback(fallback), path)) =
            one.said("on_store_failure", |entry| &entry.on_store_failure)
        {
            let fields = ["fallback_percent", "fallback_one_in"];
            match (fallback.fallback_percent, fallback.fallback_one_in) {
                (Some(_), Some(_)) => {
                    self.wrong(Code::Conflict, path, "say one of `fallback_percent` and `fallback_one_in`")
                }
                (None, None) if !fields.iter().any(|field| self.is_there(&format!("{path}.{field}"))) => {
                    self.wrong(
                        Code::MissingField,
                        path,
                        "say `fallback_percent` or `fallback_one_in`, or \"allow\" or \"refuse\"",
                    );
                }
                _ => {}
            }
        }
    }

    /// `unlimited` and `blocked` count nothing.
    fn of_no_use(&mut self, one: &Alternative<'_>, word: Amount) {
        let own = one.own;
        let fields = [
            ("was", own.was.is_some()),
            ("key", own.key.is_some()),
            ("algorithm", own.algorithm.is_some()),
            ("cost", own.cost.is_some()),
            ("wait_up_to", own.wait_up_to.is_some()),
            ("count_only", own.count_only.is_some()),
            ("give_back", own.give_back.is_some()),
            ("give_back_unanswered", own.give_back_unanswered.is_some()),
            ("overload", own.overload.is_some()),
            ("on_missing_key", own.on_missing_key.is_some()),
            ("on_store_failure", own.on_store_failure.is_some()),
        ];
        let mode = ("mode", own.mode.is_some() && word == Amount::Unlimited);
        // What a policy says beside it may be for its exceptions.
        let for_others = one.policy.is_none() && !self.is_alone(one);
        for (name, _) in fields.iter().chain([&mode]).filter(|(_, said)| *said && !for_others) {
            let text = format!("of no use beside limit = \"{word}\", which counts nothing; drop it");
            self.wrong(Code::Conflict, format!("{}.{name}", one.path), text);
        }
    }

    /// Whether a policy's own entry has no exceptions.
    fn is_alone(&self, one: &Alternative<'_>) -> bool {
        !self.is_there(&format!("{}.entries", one.path))
            && self
                .file
                .policies
                .iter()
                .flatten()
                .all(|policy| !std::ptr::eq(&policy.own, one.own) || policy.entries.is_empty())
    }
}
