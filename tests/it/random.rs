//! Random operations that can be run again: the seed of a run that fails is printed.

use std::time::Duration;

use tollgate::Limit;

/// SplitMix64: a few lines, no state worth speaking of, and the same numbers on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `bound - 1`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from 0 to `most`.
    pub(crate) fn up_to(&mut self, most: u64) -> u64 {
        if most == u64::MAX { self.next() } else { self.below(most + 1) }
    }

    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// The number in the environment variable `name`, for longer runs than the usual ones.
pub(crate) fn from_env(name: &str, usually: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is not a whole number")),
        Err(_) => usually,
    }
}

/// Names the run that failed.
struct Tell(u64);

impl Drop for Tell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with TOLLGATE_SEED={}; set it to run this case alone", self.0);
        }
    }
}

/// Calls `run` with the seeds 0 to `runs - 1`, or with the one in `TOLLGATE_SEED` alone.
pub(crate) fn each_seed(runs: u64, mut run: impl FnMut(&mut Random)) {
    let only = std::env::var("TOLLGATE_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in only.map_or(0..runs, |seed| seed..seed + 1) {
        let _tell = Tell(seed);
        run(&mut Random::new(seed));
    }
}

/// Limits whose rates do not divide, whose periods are odd, and whose numbers are huge.
pub(crate) fn window_limit(random: &mut Random) -> Limit {
    let year = Duration::from_secs(365 * 86_400);
    match random.below(14) {
        0 => Limit::per_second(1),
        1 => Limit::per_second(3),
        2 => Limit::new(10, Duration::from_secs(13)),
        3 => Limit::new(5, Duration::from_nanos(13)),
        4 => Limit::new(7, Duration::from_secs(7) / 13),
        5 => Limit::new(12, year),
        6 => Limit::new(u64::MAX, Duration::from_nanos(1)),
        7 => Limit::new(u64::MAX, Duration::from_nanos(1_000_000_007)),
        8 => Limit::per_second(4_000_000_000),
        9 => Limit::new(u64::MAX / 3, year),
        10 => Limit::new(2, Duration::from_nanos(1)),
        _ => Limit::new(1 + random.below(50), Duration::from_nanos(1 + random.below(3_000_000_000))),
    }
}

/// As [`window_limit`], with a capacity of its own in most cases.
pub(crate) fn bucket_limit(random: &mut Random) -> Limit {
    let limit = window_limit(random);
    // An eighth of what there is, so that what is used, with debts, still fits in a `Used`.
    let limit = Limit::new(limit.permits().min(u64::MAX / 8), limit.period());
    match random.below(5) {
        0 => limit,
        1 => limit.burst(1),
        2 => limit.burst(limit.permits() * 2),
        3 => limit.burst(limit.permits() / 2 + 1),
        _ => limit.burst(1 + random.below(30)),
    }
}

/// `limit` with the burst said, which a leaky bucket wants.
pub(crate) fn queue_limit(random: &mut Random) -> Limit {
    let limit = bucket_limit(random);
    limit.burst(limit.capacity())
}

/// A limit that a log can hold.
pub(crate) fn log_limit(random: &mut Random) -> Limit {
    let limit = window_limit(random);
    Limit::new(limit.permits().min(65_536), limit.period())
}

/// The period in nanoseconds.
pub(crate) fn period(limit: &Limit) -> u64 {
    u64::try_from(limit.period().as_nanos()).unwrap()
}
