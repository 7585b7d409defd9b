//! What stands in for the metrics where the feature is off: nothing.

use std::{borrow::Cow, time::Duration};

use super::{RuleOutcome, Steps, Turn};

#[derive(Debug)]
pub(super) struct Metrics;

impl Metrics {
    pub(super) fn new(_: impl Iterator<Item = Cow<'static, str>>) -> Self {
        Self
    }

    #[inline]
    pub(super) fn decided(&self, _: impl Iterator<Item = (usize, RuleOutcome)>) {}

    #[inline]
    pub(super) fn times(&self, _: u64) -> bool {
        false
    }

    pub(super) fn took(&self, _: Duration) {}

    #[inline]
    pub(super) fn publishes(&self, _: u64) -> bool {
        false
    }

    pub(super) fn waits(&self, _: usize) -> Waits {
        Waits
    }

    pub(super) fn waits_until(&self, turn: Turn, _: usize) -> Turn {
        turn
    }
}

pub(crate) struct Waits;

#[derive(Debug)]
pub(crate) struct Held;

impl Held {
    pub(crate) fn new(_: Cow<'static, str>) -> Self {
        Self
    }

    pub(crate) fn publish(&self, _: usize, _: &Steps, _: &Steps) {}
}

pub(super) fn store_failed() {}

pub(super) fn circuit_opened() {}

pub(super) fn reloaded(_: &'static str) {}
