use super::{
    super::{
        amount::Amount,
        data::{Algorithm, Allowance, Entry, Origin},
        duration::Span,
        problem::Code,
        read::{Count, step},
        resolve::{Alternative, Quota, says_amount},
    },
    Checker,
};
use crate::{bucket, limit::Limit};

impl Checker<'_> {
    pub(super) fn tiers(&mut self, amount: &Entry, path: &str) {
        for (origin, names, has_origin, has_names) in [
            ("tier", "tiers", amount.tier.is_some(), amount.tiers.is_some()),
            ("customer", "customers", amount.customer.is_some(), amount.customers.is_some()),
        ] {
            let (origin_path, names_path) = (format!("{path}.{origin}"), format!("{path}.{names}"));
            if has_names && !has_origin && !self.is_there(&origin_path) {
                let text = format!("there is no `{origin}`, which says where a request's {origin} comes from");
                self.wrong(Code::MissingField, names_path, text);
            } else if has_origin && !has_names && !self.is_there(&names_path) {
                self.wrong(Code::MissingField, origin_path, format!("there are no `{names}` to look it up in"));
            }
        }
        for (field, origin) in [("tier", &amount.tier), ("customer", &amount.customer)] {
            let path = format!("{path}.{field}");
            let empty = matches!(origin, Some(Origin::Table(table)) if table.header.is_none());
            if empty && !self.is_there(&format!("{path}.header")) {
                self.wrong(Code::MissingField, path, "there is no `header`; or say a registered value's name");
            }
        }
    }

    pub(super) fn in_flight(&mut self, one: &Alternative<'_>, amount: &Entry, path: &str) {
        let beside = [
            ("limit", amount.limit.is_some()),
            ("period", amount.period.is_some()),
            ("burst", amount.burst.is_some()),
            ("tier", amount.tier.is_some()),
            ("customer", amount.customer.is_some()),
            ("algorithm", one.own.algorithm.is_some()),
            ("wait_up_to", one.own.wait_up_to.is_some()),
        ];
        for (name, _) in beside.iter().filter(|(_, said)| *said) {
            let text =
                "not beside `in_flight`, which counts what runs and knows no time; make it another policy, or drop it";
            self.wrong(Code::Conflict, format!("{path}.{name}"), text);
        }
    }

    pub(super) fn limit(&mut self, one: &Alternative<'_>, amount: &Entry, path: &str) {
        let said = |name: &str| self.is_there(&format!("{path}.{name}"));
        if amount.limit.is_none() && !said("limit") && !said("in_flight") {
            let text = "there is no `limit`; say how much, such as limit = \"100/1m\", or \"unlimited\" or \"blocked\"";
            let path = if says_amount(one.own) || one.policy.is_none() { path } else { &one.path };
            self.wrong(Code::MissingField, path, text);
            return;
        }
        let algorithm = one.algorithm();
        self.quota(path, amount.limit, amount.period, amount.burst, algorithm);
        for (field, allowances) in [("tiers", &amount.tiers), ("customers", &amount.customers)] {
            for (name, allowance) in allowances.iter().flatten() {
                let path = format!("{path}.{field}{}", step(name, false));
                match allowance {
                    Allowance::Short(limit) => self.quota(&path, Some(*limit), None, None, algorithm),
                    Allowance::Table(table) => {
                        if table.limit.is_none() && !self.is_there(&format!("{path}.limit")) {
                            self.wrong(Code::MissingField, &path, "there is no `limit`");
                        }
                        self.quota(&path, table.limit, table.period, table.burst, algorithm);
                    }
                }
            }
        }
        self.wait(one, algorithm);
    }

    fn wait(&mut self, one: &Alternative<'_>, algorithm: Algorithm) {
        let Some((longest, path)) = one.said("wait_up_to", |entry| &entry.wait_up_to) else { return };
        if longest.nanos() == 0 {
            self.wrong(Code::CannotWork, path, "a request that may wait for 0s never waits; drop it, or say how long");
        } else if algorithm != Algorithm::TokenBucket {
            let text =
                "only a \"token_bucket\" can wait (a \"leaky_bucket\" always holds requests until their turn); drop it";
            self.wrong(Code::CannotWork, path, text);
        }
    }

    fn quota(
        &mut self,
        path: &str,
        limit: Option<Amount>,
        period: Option<Span>,
        burst: Option<Count>,
        algorithm: Algorithm,
    ) {
        let Some(limit) = limit else { return };
        match (limit, period) {
            (Amount::Permits(permits), None) if !self.is_there(&format!("{path}.period")) => {
                let text =
                    format!("{permits} per how long? say `period`, such as period = \"1m\", or write \"{permits}/1m\"");
                self.wrong(
                    Code::MissingField,
                    if self.is_there(&format!("{path}.limit")) { format!("{path}.limit") } else { path.into() },
                    text,
                );
            }
            (Amount::Permits(_), _) | (_, None) => {}
            (Amount::Rate(..), Some(_)) => {
                let text = format!("not beside limit = \"{limit}\", which has its period; drop one of the two");
                self.wrong(Code::Conflict, format!("{path}.period"), text);
            }
            (Amount::Unlimited | Amount::Blocked, Some(_)) => {
                self.wrong(
                    Code::Conflict,
                    format!("{path}.period"),
                    format!("of no use beside limit = \"{limit}\"; drop it"),
                );
            }
        }
        if !limit.is_limit() && burst.is_some() {
            self.wrong(
                Code::Conflict,
                format!("{path}.burst"),
                format!("of no use beside limit = \"{limit}\"; drop it"),
            );
        }
        if let Some(Quota::Limit(limit)) = Quota::of(&limit, period, burst) {
            self.can_run(path, limit, burst.is_some(), algorithm);
        }
    }

    fn can_run(&mut self, path: &str, limit: Limit, has_burst: bool, algorithm: Algorithm) {
        let field = |name: &str| format!("{path}.{name}");
        let place = if self.is_there(&field("limit")) { field("limit") } else { path.to_owned() };
        let is_window = !matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        let longest = Limit::MAX_SPAN.as_nanos();
        if limit.permits() == 0 {
            self.wrong(Code::CannotWork, place, "0 would refuse everything; use at least 1, or \"blocked\"");
        } else if limit.period().is_zero() {
            let place = if self.is_there(&field("period")) { field("period") } else { place };
            self.wrong(Code::CannotWork, place, "a period of 0s has no rate; use at least 1ns");
        } else if is_window && has_burst {
            self.wrong(
                Code::CannotWork,
                field("burst"),
                "a window has no burst of its own; drop it, or use a \"token_bucket\"",
            );
        } else if algorithm == Algorithm::LeakyBucket && !has_burst && !self.is_there(&field("burst")) {
            self.wrong(Code::MissingField, place, "a \"leaky_bucket\" needs `burst`, the depth of its queue");
        } else if let (Algorithm::SlidingWindowLog, Err(problem)) =
            (algorithm, bucket::Algorithm::SlidingWindowLog.check(&limit))
        {
            self.wrong(Code::CannotWork, place, format!("{}: {problem}", limit.permits()));
        } else if u128::from(limit.capacity()) * limit.period().as_nanos() > longest * u128::from(limit.permits()) {
            let text = format!("{} permits at this rate take longer than 106751d to fill; lower it", limit.capacity());
            self.wrong(Code::CannotWork, if has_burst { field("burst") } else { place }, text);
        }
    }
}
