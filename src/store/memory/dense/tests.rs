use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::key::{Key, Secret};

impl Words for [u32; 1] {
    type Align = [u32; 0];
}

/// Hashes that fall on eight homes, the last ones among them, so that runs are long and go around the end.
fn crowding(number: u64) -> u64 {
    match number % 8 {
        0..4 => 0xffff_ffff,
        home => home << 29,
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// Inserts or changes a key: the word says until when it is worth keeping.
    Put(u64, u32),
    Remove(u64),
    Rebuild,
    /// Time moves on: what was worth keeping until before is as good as absent.
    Pass(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0_u64..60, 0_u32..40).prop_map(|(key, until)| Step::Put(key, until)),
        3 => (0_u64..60).prop_map(Step::Remove),
        1 => Just(Step::Rebuild),
        1 => (1_u32..10).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..300)
}

proptest! {
    /// A plain map, of which entries may go once their time has passed, says the same of every key at every step.
    #[test]
    fn says_what_a_plain_map_says(steps in steps()) {
        let secret = Secret::new([1; 16]);
        let id = |number: u64| Key::from(number).id(&secret);
        let numbers: HashMap<[u8; 16], u64> = (0..60).map(|number| (id(number).to_bytes(), number)).collect();
        let hash_of = |key: KeyId| crowding(numbers[&key.to_bytes()]);
        let (mut dense, mut plain, mut now) = (Dense::<[u32; 1]>::new(), HashMap::<u64, u32>::new(), 0);
        for step in steps {
            match step {
                Step::Put(number, lasts) => {
                    let until = now + lasts;
                    let hash = crowding(number);
                    match dense.find(id(number), hash) {
                        Some(at) => dense.set(at, 7, [until]),
                        None => {
                            let mut vacancy = dense.vacancy(hash, |slot| slot.words[0] <= now);
                            if vacancy == Vacancy::None {
                                dense.rebuild(|slot| slot.words[0] > now, hash_of);
                                vacancy = dense.vacancy(hash, |_| false);
                            }
                            dense.insert(vacancy, Slot::new(id(number), 7, [until]));
                        }
                    }
                    plain.insert(number, until);
                }
                Step::Remove(number) => {
                    if let Some(at) = dense.find(id(number), crowding(number)) {
                        dense.remove(at, hash_of);
                    }
                    plain.remove(&number);
                }
                Step::Rebuild => {
                    dense.rebuild(|slot| slot.words[0] > now, hash_of);
                    plain.retain(|_, until| *until > now);
                    prop_assert_eq!(dense.len(), plain.len());
                }
                Step::Pass(time) => now += time,
            }
            for number in 0..60 {
                let held = dense.find(id(number), crowding(number)).and_then(|at| dense.get(at));
                let worth = held.filter(|slot| slot.words[0] > now);
                prop_assert_eq!(worth.map(|slot| slot.words[0]), plain.get(&number).copied().filter(|until| *until > now));
                prop_assert!(held.is_none_or(|slot| slot.key() == id(number)));
            }
            prop_assert_eq!(dense.slots_mut().count(), dense.len());
            prop_assert!(dense.len() == 0 || dense.len() < dense.slots.len());
        }
    }
}

#[test]
fn takes_32_bytes_a_slot_for_three_words_and_36_for_four() {
    assert_eq!((size_of::<Slot<[u32; 3]>>(), size_of::<Slot<[u32; 4]>>()), (32, 36));
    assert_eq!((align_of::<Slot<[u32; 3]>>(), align_of::<Slot<[u32; 4]>>()), (32, 4));
}

#[test]
fn a_table_that_fewer_keys_use_than_before_becomes_small_again() {
    let secret = Secret::new([1; 16]);
    let hash_of = |key: KeyId| u64::from(key.to_bytes()[1]) << 24 | u64::from(key.to_bytes()[2]) << 16;
    let mut dense = Dense::<[u32; 1]>::new();
    for number in 0..20_000_u64 {
        // A thousand keys at a time at first, then ten.
        let (now, lasts) = if number < 10_000 { (number, 1_000) } else { (number, 10) };
        let key = Key::from(number).id(&secret);
        let absent = |slot: &Slot<[u32; 1]>| u64::from(slot.words[0]) <= now;
        let vacancy = dense.vacancy(hash_of(key), absent);
        let until = u32::try_from(now + lasts).unwrap();
        let fits = vacancy != Vacancy::None;
        if !fits || dense.is_crowded() {
            dense.rebuild(|slot| !absent(slot), hash_of);
        }
        let vacancy = dense.vacancy(hash_of(key), absent);
        dense.insert(vacancy, Slot::new(key, 0, [until]));
        if number == 9_999 {
            assert!((1_000..2_600).contains(&dense.slots.len()), "{}", dense.slots.len());
        }
    }
    assert!(dense.slots.len() < 50, "{}", dense.slots.len());
}
