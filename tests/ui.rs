//! The three mistakes that newcomers make, what the compiler says of each, and beside it what they meant.
//!
//! After a change of the texts: `TRYBUILD=overwrite cargo test --test ui`, and read the difference.

#[path = "ui/fixed/closure_without_a_type.rs"]
mod closure_with_a_type;
#[path = "ui/fixed/not_http_without_refuse_with.rs"]
mod not_http_with_refuse_with;
#[path = "ui/fixed/key_instead_of_option.rs"]
mod option_of_a_key;

#[test]
fn the_compiler_tells_newcomers_the_way_out() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}

#[test]
fn each_way_out_is_one() {
    // Compiled with this file and not by trybuild, which could then no longer only check its cases.
    closure_with_a_type::main();
    not_http_with_refuse_with::main();
    option_of_a_key::main();
}
