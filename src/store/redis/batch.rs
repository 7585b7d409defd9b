//! Several questions as one call of one script: what is waiting at one moment goes together.

use std::{collections::HashMap, sync::Arc, sync::atomic::Ordering};

use ::redis::Cmd;

use super::{
    numbers::double,
    script::{BATCH, DECIDE, Doubles, Script, begin, call},
    ticket::Ticket,
};

/// How many questions go together at most: the server does nothing else meanwhile.
const AT_ONCE: usize = 32;
/// How many keys, and kinds of charges, a byte can number.
const NUMBERED: usize = u8::MAX as usize;

/// Questions that go to the server together.
pub(super) struct Batch {
    pub(super) tickets: Vec<Arc<Ticket>>,
}

impl Batch {
    /// Takes from the front of `waiting` what goes together next, without those that nobody waits for any more; `None`
    /// where nothing is left.
    pub(super) fn next(waiting: &mut std::vec::IntoIter<Arc<Ticket>>) -> Option<Self> {
        let (mut tickets, mut rules) = (Vec::new(), 0);
        while let Some(ticket) = waiting.as_slice().first() {
            let (more, alone) = (ticket.question().asked.len(), ticket.is_alone());
            if !tickets.is_empty() && (tickets.len() == AT_ONCE || alone || rules + more > NUMBERED) {
                break;
            }
            rules += more;
            tickets.extend(waiting.next().filter(|ticket| ticket.begin()));
            if alone && !tickets.is_empty() {
                break;
            }
        }
        (!tickets.is_empty()).then_some(Self { tickets })
    }

    /// Which script decides it.
    pub(super) fn script(&self) -> &'static Script {
        if self.tickets.len() > 1 { &BATCH } else { &DECIDE }
    }

    /// Returns the call that asks; `life` is a number that no bucket has as its life yet, nor those behind it.
    pub(super) fn call(&self, longer: u64, life: u64) -> Cmd {
        match self.tickets.as_slice() {
            [ticket] => alone(ticket, longer, life),
            tickets => together(tickets, longer, life),
        }
    }
}

fn alone(ticket: &Ticket, longer: u64, life: u64) -> Cmd {
    let question = ticket.question();
    let mut command = call(&DECIDE, question.asked.len());
    for name in question.names() {
        command.arg(name);
    }
    let late = question.late.load(Ordering::Relaxed);
    let mut args = begin(question.asked.len(), late, question.judged, life, longer);
    args.append(question.charges.as_bytes());
    command.arg(args.as_bytes());
    command
}

/// The distinct ones of some byte strings, numbered from 1.
#[derive(Default)]
struct Numbered<'a> {
    numbers: HashMap<&'a [u8], u8>,
    list: Vec<&'a [u8]>,
}

impl<'a> Numbered<'a> {
    fn number(&mut self, bytes: &'a [u8]) -> u8 {
        let next = u8::try_from(self.list.len() + 1).unwrap_or(u8::MAX);
        *self.numbers.entry(bytes).or_insert_with(|| {
            self.list.push(bytes);
            next
        })
    }
}

fn together(tickets: &[Arc<Ticket>], longer: u64, life: u64) -> Cmd {
    let (mut keys, mut charges) = (Numbered::default(), Numbered::default());
    let rules = || tickets.iter().flat_map(|ticket| ticket.question().rules());
    // The script fetches all buckets at once, so they come first.
    let mut refers: Vec<[u8; 2]> = rules()
        .map(|(kind, name, charge)| [if kind.is_bucket() { keys.number(name) } else { 0 }, charges.number(charge)])
        .collect();
    let fetched = keys.list.len();
    for ((_, name, _), [key, _]) in rules().zip(&mut refers).filter(|(_, [key, _])| *key == 0) {
        *key = keys.number(name);
    }
    let late = |ticket: &Ticket| ticket.question().late.load(Ordering::Relaxed);
    let timed = tickets.iter().any(|ticket| ticket.question().judged.is_some());

    let mut args = Doubles::with_room_for(7 + 6 * charges.list.len() + 4 * tickets.len());
    for count in [tickets.len(), fetched, charges.list.len()] {
        args.push_whole(count as u64);
    }
    args.push_whole(tickets.iter().map(|ticket| late(ticket)).min().unwrap_or(0));
    args.push_whole(timed.into());
    args.push_whole(life.min((1 << 53) - 1 - AT_ONCE as u64));
    args.push_whole(longer);
    charges.list.iter().for_each(|charge| args.append(charge));
    for ticket in tickets {
        args.push_whole(late(ticket));
        args.push(ticket.question().judged.map_or(-1.0, double));
    }
    let mut refers = refers.iter();
    for ticket in tickets {
        let rules = ticket.question().asked.len();
        args.append(&[u8::try_from(rules).unwrap_or(u8::MAX)]);
        refers.by_ref().take(rules).for_each(|refer| args.append(refer));
    }

    let mut command = call(&BATCH, keys.list.len());
    keys.list.iter().for_each(|name| {
        command.arg(*name);
    });
    command.arg(args.as_bytes());
    command
}
