//! Names and texts from outside never steer the terminal, reorder what it shows, or speak to GitHub Actions.

#![cfg(unix)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Sets the terminal's title, reverses the text behind it, begins a line of its own, and is not UTF-8.
const HOSTILE: &[u8] =
    b"a\x1b]0;owned\x07\x1b[2J\xe2\x80\xae\xe2\x80\x8b\xc2\x9b\r\n::error::owned\n##[error]\xff";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn hostile(ending: &str) -> Vec<u8> {
    [HOSTILE, ending.as_bytes()].concat()
}

/// A folder with this file under a hostile name, and that name.
fn folder(file: Option<&Path>, ending: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(OsStr::from_bytes(&hostile(ending)));
    if let Some(file) = file {
        std::fs::copy(file, &path).expect("copied");
    }
    let name = PathBuf::from(OsStr::from_bytes(&hostile(ending)));
    (folder, name)
}

fn oomph(folder: &Path, arguments: &[&OsStr], is_github: bool) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oomph"));
    command.args(arguments).current_dir(folder).env_remove("GITHUB_ACTIONS").env("PATH", "/nowhere");
    if is_github {
        command.env("GITHUB_ACTIONS", "true");
    }
    command.output().expect("oomph runs")
}

/// Runs a command with a hostile name in place of `@`, and expects nothing but text of both streams.
#[track_caller]
fn check(arguments: &str, folder: &Path, name: &Path, code: i32) -> Output {
    let words: Vec<&OsStr> = arguments
        .split(' ')
        .map(|word| if word == "@" { name.as_os_str() } else { OsStr::new(word) })
        .collect();
    let output = oomph(folder, &words, true);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments}: {err}");
    for stream in [&output.stdout, &output.stderr] {
        let text = std::str::from_utf8(stream).unwrap_or_else(|_| panic!("{arguments} is not UTF-8"));
        let is_bad = |letter: &char| {
            letter.is_control() && !matches!(letter, '\n' | '\t') || "\u{202e}\u{200b}".contains(*letter)
        };
        assert_eq!(text.chars().find(is_bad), None, "{arguments}:\n{}", text.escape_debug());
        for line in text.lines() {
            assert!(!line.trim_start().starts_with("::error::owned"), "{arguments}:\n{text}");
            assert!(!line.contains("##[error]"), "{arguments}:\n{text}");
        }
    }
    output
}

/// The same, and expects that the name is shown.
#[track_caller]
fn shows(arguments: &str, folder: &Path, name: &Path, code: i32) {
    let output = check(arguments, folder, name, code);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains(r"\u001b]0;owned\u0007"), "{arguments} does not show the name:\n{text}");
}

#[test]
fn commands_that_read_a_snapshot_escape_its_name() {
    let (folder, name) = folder(Some(&fixture("zoo/leak_infer_outputs.pickle.xz")), ".pickle.xz");
    for arguments in [
        "report @",
        "report --color always --json @",
        "report --json @",
        "report @ @",
        "diff @ @",
        "diff --json @ @",
        "simulate @",
        "simulate --search @",
        "simulate --verify @",
        "simulate --json @",
    ] {
        shows(arguments, folder.path(), &name, 0);
    }
    shows("report --at 99999999 @", folder.path(), &name, 2);
    check("report --summary @", folder.path(), &name, 0);
    shows("holders @", folder.path(), &name, 2);
    shows("check --max-peak 1KiB @", folder.path(), &name, 1);
    for format in ["json", "junit", "github"] {
        check(&format!("check --max-peak 1KiB --format {format} @"), folder.path(), &name, 1);
    }
    check("export --to parquet -o tables @", folder.path(), &name, 0);
    check("view --html page.html @", folder.path(), &name, 0);
}

#[test]
fn commands_that_cannot_read_a_file_escape_its_name() {
    let (folder, name) = folder(None, ".pickle");
    for arguments in [
        "report @",
        "diff @ @",
        "simulate @",
        "simulate --verify @",
        "holders @",
        "export --to json -o a.json @",
        "check --max-peak 1KiB @",
        "check --baseline @ @",
        "view --no-open @",
        "explain @",
        "lint @",
    ] {
        shows(arguments, folder.path(), &name, 2);
    }
    for arguments in ["report", "diff", "simulate", "holders", "explain", "lint", "view"] {
        let option = PathBuf::from(OsStr::from_bytes(&[b"--", HOSTILE].concat()));
        shows(&format!("{arguments} @"), folder.path(), &option, 2);
    }
    shows("@", folder.path(), &name, 2);
}

#[test]
fn names_of_outputs_are_escaped() {
    let (folder, name) = folder(None, ".out");
    let input = fixture("zoo/leak_infer_outputs.pickle.xz").canonicalize().expect("there");
    let input = input.to_str().expect("UTF-8");
    shows(&format!("export --to json -o @ {input}"), folder.path(), &name, 0);
    shows(&format!("simulate --conf expandable_segments:True -o @ {input}"), folder.path(), &name, 0);
    // Nothing is written yet under this name.
    let (folder, name) = self::folder(None, ".toml");
    shows(&format!("check --max-peak 80GiB --baseline @ --update {input}"), folder.path(), &name, 0);
}

#[test]
fn names_of_logs_and_their_texts_are_escaped() {
    let (folder, name) = folder(None, ".log");
    let log = b"Traceback (most recent call last):\n  File \"/w/\x1b]0;owned\x07\xe2\x80\xae.py\", line 3, in f\xe2\x80\xae\n    x\xe2\x80\xae = y\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n";
    std::fs::write(folder.path().join(&name), log).expect("written");
    shows("explain @", folder.path(), &name, 0);
    check("explain --json @", folder.path(), &name, 0);
    std::fs::write(folder.path().join(&name), "nothing\n").expect("written");
    shows("explain @", folder.path(), &name, 0);
}

#[test]
fn names_of_programs_are_escaped() {
    let (folder, name) = folder(None, ".py");
    let program = "import torch\n\ndef evaluate(model, loader):  # \u{202e}\u{1b}[2J\n    model.eval()\n    for x\u{e9} in loader:\n        print(model(x\u{e9}).argmax(1).sum().item())\n";
    let write = || std::fs::write(folder.path().join(&name), program).expect("written");
    write();
    for arguments in [
        "lint @",
        "lint --color always --statistics --json @",
        "lint --json @",
        "lint --format sarif @",
        "lint --format github @",
    ] {
        check(arguments, folder.path(), &name, 1);
    }
    shows("lint @", folder.path(), &name, 1);
    shows("lint .", folder.path(), &name, 1);
    // A patch keeps the bytes of the program, but not of the name.
    let output = oomph(folder.path(), &["lint", "--diff", "--unsafe-fixes", "."].map(OsStr::new), true);
    let patch = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(patch.starts_with(r"--- a\u001b]0;owned\u0007"), "{patch}");
    assert!(
        patch.contains("\n+@torch.no_grad()\n def evaluate(model, loader):  # \u{202e}\u{1b}[2J\n"),
        "{patch}"
    );
    // In a pager, nobody applies it.
    let words = ["--color", "always", "lint", "--diff", "--unsafe-fixes", "."].map(OsStr::new);
    let output = oomph(folder.path(), &words, true);
    let patch = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        patch.contains(r"\u202e\u001b[2J") && !patch.contains('\u{202e}') && !patch.contains("\x1b[2J"),
        "{patch}"
    );
    std::fs::write(folder.path().join(&name), "import torch\ndef f(:\n").expect("written");
    shows("lint @", folder.path(), &name, 2);
}

#[test]
fn names_of_scripts_and_folders_that_are_run_or_watched_are_escaped() {
    let (folder, name) = folder(None, ".py");
    check("run @", folder.path(), &name, 2);
    check("predict --gpu h100 @", folder.path(), &name, 2);
    check("run --python @ train.py", folder.path(), &name, 2);
    check("watch --once @", folder.path(), &name, 2);
}

#[test]
fn styles_of_a_name_do_not_reach_a_terminal_that_shows_colors() {
    let (folder, _) = folder(None, "");
    let name = PathBuf::from("\x1b[1;31mred\x1b[0m.log");
    std::fs::write(folder.path().join(&name), "nothing\n").expect("written");
    let output = oomph(
        folder.path(),
        &[OsStr::new("--color"), OsStr::new("always"), OsStr::new("explain"), name.as_os_str()],
        false,
    );
    assert!(!output.stdout.contains(&0x1b), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains(r"\u001b[1;31mred"));
}

#[test]
fn json_keeps_its_meaning() {
    let (folder, name) = folder(Some(&fixture("zoo/leak_infer_outputs.pickle.xz")), ".pickle.xz");
    let output = oomph(folder.path(), &[OsStr::new("report"), OsStr::new("--json"), name.as_os_str()], true);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["inputs"][0]["file"], *name.to_string_lossy());
}
