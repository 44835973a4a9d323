//! Python source, or a notebook: whatever it is, the linter has an answer or says why it is not Python, and what its fixes make
//! of a program is a program.
#![no_main]

use lint::{PythonSource, RULES, check};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some(notebook) = PythonSource::notebook(bytes) {
        let _ = check(&notebook, RULES);
    }
    let source = PythonSource::python(bytes);
    let Ok(found) = check(&source, RULES) else { return };
    for one in &found {
        assert!(one.range.end as usize <= source.text().len() && !one.message.is_empty());
        source.place(one.range.start);
    }
    let fixed = lint::fix(source, found, RULES, lint::Applicability::Unsafe, |_| true);
    let again = check(&fixed.source, RULES).expect("a fix leaves Python");
    assert!(again.len() == fixed.left.len());
});
