//! The scripts, and what they are told.

use std::sync::LazyLock;

use ::redis::{Arg, Cmd};
use smallvec::SmallVec;

use super::numbers::{Kind, Numbers, double};
use crate::{
    bucket::Mark,
    charge::{Charge, Take},
};

/// A script's text and the digest that names it on the server.
pub(super) struct Script {
    pub(super) text: &'static str,
    pub(super) digest: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, digest: ::redis::Script::new(text).get_hash().to_owned() }
    }
}

pub(super) static DECIDE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("usual.lua"),
        "\n",
        include_str!("common.lua"),
        "\n",
        include_str!("decide.lua"),
        "\nreturn decide(KEYS, ARGV[1], server)\n"
    ))
});

pub(super) static BATCH: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("common.lua"), "\n", include_str!("decide.lua"), "\n", include_str!("batch.lua")))
});

pub(super) static ADJUST: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("common.lua"), "\n", include_str!("adjust.lua"))));

/// How many bytes a rule's part of a decision has.
pub(super) const CHARGE: usize = 6 * 8;

/// As much room as no bucket ever uses.
const ALL_ROOM: u64 = 1 << 53;

/// Doubles, one after the other: as many as three rules take without an allocation.
#[derive(Debug, Clone, Default)]
pub(super) struct Doubles(SmallVec<[u8; 176]>);

impl Doubles {
    pub(super) fn with_room_for(numbers: usize) -> Self {
        Self(SmallVec::with_capacity(8 * numbers))
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn push(&mut self, number: f64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(super) fn push_whole(&mut self, number: u64) {
        self.push(double(number));
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What is said at the beginning of a decision that may charge nothing any more when the server's clock shows `late`.
pub(super) fn begin(rules: usize, late: u64, now: Option<u64>, life: u64, longer: u64) -> Doubles {
    let mut args = Doubles::with_room_for(4 + 6 * rules);
    args.push_whole(late);
    args.push(now.map_or(-1.0, double));
    args.push_whole(life);
    args.push_whole(longer);
    args
}

/// Returns the beginning of a call of `script` by its digest: the names of `keys` keys follow, and what it is told.
pub(super) fn call(script: &Script, keys: usize) -> Cmd {
    // Enough for the digest, the names and what is told.
    let mut command = Cmd::with_capacity(4 + keys, 96 + 160 * keys);
    command.arg("EVALSHA").arg(script.digest.as_str()).arg(keys);
    command
}

/// Returns a call by the script's text instead of its digest.
pub(super) fn by_text(call: &Cmd, script: &Script) -> Cmd {
    let mut whole = Cmd::new();
    whole.arg("EVAL").arg(script.text);
    for arg in call.args_iter().skip(2) {
        whole.arg(simple(arg));
    }
    whole
}

fn simple(arg: Arg<&[u8]>) -> &[u8] {
    match arg {
        Arg::Simple(bytes) => bytes,
        // Scans have cursors, and no call of a script.
        _ => &[],
    }
}

/// Appends a rule's part of a decision.
pub(super) fn push_charge(args: &mut Doubles, numbers: &Numbers, charge: &Charge<'_>) {
    let take = match charge.take {
        Take::Never => 0,
        Take::IfPassed => 1,
        Take::Always => 2,
    };
    let in_place_of = charge.in_place_of.map_or(0, |at| at as u64 + 1);
    args.push_whole(numbers.kind.code() + 8 * take + 32 * u64::from(charge.votes) + 64 * in_place_of);
    args.push(room(numbers, charge).map_or(-1.0, double));
    args.push_whole(numbers.amount(charge.cost));
    for number in [numbers.a, numbers.b, numbers.c] {
        args.push_whole(number);
    }
}

/// The most that may be used for the charge to pass; `None` where it never can.
fn room(numbers: &Numbers, charge: &Charge<'_>) -> Option<u64> {
    if charge.cost == 0 {
        return Some(ALL_ROOM);
    }
    let needs = charge.cost.checked_add(charge.keep)?;
    // What fits the limit fits its numbers.
    let left = charge.limit.capacity().checked_sub(needs)?;
    let free = numbers.amount(left);
    let drained_meanwhile = || {
        let units = u128::from(charge.max_delay.get()) * u128::from(numbers.b) / 1_000;
        u64::try_from(units).unwrap_or(ALL_ROOM).min(ALL_ROOM)
    };
    Some(match numbers.kind {
        Kind::TokenBucket => free.saturating_add(drained_meanwhile()).min(ALL_ROOM),
        Kind::LeakyBucket => free.min(drained_meanwhile()),
        _ => free,
    })
}

/// A part of a charge that comes back, as the script wants it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) cost: u64,
    pub(super) left: u64,
    pub(super) mark: Mark,
    pub(super) life: u64,
}

/// How a charge is adjusted.
pub(super) struct Adjustment<'a> {
    pub(super) now: Option<u64>,
    pub(super) life: u64,
    pub(super) longer: u64,
    pub(super) numbers: Numbers,
    pub(super) more: u64,
    pub(super) delays: bool,
    pub(super) parts: &'a [Part],
}

impl Adjustment<'_> {
    pub(super) fn args(&self) -> Doubles {
        let numbers = &self.numbers;
        let mut args = Doubles::with_room_for(10 + 5 * self.parts.len());
        args.push(self.now.map_or(-1.0, double));
        args.push_whole(self.life);
        args.push_whole(self.longer);
        args.push_whole(numbers.kind.code());
        for number in [numbers.a, numbers.b, numbers.c] {
            args.push_whole(number);
        }
        args.push_whole(self.more.min(ALL_ROOM / 2));
        args.push(match numbers.kind {
            // Who stands behind a charge in a queue was promised a turn.
            Kind::LeakyBucket => -1.0,
            // So was who waits for tokens.
            Kind::TokenBucket if self.delays => double(numbers.c),
            _ => f64::INFINITY,
        });
        args.push_whole(u64::try_from(self.parts.len()).unwrap_or(0));
        for part in self.parts {
            args.push_whole(part.cost.min(ALL_ROOM / 2));
            args.push_whole(part.left.min(ALL_ROOM / 2));
            args.push_whole(part.mark.at.get() / 1_000);
            args.push_whole(part.mark.fraction);
            args.push_whole(part.life);
        }
        args
    }
}
