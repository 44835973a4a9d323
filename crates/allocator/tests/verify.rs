//! The model does what PyTorch did, on every recording there is.

use allocator::{Given, Recorded};
use snapshot::History;
use std::path::{Path, PathBuf};

fn recordings(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.to_string_lossy().contains(".pickle"))
        .collect();
    files.sort();
    files
}

/// Follows every device of every file; the differences.
fn differences(files: &[PathBuf]) -> Vec<String> {
    let mut differences = Vec::new();
    for file in files {
        let snapshot = snapshot::open(file).expect("a snapshot");
        for device in snapshot.devices() {
            let history = History::new(&snapshot, device);
            let recorded = Recorded::new(&snapshot, &history, Given::default());
            let verification = recorded.verification();
            if let Some(difference) = verification.difference {
                let name =
                    file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                differences.push(format!("{name}: {difference}\n  {}", difference.around.join("\n  ")));
            }
        }
    }
    differences
}

fn check(folder: &str, least: usize) {
    let files = recordings(folder);
    assert!(files.len() >= least, "{} files in {folder}", files.len());
    let differences = differences(&files);
    assert!(differences.is_empty(), "{} of {}:\n{}", differences.len(), files.len(), differences.join("\n"));
}

#[test]
fn the_zoo_is_followed() {
    check("zoo", 17);
}

#[test]
fn further_programs_are_followed() {
    check("field", 107);
}

#[test]
fn random_traffic_of_a_real_gpu_is_followed() {
    check("oracle", 6);
}

#[test]
fn programs_under_other_settings_are_followed() {
    for setting in ["default", "expand", "gc60", "pow8", "split128gc80", "split64"] {
        check(&format!("whatif/{setting}"), 2);
    }
}

#[test]
fn long_histories_are_followed() {
    check("large", 2);
}

#[test]
fn every_release_is_followed() {
    check("torch", 30);
}
