use super::*;
use crate::{
    bucket::{Algorithm, TokenBucket},
    charge::{RuleSpec, Slot},
    key::Key,
    key::Secret,
    observe::Held,
    store::{
        MemoryStore, Store,
        memory::{Bound, Overflow, Place, line::Table},
    },
};

const NOW: Nanos = Nanos::from_secs(1_700_000_000);
const BOUND: Bound = Bound { max_keys: 4_000, overflow: Overflow::Share(1) };

fn spec(permits: u64) -> RuleSpec {
    RuleSpec::new("r", Algorithm::TokenBucket, Limit::per_hour(permits))
}

/// A place under a limit, which says that the limit is the rule's own.
fn slot(permits: u64) -> Slot {
    let spec = spec(permits);
    let table = Table::new(&spec, BOUND, None);
    Slot::new(Place { told: Held::new(spec.name.clone()), name: spec.name, limit: spec.limit, table })
}

fn table() -> ShardedTable<TokenBucket> {
    let spec = spec(10);
    ShardedTable::new(
        TokenBucket,
        Make { spec: &spec, bound: BOUND, kin: Kin::new(BOUND.max_keys), line: Line::behind(None) },
    )
}

fn take(table: &ShardedTable<TokenBucket>, slot: &Slot, key: u64, permits: u64) -> u64 {
    let key = Key::from(key).id(&Secret::new([7; 16]));
    let charge = Charge::new(slot, key, Limit::per_hour(permits), 1);
    let mut verdicts = Verdicts::new();
    if table.visit_alone(NOW, &charge, &mut verdicts) == Alone::Untidy {
        table.tidy(key, NOW);
    }
    verdicts.iter().next().unwrap().verdict.remaining
}

/// How many keys are in the dense tables of the present limit, and how many beside them.
fn kept(table: &ShardedTable<TokenBucket>) -> (usize, usize) {
    let shards = table.shards().iter().map(|shard| shard.buckets.lock());
    shards.fold((0, 0), |(dense, all), buckets| {
        (dense + buckets.dense.len(), all + buckets.keys(table).len() - buckets.dense.len())
    })
}

#[test]
fn keys_go_over_to_the_dense_table_of_a_new_limit_as_they_come() {
    let (table, first, second) = (table(), slot(10), slot(20));
    for key in 0..3_000 {
        assert_eq!(take(&table, &first, key, 10), 9);
    }
    // What finds a dense table full goes into it with its next decision.
    for left in [18, 17] {
        for key in 0..2_999 {
            assert_eq!(take(&table, &second, key, 20), left);
        }
    }
    assert_eq!(kept(&table), (2_999, 1));
    assert_eq!((take(&table, &second, 2_999, 20), take(&table, &second, 2_999, 20)), (18, 17));
    assert_eq!(take(&table, &second, 3_000, 20), 19);
    assert_eq!((kept(&table), table.base.kin.count.get()), ((3_001, 0), 3_001));
}

#[test]
fn another_limit_for_some_requests_is_kept_beside() {
    let (table, own) = (table(), slot(10));
    assert_eq!((take(&table, &own, 1, 10), take(&table, &own, 2, 20)), (9, 19));
    assert_eq!(kept(&table), (1, 1));
    assert_eq!((take(&table, &own, 1, 20), take(&table, &own, 2, 10)), (18, 8));
    assert_eq!(kept(&table), (1, 1));
}

#[test]
fn limits_that_change_again_and_again_lose_no_key() {
    let table = table();
    for key in 0..200 {
        assert_eq!(take(&table, &slot(10), key, 10), 9);
    }
    for turn in 0..20 {
        let permits = 11 + turn % 7;
        assert_eq!(take(&table, &slot(permits), turn, permits), permits - 2, "{turn}");
    }
    let (dense, beside) = kept(&table);
    assert_eq!(dense + beside, 200);
    // What finds a dense table full goes into it with its next decision.
    for left in [48, 47] {
        for key in 20..200 {
            assert_eq!(take(&table, &slot(50), key, 50), left);
        }
    }
    assert_eq!((kept(&table).0, table.base.kin.count.get()), (180, 200));
    assert_eq!(table.sweep(NOW.saturating_add(Nanos::from_secs(3_600))), 200);
    assert_eq!(kept(&table), (0, 0));
}

#[test]
fn a_bound_that_is_none_makes_a_table_that_can_be_made() {
    let (spec, bound) = (spec(10), Bound { max_keys: usize::MAX, ..BOUND });
    let kin = Kin::new(bound.max_keys);
    let table = ShardedTable::new(TokenBucket, Make { spec: &spec, bound, kin, line: Line::behind(None) });
    let own = slot(10);
    assert_eq!((take(&table, &own, 1, 10), take(&table, &own, 1, 10)), (9, 8));
    assert_eq!(table.shards().len(), MOST_SHARDS);
}

#[test]
fn what_was_charged_to_a_key_of_its_own_does_not_come_back_to_those_who_share_a_bucket() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindowLog] {
        let store = MemoryStore::builder().max_keys(1).overflow(Overflow::Share(1)).build();
        let limit = Limit::per_hour(10);
        let slot = store.bind(&RuleSpec::new("r", algorithm.clone(), limit), None).unwrap();
        let key = |key: u64| Key::from(key).id(store.secret());
        let take = |who: u64, cost| {
            let mut verdicts = Verdicts::new();
            drop(store.decide(NOW, &[Charge::new(&slot, key(who), limit, cost)], &mut verdicts));
            *verdicts.iter().next().unwrap()
        };
        let own = take(1, 5);
        // One that shares a bucket uses all of it; then nobody has a place of his own.
        assert!(take(2, 10).mark.is_some() && take(2, 1).mark.is_none());
        drop(store.reset(&slot, key(1)));
        let mut taken = Taken::new(slot.clone(), key(1), limit, 5, own.mark.unwrap());
        taken.stamp = own.stamp;
        store.adjust(NOW, &mut taken, 0);
        assert!(take(2, 1).mark.is_none(), "{algorithm:?}");
    }
}
