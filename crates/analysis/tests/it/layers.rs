//! The folders of this crate use each other in one direction only.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Each folder or file of `src`, and what it may use. Nothing may use what stands below it.
const LAYERS: &[(&str, &[&str])] = &[
    ("words", &[]),
    ("trace", &["words"]),
    ("run", &["trace", "words"]),
    ("phases", &["ledger", "run", "trace", "words"]),
    ("findings", &["run", "trace", "words"]),
    ("compare", &["findings", "run", "trace", "words"]),
    ("rank_findings", &["compare", "findings"]),
    ("renames", &["compare"]),
    ("holders_view", &["compare", "run"]),
    ("alarm", &["run"]),
    ("messages", &["trace", "words"]),
    ("serving", &["messages", "words"]),
];

#[test]
fn folders_use_each_other_in_one_direction() {
    let allowed: BTreeMap<&str, &[&str]> = LAYERS.iter().copied().collect();
    let mut wrong = Vec::new();
    for (file, layer, used) in arrows() {
        match allowed.get(layer.as_str()) {
            None => wrong.push(format!("{file}: `{layer}` has no place among the layers")),
            Some(may_use) if !may_use.contains(&used.as_str()) => {
                wrong.push(format!("{file} uses `crate::{used}`, which `{layer}` may not"));
            }
            Some(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_layers_have_no_cycle() {
    let place = |name: &str| LAYERS.iter().position(|(layer, _)| *layer == name);
    for (layer, may_use) in LAYERS {
        for used in *may_use {
            assert!(place(used) < place(layer), "`{layer}` uses `{used}`, which stands below it");
        }
    }
}

/// Every `crate::…` in a file that leads to another layer: the file, its layer, the other layer.
fn arrows() -> Vec<(String, String, String)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&source, &mut files);
    assert!(files.len() > 30, "the source is somewhere else");
    let mut arrows = Vec::new();
    for file in files.iter().filter(|file| *file != "lib.rs") {
        let layer = file.split('/').next().unwrap_or(file).trim_end_matches(".rs").to_owned();
        let text = fs::read_to_string(source.join(file)).expect("a source file");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for path in code.flat_map(|line| line.split("crate::").skip(1)) {
            let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            let used: String = path.chars().take_while(|&letter| is_word(letter)).collect();
            if used != layer {
                arrows.push((file.clone(), layer.clone(), used));
            }
        }
    }
    arrows
}

/// The files below a folder, as paths from it with `/`.
fn collect(folder: &Path, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        let name = entry.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        if entry.is_dir() {
            let before = files.len();
            collect(&entry, files);
            files[before..].iter_mut().for_each(|file| *file = format!("{name}/{file}"));
        } else {
            files.push(name);
        }
    }
}
