//! What is kept for a key, and for how long.

use tollgate::{
    Decision,
    store::{MemoryStore, Overflow},
};

use crate::engine::{Bench, Kind, S, at, per};

fn untracked(decision: &Decision) -> bool {
    decision.tightest().unwrap().verdict.untracked
}

/// B57, librefang/librefang#3668, AaronErhardt/actix-governor#60: the map only grew.
#[test]
pub(crate) fn a_million_keys_seen_once_leave_nothing_behind() {
    let bench = Bench::new(Kind::TokenBucket, per(10, S));
    for client in 0..1_000_000 {
        assert!(bench.check_as(client, 0, 1).is_allowed());
    }
    assert_eq!(bench.store.tracked_keys(), 1_000_000);
    assert_eq!(bench.store.sweep(at(S / 10 - 1)), 0); // each is one token short until then
    assert_eq!(bench.store.sweep(at(2 * S)), 1_000_000);
    assert_eq!(bench.store.tracked_keys(), 0);
}

#[test]
pub(crate) fn every_strategy_forgets_a_key_exactly_when_it_answers_as_a_new_one() {
    for (kind, fresh_at) in [
        (Kind::TokenBucket, S / 10),
        (Kind::FixedWindow, S),
        (Kind::SlidingWindowLog, S),
        (Kind::SlidingWindowCounter, 2 * S),
        (Kind::LeakyBucket, S / 10),
    ] {
        let bench = Bench::new(kind, per(10, S));
        for client in 0..1_000 {
            assert!(bench.check_as(client, 0, 1).is_allowed());
        }
        assert_eq!(bench.store.sweep(at(fresh_at - 1)), 0, "{kind:?}");
        assert_eq!(bench.store.sweep(at(fresh_at)), 1_000, "{kind:?}");
        assert_eq!(bench.store.tracked_keys(), 0, "{kind:?}");
    }
}

/// Nobody has to sweep: keys that come pay for those that have gone.
#[test]
pub(crate) fn a_stream_of_new_keys_does_not_grow_without_a_sweep() {
    for kind in Kind::REFUSING {
        let bench = Bench::new(kind, per(10, S));
        for client in 0..20_000 {
            // 1,000 new keys a second, of which each is fresh again within two.
            assert!(bench.check_as(client, client * S / 1_000, 1).is_allowed());
        }
        assert!(bench.store.tracked_keys() < 8_000, "{kind:?}: {}", bench.store.tracked_keys());
    }
}

/// B57, boinkor-net/governor#171, SweetSophia/noosphere#276: a flood threw out busy keys and gave them a fresh start.
#[test]
pub(crate) fn a_flood_of_new_keys_resets_nobody_and_stays_within_the_cap() {
    const VICTIM: u64 = u64::MAX;
    for (overflow, keys) in [(Overflow::Share(16), 1_000_000), (Overflow::Refuse, 100_000)] {
        let store = MemoryStore::builder().max_keys(10_000).overflow(overflow).build();
        let bench = Bench::on(store, [Kind::TokenBucket.rule("rule", per(10, S))]);
        assert!(bench.check_as(VICTIM, 0, 10).is_allowed());
        let mut passed_untracked = 0;
        for client in 0..keys {
            let decision = bench.check_as(client, 0, 1);
            passed_untracked += u64::from(decision.is_allowed() && untracked(&decision));
            if client % 1_000 == 0 {
                assert!(bench.store.tracked_keys() <= 10_000);
                assert!(!bench.check_as(VICTIM, 0, 1).is_allowed());
            }
        }
        assert_eq!(bench.store.tracked_keys(), 10_000);
        assert!(!bench.check_as(VICTIM, 0, 1).is_allowed());
        // What has no place gets the answer that was chosen, and not a bucket each.
        let bound = if overflow == Overflow::Refuse { 0 } else { 16 * 10 };
        assert_eq!(passed_untracked, bound, "{overflow:?}");
        let newcomer = bench.check_as(u64::MAX - 1, 0, 1);
        assert_eq!((newcomer.status().as_u16(), untracked(&newcomer)), (503, true));

        // (c) The room returns: at 0.1 s those who spent one token are fresh, and at 2 s the victim is.
        assert!(bench.store.sweep(at(S / 10)) >= 9_999);
        assert!(bench.store.tracked_keys() <= 1);
        assert!(bench.check_as(VICTIM, S / 10, 1).is_allowed());
        assert!(!bench.check_as(VICTIM, S / 10, 1).is_allowed());
        bench.store.sweep(at(2 * S));
        assert_eq!(bench.store.tracked_keys(), 0);
        for client in 0..10_000 {
            assert!(!untracked(&bench.check_as(client, 2 * S, 1)));
        }
    }
}

#[test]
pub(crate) fn at_the_cap_fresh_keys_go_first_without_being_asked() {
    let store = MemoryStore::builder().max_keys(1_000).build();
    let bench = Bench::on(store, [Kind::TokenBucket.rule("rule", per(10, S))]);
    for client in 0..1_000 {
        assert!(!untracked(&bench.check_as(client, 0, 1)));
    }
    let shared = (1_000..2_000).filter(|client| untracked(&bench.check_as(*client, S, 1))).count();
    assert!(bench.store.tracked_keys() <= 1_000);
    // All of the first thousand are fresh at 1 s; their room goes to the next, but for the first few who look for it.
    assert!(shared <= 20, "{shared} of 1000 found no room");
}

#[test]
pub(crate) fn refused_and_looking_clients_get_no_entry() {
    for kind in Kind::ALL {
        let bench = Bench::of([kind.rule("narrow", per(5, S)), kind.rule("wide", per(9, S))]);
        for client in 0..1_000 {
            assert!(!bench.check_as(client, 0, 6).is_allowed());
            assert!(bench.check_as(client, 0, 0).is_allowed());
        }
        assert_eq!(bench.store.tracked_keys(), 0, "{kind:?}");
    }
}
