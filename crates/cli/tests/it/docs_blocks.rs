//! Console blocks of the README and of every page in docs/, run from the root of the repository.
//! `docs/refresh_blocks.py` updates their output.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// README.md and all Markdown files below docs/, in order.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of docs/ can be read") {
            let path = entry.expect("an entry of docs/").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// Runs every console block of a page, compares its output, and returns the number of blocks.
fn check_blocks(page: &Path) -> usize {
    let text = std::fs::read_to_string(page).expect("a page can be read");
    let mut blocks = 0;
    for block in text.split("```console\n").skip(1) {
        let block = block.split("```").next().expect("a block ends");
        let (command, expected) = block.split_once('\n').expect("a command and its output");
        let shown = format!("{}: {command}", page.to_string_lossy());
        let Some(arguments) = command.strip_prefix("$ oomph ") else {
            panic!("{shown}: a block begins with `$ oomph `");
        };
        let output = Command::new(env!("CARGO_BIN_EXE_oomph"))
            .args(arguments.split_whitespace())
            .current_dir(root())
            .env_remove("NO_COLOR")
            .output()
            .expect("oomph runs");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(printed, expected, "{shown}; `python docs/refresh_blocks.py` updates it");
        // 1 stands for findings, a card that is too small, or a broken limit: an answer, not an error.
        assert!(matches!(output.status.code(), Some(0 | 1)), "{shown}: {}", output.status);
        // The linter counts its findings on standard error.
        assert!(arguments.starts_with("lint ") || output.stderr.is_empty(), "{shown}: standard error");
        blocks += 1;
    }
    blocks
}

#[test]
fn every_console_block_prints_what_the_page_says() {
    let mut total = 0;
    for page in pages() {
        let blocks = check_blocks(&page);
        assert!(blocks > 0 || !page.ends_with("README.md"), "the README has no console block");
        total += blocks;
    }
    assert!(total > 10, "{total} blocks in all pages");
}

#[test]
fn every_make_target_of_the_readme_exists() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md is there");
    let makefile = std::fs::read_to_string(root().join("Makefile")).expect("Makefile is there");
    let mut targets = 0;
    for (at, _) in readme.match_indices("make ") {
        let target: String = readme[at + 5..].chars().take_while(char::is_ascii_lowercase).collect();
        if ["demo", "test", "fuzz", "bench", "lint", "docs"].contains(&target.as_str()) {
            assert!(makefile.contains(&format!("\n{target}:")), "make {target}");
            targets += 1;
        }
    }
    assert!(targets >= 3, "{targets} targets named");
}
