//! What a layer adds to a request, in time and in allocations.

use crate::{
    allocator,
    harness::{Contestant, Report, Scale, interleave},
    stacks::{self, Place, Stack},
};

pub fn run(scale: Scale, report: &mut Report) {
    time(scale, report);
    allocations(report);
}

fn time(scale: Scale, report: &mut Report) {
    let places = [Place::Direct, Place::Router];
    let times = places.map(|place| {
        let contestants = stacks::ALL.iter().map(|stack| {
            let (mut send, status) = (stack.send(place), stack.status);
            Contestant::timed(move |count| {
                for _ in 0..count {
                    assert_eq!(send(), status);
                }
            })
        });
        interleave(&mut contestants.collect::<Vec<_>>(), scale.pick(15, 31), scale.pick(1_500, 20_000))
    });
    report.table("A request through a layer, ns, the request's own making included", &["direct", "router"]);
    for (at, stack) in stacks::ALL.iter().enumerate() {
        report.row(stack.name, &[times[0][at], times[1][at]]);
    }
    for (place, times) in places.into_iter().zip(&times) {
        let of = |name: &str| times[position(name)];
        let suffix = if place == Place::Direct { "" } else { "_router" };
        report.ratio(format!("refused_time{suffix}"), of("refused_tollgate_x"), of("refused_tower_governor"));
        report.ratio(
            format!("refused_time{suffix}_ietf_over_headers"),
            of("refused_tollgate_ietf"),
            of("refused_tower_governor_headers"),
        );
        report.ratio(
            format!("refused_time{suffix}_less_request"),
            of("refused_tollgate_x") - of("unsent"),
            of("refused_tower_governor") - of("unsent"),
        );
        report.ratio(format!("refused_time{suffix}_over_pass"), of("refused_tollgate_x"), of("tollgate_x"));
        for peer in ["rate_net", "axum_governor", "tower_rate_tier"] {
            let theirs = of(&format!("refused_{peer}"));
            report.ratio(format!("refused_time{suffix}_over_{peer}"), of("refused_tollgate_x"), theirs);
        }
        for (ours, theirs) in PAIRS {
            report.ratio(
                format!("layer_time{suffix}_{ours}_over_{theirs}"),
                of(&format!("tollgate_{ours}")),
                of(theirs),
            );
        }
    }
}

/// Like with like: our fields, and the peer that tells as much.
const PAIRS: [(&str, &str); 7] = [
    ("off", "tower_governor"),
    ("off", "rate_net"),
    ("x", "tower_governor_headers"),
    ("ietf", "tower_governor_headers"),
    ("ietf", "rate_net_headers"),
    ("ietf", "axum_governor"),
    ("x", "tower_rate_tier"),
];

pub fn position(name: &str) -> usize {
    stacks::ALL.iter().position(|stack| stack.name == name).unwrap_or_else(|| panic!("there is no stack {name}"))
}

/// Allocations of one request, over no layer; in a router over an identity layer, which is what any layer costs there.
fn allocations(report: &mut Report) {
    report.table(
        "Allocations by a layer, over none (direct) or over an identity layer (router)",
        &Place::ALL.map(Place::name),
    );
    let counts = Place::ALL.map(|place| stacks::ALL.iter().map(|stack| asked(stack, place)).collect::<Vec<_>>());
    for (at, stack) in stacks::ALL.iter().enumerate() {
        let over: Vec<_> = Place::ALL
            .into_iter()
            .zip(&counts)
            .map(|(place, counts)| {
                let base = match place {
                    // A refusal never reaches the inner service, so what that allocates is not taken off.
                    Place::Direct => 0.0,
                    Place::DirectWithField if stack.status == 200 => counts[position("none")],
                    Place::DirectWithField => 0.0,
                    Place::Router => counts[position("identity")],
                };
                counts[at] - base
            })
            .collect();
        report.row(stack.name, &over);
        for (place, over) in Place::ALL.into_iter().zip(over) {
            report.value("allocations", &format!("{}_{}", place.name(), stack.name), over);
        }
    }
}

/// Returns how often one request asks for memory, beyond what making the request itself takes.
fn asked(stack: &Stack, place: Place) -> f64 {
    const REQUESTS: u64 = 1_000;
    let of = |stack: &Stack, place| {
        let mut send = stack.send(place);
        let mut count = || {
            let before = allocator::asked();
            for _ in 0..REQUESTS {
                send();
            }
            allocator::asked() - before
        };
        // Counted the second time: what a stack makes once, or what another one has left, is not what a request costs.
        count();
        count() as f64 / REQUESTS as f64
    };
    // The same request is made everywhere.
    of(stack, place) - of(stacks::by_name("none"), Place::Direct)
}
