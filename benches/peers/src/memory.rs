//! Bytes per key, counted by the allocator: what was requested, growth's slack included.

use crate::{
    allocator,
    harness::{Report, Scale},
    keys::Stream,
    subjects::{self, Quota, Subject},
};

type Make = fn(Quota) -> Box<dyn Subject>;

const SIZES: [u32; 5] = [10_000, 30_000, 100_000, 300_000, 1_000_000];

type Case = (&'static str, Make, fn(Vec<u32>) -> Stream);

/// How many of the cases are compared with each other: ours, and as many of governor.
const COMPARED: usize = 6;

const CASES: [Case; 8] = [
    ("tollgate, 14-byte text", subjects::ours_whole_text, Stream::of),
    ("tollgate, 64-byte text", subjects::ours_whole_text, Stream::of_long_texts),
    ("tollgate, address", subjects::ours_whole_address, Stream::of),
    ("governor, 14-byte text", subjects::governor_text, Stream::of),
    ("governor, 64-byte text", subjects::governor_text, Stream::of_long_texts),
    ("governor, address", subjects::governor_address, Stream::of),
    ("rate-net, 14-byte text", subjects::rate_net_text, Stream::of),
    ("rate-net, 64-byte text", subjects::rate_net_text, Stream::of_long_texts),
];

pub fn run(scale: Scale, report: &mut Report) {
    report.table("Bytes per key", &SIZES.map(|size| size.to_string()).each_ref().map(String::as_str));
    let mut bytes = Vec::new();
    // What no ratio is made of waits for a run that has the time.
    let cases = scale.pick(&CASES[..COMPARED], &CASES);
    for (name, make, stream) in cases {
        let sizes = per_key(*make, &stream((0..SIZES[SIZES.len() - 1]).collect()));
        report.row(name, &sizes);
        bytes.push(sizes);
    }
    for (at, size) in SIZES.into_iter().enumerate() {
        for (case, ours, theirs) in [("text_14", 0, 3), ("text_64", 1, 4), ("address", 2, 5)] {
            report.value("bytes_per_key", &format!("tollgate_{case}_{size}"), bytes[ours][at]);
            report.ratio(format!("bytes_{case}_{size}"), bytes[ours][at], bytes[theirs][at]);
        }
    }
}

/// Fills one store and looks at it at each size on the way.
fn per_key(make: Make, stream: &Stream) -> [f64; SIZES.len()] {
    let before = allocator::held();
    let subject = make(Quota::PLENTY);
    let store = allocator::held() - before;
    let checks = subject.on(stream);
    // The stream's keys, where they are made ready, are no part of the store.
    let made_ready = allocator::held();
    let mut seen = 0;
    SIZES.map(|size| {
        let more = size as usize - seen;
        assert_eq!(checks.run(seen, more, false), more, "{} refused a first request", subject.name());
        seen += more;
        // What was there before the first key counts too: a store is not to be small by being large from the start.
        (store + allocator::held() - made_ready) as f64 / f64::from(size)
    })
}
