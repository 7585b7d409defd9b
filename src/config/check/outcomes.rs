use super::{
    super::{problem::Code, resolve::Alternative},
    Checker,
};

impl Checker<'_> {
    /// What is said of how a request is answered.
    pub(super) fn outcomes(&mut self, one: &Alternative<'_>) {
        if one.amount().0.in_flight.is_some() {
            let own = one.own;
            let said = [
                ("count_only", own.count_only.is_some()),
                ("give_back", own.give_back.is_some()),
                ("give_back_unanswered", own.give_back_unanswered.is_some()),
            ];
            for (name, _) in said.iter().filter(|(_, said)| *said) {
                let text = "not beside `in_flight`, whose places are free when the request has ended, however it was answered; drop it";
                self.wrong(Code::Conflict, format!("{}.{name}", one.path), text);
            }
            return;
        }
        let (entry, path) = one.outcomes();
        let is_there = |name: &str| self.is_there(&format!("{path}.{name}"));
        match (&entry.count_only, &entry.give_back, entry.give_back_unanswered) {
            (Some(_), Some(_), _) => {
                let text =
                    "not beside `count_only`, since the two may contradict each other; keep one, or make two policies";
                self.wrong(Code::Conflict, format!("{path}.give_back"), text);
            }
            (None, None, Some(_)) if !is_there("count_only") && !is_there("give_back") => {
                let text = "it says nothing without `count_only` or `give_back`; say one of them, or drop it";
                self.wrong(Code::MissingField, format!("{path}.give_back_unanswered"), text);
            }
            _ => {}
        }
    }
}
