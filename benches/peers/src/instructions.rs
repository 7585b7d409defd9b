//! Instructions, counted by callgrind: the same on a busy machine, so a limit on them can be a gate.

use std::{
    process::{Command, Stdio},
    thread,
};

use crate::{
    harness::{Report, Scale},
    stacks::{self, Place},
};

/// Whom the ratios are of: all that is counted where the run is to be quick.
const COMPARED: [&str; 14] = [
    "none",
    "identity",
    "tollgate_off",
    "tollgate_x",
    "tollgate_ietf",
    "tower_governor",
    "tower_governor_headers",
    "rate_net",
    "rate_net_headers",
    "refused_tollgate_off",
    "refused_tollgate_x",
    "refused_tollgate_ietf",
    "refused_tower_governor",
    "refused_tower_governor_headers",
];

/// What runs under callgrind: only what happens in here is counted.
#[inline(never)]
pub fn peers_counted(send: &mut dyn FnMut() -> u16, count: usize) {
    for _ in 0..count {
        std::hint::black_box(send());
    }
}

/// The child's side: `op PLACE STACK COUNT`.
pub fn op(arguments: &[String]) {
    let [place, stack, count] = arguments else { panic!("op takes a place, a stack and a count") };
    let place = Place::ALL.into_iter().find(|one| one.name() == place).expect("a known place");
    let count = count.parse().expect("a count");
    let mut send = stacks::by_name(stack).send(place);
    peers_counted(&mut send, count);
}

pub fn run(scale: Scale, report: &mut Report) {
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        report
            .failure("instructions: valgrind is missing; install it, or leave these out with `--without instructions`");
        return;
    }
    report.table(
        "Instructions of a request through a layer, and over none (direct) or over an identity layer (router)",
        &["direct", "over none", "router", "over ident."],
    );
    let stacks: Vec<_> = stacks::ALL.iter().filter(|stack| !scale.quick || COMPARED.contains(&stack.name)).collect();
    let (direct, router) = match (counted(Place::Direct, &stacks), counted(Place::Router, &stacks)) {
        (Ok(direct), Ok(router)) => (direct, router),
        (Err(why), _) | (_, Err(why)) => return report.failure(format!("instructions: {why}")),
    };
    let position = |name: &str| stacks.iter().position(|stack| stack.name == name).expect("a stack that was counted");
    let over = |name: &str, in_router: bool| {
        let at = position(name);
        if in_router { router[at] - router[position("identity")] } else { direct[at] - direct[position("none")] }
    };
    for (at, stack) in stacks.iter().enumerate() {
        let name = stack.name;
        report.row(name, &[direct[at], over(name, false), router[at], over(name, true)]);
        report.value("ir", &format!("direct_{name}"), direct[at]);
        report.value("ir", &format!("router_{name}"), router[at]);
    }
    for (suffix, in_router) in [("", false), ("_router", true)] {
        let over = |name| over(name, in_router);
        report.ratio(format!("ir_off{suffix}"), over("tollgate_off"), over("tower_governor"));
        report.ratio(format!("ir_ietf{suffix}"), over("tollgate_ietf"), over("tower_governor_headers"));
        report.ratio(format!("ir_x{suffix}"), over("tollgate_x"), over("tower_governor_headers"));
        report.ratio(format!("ir_off{suffix}_over_rate_net"), over("tollgate_off"), over("rate_net"));
        report.ratio(format!("ir_ietf{suffix}_over_rate_net_headers"), over("tollgate_ietf"), over("rate_net_headers"));
    }
    // A refusal replaces the inner service: the whole request counts, not what is over it.
    let refused = |counts: &[f64], ours: &str, theirs: &str| (counts[position(ours)], counts[position(theirs)]);
    for (suffix, counts) in [("", &direct), ("_router", &router)] {
        let (ours, theirs) = refused(counts, "refused_tollgate_off", "refused_tower_governor");
        report.ratio(format!("ir_refused{suffix}"), ours, theirs);
        let (ours, theirs) = refused(counts, "refused_tollgate_ietf", "refused_tower_governor_headers");
        report.ratio(format!("ir_refused{suffix}_ietf_over_headers"), ours, theirs);
        let (ours, theirs) = refused(counts, "refused_tollgate_x", "refused_tower_governor_headers");
        report.ratio(format!("ir_refused{suffix}_x_over_headers"), ours, theirs);
    }
}

/// Counts the stacks' requests, two at a time: what else runs changes no instruction count.
fn counted(place: Place, stacks: &[&'static stacks::Stack]) -> Result<Vec<f64>, String> {
    // A few hundred are enough for what happens once in many requests, such as a new block for field values.
    const REQUESTS: usize = 512;
    let mut counts = Vec::new();
    for pair in stacks.chunks(2) {
        let both = thread::scope(|scope| {
            let counting = pair.iter().map(|stack| scope.spawn(|| callgrind(place, stack.name, REQUESTS)));
            let counting: Vec<_> = counting.collect();
            counting.into_iter().map(|one| one.join().expect("counting does not panic")).collect::<Result<Vec<_>, _>>()
        });
        counts.extend(both?.into_iter().map(|count| count / REQUESTS as f64));
    }
    Ok(counts)
}

fn callgrind(place: Place, stack: &str, count: usize) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*peers_counted*"])
        .arg(program)
        .args(["op", place.name(), stack, &count.to_string()])
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{stack} under callgrind: {text}"));
    }
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    let number = collected.and_then(|(_, number)| number.trim().parse::<f64>().ok());
    match number {
        Some(number) if number > 0.0 => Ok(number),
        _ => Err(format!("callgrind counted nothing for {stack}: {text}")),
    }
}
