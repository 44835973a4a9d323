//! A log: whatever it holds, every message in it has an answer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for message in analysis::messages::find_messages(bytes) {
        let explanation = message.explain();
        assert!(!explanation.summary.is_empty() && !explanation.steps.is_empty());
        message.parts();
    }
    let mut reader = analysis::serving::LogReader::default();
    reader.read(bytes);
    if let Some(report) = reader.finish(None).2 {
        assert!(!report.verdict.summary.is_empty() && !report.verdict.fix.is_empty());
    }
});
