//! Counts instructions under callgrind and holds them against `benches/limits.toml`. Nothing in it depends on time, or
//! on what else the machine does. `scripts/instructions` runs it.

mod cases;
mod limits;
mod observed;

use std::{
    process::{Command, ExitCode, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use cases::{CASES, Case, Operation, here};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => report(),
        // What this program starts itself as, under callgrind.
        ["count", name] => {
            count(CASES.iter().find(|case| case.name == name).expect("a case there is"));
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("instructions takes no arguments");
            ExitCode::FAILURE
        }
    }
}

/// What callgrind counts: nothing outside of this.
#[inline(never)]
pub fn counted_by_callgrind(operation: &mut Operation, times: usize) -> usize {
    (0..times).filter(|_| std::hint::black_box(operation())).count()
}

/// Runs one case.
fn count(case: &Case) {
    let mut operation = (case.make)();
    // What is done once: keys become known, tables are made, limits of one are used up.
    for _ in 0..case.warm_up {
        operation();
    }
    let right = counted_by_callgrind(&mut operation, case.times);
    assert_eq!(right, case.times, "{} does not do what it says", case.name);
}

/// Counts all cases and prints them beside their limits.
fn report() -> ExitCode {
    let limits = match limits::read() {
        Ok(limits) => limits,
        Err(why) => return failure(&why),
    };
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        return failure("valgrind is missing: install it");
    }
    let counts = match count_all() {
        Ok(counts) => counts,
        Err(why) => return failure(&why),
    };
    let count_of = |name: &str| here().zip(&counts).find(|(case, _)| case.name == name).map_or(0.0, |(_, n)| *n);
    println!("{:<26} {:>8} {:>8} {:>6}", "instructions", "count", "limit", "of it");
    let mut wrong = Vec::new();
    for (case, count) in here().zip(&counts) {
        let count = (count - case.over.map_or(0.0, count_of)) / case.shared_by;
        let Some(limit) = limits.get(case.name) else {
            if case.is_limited {
                wrong.push(format!("{} has no limit", case.name));
            }
            println!("{:<26} {count:>8.0}", case.name);
            continue;
        };
        println!("{:<26} {count:>8.0} {:>8} {:>5.0}%", case.name, limit.most, 100.0 * count / limit.most as f64);
        if count > limit.most as f64 {
            wrong.push(format!("{} takes {count:.0}, at most {}: {}", case.name, limit.most, limit.why));
        }
        // A count of nothing would pass any limit.
        if count <= 0.0 {
            wrong.push(format!("{} takes {count:.0}, which cannot be", case.name));
        }
    }
    let unknown = limits.keys().filter(|name| !CASES.iter().any(|case| case.is_limited && case.name == *name));
    wrong.extend(unknown.map(|name| format!("{name} has a limit and is not counted")));
    if wrong.is_empty() { ExitCode::SUCCESS } else { failure(&wrong.join("\n")) }
}

fn failure(why: &str) -> ExitCode {
    eprintln!("\ninstructions: FAILED\n{why}");
    ExitCode::FAILURE
}

/// Counts every case, as many at a time as there are processors: what else runs changes no count.
fn count_all() -> Result<Vec<f64>, String> {
    let cases: Vec<_> = here().collect();
    let (next, counts) = (AtomicUsize::new(0), Mutex::new(vec![Err("was not counted".to_owned()); cases.len()]));
    let work = || {
        while let at = next.fetch_add(1, Ordering::Relaxed)
            && let Some(case) = cases.get(at)
        {
            let count = callgrind(case);
            counts.lock().expect("nobody panics with it")[at] = count;
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    counts.into_inner().expect("nobody panics with it").into_iter().collect()
}

/// How many instructions one operation takes.
fn callgrind(case: &Case) -> Result<f64, String> {
    let output = std::env::current_exe()
        .and_then(|program| {
            Command::new("valgrind")
                .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted_by_callgrind*"])
                .arg(program)
                .args(["count", case.name])
                .output()
        })
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    match collected.and_then(|(_, number)| number.trim().parse::<f64>().ok()) {
        Some(number) if output.status.success() && number > 0.0 => Ok(number / case.times as f64),
        _ => Err(format!("{} under callgrind: {text}", case.name)),
    }
}
