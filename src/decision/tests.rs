use super::*;

fn decide(rows: &[(Outcome, u64, u64)]) -> Decision {
    let rules = (0..rows.len())
        .map(|at| RuleInfo {
            name: format!("r{at}").into(),
            overload: at == 1,
            limit: Limit::per_second(100),
            mode: Mode::Enforce,
            live: None,
            unknown_wait_secs: 1,
        })
        .collect::<Arc<[_]>>();
    let mut decision = Decision::undecided(Arc::clone(&rules));
    let verdicts: Vec<_> =
        rows.iter().map(|&(outcome, remaining, _)| Verdict::new(outcome, 100, remaining, None)).collect();
    for (rule, &(_, _, cost)) in rows.iter().enumerate() {
        decision.ask(Ruling::asked(rule, cost, None, true));
    }
    assert!(decision.answer(&rules, &verdicts));
    decision.decided_at(Nanos::ZERO);
    decision
}

const PASS: Outcome = Outcome::Pass;
const NEVER: Outcome = Outcome::Refuse(Wait::Never);
const UNKNOWN: Outcome = Outcome::Refuse(Wait::Unknown);

fn wait(secs: u64) -> Outcome {
    Outcome::Refuse(Wait::For(Nanos::from_secs(secs)))
}

#[test]
fn tells_the_tightest_rule() {
    for (rows, tightest) in [
        (vec![(PASS, 5, 1), (PASS, 4, 1)], "r1"),
        (vec![(PASS, 5, 1), (PASS, 5, 1)], "r0"),
        (vec![(PASS, 4, 1), (PASS, 7, 2)], "r1"),
        (vec![(PASS, 0, 0), (PASS, 0, 9)], "r0"),
        (vec![(PASS, 0, 1), (wait(1), 3, 1)], "r1"),
        (vec![(wait(5), 0, 1), (wait(1), 0, 1)], "r0"),
        (vec![(wait(1), 0, 1), (NEVER, 9, 1), (wait(5), 0, 1)], "r1"),
        (vec![(UNKNOWN, 0, 1), (wait(1), 0, 1)], "r1"),
        (vec![(wait(1), 0, 1), (wait(1), 0, 1)], "r0"),
    ] {
        assert_eq!(decide(&rows).tightest().unwrap().rule, tightest, "{rows:?}");
    }
    assert!(decide(&[]).tightest().is_none());
}

#[test]
fn answers_429_if_any_refusing_rule_is_not_overload() {
    assert_eq!(decide(&[(PASS, 1, 1), (wait(1), 0, 1)]).status(), 503);
    assert_eq!(decide(&[(wait(1), 0, 1), (wait(1), 0, 1)]).status(), 429);
    assert_eq!(decide(&[(PASS, 1, 1), (wait(1), 0, 1), (wait(1), 0, 1)]).status(), 429);
    assert_eq!(decide(&[(PASS, 1, 1)]).status(), 200);
}

#[test]
fn waits_for_the_longest_and_never_wins() {
    assert_eq!(decide(&[(wait(1), 0, 1), (wait(5), 0, 1)]).retry_after_secs(), Some(5));
    assert_eq!(decide(&[(wait(9), 0, 1), (NEVER, 0, 1)]).retry_after_secs(), None);
    assert_eq!(decide(&[(wait(9), 0, 1), (NEVER, 0, 1)]).wait(), Some(Wait::Never));
    assert_eq!(decide(&[(UNKNOWN, 0, 1)]).retry_after_secs(), Some(1));
    assert_eq!(decide(&[(UNKNOWN, 0, 1)]).retry_after(), None);
    assert_eq!(decide(&[(UNKNOWN, 0, 1), (wait(9), 0, 1)]).retry_after_secs(), Some(9));
    assert_eq!(decide(&[(PASS, 1, 1)]).retry_after_secs(), None);
}
