//! What the numbers are to be, and why.

use std::fmt;

/// A bound for a number.
pub struct Target {
    bound: Bound,
    value: f64,
}

enum Bound {
    AtMost,
    AtLeast,
}

impl Target {
    pub fn holds(&self, value: f64) -> bool {
        match self.bound {
            Bound::AtMost => value <= self.value,
            Bound::AtLeast => value >= self.value,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.bound {
            Bound::AtMost => "<=",
            Bound::AtLeast => ">=",
        };
        write!(f, "{sign} {}", self.value)
    }
}

/// Name (or its beginning, where that ends in `_`), whether at most or at least, value, reason.
const TARGETS: &[(&str, Bound, f64, &str)] = &[
    // The decision, with the same clock on both sides.
    ("decide_hot_text", Bound::AtMost, 0.85, "a fingerprint costs less than a string's hash and comparison"),
    ("decide_hot_address", Bound::AtMost, 0.6, "16 bytes are hashed by one multiplication"),
    ("decide_1m_fenced_text", Bound::AtMost, 0.5, "one cache miss instead of four"),
    ("decide_1m_fenced_address", Bound::AtMost, 0.75, "one cache miss instead of two"),
    ("decide_first_seen_text", Bound::AtMost, 0.45, "no string is allocated"),
    ("decide_2_threads_1m_text", Bound::AtMost, 0.6, "one lock, held for one line of memory"),
    ("decide_2_threads_hot_text", Bound::AtMost, 1.0, "two threads on one count wait for each other's line anyway"),
    ("check_hot_text", Bound::AtMost, 1.3, "the closure, the store's pointer and a decision with every rule's numbers"),
    ("check_hot_address", Bound::AtMost, 1.0, "as for a text, with the cheaper key"),
    ("check_1m_fenced_text", Bound::AtMost, 0.6, "the miss outweighs the rest"),
    // The layer.
    ("ir_off", Bound::AtMost, 0.7, "instructions over no layer, beside tower_governor without fields"),
    ("ir_ietf", Bound::AtMost, 0.6, "two fields beside tower_governor's two"),
    ("ir_x", Bound::AtMost, 0.85, "three fields beside tower_governor's two"),
    ("ir_refused", Bound::AtMost, 0.65, "prepared parts instead of a formatted text"),
    ("refused_time", Bound::AtMost, 0.05, "no clock is built for a refusal; in a virtual machine that is 5 to 15 us"),
    ("allocations direct_tollgate_off", Bound::AtMost, 0.0, "a known key is looked up, not made"),
    ("allocations direct_with_field_tollgate_", Bound::AtMost, 0.0, "the response's map has room for more fields"),
    ("allocations direct_refused_tollgate_", Bound::AtMost, 4.0, "a document, the map's two, the box of a refusal"),
    // End to end, requests per second.
    ("rps_refused_over_tower_governor", Bound::AtLeast, 3.0, "as in process, less what a connection costs"),
    ("rps_refused_over_own_429", Bound::AtLeast, 0.95, "a refusal costs no more than what it stands for"),
    ("rps_ietf_over_tower_governor_headers", Bound::AtLeast, 0.95, "a request costs far more than any limiter"),
    ("rps_off_over_tower_governor", Bound::AtLeast, 0.95, "as above"),
    // Memory and many rules.
    ("bytes_per_key tollgate_", Bound::AtMost, 56.0, "16 bytes of key, the state, and the slack of growth"),
    ("churn_memory_over_live_entries", Bound::AtMost, 2.5, "what is dead makes room for what is new"),
    ("churn_p9999_over_never_evicting", Bound::AtMost, 2.0, "no pause grows with the number of keys"),
    ("three_rules_over_one_64_keys", Bound::AtMost, 2.0, "one clock, one call, one decision"),
    ("three_rules_over_one_many_keys", Bound::AtMost, 2.0, "two misses at once, where they overlap"),
    ("three_rules_over_three_governors_64_keys", Bound::AtMost, 0.8, "one clock instead of three"),
    ("three_rules_over_three_governors_many_keys", Bound::AtMost, 0.8, "fewer misses each"),
    ("ns condition_that_is_false", Bound::AtMost, 15.0, "a call through a pointer, and on to the next rule"),
    ("growth_", Bound::AtMost, 1.5, "what ten times the keys cost beyond the caches they miss"),
    // The flood.
    ("flood_bypass_", Bound::AtMost, 0.0, "no client gets more than its limit because others flood"),
    ("flood_tracked_refused_", Bound::AtMost, 0.0, "nor less, where it has a place of its own"),
    ("flood_memory_", Bound::AtMost, 1.05, "the cap is a cap"),
    ("flood_honest_served_", Bound::AtLeast, 0.95, "who floods keeps nobody out"),
];

/// Returns the target of a ratio or another number, where there is one.
pub fn of(name: &str) -> Option<Target> {
    // A name ends where a family of cases begins.
    let is = |target: &str| name == target || target.ends_with('_') && name.starts_with(target);
    let (_, bound, value, _) = TARGETS.iter().find(|(target, ..)| is(target))?;
    let bound = match bound {
        Bound::AtMost => Bound::AtMost,
        Bound::AtLeast => Bound::AtLeast,
    };
    Some(Target { bound, value: *value })
}
