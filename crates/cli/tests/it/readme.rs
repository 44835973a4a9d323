//! The README's console blocks, run as they stand.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn every_console_block_prints_what_the_readme_says() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md is there");
    let mut blocks = 0;
    for block in readme.split("```console\n").skip(1) {
        let block = block.split("```").next().expect("a block ends");
        let (command, expected) = block.split_once('\n').expect("a command and its output");
        let arguments = command.strip_prefix("$ oomph ").expect("a block begins with `$ oomph `");
        let output = Command::new(env!("CARGO_BIN_EXE_oomph"))
            .args(arguments.split_whitespace())
            .current_dir(root())
            .env_remove("NO_COLOR")
            .output()
            .expect("oomph runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "$ oomph {arguments}");
        // The linter fails with what it finds, and counts it beside the data.
        match arguments.starts_with("lint ") {
            true => assert_eq!(output.status.code(), Some(1), "$ oomph {arguments}"),
            false => assert!(output.status.success() && output.stderr.is_empty(), "$ oomph {arguments}"),
        }
        blocks += 1;
    }
    assert!(blocks > 0, "the README has no console block");
}

#[test]
fn every_make_target_of_the_readme_exists() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md is there");
    let makefile = std::fs::read_to_string(root().join("Makefile")).expect("Makefile is there");
    let mut targets = 0;
    for (at, _) in readme.match_indices("make ") {
        let target: String = readme[at + 5..].chars().take_while(char::is_ascii_lowercase).collect();
        if ["demo", "test", "fuzz", "bench", "lint"].contains(&target.as_str()) {
            assert!(makefile.contains(&format!("\n{target}:")), "make {target}");
            targets += 1;
        }
    }
    assert!(targets >= 3, "{targets} targets named");
}
