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

pub fn run(_: Scale, report: &mut Report) {
    report.table("Bytes per key", &SIZES.map(|size| size.to_string()).each_ref().map(String::as_str));
    let mut bytes = Vec::new();
    for (name, make, stream) in CASES {
        let sizes = SIZES.map(|size| per_key(make, &stream((0..size).collect())));
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

fn per_key(make: Make, stream: &Stream) -> f64 {
    let before = allocator::held();
    let subject = make(Quota::PLENTY);
    // What is there before the first key counts too: small tables are not to be cheap by being large from the start.
    let passed = subject.on(stream).run(0, stream.len(), false);
    assert_eq!(passed, stream.len(), "{} refused a first request", subject.name());
    let held = allocator::held() - before;
    held as f64 / stream.len() as f64
}
