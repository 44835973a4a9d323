//! JSON: the first byte chooses between a dictionary and a list.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let mut file = vec![if first % 2 == 1 { b'{' } else { b'[' }];
    file.extend_from_slice(rest);
    oomph_fuzz::check(&file);
});
