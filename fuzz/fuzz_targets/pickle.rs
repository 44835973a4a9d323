//! A pickle: whatever the fuzzer makes of it, the machine is what reads it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut file = vec![0x80, 4];
    file.extend_from_slice(bytes);
    oomph_fuzz::check(&file);
});
