//! Every labelled program, judged by what `oomph report --json` says about it.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository is there")
}

/// A recording with its label.
struct Program {
    name: String,
    label: Value,
    device: Value,
}

impl Program {
    fn findings(&self) -> &[Value] {
        self.device["findings"].as_array().expect("findings")
    }

    fn leaks(&self) -> impl Iterator<Item = &Value> {
        self.findings().iter().filter(|finding| finding["kind"] == "leak")
    }

    fn rows(&self) -> &[Value] {
        self.label["rows"].as_array().expect("rows")
    }

    fn marks(&self, name: &str) -> Vec<u64> {
        let marks = self.label["marks"][name].as_array();
        marks.map(|lines| lines.iter().filter_map(Value::as_u64).collect()).unwrap_or_default()
    }

    /// Bytes that a row adds over the later half of the run: exact where the label says so, otherwise by least squares.
    fn late_slope(&self) -> f64 {
        if let Some(exact) = self.label["leak_bytes_per_step"].as_f64() {
            return exact;
        }
        let rows = self.rows();
        let late = rows.len() / 2..rows.len();
        let points: Vec<(f64, f64)> =
            late.map(|row| (row as f64, rows[row]["allocated"].as_f64().expect("allocated"))).collect();
        let mean = |values: &dyn Fn(&(f64, f64)) -> f64| {
            points.iter().map(values).sum::<f64>() / points.len() as f64
        };
        let (x, y) = (mean(&|point| point.0), mean(&|point| point.1));
        let above: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
        let below: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
        above / below
    }
}

/// All programs of a folder of fixtures.
fn programs(folder: &str) -> Vec<Program> {
    let folder = root().join("fixtures").join(folder);
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .expect("fixtures are there")
        .filter_map(|entry| {
            entry.expect("readable").file_name().to_str()?.strip_suffix(".truth.json").map(str::to_owned)
        })
        .collect();
    names.sort();
    names
        .into_iter()
        .map(|name| {
            let label = std::fs::read_to_string(folder.join(format!("{name}.truth.json"))).expect("a label");
            let output = Command::new(env!("CARGO_BIN_EXE_oomph"))
                .args(["report", "--json"])
                .arg(folder.join(format!("{name}.pickle.xz")))
                .output()
                .expect("oomph runs");
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
            let mut report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            Program {
                name,
                label: serde_json::from_str(&label).expect("a label is JSON"),
                device: report["inputs"][0]["devices"][0].take(),
            }
        })
        .collect()
}

/// What is wrong with the report on a program, if anything.
fn complaint(program: &Program) -> Option<String> {
    let kind = program.label["kind"].as_str().expect("a kind");
    let own = match kind {
        "leak" | "cycle" => return leak_complaint(program),
        "clean" => None,
        "stream" => Some("pending"),
        "graph" => Some("private_pool"),
        _ if kind.starts_with("oom-") => return oom_complaint(program, kind),
        kind => Some(kind),
    };
    if let Some(leak) = program.leaks().find(|leak| leak["severity"] != "low") {
        return Some(format!("called a leak: {}", leak["summary"]));
    }
    let own = own?;
    let first: Vec<&Value> = program.findings().iter().take(2).map(|finding| &finding["kind"]).collect();
    (!first.iter().any(|found| *found == own))
        .then(|| format!("expected {own} first or second, found {first:?}"))
}

/// The leak has to be at a marked line, with the label's slope. Where a step of ours is not a row of the label (several
/// micro-batches, several trials), the slope is per row.
fn leak_complaint(program: &Program) -> Option<String> {
    let mut lines = program.marks("leak-alloc");
    lines.extend(program.marks("leak-backward"));
    let slope = program.late_slope();
    let steps = program.device["steps"]["count"].as_f64().expect("a count");
    let rows_a_step = program.rows().len() as f64 / steps;
    let rows_a_step = if (rows_a_step - 1.0).abs() < 0.1 { 1.0 } else { rows_a_step };
    let found: Vec<(u64, f64)> = program
        .leaks()
        .map(|leak| {
            let pace = leak["bytes_per_step"].as_f64().expect("a pace") / rows_a_step;
            (leak["site"]["line"].as_u64().unwrap_or(0), pace)
        })
        .collect();
    let is_right = |&(line, pace): &(u64, f64)| lines.contains(&line) && (pace - slope).abs() <= 0.05 * slope;
    if !found.iter().any(is_right) {
        return Some(format!("expected {slope:.0} bytes a row at lines {lines:?}, found {found:?}"));
    }
    let wanted = program.label["severity"].as_str()?;
    let severity = program.leaks().next()?["severity"].as_str()?;
    (severity != wanted).then(|| format!("expected severity {wanted}, found {severity}"))
}

fn oom_complaint(program: &Program, kind: &str) -> Option<String> {
    let first = program.findings().first()?;
    let cause = if kind == "oom-fragmentation" { "fragmentation" } else { "capacity" };
    if first["kind"] != "oom" || first["cause"] != cause {
        return Some(format!(
            "expected an oom by {cause} first, found {} by {}",
            first["kind"], first["cause"]
        ));
    }
    if kind == "oom-leak" {
        let lines = program.marks("leak-alloc");
        let leak = program.leaks().find(|leak| lines.contains(&leak["site"]["line"].as_u64().unwrap_or(0)));
        return leak.is_none().then(|| "the leak behind it is missing".to_owned());
    }
    None
}

#[allow(clippy::print_stderr)] // the score is for whoever runs the test
#[track_caller]
fn check_all(folder: &str, fewest: usize) -> Vec<Program> {
    let programs = programs(folder);
    let mut wrong = Vec::new();
    let mut table = String::new();
    for program in &programs {
        let complaint = complaint(program);
        let kind = program.label["kind"].as_str().expect("a kind");
        let verdict = complaint.as_deref().unwrap_or("ok");
        let steps = format!("{}/{}", program.device["steps"]["count"], program.rows().len());
        table.push_str(&format!("{:<26} {kind:<18} steps {steps:<8} {verdict}\n", program.name));
        wrong.extend(complaint.map(|complaint| format!("{}: {complaint}", program.name)));
    }
    // nextest and `cargo test -- --nocapture` show it.
    eprintln!("{table}{folder}: {} of {} right", programs.len() - wrong.len(), programs.len());
    assert!(programs.len() >= fewest, "only {} programs", programs.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    programs
}

#[test]
fn the_zoo_is_explained() {
    let programs = check_all("zoo", 17);
    let steps_differ =
        programs.iter().filter(|program| program.device["steps"]["count"] != program.rows().len()).count();
    // A captured graph shows no loop, and a run that dies has one step more than it finished.
    assert!(steps_differ <= 2, "{steps_differ} programs with other steps than rows");
}

#[test]
fn other_programs_of_these_kinds_are_explained() {
    check_all("field", 107);
}

#[test]
fn the_batch_that_does_not_fit_is_named() {
    let programs = programs("zoo");
    let program =
        programs.iter().find(|program| program.label["kind"] == "oom-capacity").expect("such a program");
    let oom = &program.findings()[0];
    assert!(oom["summary"].as_str().expect("a summary").contains("activations"), "{oom}");
    assert_eq!(oom["site"]["line"], 13);
    let asked = oom["evidence"]["requested"].as_f64().expect("bytes") / 1024.0 / 1024.0;
    let message = program.label["oom_message"].as_str().expect("a message");
    assert!(message.contains(&format!("Tried to allocate {asked:.2} MiB")), "{asked} {message}");
    let limit = program.label["limit"].as_u64().expect("a limit");
    let usable = oom["evidence"]["usable_at_least"].as_u64().expect("bytes");
    assert!(usable <= limit && limit < usable + (256 << 20), "{usable} {limit}");
}

#[test]
fn the_memory_of_known_models_is_told_apart() {
    let programs = programs("zoo");
    for (name, parameters, states) in
        [("clean_gpt2_hf", 124_439_808, 2), ("clean_resnet50_amp", 25_557_032, 1)]
    {
        let program = programs.iter().find(|program| program.name == name).expect("it is there");
        let categories = &program.device["categories"];
        for (category, expected) in [
            ("parameter", 4 * parameters),
            ("gradient", 4 * parameters),
            ("optimizer", 4 * states * parameters),
        ] {
            let found = categories[category].as_f64().expect("bytes");
            let off = (found - f64::from(expected)).abs() / f64::from(expected);
            assert!(off < 0.02, "{name}: {category} is {found}, expected {expected}");
        }
        let at_peak = program.device["categories_at_peak"].as_object().expect("categories");
        let sum: u64 = at_peak.values().filter_map(Value::as_u64).sum();
        assert_eq!(sum, program.device["allocated"]["peak"].as_u64().expect("bytes"), "{name}");
    }
}

#[test]
fn every_finding_has_what_the_contract_promises() {
    for program in programs("zoo") {
        for finding in program.findings() {
            let text = |key: &str| finding[key].as_str().unwrap_or_default().to_owned();
            for key in ["kind", "severity", "severity_reason", "summary", "fix"] {
                assert!(!text(key).is_empty(), "{}: {key} of {finding}", program.name);
            }
            assert!(finding["bytes"].is_u64() && finding["count"].is_u64(), "{}", program.name);
            assert!(
                finding["evidence"].as_object().is_some_and(|evidence| evidence.len() >= 2),
                "{}",
                program.name
            );
            assert!(finding["caveats"].is_array(), "{}", program.name);
            assert_eq!(finding["cause"].is_string(), text("kind") == "oom", "{}", program.name);
            assert_eq!(finding["bytes_per_step"].is_u64(), text("kind") == "leak", "{}", program.name);
        }
    }
}
