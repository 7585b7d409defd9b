//! What a decision costs, without any HTTP.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    first_seen,
    harness::{Contestant, Report, Scale, interleave},
    keys::Stream,
    subjects::{self, Checks, Quota, Subject},
};

type Make = fn(Quota) -> Box<dyn Subject>;

/// Who takes part, and what place in the ratios each has.
struct Field {
    kind: &'static str,
    /// The part of the ratio's name, and who it is.
    ours: &'static [(&'static str, Make)],
    /// The first is what ours are compared with by default.
    theirs: &'static [(&'static str, Make)],
    floor: fn(usize) -> Box<dyn Subject>,
}

const FIELDS: [Field; 2] = [
    Field {
        kind: "text",
        ours: &[
            ("decide", subjects::ours_ready_text),
            ("keyed", subjects::ours_text),
            ("check", subjects::ours_whole_text),
        ],
        theirs: &[
            ("governor", subjects::governor_text),
            ("governor_built", subjects::governor_built),
            ("rate_net", subjects::rate_net_text),
            ("tier", subjects::tier_text),
        ],
        floor: subjects::floor_text,
    },
    Field {
        kind: "address",
        ours: &[
            ("decide", subjects::ours_ready_address),
            ("keyed", subjects::ours_address),
            ("check", subjects::ours_whole_address),
        ],
        theirs: &[("governor", subjects::governor_address), ("rate_net", subjects::rate_net_address)],
        floor: subjects::floor_address,
    },
];

impl Field {
    fn makes(&self) -> Vec<Make> {
        self.ours.iter().chain(self.theirs).map(|(_, make)| *make).collect()
    }

    fn subjects(&self, quota: Quota, keys: usize) -> Vec<Box<dyn Subject>> {
        let mut subjects: Vec<_> = self.makes().into_iter().map(|make| make(quota)).collect();
        subjects.push((self.floor)(keys));
        subjects
    }

    /// Notes every ratio of a case: ours over governor under the plain name, over the others and the floor by theirs.
    fn ratios(&self, report: &mut Report, case: &str, times: &[f64]) {
        let (ours, rest) = times.split_at(self.ours.len());
        let (theirs, floor) = rest.split_at(self.theirs.len());
        for ((part, _), ours) in self.ours.iter().zip(ours) {
            let name = format!("{part}_{case}_{}", self.kind);
            report.ratio(&name, *ours, theirs[0]);
            if *part == "check" {
                for ((peer, _), time) in self.theirs.iter().zip(theirs).skip(1) {
                    report.ratio(format!("{name}_over_{peer}"), *ours, *time);
                }
            }
            if let (Some(floor), "decide" | "keyed") = (floor.first(), *part) {
                report.ratio(format!("{name}_over_floor"), *ours, *floor);
            }
        }
    }
}

pub fn run(scale: Scale, report: &mut Report) {
    for field in &FIELDS {
        let extremes = extremes(field, scale, report);
        let cases = [hot(field, scale), small(field, scale), million(field, scale), extremes].concat();
        report.table(
            &format!("Decision by {}, ns per check", field.kind),
            &cases.iter().map(|(case, _)| *case).collect::<Vec<_>>(),
        );
        let mut names: Vec<_> = field.makes().iter().map(|make| make(Quota::ONE).name()).collect();
        names.push((field.floor)(1).name());
        for (at, name) in names.iter().enumerate() {
            // A floor has no refusals and sees no key for the first time.
            report.row(name, &cases.iter().map(|(_, times)| times.get(at).copied().unwrap_or(0.0)).collect::<Vec<_>>());
        }
        for (case, times) in &cases {
            field.ratios(report, case, times);
        }
    }
}

type Case = (&'static str, Vec<f64>);

/// One key that is always in the cache.
fn hot(field: &Field, scale: Scale) -> Vec<Case> {
    let (subjects, stream) = (field.subjects(Quota::PLENTY, 1), Stream::of(vec![7]));
    let count = scale.pick(40_000, 500_000);
    vec![
        ("hot", measure(&subjects, &stream, scale, count, Way::Loop)),
        ("hot_fenced", measure(&subjects, &stream, scale, count, Way::Fenced)),
        ("2_threads_hot", measure(&subjects, &stream, scale, count, Way::TwoThreads)),
    ]
}

/// 4,096 keys, which the second cache holds.
fn small(field: &Field, scale: Scale) -> Vec<Case> {
    let (subjects, stream) = (field.subjects(Quota::PLENTY, 4_096), Stream::shuffled(4_096, 1));
    fill(&subjects, &Stream::shuffled(4_096, 2));
    vec![("4096", measure(&subjects, &stream, scale, scale.pick(40_000, 500_000), Way::Loop))]
}

/// A million keys, which no cache holds.
fn million(field: &Field, scale: Scale) -> Vec<Case> {
    const KEYS: u32 = 1_000_000;
    let subjects = field.subjects(Quota::PLENTY, KEYS as usize);
    // In another order than they are asked for, so that what is near in one is not near in the other.
    fill(&subjects, &Stream::shuffled(KEYS, 3));
    let stream = Stream::shuffled(KEYS, 4);
    let count = scale.pick(20_000, 300_000);
    let mut cases = vec![
        ("1m", measure(&subjects, &stream, scale, count, Way::Loop)),
        ("1m_fenced", measure(&subjects, &stream, scale, count, Way::Fenced)),
        ("2_threads_1m", measure(&subjects, &stream, scale, count, Way::TwoThreads)),
    ];
    let stream = Stream::zipf(KEYS, 300_000, 5);
    cases.push(("zipf_fenced", measure(&subjects, &stream, scale, count, Way::Fenced)));
    cases
}

/// What peers are bad at: keys that were never seen, and clients that are refused.
fn extremes(field: &Field, scale: Scale, report: &mut Report) -> Vec<Case> {
    let makes = field.makes();
    let first_seen = first_seen::measure(field.kind, makes.len(), scale).unwrap_or_else(|why| {
        report.failure(format!("first_seen by {}: {why}", field.kind));
        vec![f64::NAN; makes.len()]
    });
    let (subjects, stream) = (makes.iter().map(|make| make(Quota::ONE)).collect::<Vec<_>>(), Stream::of(vec![7]));
    fill(&subjects, &stream);
    let count = scale.pick(40_000, 500_000);
    let refused: Vec<_> = subjects.iter().map(|subject| subject.on(&stream)).collect();
    let mut contestants: Vec<_> =
        refused.iter().map(|checks| Contestant::new(|count| timed(&**checks, 0, count, false, 0))).collect();
    vec![("first_seen", first_seen), ("refused", interleave(&mut contestants, scale.rounds(), count))]
}

/// The time that the contestant of this number takes to see `keys` keys for the first time.
pub fn sees_for_the_first_time(kind: &str, contestant: usize, keys: u32) -> Duration {
    let field = FIELDS.iter().find(|field| field.kind == kind).expect("a kind of keys");
    let (subject, stream) = (field.makes()[contestant](Quota::PLENTY), Stream::shuffled(keys, 6));
    timed(&*subject.on(&stream), 0, keys as usize, false, keys as usize)
}

/// Lets every subject see every key once. Nothing is measured here, so two threads share the work.
fn fill(subjects: &[Box<dyn Subject>], stream: &Stream) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(subject) = subjects.get(next.fetch_add(1, Ordering::Relaxed)) {
            let passed = subject.on(stream).run(0, stream.len(), false);
            assert_eq!(passed, stream.len(), "{} refused a first request", subject.name());
        }
    };
    thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
}

#[derive(Clone, Copy)]
enum Way {
    Loop,
    Fenced,
    TwoThreads,
}

fn measure(subjects: &[Box<dyn Subject>], stream: &Stream, scale: Scale, count: usize, way: Way) -> Vec<f64> {
    let ready: Vec<_> = subjects.iter().map(|subject| subject.on(stream)).collect();
    let contestants = ready.iter().map(|checks| {
        let mut from = 0;
        Contestant::new(move |count| {
            let start = from;
            from += count;
            match way {
                Way::Loop => timed(&**checks, start, count, false, count),
                Way::Fenced => timed(&**checks, start, count, true, count),
                Way::TwoThreads => on_two_threads(&**checks, start, count, stream.len()),
            }
        })
    });
    interleave(&mut contestants.collect::<Vec<_>>(), scale.rounds(), count)
}

fn timed(checks: &dyn Checks, from: usize, count: usize, fenced: bool, expected: usize) -> Duration {
    let start = Instant::now();
    let passed = checks.run(from, count, fenced);
    let time = start.elapsed();
    assert_eq!(passed, expected, "decisions that are not what they should be");
    time
}

/// Both threads do `count` checks each, on different keys where there are many; the slower one's time counts.
fn on_two_threads(checks: &dyn Checks, from: usize, count: usize, keys: usize) -> Duration {
    let start = Barrier::new(2);
    let one = |from| {
        start.wait();
        timed(checks, from, count, false, count)
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| one(from + keys / 2));
        let mine = one(from);
        mine.max(other.join().expect("the other thread ends by itself"))
    })
}
