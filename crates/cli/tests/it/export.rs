//! `oomph export` as a user runs it. What is in the files is checked with other readers in `tests/python`.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/torch/torch-2.15.0.pickle.xz")
}

fn export(input: &Path, format: &str, output: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_oomph"))
        .arg("export")
        .arg(input)
        .args(["--to", format, "-o"])
        .arg(output)
        .output()
        .expect("the binary runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The export must fail, say `what` and the way out, and leave `folder` with nothing but `names`.
fn check_refusal(output: &Output, what: &str, folder: &Path, names: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(output.stdout.is_empty());
    assert!(text.starts_with("error: ") && text.contains(what), "{text}");
    assert!(text.contains("\nhint: "), "{text}");
    assert_eq!(names_in(folder), names);
}

#[test]
fn json_holds_every_table() {
    let folder = folder();
    let file = folder.path().join("snapshot.json");
    let output = export(&fixture(), "json", &file);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
    let said = format!(
        "wrote events 126 · blocks 47 · segments 9 · frames 44 · stacks 129 to {}\n",
        file.to_string_lossy()
    );
    assert!(stderr(&output).ends_with(&said), "{}", stderr(&output));

    let text = fs::read_to_string(&file).expect("the file is there");
    let document: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(document["version"], 1);
    let count = |table: &str| document["tables"][table].as_array().map_or(0, Vec::len);
    assert_eq!(["events", "blocks", "segments", "frames", "stacks"].map(count), [126, 47, 9, 44, 129]);
    let oom = document["tables"]["events"]
        .as_array()
        .and_then(|events| events.iter().find(|event| event["action"] == "oom"))
        .expect("the fixture ran out of memory");
    assert_eq!(oom["size"], 419_430_400);
    assert_eq!(oom["device_free"], 130_023_424);
    assert_eq!(oom["addr"], Value::Null);
    assert_eq!(names_in(folder.path()), ["snapshot.json"]);
}

#[test]
fn parquet_and_arrow_are_folders_of_tables() {
    let folder = folder();
    for format in ["parquet", "arrow"] {
        let tables = folder.path().join(format).join("tables");
        let output = export(&fixture(), format, &tables);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(stderr(&output).trim_end().ends_with("tables/"), "{}", stderr(&output));
        let expected = ["blocks", "events", "frames", "segments", "stacks"];
        assert_eq!(names_in(&tables), expected.map(|table| format!("{table}.{format}")));
    }
}

#[test]
fn an_output_of_the_wrong_kind_is_refused() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("a.txt"), "mine").expect("a file");
    fs::create_dir(path.join("b")).expect("a folder");
    let names = ["a.txt", "b"];
    for format in ["parquet", "arrow"] {
        let output = export(&fixture(), format, &path.join("a.txt"));
        check_refusal(&output, "is a file, not a folder", path, &names);
    }
    for format in ["sqlite", "json", "perfetto"] {
        check_refusal(&export(&fixture(), format, &path.join("b")), "is a folder", path, &names);
    }
    check_refusal(&export(&fixture(), "json", Path::new("-")), "standard output", path, &names);
    assert_eq!(fs::read_to_string(path.join("a.txt")).expect("still there"), "mine");
}

#[test]
fn the_recording_is_not_overwritten() {
    let folder = folder();
    let input = folder.path().join("a.pickle.xz");
    fs::copy(fixture(), &input).expect("a copy");
    let output = export(&input, "json", &folder.path().join("./a.pickle.xz"));
    check_refusal(&output, "is also the input", folder.path(), &["a.pickle.xz"]);
    assert_eq!(fs::read(&input).expect("the input"), fs::read(fixture()).expect("the fixture"));
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("file"), "").expect("a file");
    let missing = export(&fixture(), "sqlite", &path.join("missing/snapshot.db"));
    check_refusal(&missing, "snapshot.db` cannot be written", path, &["file"]);
    assert!(stderr(&missing).contains("mkdir -p"), "{}", stderr(&missing));
    let below_a_file = export(&fixture(), "parquet", &path.join("file/tables"));
    check_refusal(&below_a_file, "file/tables` cannot be created", path, &["file"]);
}

#[cfg(unix)]
#[test]
fn a_read_only_folder_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).expect("a folder");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).expect("permissions");
    // Permissions do not bind the superuser.
    if fs::write(closed.join("probe"), "").is_ok() {
        return;
    }
    for format in ["arrow", "json"] {
        let target = if format == "arrow" { closed.clone() } else { closed.join("a.json") };
        check_refusal(&export(&fixture(), format, &target), "cannot be written", &closed, &[]);
    }
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_not_replaced_and_links_are_followed() {
    let folder = folder();
    // It stands for `/dev/null`, with which a test that fails would do harm.
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    check_refusal(&export(&fixture(), "json", &socket), "is not a regular file", folder.path(), &["socket"]);

    let (file, link) = (folder.path().join("file.json"), folder.path().join("link.json"));
    fs::write(&file, "old").expect("a file");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    assert_eq!(export(&fixture(), "json", &link).status.code(), Some(0));
    assert!(link.is_symlink());
    assert!(fs::read_to_string(&file).expect("the file").starts_with("{\"version\":1"));
}

#[test]
fn an_input_that_cannot_be_read_leaves_no_output() {
    let folder = folder();
    let input = folder.path().join("a.pickle");
    fs::write(&input, "not a snapshot").expect("a file");
    let output = export(&input, "parquet", &folder.path().join("tables"));
    check_refusal(&output, "a.pickle` ", folder.path(), &["a.pickle"]);
}
