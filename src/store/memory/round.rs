//! One request's visit to the tables of its rules.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Place,
    line::Table,
    table::{Alone, Settled},
    together,
};
use crate::{
    charge::{Charge, Judged, Verdicts},
    decision::{Outcome, Verdict},
    error::StoreError,
    key::KeyId,
    store::Reply,
    time::Nanos,
};

fn place<'a>(charge: &Charge<'a>) -> Result<&'a Place, StoreError> {
    charge.slot.get::<Place>().ok_or_else(|| StoreError::new("a slot of another kind of store").of_one_request())
}

/// Decides in whatever way it takes.
#[inline(never)]
pub(super) fn decide(now: Nanos, charges: &[Charge<'_>], verdicts: &mut Verdicts) -> Reply<(), Verdicts> {
    let decided = match charges {
        [charge] => decide_alone(now, charge, verdicts),
        _ => decide_together(now, charges, verdicts),
    };
    Reply::Ready(match decided {
        Ok(true) => Ok(()),
        Ok(false) => decide_elsewhere(now, charges, verdicts),
        Err(error) => Err(error),
    })
}

/// A request with one charge, which has nobody to wait for. Returns false where another of the rule's tables has to
/// decide.
fn decide_alone(now: Nanos, charge: &Charge<'_>, verdicts: &mut Verdicts) -> Result<bool, StoreError> {
    let table = &place(charge)?.table.buckets;
    match table.visit_alone(now, charge, verdicts) {
        Alone::Judged => {}
        Alone::Untidy => table.tidy(charge.key, now),
        Alone::Elsewhere => return Ok(false),
    }
    Ok(true)
}

/// A request with several charges. Returns false where another of a rule's tables has to decide.
fn decide_together(now: Nanos, charges: &[Charge<'_>], verdicts: &mut Verdicts) -> Result<bool, StoreError> {
    let mut order = Order::new();
    for (at, charge) in charges.iter().enumerate() {
        order.push((at, &*place(charge)?.table));
    }
    put_in_order(&mut order)?;
    Ok(together::decide(now, charges, &order, verdicts) || Round::new(now, charges, order, verdicts).run())
}

/// The tables that a request's charges are of, by the numbers of the charges.
pub(super) type Order<'a> = SmallVec<[(usize, &'a Table); 4]>;

/// Puts tables in the order in which they are locked.
fn put_in_order(order: &mut Order<'_>) -> Result<(), StoreError> {
    let ascends = |order: &Order<'_>| {
        order.is_sorted_by(|(_, one), (_, next)| one.order() < next.order() && !one.is_kin_of(next))
    };
    if !ascends(order) {
        order.sort_unstable_by_key(|(_, table)| table.order());
        if !ascends(order) {
            // A second lock on the same table could wait for the first for ever.
            return Err(StoreError::new("two charges of one request on one rule").of_one_request());
        }
    }
    Ok(())
}

/// Asks the tables that decide now, because a rule counts by another algorithm since its place was given out.
#[cold]
fn decide_elsewhere<'a>(now: Nanos, charges: &[Charge<'a>], verdicts: &mut Verdicts) -> Result<(), StoreError> {
    let mut in_charge = Vec::new();
    for charge in charges {
        in_charge.push(Arc::clone(&place(charge)?.table));
    }
    loop {
        in_charge = in_charge.iter().map(Table::in_charge).collect();
        let limited =
            |(charge, table): (&Charge<'a>, &Arc<Table>)| Charge { limit: table.limit_of(charge.limit), ..*charge };
        let charges: SmallVec<[Charge<'_>; 4]> = charges.iter().zip(&in_charge).map(limited).collect();
        let mut order: Order<'_> = in_charge.iter().map(|table| &**table).enumerate().collect();
        put_in_order(&mut order)?;
        if Round::new(now, &charges, order, verdicts).run() {
            return Ok(());
        }
    }
}

/// What stands for an answer until it is there.
pub(super) fn pending() -> Judged {
    Judged::new(Verdict::new(Outcome::Pass, 0, 0, None), None)
}

/// One request's charges, in the order in which their tables are locked.
struct Round<'a> {
    now: Nanos,
    charges: &'a [Charge<'a>],
    order: Order<'a>,
    verdicts: &'a mut Verdicts,
    untidy: SmallVec<[(KeyId, &'a Table); 4]>,
    /// Whether keys for which there was no room have to take what the overflow policy gives them.
    final_try: bool,
    /// Whether another of a rule's tables has to decide.
    elsewhere: bool,
    against: Against,
}

/// Which of a request's charges refuse it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Against {
    Nobody,
    /// This one alone.
    One(usize),
    Several,
}

impl Against {
    fn and(self, at: usize) -> Self {
        if self == Self::Nobody { Self::One(at) } else { Self::Several }
    }

    /// How a charge is settled: one that stands in another's place as if that one had not refused.
    fn settles(self, charge: &Charge<'_>) -> Settled {
        match self {
            Self::Nobody => Settled::Passed,
            Self::One(at) if charge.in_place_of == Some(at) => Settled::Passed,
            Self::One(_) | Self::Several => Settled::Refused,
        }
    }
}

impl<'a> Round<'a> {
    fn new(now: Nanos, charges: &'a [Charge<'a>], order: Order<'a>, verdicts: &'a mut Verdicts) -> Self {
        verdicts.fill(pending(), charges.len());
        let (untidy, against) = (SmallVec::new(), Against::Nobody);
        Self { now, charges, order, verdicts, untidy, final_try: false, elsewhere: false, against }
    }

    /// Returns false where another of a rule's tables has to decide; nothing was charged then.
    fn run(mut self) -> bool {
        if !self.visit(0) && !self.elsewhere {
            // Nothing was charged. Make room with no lock held, then ask again.
            for (at, table) in &self.order {
                if let Some(charge) = self.charges.get(*at) {
                    table.buckets.make_room(charge.key, self.now);
                }
            }
            (self.final_try, self.against) = (true, Against::Nobody);
            self.visit(0);
            for (at, table) in &self.order {
                if self.verdicts.iter().nth(*at).is_some_and(|judged| judged.verdict.untracked) {
                    table.buckets.report_full();
                }
            }
        }
        for (key, table) in &self.untidy {
            table.buckets.tidy(*key, self.now);
        }
        !self.elsewhere
    }

    /// Locks and looks at the buckets from `depth` on, and on the way back charges them, or none. Returns whether there
    /// was room for all; where there was not, nothing is charged.
    fn visit(&mut self, depth: usize) -> bool {
        let Some(&(at, table)) = self.order.get(depth) else { return true };
        let Some(&charge) = self.charges.get(at) else { return false };
        let (now, final_try) = (self.now, self.final_try);
        let visit = table.buckets.visit(now, &charge, true, final_try, &mut |passes| {
            if !passes {
                self.against = self.against.and(at);
            }
            if self.visit(depth + 1) { self.against.settles(&charge) } else { Settled::NoRoom }
        });
        if visit.settled == Settled::Elsewhere {
            self.elsewhere = true;
            return false;
        }
        self.verdicts.set(at, visit.judged);
        if visit.untidy {
            self.untidy.push((charge.key, table));
        }
        visit.settled != Settled::NoRoom
    }
}
