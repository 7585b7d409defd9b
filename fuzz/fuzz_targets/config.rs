//! Rule files: never a panic, problems with places inside the text, and what is accepted comes back and can be built.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::{
    Limiter,
    config::{Code, Format, Registry, check},
};

fuzz_target!(|text: &str| {
    for format in [Format::Toml, Format::Json] {
        match check(text, format) {
            Ok(rules) => {
                let json = serde_json::to_string(&rules).expect("plain data");
                assert_eq!(check(&json, Format::Json).expect("what was accepted is accepted again"), rules);
                match rules.build(&Registry::<()>::new()) {
                    // The limiter's own checks find nothing that this did not; only a fallback needs another store.
                    Ok(rules) => {
                        if let Err(error) = Limiter::builder(rules).build() {
                            assert_eq!(error.field(), "on_store_failure", "{error}");
                        }
                    }
                    Err(problems) => assert!(problems.iter().all(|problem| problem.code() == Code::UnknownName)),
                }
            }
            Err(problems) => {
                let lines = text.split('\n').count();
                assert!(problems.iter().len() > 0);
                assert!(problems.iter().filter_map(|problem| problem.line()).all(|line| (1..=lines).contains(&line)));
            }
        }
    }
});
