//! Every rule against its own examples, and against text that is not a program.

use lint::{Diagnostic, PythonSource, RULES, Rule, check};
use proptest::prelude::*;

/// Definitions that the examples assume.
const PRELUDE: &str = "\
import collections, copy, functools, gc, random
import torch
import torch.nn.functional as F
from functools import lru_cache
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM

steps, val_loss, hidden = 8, 0, None
values = torch.zeros(steps, device='cuda')

";

fn source(example: &str) -> PythonSource {
    PythonSource::python(format!("{PRELUDE}{}\n", example.trim()).as_bytes())
}

fn found(rule: &'static Rule, source: &PythonSource) -> Vec<Diagnostic> {
    check(source, &[rule])
        .unwrap_or_else(|error| panic!("{}: {}\n{}", rule.name, error.message, source.text()))
}

#[test]
fn every_rule_reports_its_bad_example_and_not_its_good_one() {
    let mut wrong = Vec::new();
    for rule in RULES {
        if found(rule, &source(rule.bad)).is_empty() {
            wrong.push(format!("{} {} does not report its bad example", rule.code, rule.name));
        }
        for diagnostic in found(rule, &source(rule.good)) {
            wrong.push(format!(
                "{} {} reports its good example: {}",
                rule.code, rule.name, diagnostic.message
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_finding_has_a_position_and_advice() {
    for rule in RULES {
        let source = source(rule.bad);
        for diagnostic in found(rule, &source) {
            assert!(!diagnostic.message.is_empty() && !diagnostic.advice.is_empty(), "{}", rule.name);
            assert!(diagnostic.severity <= rule.severity, "{}: more severe than the rule", rule.name);
            for range in [diagnostic.range].iter().chain(&diagnostic.related) {
                let text = source.text().get(range.start as usize..range.end as usize);
                assert!(text.is_some_and(|text| !text.is_empty()), "{}: {range:?}", rule.name);
            }
        }
    }
}

#[test]
fn a_fix_leaves_valid_python_without_the_finding() {
    let mut fixes = 0;
    for rule in RULES {
        for diagnostic in found(rule, &source(rule.bad)) {
            if diagnostic.fix.is_none() {
                continue;
            }
            fixes += 1;
            let before = source(rule.bad);
            let line = before.line_of(diagnostic.range.start).to_owned();
            let fixed = lint::fix(
                before,
                vec![diagnostic],
                &[rule],
                &lint::Imports::default(),
                lint::Applicability::Unsafe,
                |_| true,
            );
            assert_eq!(fixed.count, 1, "{}: the fix was not applied", rule.name);
            let after = fixed.source.text();
            let left = found(rule, &fixed.source);
            let is_left = |left: &Diagnostic| fixed.source.line_of(left.range.start) == line;
            assert!(!left.iter().any(is_left), "{}: still reported: `{line}`\n{after}", rule.name);
        }
    }
    assert!(fixes >= 5, "{fixes} fixes");
}

#[test]
fn applying_all_fixes_terminates() {
    for rule in RULES {
        let before = source(rule.bad);
        let all = check(&before, RULES).expect("Python");
        let fixed =
            lint::fix(before, all, RULES, &lint::Imports::default(), lint::Applicability::Unsafe, |_| true);
        let again = check(&fixed.source, RULES).expect("Python");
        assert_eq!(again, fixed.left, "{}", rule.name);
        let text = fixed.source.text().to_owned();
        let twice = lint::fix(
            fixed.source,
            again,
            RULES,
            &lint::Imports::default(),
            lint::Applicability::Unsafe,
            |_| true,
        );
        assert_eq!((twice.count, twice.source.text()), (0, &*text), "{}: fixed twice", rule.name);
    }
}

#[test]
fn rules_have_distinct_codes_and_names() {
    for pair in RULES.windows(2) {
        assert!(pair[0].code < pair[1].code, "{} and {}", pair[0].code, pair[1].code);
    }
    for rule in RULES {
        let means: Vec<&str> =
            RULES.iter().filter(|other| other.is_selected_by(rule.name)).map(|other| other.name).collect();
        assert_eq!(means, [rule.name]);
        assert!(rule.summary.ends_with('.'), "{}: `says` is a sentence", rule.name);
    }
}

fn example() -> impl Strategy<Value = String> {
    (0..RULES.len(), any::<bool>()).prop_map(|(place, is_bad)| {
        let rule = RULES[place];
        format!("{PRELUDE}{}", if is_bad { rule.bad } else { rule.good })
    })
}

fn text(character: impl Strategy<Value = char>, length: usize) -> impl Strategy<Value = String> {
    proptest::collection::vec(character, 0..=length).prop_map(String::from_iter)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_text_is_survived(text in text(any::<char>(), 200)) {
        let _ = check(&PythonSource::python(format!("import torch\n{text}").as_bytes()), RULES);
    }

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = check(&PythonSource::python(&[b"import torch\n", &*bytes].concat()), RULES);
        let _ = PythonSource::notebook(&bytes);
    }

    /// Lines are removed, duplicated, indented and swapped; most results are still valid Python.
    #[test]
    fn any_changed_example_is_survived(
        text in example(),
        other in example(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), 0..5u8), 0..6),
    ) {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let others: Vec<&str> = other.lines().collect();
        for (place, change) in changes {
            if lines.is_empty() {
                break;
            }
            let at = place.index(lines.len());
            match change {
                0 => drop(lines.remove(at)),
                1 => lines.insert(at, lines[at].clone()),
                2 => lines[at].insert_str(0, "    "),
                3 => lines[at] = others[place.index(others.len())].to_owned(),
                _ => lines[at] = lines[at].trim_start().to_owned(),
            }
        }
        let source = PythonSource::python(lines.join("\n").as_bytes());
        if let Ok(found) = check(&source, RULES) {
            lint::fix(source, found, RULES, &lint::Imports::default(), lint::Applicability::Unsafe, |_| true);
        }
    }

    #[test]
    fn any_truncated_example_is_survived(
        text in example(),
        cut in any::<proptest::sample::Index>(),
        put in text(proptest::sample::select("()[]{}:,.='\"\\ \n\tλ".chars().collect::<Vec<_>>()), 3),
    ) {
        let mut at = cut.index(text.len() + 1);
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let (start, end) = text.split_at(at);
        let _ = check(&PythonSource::python(start.as_bytes()), RULES);
        let _ = check(&PythonSource::python(format!("{start}{put}{end}").as_bytes()), RULES);
    }
}
