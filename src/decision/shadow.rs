use smallvec::SmallVec;

use super::{Decision, Mode, Outcome, Refusal, Ruling, Source, Verdict, Wait};
use crate::{limit::Limit, observe::Counter};

/// The rules of a decision that do not enforce.
#[derive(Debug, Clone, Default)]
pub(super) struct Tried(SmallVec<[Trial; 2]>);

/// What a rule that does not enforce says of a request.
#[derive(Debug, Clone, Copy)]
struct Trial {
    ruling: Ruling,
    /// Where among those that enforce the rule stands beside which it is tried.
    beside: Option<usize>,
}

/// What a rule that does not [enforce](Mode) says of a request, as [`Decision::shadows`] lists it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ShadowVerdict<'a> {
    /// The rule's name.
    pub rule: &'a str,
    /// Whether it watches or warns.
    pub mode: Mode,
    /// The name of the rule beside which it is tried ([`Rule::shadow_of`](crate::Rule::shadow_of)).
    pub live: Option<&'a str>,
    /// What this request costs under the rule.
    pub cost: u64,
    /// The limit that the rule would have in force for this request.
    pub limit: Limit,
    /// What it says, and its numbers.
    pub verdict: Verdict,
    compared: Option<Compared>,
}

/// How a rule that does not enforce differs from what is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Difference {
    /// The request passes, and would not if the rule enforced; or if it did in the place of the one that it is tried
    /// beside.
    WouldRefuse,
    /// The request is refused by the rule beside which this one is tried, and by no other, and would pass if this one
    /// stood in its place.
    WouldPass,
}

/// What two rules say of a request that nobody else refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compared {
    BothPass,
    BothRefuse,
    Differ(Difference),
}

/// How often a rule that does not [enforce](Mode) agreed with what is in force, and how often it did not:
/// [`Limiter::differences`](crate::Limiter::differences).
///
/// Only requests that every other rule which enforces let pass are counted: the others would have been refused one way
/// or the other. A rule that is not tried beside [another](crate::Rule::shadow_of) is compared with all that enforce,
/// so it counts only what they let pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Differences {
    /// Requests that passed, and would have.
    pub both_pass: u64,
    /// Requests that were refused by the rule beside which this one is tried, and would have been by this one.
    pub both_refuse: u64,
    /// Requests that passed, and would not have: [`Difference::WouldRefuse`].
    pub would_refuse: u64,
    /// Requests that were refused, and would not have been: [`Difference::WouldPass`].
    pub would_pass: u64,
}

/// [`Differences`] as they are counted.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    both_pass: Counter,
    both_refuse: Counter,
    would_refuse: Counter,
    would_pass: Counter,
}

impl Tally {
    pub(crate) fn get(&self) -> Differences {
        Differences {
            both_pass: self.both_pass.get(),
            both_refuse: self.both_refuse.get(),
            would_refuse: self.would_refuse.get(),
            would_pass: self.would_pass.get(),
        }
    }
}

impl ShadowVerdict<'_> {
    /// Returns whether the rule would refuse the request.
    pub fn would_refuse(&self) -> bool {
        !self.verdict.outcome.passes()
    }

    /// Returns how what the rule says differs from what is in force. `None` where it does not, where another rule
    /// refuses the request anyway, or where nobody counted, since the store did not answer.
    pub fn difference(&self) -> Option<Difference> {
        match self.compared {
            Some(Compared::Differ(difference)) => Some(difference),
            _ => None,
        }
    }

    /// How long a client would have to wait, in whole seconds, where the rule refuses and knows.
    pub(crate) fn wait_secs(&self) -> Option<u64> {
        match self.verdict.outcome {
            Outcome::Refuse(Wait::For(wait)) => Some(wait.as_secs_ceil().max(1)),
            _ => None,
        }
    }

    pub(crate) fn count(&self, tally: &Tally) {
        match self.compared {
            Some(Compared::BothPass) => tally.both_pass.add_one(),
            Some(Compared::BothRefuse) => tally.both_refuse.add_one(),
            Some(Compared::Differ(Difference::WouldRefuse)) => tally.would_refuse.add_one(),
            Some(Compared::Differ(Difference::WouldPass)) => tally.would_pass.add_one(),
            None => {}
        }
    }
}

impl Decision {
    /// Returns what the rules say that applied and do not [enforce](Mode): those of
    /// [`Rule::shadow`](crate::Rule::shadow), [`Rule::warn`](crate::Rule::warn) and
    /// [`Rule::shadow_of`](crate::Rule::shadow_of). Nothing else in a decision depends on them. None where a request
    /// was refused before anything was counted, for a missing key.
    pub fn shadows(&self) -> impl Iterator<Item = ShadowVerdict<'_>> {
        self.trials().iter().map(|trial| self.shadow(trial))
    }

    /// The numbers of the rules that do not enforce, and what they say.
    pub(crate) fn numbered_shadows(&self) -> impl Iterator<Item = (usize, ShadowVerdict<'_>)> {
        self.trials().iter().map(|trial| (trial.ruling.rule(), self.shadow(trial)))
    }

    /// Adds a rule that applies and does not enforce, before it has answered: tried beside the one at `beside` of those
    /// that enforce.
    pub(crate) fn ask_tried(&mut self, ruling: Ruling, beside: Option<usize>) {
        self.tried.get_or_insert_default().0.push(Trial { ruling, beside });
    }

    /// Those that do not enforce.
    pub(crate) fn tried(&self) -> impl Iterator<Item = &Ruling> {
        self.trials().iter().map(|trial| &trial.ruling)
    }

    #[inline]
    pub(crate) fn has_shadows(&self) -> bool {
        self.tried.is_some()
    }

    #[inline]
    fn trials(&self) -> &[Trial] {
        self.tried.as_ref().map_or(&[], |tried| &tried.0)
    }

    /// Takes the answers of those that do not enforce. Returns whether there was one for each.
    #[cold]
    pub(super) fn answer_tried<'a>(&mut self, mut verdicts: impl Iterator<Item = &'a Verdict>) -> bool {
        let Some(tried) = &mut self.tried else { return true };
        for trial in tried.0.iter_mut().filter(|trial| trial.ruling.is_usable()) {
            let Some(verdict) = verdicts.next() else { return false };
            trial.ruling.answer(verdict);
        }
        true
    }

    /// Says that the store did not answer, and only rules that do not enforce had asked it.
    pub(crate) fn unanswered_tried(&mut self) {
        let trials = self.tried.iter_mut().flat_map(|tried| &mut tried.0);
        for trial in trials.filter(|trial| trial.ruling.is_usable()) {
            trial.ruling.answer(&Verdict::new(Outcome::Pass, 0, 0, None).from_source(Source::Policy));
        }
    }

    fn shadow(&self, trial: &Trial) -> ShadowVerdict<'_> {
        let info = self.infos().get(trial.ruling.rule());
        let beside = trial.beside.and_then(|at| self.rulings.get(at));
        ShadowVerdict {
            rule: info.map_or("", |info| &info.name),
            mode: info.map_or(Mode::Shadow, |info| info.mode),
            live: beside.and_then(|live| self.infos().get(live.rule())).map(|info| &*info.name),
            cost: trial.ruling.cost,
            limit: info.map_or(Limit::per_second(0), |info| trial.ruling.limit(info)),
            verdict: trial.ruling.verdict(),
            compared: self.compare(trial),
        }
    }

    /// `None` where others refuse too, or nobody counted.
    fn compare(&self, trial: &Trial) -> Option<Compared> {
        let others_refuse = |(at, ruling): (usize, &Ruling)| trial.beside != Some(at) && !ruling.passes();
        if matches!(self.refusal, Some(Refusal::StoreFailed | Refusal::MissingKey { .. }))
            || self.rulings.iter().enumerate().any(others_refuse)
        {
            return None;
        }
        let says = |ruling: &Ruling| (ruling.source().has_numbers() || !ruling.passes()).then(|| ruling.passes());
        let live = match trial.beside {
            Some(at) => says(self.rulings.get(at)?)?,
            None => true,
        };
        Some(match (live, says(&trial.ruling)?) {
            (true, true) => Compared::BothPass,
            (false, false) => Compared::BothRefuse,
            (true, false) => Compared::Differ(Difference::WouldRefuse),
            (false, true) => Compared::Differ(Difference::WouldPass),
        })
    }
}
