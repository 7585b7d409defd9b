//! Limits as text: never a panic, and what is read is what would be written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::Limit;

fuzz_target!(|text: &str| match text.parse::<Limit>() {
    Ok(limit) => assert_eq!(limit.to_string().parse(), Ok(limit)),
    Err(error) => assert!(error.to_string().starts_with("limit \"")),
});
