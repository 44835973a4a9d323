//! A file as it comes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| oomph_fuzz::check(bytes));
