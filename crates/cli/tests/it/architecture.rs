//! The arrows between crates, as ARCHITECTURE.md lists them, against every Cargo.toml.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Arrows = BTreeMap<String, BTreeSet<String>>;

#[test]
fn the_arrows_in_the_drawing_are_the_arrows_in_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    assert_eq!(drawn(&root), built(&root));
}

/// Lines such as "- `cli` uses `analysis`, `snapshot`".
fn drawn(root: &Path) -> Arrows {
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md is there");
    text.lines()
        .filter_map(|line| {
            let (name, used) = line.strip_prefix("- `")?.split_once("` uses ")?;
            let used = used.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            Some((name.to_owned(), used))
        })
        .collect()
}

fn built(root: &Path) -> Arrows {
    let crates: BTreeSet<String> = std::fs::read_dir(root.join("crates"))
        .expect("crates are there")
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
        .collect();
    crates
        .iter()
        .map(|name| {
            let manifest = root.join("crates").join(name).join("Cargo.toml");
            let manifest = std::fs::read_to_string(manifest).expect("every crate has a manifest");
            let dependencies = manifest
                .split("\n[")
                .find_map(|section| section.strip_prefix("dependencies]"))
                .expect("every crate has dependencies");
            let used = dependencies
                .lines()
                .filter_map(|line| line.split(['.', ' ', '=']).next())
                .filter(|dependency| crates.contains(*dependency))
                .map(str::to_owned)
                .collect();
            (name.clone(), used)
        })
        .collect()
}
