//! `oomph lint` and `oomph rule`, as their users call them.

use crate::common::{json, root, text};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const TRAIN: &str = "\
import torch

def fit(model, loader, opt, criterion):
    losses = []
    for x, y in loader:
        loss = criterion(model(x), y)
        losses.append(loss)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=False)
    return losses
";

const CLEAN: &str = "import torch\n\nprint(torch.ones(3))\n";

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        write(folder.path(), name, text.as_bytes());
    }
    folder
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
    std::fs::write(path, bytes).expect("written");
}

fn read(folder: &TempDir, name: &str) -> String {
    String::from_utf8(std::fs::read(folder.path().join(name)).expect("there")).expect("UTF-8")
}

fn oomph(folder: &TempDir, arguments: &[&str], input: Option<&str>) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_oomph"))
        .args(arguments)
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("oomph runs");
    // A command that does not read it may be gone already.
    let _ = child.stdin.take().expect("a pipe").write_all(input.unwrap_or_default().as_bytes());
    child.wait_with_output().expect("oomph ends")
}

/// Exit code, stdout and stderr.
fn lint(folder: &TempDir, arguments: &[&str]) -> (i32, String, String) {
    answer(oomph(folder, &[&["lint"], arguments].concat(), None))
}

fn answer(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("a code"), text(output.stdout), text(output.stderr))
}

fn findings(folder: &TempDir, arguments: &[&str]) -> Vec<Value> {
    let (_, out, err) = lint(folder, &[&["--json"], arguments].concat());
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"))
}

/// `OOM101 train.py:7`
fn places(folder: &TempDir, arguments: &[&str]) -> Vec<String> {
    findings(folder, arguments)
        .iter()
        .map(|found| {
            let word = |key: &str| found[key].as_str().expect("text").to_owned();
            format!("{} {}:{}", word("code"), word("file"), found["line"])
        })
        .collect()
}

#[test]
fn a_finding_says_where_what_and_what_to_do() {
    let folder = folder(&[("train.py", TRAIN), ("clean.py", CLEAN)]);
    let (code, out, err) = lint(&folder, &[]);
    assert_eq!(
        out,
        "\
train.py:7:23: low OOM101 loss-kept-in-list
   `losses` keeps each loss with its graph: `backward()` frees the activations, so 512 bytes of GPU
   memory per step stay, and the graph's nodes in host memory
   7 │         losses.append(loss)
     │                       ^^^^
   fix: keep `.detach()` (no synchronization) or `.item()` (waits for the GPU)   (auto-fix:
        --fix --unsafe-fixes)

train.py:10:23: medium OOM403 gradients-zeroed-in-place
   the gradients stay allocated through the next forward pass: the peak is higher by up to one model
   10 │         opt.zero_grad(set_to_none=False)
      │                       ^^^^^^^^^^^^^^^^^
   fix: remove the argument   (auto-fix: --fix --unsafe-fixes)
"
    );
    assert_eq!(
        err,
        "2 findings (1 medium, 1 low) in 1 of 2 files · 2 fixes available with --unsafe-fixes · run `oomph rule OOM101` for details\n"
    );
    assert_eq!(code, 1);
}

#[test]
fn nothing_found_is_said_and_is_no_failure() {
    let folder = folder(&[("clean.py", CLEAN), ("other.py", "print(1)\n")]);
    assert_eq!(lint(&folder, &[]), (0, String::new(), "nothing found in 2 files\n".to_owned()));
    assert_eq!(lint(&folder, &["--json"]), (0, "[]\n".to_owned(), String::new()));
}

#[test]
fn the_json_is_a_list_with_places_and_edits() {
    let folder = folder(&[("train.py", TRAIN)]);
    let found = findings(&folder, &[]);
    assert_eq!(found.len(), 2);
    let first = &found[0];
    for (key, value) in [("code", "OOM101"), ("name", "loss-kept-in-list"), ("severity", "low")] {
        assert_eq!(first[key], value);
    }
    assert_eq!((&first["line"], &first["column"]), (&7.into(), &23.into()));
    assert_eq!((&first["end_line"], &first["end_column"]), (&7.into(), &27.into()));
    assert_eq!(first["file"], "train.py");
    assert_eq!(first["fix"]["edits"][0]["text"], ".detach()");
    assert_eq!(first["fix"]["edits"][0]["start_column"], 27);
    assert_eq!(first["fix"]["applicability"], "unsafe");
    assert!(first["message"].as_str().is_some_and(|text| text.contains("activations")));
    assert!(first.get("cell").is_none());
    assert_eq!(first["related"][0]["line"], 6);
}

#[test]
fn sarif_has_what_code_scanning_needs() {
    let folder = folder(&[("my code/train.py", TRAIN)]);
    let (code, out, _) = lint(&folder, &["--format", "sarif"]);
    let document: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &document["version"]), (1, &"2.1.0".into()));
    assert!(document["$schema"].as_str().is_some_and(|schema| schema.contains("sarif")));
    let driver = &document["runs"][0]["tool"]["driver"];
    assert_eq!(driver["name"], "oomph");
    let rules = driver["rules"].as_array().expect("rules");
    for rule in rules {
        let texts = [&rule["id"], &rule["name"], &rule["shortDescription"]["text"], &rule["help"]["text"]];
        assert!(texts.iter().all(|text| text.as_str().is_some_and(|text| !text.is_empty())), "{rule}");
        let level = rule["defaultConfiguration"]["level"].as_str().expect("a level");
        assert!(["error", "warning", "note"].contains(&level));
    }
    let results = document["runs"][0]["results"].as_array().expect("results");
    assert_eq!(results.len(), 2);
    for result in results {
        let rule = result["ruleIndex"].as_u64().expect("a number") as usize;
        assert_eq!(rules[rule]["id"], result["ruleId"]);
        assert!(result["message"]["text"].is_string());
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "my%20code/train.py");
        assert!(place["region"]["startLine"].as_u64() >= Some(1));
        assert!(result["fixes"][0]["artifactChanges"][0]["replacements"][0]["deletedRegion"].is_object());
        assert_eq!(result["fixes"][0]["properties"]["applicability"], "unsafe");
    }
    assert_eq!((&results[0]["level"], &results[1]["level"]), (&"note".into(), &"warning".into()));
}

#[test]
fn annotations_survive_odd_names() {
    let folder = folder(&[("a,b:50%/train.py", TRAIN)]);
    let (_, out, _) = lint(&folder, &["--format", "github", "--select", "OOM101"]);
    let start = "::notice file=a%2Cb%3A50%25/train.py,line=7,col=23,endLine=7,title=OOM101 loss-kept-in-list::`losses`";
    assert!(out.starts_with(start), "{out}");
    assert_eq!(out.lines().count(), 1);
    assert!(out.contains("%0Akeep `.detach()`"), "{out}");
}

#[test]
fn statistics_count_rules() {
    let folder = folder(&[("a.py", TRAIN), ("b.py", TRAIN)]);
    let (code, out, _) = lint(&folder, &["--statistics"]);
    assert_eq!(
        (code, &*out),
        (
            1,
            "2  low     OOM101 loss-kept-in-list   (2 with a fix)\n\
             2  medium  OOM403 gradients-zeroed-in-place   (2 with a fix)\n"
        )
    );
    let (_, out, _) = lint(&folder, &["--statistics", "--json"]);
    let rows: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&rows[0]["code"], &rows[0]["count"]), (&"OOM101".into(), &2.into()));
}

#[test]
fn the_exit_code_tells() {
    let folder = folder(&[("train.py", TRAIN), ("empty/readme.txt", "")]);
    for (arguments, expected) in [
        (&["train.py"][..], 1),
        (&["--exit-zero", "train.py"], 0),
        (&["--select", "OOM5", "train.py"], 0),
        (&["--min-severity", "medium", "train.py"], 1),
        (&["--min-severity", "high", "train.py"], 0),
        (&["missing.py"], 2),
        (&["train.py", "missing.py"], 2),
        (&["empty"], 2),
        (&["--select", "nonsense", "train.py"], 2),
        (&["--format", "xml", "train.py"], 2),
        (&["--format", "sarif", "--statistics", "train.py"], 2),
    ] {
        let (code, _, err) = lint(&folder, arguments);
        assert_eq!(code, expected, "{arguments:?}: {err}");
    }
}

#[test]
fn rules_are_chosen_by_code_beginning_or_name() {
    let folder = folder(&[("train.py", TRAIN)]);
    let (loss, zeroed) = ("OOM101 train.py:7", "OOM403 train.py:10");
    assert_eq!(places(&folder, &["--select", "OOM1"]), [loss]);
    assert_eq!(places(&folder, &["--select", "oom4,loss-kept-in-list"]), [loss, zeroed]);
    assert_eq!(places(&folder, &["--ignore", "gradients-zeroed-in-place"]), [loss]);
    assert_eq!(places(&folder, &["--min-severity", "medium"]), [zeroed]);
    let (code, _, err) = lint(&folder, &["--select", "loss-kept-in-lists"]);
    assert_eq!(code, 2);
    assert!(err.contains("there is no rule `loss-kept-in-lists`"), "{err}");
    assert!(err.contains("did you mean `loss-kept-in-list`?"), "{err}");
}

#[test]
fn the_project_says_which_rules_where() {
    let settings = "[project]\nname = 'x'\n[tool.oomph.lint]\nignore = ['OOM403']\nexclude = ['old', 'gen/*_pb.py']\n\
        [tool.oomph.lint.per-file-ignores]\n'tests/**' = ['loss-kept-in-list']\n";
    let folder = folder(&[
        ("pyproject.toml", settings),
        ("src/train.py", TRAIN),
        ("src/old/train.py", TRAIN),
        ("gen/a_pb.py", TRAIN),
        ("tests/deep/test_train.py", TRAIN),
    ]);
    let loss = "OOM101 src/train.py:7";
    assert_eq!(places(&folder, &[]), [loss]);
    // Found from below, and what is named is checked in any case.
    assert_eq!(places(&folder, &["src"]), [loss]);
    assert_eq!(places(&folder, &["src/old/train.py"]), ["OOM101 src/old/train.py:7"]);
    assert_eq!(places(&folder, &["tests"]), [""; 0]);
    // The command line wins.
    assert_eq!(places(&folder, &["--select", "OOM403", "src"]), ["OOM403 src/train.py:10"]);
    assert_eq!(places(&folder, &["--ignore", "OOM101", "src"]), ["OOM403 src/train.py:10"]);
    let other = oomph(&folder, &["lint", "--json", "-", "--stdin-filename", "tests/new.py"], Some(TRAIN));
    assert_eq!(String::from_utf8_lossy(&other.stdout), "[]\n");
}

#[test]
fn settings_that_make_no_sense_are_an_error() {
    for (settings, expected) in [
        ("[tool.oomph.lint]\nselct = ['OOM1']\n", "selct"),
        ("[tool.oomph.lint]\nselect = ['OOM9']\n", "OOM9"),
        ("[tool.oomph.lint]\nmin-severity = 'huge'\n", "huge"),
        ("[tool.oomph.lint]\nexclude = ['[']\n", "`[`"),
    ] {
        let folder = folder(&[("pyproject.toml", settings), ("train.py", TRAIN)]);
        let (code, _, err) = lint(&folder, &[]);
        assert_eq!(code, 2, "{settings}: {err}");
        assert!(err.contains(expected), "{settings}: {err}");
    }
    // A broken file of somebody else is not ours to judge.
    let folder = folder(&[("pyproject.toml", "[project\n"), ("train.py", TRAIN)]);
    assert_eq!(lint(&folder, &[]).0, 1);
}

#[test]
fn comments_silence_a_line_or_a_file() {
    let line =
        TRAIN.replace("losses.append(loss)", "losses.append(loss)  # oomph: ignore[loss-kept-in-list]");
    let other = TRAIN.replace("losses.append(loss)", "losses.append(loss)  # oomph: ignore[OOM403]");
    let file = format!("# oomph: ignore-file[OOM1]\n{TRAIN}");
    let all = format!("# oomph: ignore-file\n{TRAIN}");
    let folder = folder(&[("a.py", &line), ("b.py", &other), ("c.py", &file), ("d.py", &all)]);
    let expected = ["OOM403 a.py:10", "OOM101 b.py:7", "OOM403 b.py:10", "OOM403 c.py:11"];
    assert_eq!(places(&folder, &[]), expected);
}

#[test]
fn fixes_keep_the_rest_of_the_file() {
    let folder = folder(&[("train.py", TRAIN)]);
    let (code, out, err) = lint(&folder, &["--fix", "--unsafe-fixes"]);
    assert_eq!((code, &*out, &*err), (0, "", "2 findings fixed · nothing left in 1 file\n"));
    let expected = TRAIN.replace("append(loss)", "append(loss.detach())").replace("set_to_none=False", "");
    assert_eq!(read(&folder, "train.py"), expected);
    // Nothing is left to do, and nothing is done.
    assert_eq!(lint(&folder, &["--fix"]).2, "nothing found in 1 file\n");
    assert_eq!(read(&folder, "train.py"), expected);
}

#[test]
fn only_safe_fixes_are_applied_unless_the_others_are_asked_for() {
    let safe = TRAIN
        .replace("import torch\n", "import torch\nimport torch.nn.functional as F\n")
        .replace("criterion(", "F.cross_entropy(")
        .replace("return losses", "return float(sum(losses))");
    let folder = folder(&[("train.py", &safe), ("unsafe.py", TRAIN)]);
    let (_, out, err) = lint(&folder, &["train.py"]);
    assert!(out.contains("(auto-fix:\n        --fix)\n"), "{out}");
    assert!(err.contains("1 can be fixed with --fix · 1 more fix available with --unsafe-fixes"), "{err}");
    assert_eq!(findings(&folder, &["train.py"])[0]["fix"]["applicability"], "safe");
    let (code, out, err) = lint(&folder, &["--diff"]);
    assert!(code == 1 && out.contains("+        losses.append(loss.detach())\n"), "{out}");
    assert!(!out.contains("unsafe.py") && !out.contains("-        opt.zero_grad"), "{out}");
    assert_eq!(
        err,
        "1 finding would be fixed in 1 file · 3 are left · 3 more fixes available with --unsafe-fixes\n"
    );
    let (code, _, err) = lint(&folder, &["--fix"]);
    assert!(code == 1 && err.starts_with("1 finding fixed · 3 findings"), "{err}");
    assert!(err.contains("3 more fixes available with --unsafe-fixes"), "{err}");
    assert_eq!(read(&folder, "train.py"), safe.replace("append(loss)", "append(loss.detach())"));
    assert_eq!(read(&folder, "unsafe.py"), TRAIN);
    assert_eq!(lint(&folder, &["--fix", "--unsafe-fixes"]).0, 0);
}

#[test]
fn fixes_keep_line_ends_marks_and_permissions() {
    let folder = folder(&[]);
    let text = format!("\u{feff}{}", TRAIN.replace('\n', "\r\n"));
    write(folder.path(), "train.py", text.as_bytes());
    let path = folder.path().join("train.py");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).expect("set");
    }
    assert_eq!(lint(&folder, &["--fix", "--unsafe-fixes"]).0, 0);
    let expected = text.replace("append(loss)", "append(loss.detach())").replace("set_to_none=False", "");
    assert_eq!(read(&folder, "train.py"), expected);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o750);
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing is left behind");
}

#[cfg(unix)]
#[test]
fn a_link_stays_a_link() {
    let folder = folder(&[("real/train.py", TRAIN)]);
    std::os::unix::fs::symlink("real/train.py", folder.path().join("link.py")).expect("a link");
    assert_eq!(lint(&folder, &["--fix", "--unsafe-fixes", "link.py"]).0, 0);
    assert!(std::fs::symlink_metadata(folder.path().join("link.py")).expect("there").is_symlink());
    assert!(read(&folder, "real/train.py").contains("detach"));
}

#[test]
fn a_diff_shows_the_fixes_and_changes_nothing() {
    let folder = folder(&[("train.py", TRAIN)]);
    let (code, out, err) = lint(&folder, &["--diff", "--unsafe-fixes", "--select", "OOM101"]);
    assert_eq!(
        out,
        "\
--- train.py
+++ train.py
@@ -4,7 +4,7 @@
     losses = []
     for x, y in loader:
         loss = criterion(model(x), y)
-        losses.append(loss)
+        losses.append(loss.detach())
         loss.backward()
         opt.step()
         opt.zero_grad(set_to_none=False)
"
    );
    assert_eq!((code, &*err), (1, "1 finding would be fixed in 1 file · 0 are left\n"));
    assert_eq!(read(&folder, "train.py"), TRAIN);
}

#[test]
fn standard_input_is_checked_and_fixed() {
    let folder = folder(&[]);
    let run = |arguments: &[&str]| answer(oomph(&folder, &[&["lint"], arguments].concat(), Some(TRAIN)));
    let (code, out, _) = run(&["-"]);
    assert!(code == 1 && out.starts_with("<stdin>:7:23: low OOM101"), "{out}");
    let (_, out, _) = run(&["--stdin-filename", "src/a.py", "-"]);
    assert!(out.starts_with("src/a.py:7:23: low"), "{out}");
    let (code, out, err) = run(&["--fix", "--unsafe-fixes", "-"]);
    assert!(code == 0 && out.starts_with("import torch\n") && out.contains("append(loss.detach())"), "{out}");
    assert_eq!(err, "2 findings fixed · nothing left in 1 file\n");
    let clean = answer(oomph(&folder, &["lint", "--fix", "-"], Some(CLEAN)));
    assert_eq!((clean.0, &*clean.1), (0, CLEAN));
}

#[test]
fn notebooks_are_checked_and_fixed_by_cell() {
    let code: Vec<String> = TRAIN.split_inclusive('\n').map(str::to_owned).collect();
    let notebook = serde_json::json!({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "!pip install torch"]},
        {"cell_type": "code", "source": code},
    ]});
    let folder = folder(&[("a.ipynb", &notebook.to_string())]);
    let (code, out, _) = lint(&folder, &[]);
    assert!(code == 1 && out.starts_with("a.ipynb:cell 3:7:23: low OOM101"), "{out}");
    assert!(out.contains("(auto-fix: --fix --unsafe-fixes)"), "{out}");
    let found = findings(&folder, &[]);
    assert_eq!((&found[0]["cell"], &found[0]["line"]), (&3.into(), &7.into()));
    assert_eq!(found[0]["fix"]["edits"][0]["cell"], 3);
    let (_, out, _) = lint(&folder, &["--format", "github"]);
    assert!(out.contains("file=a.ipynb,title=") && out.contains("::cell 3, line 7: "), "{out}");
    let (_, out, _) = lint(&folder, &["--diff", "--unsafe-fixes"]);
    assert!(out.starts_with("--- a.ipynb:cell 3\n+++ a.ipynb:cell 3\n"), "{out}");
    assert_eq!(read(&folder, "a.ipynb"), notebook.to_string());
    let (code, _, err) = lint(&folder, &["--fix", "--unsafe-fixes"]);
    assert!(code == 0 && err.contains("2 findings fixed"), "{code} {err}");
    let fixed = notebook.to_string().replace("append(loss)", "append(loss.detach())");
    assert_eq!(read(&folder, "a.ipynb"), fixed.replace("zero_grad(set_to_none=False)", "zero_grad()"));
}

#[test]
fn what_cannot_be_read_is_said_and_the_rest_is_checked() {
    let folder = folder(&[("train.py", TRAIN), ("broken.py", "import torch\ndef f(:\n"), ("a.ipynb", "{}")]);
    let latin = [TRAIN.as_bytes(), b"# caf\xe9\n"].concat();
    write(folder.path(), "latin.py", &latin);
    write(folder.path(), "huge.py", &vec![b'#'; (8 << 20) + 1]);
    let (code, out, err) = lint(&folder, &[]);
    assert_eq!(code, 2);
    assert!(out.contains("latin.py:7:23: low") && out.contains("train.py:7:23: low"), "{out}");
    assert!(err.contains("error: broken.py:2: not Python: "), "{err}");
    assert!(err.contains("warning: huge.py: larger than 8 MiB"), "{err}");
    assert!(err.contains("error: a.ipynb: not a notebook"), "{err}");
    assert!(err.contains("in 2 of 2 files") && err.contains(" · 2 files could not be checked"), "{err}");
    // Bytes that we cannot read are not written either.
    let (_, _, err) = lint(&folder, &["--fix", "--unsafe-fixes", "latin.py"]);
    assert!(err.contains("warning: latin.py: not UTF-8, so it is not changed"), "{err}");
    assert_eq!(std::fs::read(folder.path().join("latin.py")).expect("there"), latin);
    assert_eq!(lint(&folder, &["broken.py"]).0, 2);
}

#[test]
fn a_file_that_is_not_python_is_an_error_whatever_it_is_about() {
    let folder = folder(&[("clean.py", CLEAN), ("notes.txt", "Dear reader, this is text.\n")]);
    for arguments in
        [&["notes.txt"][..], &["clean.py", "notes.txt"], &["--exit-zero", "clean.py", "notes.txt"]]
    {
        let (code, _, err) = lint(&folder, arguments);
        assert_eq!(code, 2, "{err}");
        assert!(err.contains("error: notes.txt:1: not Python: "), "{err}");
    }
}

#[test]
fn folders_of_others_are_left_out_unless_they_are_named() {
    let folder = folder(&[
        (".gitignore", "data/\nscratch.py\n"),
        ("src/train.py", TRAIN),
        ("src/notes.txt", TRAIN),
        ("src/types.pyi", TRAIN),
        ("data/a.py", TRAIN),
        ("scratch.py", TRAIN),
        (".venv/lib/a.py", TRAIN),
        ("venv/a.py", TRAIN),
        (".hidden/a.py", TRAIN),
        ("node_modules/a.py", TRAIN),
        ("build/a.py", TRAIN),
        ("lib/site-packages/a.py", TRAIN),
    ]);
    let at = |name: &str| format!("OOM101 {name}:7");
    let places = |arguments: &[&str]| places(&folder, &[&["--select", "OOM101"], arguments].concat());
    assert_eq!(places(&[]), [at("src/train.py")]);
    assert_eq!(places(&["build"]), [at("build/a.py")]);
    assert_eq!(places(&["lib/site-packages"]), [at("lib/site-packages/a.py")]);
    assert_eq!(places(&[".hidden"]), [at(".hidden/a.py")]);
    assert_eq!(places(&["scratch.py", "src/notes.txt"]), [at("scratch.py"), at("src/notes.txt")]);
    assert_eq!(places(&[".", "src/train.py", "src"]), [at("src/train.py")]);
}

#[test]
fn nothing_of_a_file_steers_the_terminal() {
    let folder = folder(&[("train.py", &TRAIN.replace("append(loss)", "append(loss)  # \u{1b}[31m\u{7}"))]);
    let (_, out, _) = lint(&folder, &["--select", "OOM101"]);
    assert!(out.contains("losses.append(loss)  # ?[31m?\n"), "{out}");
}

#[test]
fn colour_only_where_it_is_wanted() {
    let folder = folder(&[("train.py", TRAIN)]);
    assert!(lint(&folder, &["--color", "always"]).1.contains("\u{1b}[36mlow\u{1b}[0m"));
    assert!(!lint(&folder, &[]).1.contains('\u{1b}'));
}

#[test]
fn rules_are_explained() {
    let list = text(&["rule"]);
    assert!(list.starts_with("OOM101  loss-kept-in-list "), "{list}");
    let rules = json(&["rule", "--json"]);
    let rules = rules.as_array().expect("a list");
    assert!(rules.len() > 20 && rules.iter().all(|rule| rule["says"].is_string()));
    let page = text(&["rule", "loss-kept-in-list"]);
    assert!(page.starts_with("OOM101 loss-kept-in-list\n\n") && page.contains("\n    for x, y in"), "{page}");
    assert!(!page.contains("```") && !page.contains('#') && !page.contains("**"), "{page}");
    assert!(text(&["rule", "--markdown", "OOM101"]).contains("```python\n"));
    let (code, _, err) = answer(crate::common::oomph(&["rule", "loss-kept"]));
    assert!(code == 2 && err.contains("did you mean `loss-kept-in-list`?"), "{err}");
}

#[test]
fn the_pages_in_docs_are_those_of_the_rules() {
    let written = std::fs::read_to_string(root().join("docs/reference/rules.md")).expect("the page is there");
    let pages = text(&["rule", "--markdown", "--all"]);
    assert!(written == pages, "update it: `oomph rule --markdown --all > docs/reference/rules.md`");
}

/// A recording whose frames point to the program as it lies on this machine.
#[test]
fn a_leak_comes_with_what_the_linter_says_of_its_line() {
    const RECORDED: &str = "/home/user/project/leak_val_losses.py";
    let program = root().join("fixtures/field/programs/leak_val_losses.py");
    let folder = folder(&[("train.py", &std::fs::read_to_string(program).expect("the program"))]);
    // A string of a pickle has a length, so the path keeps its own.
    let mut path = folder.path().to_str().expect("UTF-8").to_owned();
    let name = "a".repeat(RECORDED.len().checked_sub(path.len() + "/.py".len()).expect("a short folder"));
    path = format!("{path}/{name}.py");
    std::fs::rename(folder.path().join("train.py"), &path).expect("renamed");
    let recording = std::fs::File::open(root().join("fixtures/field/leak_val_losses.pickle.xz"));
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(
        &mut liblzma::read::XzDecoder::new(recording.expect("the recording")),
        &mut bytes,
    )
    .expect("xz");
    let at =
        bytes.windows(RECORDED.len()).position(|window| window == RECORDED.as_bytes()).expect("the path");
    bytes[at..at + RECORDED.len()].copy_from_slice(path.as_bytes());
    write(folder.path(), "a.pickle", &bytes);
    let (code, out, err) = answer(oomph(&folder, &["report", "a.pickle"], None));
    assert_eq!((code, &*err), (0, ""));
    let expected = format!("   lint: {name}.py:16 OOM101 loss-kept-in-list — keep `.item()`, or");
    assert_eq!(out.matches(&expected).count(), 1, "{out}");
    let (_, out, _) = answer(oomph(&folder, &["report", "--json", "a.pickle"], None));
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let leak = &report["inputs"][0]["devices"][0]["findings"][0];
    assert_eq!((&leak["kind"], &leak["site"]["line"]), (&"leak".into(), &15.into()));
    let mut remarks = leak["lint"].as_array().expect("remarks").iter();
    let remark = remarks.find(|remark| remark["code"] == "OOM101").expect("the rule");
    assert_eq!((&remark["name"], &remark["line"]), (&"loss-kept-in-list".into(), &16.into()));
    assert!(remark["message"].is_string());
    // Where the file is not at hand, nothing is said.
    std::fs::remove_file(&path).expect("removed");
    let (_, out, _) = answer(oomph(&folder, &["report", "--json", "a.pickle"], None));
    assert!(!out.contains("\"lint\""));
}
