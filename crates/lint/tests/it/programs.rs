//! Recorded programs: leaks are reported at a line that their authors marked, clean programs are not
//! reported.

use lint::{Diagnostic, PythonSource, RULES, check};
use std::path::PathBuf;

/// Leaks that are not visible in the source: what is kept looks as intended, or its size is known at run time
/// only.
const NOT_VISIBLE: &[(&str, &str)] = &[
    ("leak_noise_seq", "a copy of one weight, reached through five attributes of a library's model"),
    (
        "leak_scalar_log",
        "detached numbers, 512 bytes each: what the linter itself advises where `.item()` would wait",
    ),
    ("leak_server_requests", "objects of the caller that get their tensors later"),
];

/// Programs without growth that nevertheless waste memory.
const CLEAN_AND_WASTEFUL: &[(&str, &str)] = &[
    ("clean_amsgrad_bf16", "gradients-zeroed-in-place"),
    ("leak_running_total", "loss-accumulated-with-graph"),
    ("no_zero_grad", "gradients-never-reset"),
];

struct Program {
    name: String,
    source: PythonSource,
    found: Vec<Diagnostic>,
    /// Lines with `@leak-hold` or `@leak-alloc`.
    marked: Vec<usize>,
}

fn programs() -> Vec<Program> {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let mut programs = Vec::new();
    for folder in ["programs", "field/programs"] {
        for file in std::fs::read_dir(fixtures.join(folder)).expect("the fixtures") {
            let path = file.expect("a file").path();
            if path.extension().is_none_or(|ending| ending != "py") {
                continue;
            }
            let source = PythonSource::python(&std::fs::read(&path).expect("readable"));
            let found = check(&source, RULES).expect("Python");
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let lines = source.text().lines().enumerate();
            let marked =
                lines.filter(|(_, line)| line.contains("@leak-hold") || line.contains("@leak-alloc"));
            let marked = marked.map(|(at, _)| at + 1).collect();
            programs.push(Program { name, found, marked, source });
        }
    }
    assert!(programs.len() > 100, "{} programs", programs.len());
    programs
}

#[test]
fn leaks_are_reported_at_a_marked_line() {
    let mut missed = Vec::new();
    for program in programs().iter().filter(|program| !program.marked.is_empty()) {
        let lines: Vec<usize> =
            program.found.iter().map(|one| program.source.place(one.range.start).line).collect();
        if !lines.iter().any(|line| program.marked.contains(line)) {
            missed.push(program.name.clone());
        }
    }
    missed.sort();
    assert_eq!(missed, NOT_VISIBLE.iter().map(|(name, _)| *name).collect::<Vec<_>>());
}

#[test]
fn clean_programs_are_not_reported() {
    let is_clean = |program: &&Program| {
        program.name.starts_with("clean") || CLEAN_AND_WASTEFUL.iter().any(|(name, _)| program.name == *name)
    };
    let mut said = Vec::new();
    for program in programs().iter().filter(is_clean) {
        said.extend(program.found.iter().map(|one| (program.name.clone(), one.rule.name)));
    }
    said.sort();
    let expected: Vec<(String, &str)> =
        CLEAN_AND_WASTEFUL.iter().map(|(name, rule)| ((*name).to_owned(), *rule)).collect();
    assert_eq!(said, expected);
}
