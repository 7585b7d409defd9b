//! Keys that were never seen before: a store that grows from nothing, in a process of its own each time. In one process
//! all would grow in a heap that the others have left in pieces, and what an allocator makes of those is not what is
//! asked here.

use std::process::Command;

use crate::{
    decision,
    harness::{Scale, median, turns},
};

/// Every contestant's nanoseconds for one key, medians over rounds.
pub fn measure(kind: &str, contestants: usize, scale: Scale) -> Result<Vec<f64>, String> {
    let keys = scale.pick(100_000, 1_000_000);
    let mut times = vec![Vec::new(); contestants];
    for at in turns(contestants, scale.pick(3, 9)) {
        times[at].push(alone(kind, at, keys)? / f64::from(keys));
    }
    Ok(times.into_iter().map(median).collect())
}

/// The nanoseconds of one contestant in a process of its own.
fn alone(kind: &str, contestant: usize, keys: u32) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let arguments = ["first-seen".to_owned(), kind.to_owned(), contestant.to_string(), keys.to_string()];
    let output = Command::new(program).args(arguments).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim().parse() {
        Ok(nanoseconds) if output.status.success() => Ok(nanoseconds),
        _ => Err(format!("contestant {contestant}: {text}{}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// What that process does: measures, and prints the nanoseconds.
pub fn run_alone(arguments: &[String]) {
    let [kind, contestant, keys] = arguments else { panic!("a kind of keys, a contestant and a number of keys") };
    let number = |text: &String| text.parse::<u32>().expect("a number");
    let time = decision::sees_for_the_first_time(kind, number(contestant) as usize, number(keys));
    println!("{}", time.as_nanos());
}
