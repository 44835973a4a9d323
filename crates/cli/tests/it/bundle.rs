//! `oomph bundle`: what goes in comes out, without names if asked for, and never larger than allowed.

use crate::common::{json, oomph, text};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use zip::ZipArchive;
use zip::write::SimpleFileOptions;

const RECORDING: &str = "fixtures/recordings/gpu";
const LEAK: &str = "fixtures/zoo/leak_infer_outputs.pickle.xz";

fn members(bundle: &Path) -> Vec<(String, Vec<u8>)> {
    let mut archive = ZipArchive::new(File::open(bundle).expect("the bundle is there")).expect("a zip");
    let all = 0..archive.len();
    all.map(|index| {
        let mut member = archive.by_index(index).expect("a member");
        let mut bytes = Vec::new();
        member.read_to_end(&mut bytes).expect("readable");
        (member.name().expect("a name").into_owned(), bytes)
    })
    .collect()
}

/// The report without the names of files.
fn report(input: &str) -> Value {
    let mut report = json(&["report", "--json", input]);
    for input in report["inputs"].as_array_mut().expect("inputs") {
        input["file"] = Value::Null;
    }
    report
}

#[test]
fn a_bundle_is_as_good_as_the_recording() {
    let folder = tempfile::tempdir().expect("a folder");
    for (index, input) in [RECORDING, LEAK].into_iter().enumerate() {
        let bundle = folder.path().join(format!("{index}.zip"));
        let bundle = bundle.to_str().expect("text");
        text(&["bundle", input, "-o", bundle]);
        assert_eq!(report(bundle), report(input), "{input}");
        let inside = members(Path::new(bundle));
        let (_, written) = inside.iter().find(|(name, _)| name == "report.json").expect("a report");
        let mut written: Value = serde_json::from_slice(written).expect("JSON");
        written["inputs"][0]["file"] = Value::Null;
        assert_eq!(written, report(input), "{input}");
    }
}

#[test]
fn an_existing_file_is_not_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.zip");
    std::fs::write(&file, "mine").expect("a file");
    let name = file.to_str().expect("text");
    assert_eq!(oomph(&["bundle", LEAK, "-o", name]).status.code(), Some(2));
    assert_eq!(std::fs::read(&file).expect("still there"), b"mine");
    text(&["bundle", LEAK, "-o", name, "--force"]);
    assert!(ZipArchive::new(File::open(&file).expect("a file")).is_ok());
}

#[test]
fn names_are_gone_and_numbers_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    for (index, (input, private)) in [
        (RECORDING, &["train.py", "python", "/home", "/tmp", "/work"][..]),
        (LEAK, &["leak_infer_outputs", "predict"][..]),
    ]
    .into_iter()
    .enumerate()
    {
        let bundle = folder.path().join(format!("{index}.zip"));
        let name = bundle.to_str().expect("text");
        text(&["bundle", "--anonymize", input, "-o", name]);
        for (member, bytes) in members(&bundle) {
            let content = String::from_utf8_lossy(&bytes);
            for word in private {
                let found =
                    content.match_indices(word).map(|(at, _)| &content[at..(at + 40).min(content.len())]);
                // Versions and Python's library are public.
                let found: Vec<_> = found
                    .filter(|text| !text.starts_with("python\"") && !text.starts_with("python3."))
                    .collect();
                assert!(found.is_empty(), "{member} has {word}: {found:?}");
            }
        }
        let (before, after) = (report(input), report(name));
        let device = |report: &Value, key: &str| report["inputs"][0]["devices"][0][key].clone();
        for key in ["allocated", "reserved", "events", "steps", "categories_at_peak"] {
            assert_eq!(device(&before, key), device(&after, key), "{input}: {key}");
        }
        let findings = |report: &Value| -> Vec<(Value, Value, Value)> {
            let findings = device(report, "findings");
            let findings = findings.as_array().expect("a list");
            findings
                .iter()
                .map(|one| (one["kind"].clone(), one["bytes"].clone(), one["site"]["line"].clone()))
                .collect()
        };
        assert_eq!(findings(&before), findings(&after), "{input}");
    }
}

#[test]
fn the_size_is_kept_by_leaving_out_the_oldest_events() {
    let folder = tempfile::tempdir().expect("a folder");
    let bundle = folder.path().join("small.zip");
    let name = bundle.to_str().expect("text");
    let output = oomph(&["bundle", "--max-size", "20KiB", LEAK, "-o", name]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::metadata(&bundle).expect("a file").len() <= 20 << 10);
    assert!(String::from_utf8_lossy(&output.stderr).contains("left out: events before the last"));
    let events = |input: &str| report(input)["inputs"][0]["devices"][0]["events"].as_u64().expect("a count");
    assert!(events(name) > 100 && events(name) < events(LEAK));
    let impossible = folder.path().join("none.zip");
    let output = oomph(&["bundle", "--max-size", "1KiB", LEAK, "-o", impossible.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(!impossible.exists());
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing temporary is left");
}

#[test]
fn a_hostile_bundle_reaches_no_other_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let bundle = folder.path().join("evil.zip");
    let mut zip = zip::ZipWriter::new(File::create(&bundle).expect("a file"));
    for (name, bytes) in [
        ("bundle.json", &b"{}"[..]),
        ("../rank0.pickle", b"\x80\x04N."),
        ("/etc/passwd.pickle", b"x"),
        ("rank1.pickle", b"cos\nsystem\n(S'true'\ntR."),
    ] {
        zip.start_file(name, SimpleFileOptions::default()).expect("a member");
        zip.write_all(bytes).expect("written");
    }
    zip.finish().expect("a zip");
    let output = oomph(&["report", bundle.to_str().expect("text")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("evil.zip/rank1.pickle` was refused: it would run code"), "{said}");
    assert!(!said.contains("rank0") && !said.contains("passwd"), "{said}");
}

#[test]
fn a_bundle_without_snapshots_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let bundle = folder.path().join("empty.zip");
    let mut zip = zip::ZipWriter::new(File::create(&bundle).expect("a file"));
    zip.start_file("bundle.json", SimpleFileOptions::default()).expect("a member");
    zip.finish().expect("a zip");
    let (input, output) = (bundle.to_str().expect("text"), folder.path().join("out.db"));
    let output = output.to_str().expect("text");
    for arguments in [&["report", input][..], &["export", "--to", "sqlite", "-o", output, input]] {
        let done = oomph(arguments);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains("has no snapshots"), "{arguments:?}: {said}");
    }
}
