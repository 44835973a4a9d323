//! A log: whatever it holds, every message in it has an answer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for message in analysis::message::messages(bytes) {
        let verdict = message.verdict();
        assert!(!verdict.summary.is_empty() && !verdict.steps.is_empty());
        message.parts();
    }
});
