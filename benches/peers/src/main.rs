//! tollgate measured beside other limiters, interleaved in one run. `README.md` beside this says how to run it.

mod allocator;
mod churn;
mod clock;
mod decision;
mod end_to_end;
mod first_seen;
mod flood;
mod growth;
mod harness;
mod instructions;
mod keys;
mod layer;
mod memory;
mod rules;
mod stacks;
mod subjects;
mod targets;

use harness::{Report, Scale};

/// A family of cases: its name, and what measures it.
type Family = (&'static str, fn(Scale, &mut Report));

/// The families, in the order in which they run.
const FAMILIES: &[Family] = &[
    ("decision", decision::run),
    ("layer", layer::run),
    ("instructions", instructions::run),
    ("memory", memory::run),
    ("churn", churn::run),
    ("rules", rules::run),
    ("growth", growth::run),
    ("end-to-end", end_to_end::run),
];

/// What runs only when it is asked for.
const ON_DEMAND: &[Family] = &[("flood", flood::run)];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        // What this program starts itself as.
        Some((first, rest)) if first == "op" => return instructions::op(rest),
        Some((first, rest)) if first == "serve" => return end_to_end::serve(rest),
        Some((first, rest)) if first == "load" => return end_to_end::load(rest),
        Some((first, rest)) if first == "first-seen" => return first_seen::run_alone(rest),
        _ => {}
    }
    let (mut quick, mut named, mut without) = (false, Vec::new(), Vec::new());
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => quick = true,
            "--without" => without.push(arguments.next().unwrap_or_else(|| usage("--without takes a family"))),
            family if FAMILIES.iter().chain(ON_DEMAND).any(|(name, _)| *name == family) => named.push(argument),
            other => usage(&format!("there is no {other}")),
        }
    }
    let scale = Scale { quick };
    let mut report = Report::default();
    let chosen: Vec<_> = if named.is_empty() {
        FAMILIES.iter().filter(|(name, _)| !without.iter().any(|one| one == name)).collect()
    } else {
        FAMILIES.iter().chain(ON_DEMAND).filter(|(name, _)| named.iter().any(|one| one == name)).collect()
    };
    for (name, run) in chosen {
        let start = std::time::Instant::now();
        run(scale, &mut report);
        println!("\n{name}: {:.1} s", start.elapsed().as_secs_f64());
    }
    if !report.finish() {
        std::process::exit(1);
    }
}

fn usage(why: &str) -> ! {
    let names = |families: &[Family]| families.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" ");
    eprintln!("{why}\n\nusage: peers [--quick] [--without FAMILY] [FAMILY ...]\n");
    eprintln!("families: {}\nonly when named: {}", names(FAMILIES), names(ON_DEMAND));
    std::process::exit(2);
}
