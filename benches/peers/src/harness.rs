//! Interleaving, medians, and what is reported.

use std::time::{Duration, Instant};

use crate::targets;

/// How long everything runs.
#[derive(Clone, Copy)]
pub struct Scale {
    pub quick: bool,
}

impl Scale {
    /// Returns the first where the run is to be quick, else the second.
    pub fn pick<T>(self, quick: T, thorough: T) -> T {
        if self.quick { quick } else { thorough }
    }

    /// Returns how many rounds of everything there are; medians are over these.
    pub fn rounds(self) -> usize {
        self.pick(5, 15)
    }
}

/// One of those that are compared: does the work so many times, and says how long that took.
pub struct Contestant<'a> {
    run: Box<dyn FnMut(usize) -> Duration + 'a>,
}

impl<'a> Contestant<'a> {
    pub fn new(run: impl FnMut(usize) -> Duration + 'a) -> Self {
        Self { run: Box::new(run) }
    }

    /// Times `work`, which is given how often to work.
    pub fn timed(mut work: impl FnMut(usize) + 'a) -> Self {
        Self::new(move |count| {
            let start = Instant::now();
            work(count);
            start.elapsed()
        })
    }
}

/// Whose turn it is, round after round, by their numbers: another one begins each round.
pub fn turns(contestants: usize, rounds: usize) -> impl Iterator<Item = usize> {
    (0..rounds).flat_map(move |round| (0..contestants).map(move |step| (step + round) % contestants))
}

/// Runs all contestants in turn, round after round, and returns each one's median time for one piece of work, in
/// nanoseconds. `count` is how many pieces a turn has; a tenth of that is done before, untimed, so that nobody pays for
/// what the one before left in the caches.
pub fn interleave(contestants: &mut [Contestant<'_>], rounds: usize, count: usize) -> Vec<f64> {
    let mut times = vec![Vec::new(); contestants.len()];
    for at in turns(contestants.len(), rounds) {
        (contestants[at].run)(count / 10);
        let time = (contestants[at].run)(count);
        times[at].push(time.as_nanos() as f64 / count as f64);
    }
    times.into_iter().map(median).collect()
}

/// Returns the middle value; of two the mean.
pub fn median(mut values: Vec<f64>) -> f64 {
    assert!(!values.is_empty(), "a median of nothing");
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 }
}

/// Returns the value below which `share` of the values are.
pub fn percentile(values: &mut [u64], share: f64) -> u64 {
    assert!(!values.is_empty(), "a percentile of nothing");
    let at = ((values.len() - 1) as f64 * share).round() as usize;
    *values.select_nth_unstable(at).1
}

/// What was measured: printed as it comes, and the ratios once more at the end.
#[derive(Default)]
pub struct Report {
    values: Vec<(String, f64)>,
    ratios: Vec<(String, f64)>,
    failures: Vec<String>,
}

impl Report {
    /// Opens a table.
    pub fn table(&mut self, title: &str, columns: &[&str]) {
        println!("\n## {title}\n");
        let head: Vec<_> = columns.iter().map(|column| format!("{column:>12}")).collect();
        println!("{:<34} {}", "", head.join(" "));
    }

    /// Prints a row of numbers.
    pub fn row(&mut self, name: &str, values: &[f64]) {
        let values: Vec<_> = values.iter().map(|value| format!("{:>12}", number(*value))).collect();
        println!("{name:<34} {}", values.join(" "));
    }

    /// Notes a number that is no ratio, such as `ir NAME VALUE`.
    pub fn value(&mut self, kind: &str, name: &str, value: f64) {
        self.values.push((format!("{kind} {name}"), value));
    }

    /// Notes ours over theirs.
    pub fn ratio(&mut self, name: impl Into<String>, ours: f64, theirs: f64) {
        self.ratios.push((name.into(), ours / theirs));
    }

    /// Notes that a measurement could not be made.
    pub fn failure(&mut self, what: impl Into<String>) {
        let what = what.into();
        eprintln!("FAILED {what}");
        self.failures.push(what);
    }

    /// Prints the numbers, what targets were missed, what could not be measured, and last the ratios. Returns whether
    /// everything could be measured.
    pub fn finish(self) -> bool {
        println!("\n## Numbers\n");
        for (name, value) in &self.values {
            println!("{name} {}", number(*value));
        }
        println!("\n## Targets\n");
        for (name, value) in self.values.iter().chain(&self.ratios) {
            if let Some(target) = targets::of(name) {
                let verdict = if target.holds(*value) { "met" } else { "MISSED" };
                println!("target {name} {target}: {value:.3} {verdict}");
            }
        }
        println!();
        for failure in &self.failures {
            println!("FAILED {failure}");
        }
        for (name, value) in &self.ratios {
            println!("ratio {name} {value:.3}");
        }
        self.failures.is_empty()
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        small if small < 10.0 => format!("{value:.2}"),
        middle if middle < 1_000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Keeps one check from overlapping the next one: a request comes alone, and waits for each of its own cache misses.
#[inline(always)]
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is part of SSE2, which every x86-64 has, and it touches no memory.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier that touches no memory.
    unsafe {
        std::arch::asm!("isb", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    compile_error!("say which instruction keeps one check from overlapping the next on this processor");
}

/// A generator of numbers that look random, the same in each run.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number (splitmix64).
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns a number from 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for at in (1..values.len()).rev() {
            values.swap(at, self.next() as usize % (at + 1));
        }
    }
}
