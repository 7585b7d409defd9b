//! What a check costs as keys become more: beside a floor, which has the same caches to miss.

use tollgate::{Key, key::KeyId, store::Store};

use crate::{
    harness::{Contestant, Random, Report, Scale, fence, interleave},
    subjects::{Direct, Floor, Quota},
};

pub fn run(scale: Scale, report: &mut Report) {
    let sizes: &[u32] = if scale.quick {
        &[1_000, 10_000, 100_000, 1_000_000]
    } else {
        &[1_000, 10_000, 100_000, 1_000_000, 10_000_000]
    };
    let times: Vec<_> = sizes.iter().map(|size| at_size(*size, scale)).collect();
    let columns: Vec<_> = sizes.iter().map(u32::to_string).collect();
    report.table("A check with so many keys, fenced, ns", &columns.iter().map(String::as_str).collect::<Vec<_>>());
    report.row("tollgate decide, ready key", &times.iter().map(|[ours, _]| *ours).collect::<Vec<_>>());
    report.row("floor", &times.iter().map(|[_, floor]| *floor).collect::<Vec<_>>());
    for (size, pair) in sizes.iter().zip(times.windows(2)) {
        let [[ours, floor], [more_ours, more_floor]] = pair else { panic!("windows of two") };
        // How much dearer ten times as many keys make a check, over how much dearer they make the floor.
        report.ratio(format!("growth_{size}_to_tenfold_beyond_floor"), more_ours / ours, more_floor / floor);
        report.ratio(format!("tenfold_{size}_whole"), *more_ours, *ours);
    }
}

fn at_size(keys: u32, scale: Scale) -> [f64; 2] {
    let direct = Direct::of(Quota::PLENTY, 20_000_000);
    let floor = Floor::new(keys as usize);
    let mut order: Vec<_> = (0..keys).collect();
    Random::new(21).shuffle(&mut order);
    let id = |key: &u32| Key::from(*key).id(direct.store.secret());
    for key in &order {
        assert!(direct.decide(id(key)), "a first request was refused");
    }
    Random::new(22).shuffle(&mut order);
    let ids: Vec<_> = order.iter().map(id).collect();
    let (mut at, mut floor_at) = (0, 0);
    let mut contestants = [
        Contestant::timed(|count| each(&ids, &mut at, count, |id| assert!(direct.decide(*id)))),
        Contestant::timed(|count| {
            each(&ids, &mut floor_at, count, |id| assert!(floor.touch_bits(u128::from_le_bytes(id.to_bytes()))));
        }),
    ];
    let times = interleave(&mut contestants, scale.pick(5, 11), scale.pick(30_000, 300_000));
    times.try_into().expect("two contestants")
}

#[inline(always)]
fn each(ids: &[KeyId], at: &mut usize, count: usize, check: impl Fn(&KeyId)) {
    for _ in 0..count {
        check(&ids[*at]);
        *at = if *at + 1 == ids.len() { 0 } else { *at + 1 };
        fence();
    }
}
