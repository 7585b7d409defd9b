//! Only under `--cfg tollgate_shadowed`: rules beside every set that must not be felt. With them the tests of the layer
//! run once more (`scripts/shadowed`).

use std::time::Duration;

use http::StatusCode;

use super::{MissingKey, Rule};
use crate::{
    bucket::{Algorithm, LeakyBucket},
    decision::Mode,
    limit::Limit,
};

/// Rules that refuse, hold, miss their key, and stand in the place of each rule of the set.
pub(super) fn beside<Req>(rules: &[Rule<Req>]) -> Vec<Rule<Req>> {
    let seldom = Limit::new(1, Duration::from_secs(3_600));
    let tried =
        rules.iter().filter(|rule| rule.mode == Mode::Enforce && !matches!(rule.algorithm, Algorithm::Custom(_)));
    let tried = tried.map(|rule| Rule::shadow_of(rule.name.clone(), rule.limit).named(format!("zz.{}", rule.name)));
    [
        Rule::global("zz.refuses", seldom).overload().shadow(),
        Rule::global("zz.holds", seldom.burst(9)).algorithm(LeakyBucket).shadow(),
        Rule::new("zz.misses", seldom, |_| None).on_missing_key(MissingKey::Refuse(StatusCode::IM_A_TEAPOT)).shadow(),
    ]
    .into_iter()
    .chain(tried)
    .collect()
}
