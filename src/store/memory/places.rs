//! Which table a rule gets.

use std::sync::{Arc, Weak};

use super::{Bound, Place, line::Table};
use crate::{charge::RuleSpec, error::Unsupported, observe::Held};

/// The places that somebody has, the latest first.
pub(super) fn live(places: &[Weak<Place>]) -> impl Iterator<Item = Arc<Place>> {
    places.iter().rev().filter_map(Weak::upgrade)
}

/// Finds the table of a rule that replaces the one at `before`, or makes one.
pub(super) fn find(
    places: &[Weak<Place>],
    spec: &RuleSpec,
    bound: Bound,
    before: Option<&Place>,
) -> Result<Place, Unsupported> {
    let table = match before.filter(|before| carries(&before.table, spec)) {
        Some(before) => follow(places, spec, bound, &before.table),
        None => join(places, spec, bound, before.is_some())?,
    };
    Ok(Place { name: spec.name.clone(), limit: spec.limit, table, told: Held::new(spec.name.clone()) })
}

/// The table of a rule whose counts go on from those of `before`.
fn follow(places: &[Weak<Place>], spec: &RuleSpec, bound: Bound, before: &Arc<Table>) -> Arc<Table> {
    let newest = before.newest();
    if counts_alike(&newest, spec) {
        return newest;
    }
    // Another limiter may have been given such a table, and not have used it yet.
    let waits = |place: &Arc<Place>| {
        place.name == spec.name && counts_alike(&place.table, spec) && place.table.is_behind(&newest)
    };
    if let Some(place) = live(places).find(waits) {
        return Arc::clone(&place.table);
    }
    newest.shorten();
    Table::new(spec, bound, Some(newest))
}

/// The table of a rule that others may have already, under this name or under the one it had before.
fn join(places: &[Weak<Place>], spec: &RuleSpec, bound: Bound, replaces: bool) -> Result<Arc<Table>, Unsupported> {
    let named = |name: &str| {
        let mut seen: Vec<Arc<Table>> = Vec::new();
        // A table goes by the name it was given last.
        let found: Vec<_> = live(places)
            .filter(|place| {
                let is_last = !seen.iter().any(|table| Arc::ptr_eq(table, &place.table));
                seen.push(Arc::clone(&place.table));
                is_last && place.name == name
            })
            .map(|place| place.table.newest())
            .collect();
        found
    };
    let tables = named(&spec.name);
    if let Some(table) = tables.iter().find(|table| counts_alike(table, spec)) {
        return Ok(Arc::clone(table));
    }
    if let Some(table) = tables.first().filter(|_| !replaces) {
        return Err(Unsupported::new(format!(
            "a rule of this name on this store counts by the {}{} already (the same one, where this is a reload); give \
             this one another name, or its own store",
            table.algorithm.name(),
            if table.keyed { "" } else { " without keys" }
        )));
    }
    let was = spec.was.as_deref().filter(|_| !replaces);
    let was = was.and_then(|was| named(was).into_iter().find(|table| carries(table, spec)));
    Ok(match was {
        Some(table) => follow(places, spec, bound, &table),
        None => Table::new(spec, bound, None),
    })
}

fn counts_alike(table: &Table, spec: &RuleSpec) -> bool {
    table.algorithm == spec.algorithm && table.keyed == spec.keyed
}

/// Whether what was counted by the table says anything of the rule.
fn carries(table: &Table, spec: &RuleSpec) -> bool {
    table.keyed == spec.keyed && table.algorithm.carries_over_to(&spec.algorithm)
}
