//! Who holds what, in a real recording of `fixtures/recordings/holders.py` on an H200.

use crate::common::{json, oomph, root, text};
use serde_json::{Value, json};
use std::path::Path;

const RECORDING: &str = "fixtures/recordings/holders";

fn input(options: &[&str]) -> Value {
    json(&[&["holders", "--json", RECORDING], options].concat())["inputs"][0].clone()
}

/// The bytes that a row of tensors takes.
fn rows(count: u64) -> u64 {
    count * 256 * 4
}

#[test]
fn every_leak_of_the_report_has_its_holder() {
    let report = json(&["report", "--json", RECORDING]);
    let findings = report["inputs"][0]["devices"][0]["findings"].as_array().expect("findings");
    let held: Vec<(&str, &str)> = findings
        .iter()
        .filter(|finding| finding["kind"] == "leak")
        .map(|finding| {
            (finding["held_by"].as_str().unwrap_or(""), finding["holder"]["kind"].as_str().unwrap_or(""))
        })
        .collect();
    let expected = [
        ("__main__.trainer.meter.store['val'][…].grad_fn…_saved_mat1", "container"),
        ("__main__.failures[…].__traceback__.tb_next.tb_frame local scaled", "exception"),
    ];
    assert_eq!(held, expected);
    // What the first of them does not hold, the cycles do: they grow in the same steps.
    assert_eq!(findings[0]["holder"]["rest"][0]["held_by"], "reference cycle Node.other → Node.other");
    assert_eq!(findings[0]["holder"]["path"], "__main__.trainer.meter.store['val']");
}

#[test]
fn who_holds_most_comes_first_and_all_is_told() {
    let input = input(&["--top", "100"]);
    let holders = input["holders"].as_array().expect("holders");
    let paths: Vec<&str> = holders.iter().map(|holder| holder["path"].as_str().expect("a path")).collect();
    for expected in [
        "__main__.trainer.meter.store['val']",
        "Node.other → Node.other",
        "__main__.failures",
        "__main__.trainer.optimizer.state",
        "__main__.trainer.model",
        "__main__.grid cache",
    ] {
        assert!(paths.contains(&expected), "{expected} in {paths:?}");
    }
    let cuda = input["held"].as_array().expect("devices").iter().find(|held| held["device"] == "cuda:0");
    let sum: u64 = holders.iter().map(|holder| holder["bytes"].as_u64().expect("bytes")).sum();
    let total: u64 =
        input["held"].as_array().expect("devices").iter().filter_map(|held| held["bytes"].as_u64()).sum();
    assert!(cuda.is_some() && sum <= total && total - sum < 1024, "{sum} of {total}");
}

#[test]
fn cycles_are_counted_with_what_they_hold() {
    let cycles = input(&["--cycles"])["cycles"].clone();
    // A pair per step for eighteen steps, each of two tensors.
    let expected = json!([{"links": "Node.other → Node.other", "count": 18, "garbage": true,
        "retained": [{"device": "cuda:0", "bytes": 18 * 2 * rows(64)}]}]);
    assert_eq!(cycles, expected);
}

#[test]
fn what_a_line_allocates_has_a_holder_of_its_own() {
    let of = |site: &str| input(&["--of", site])["holders"][0]["held_by"].as_str().unwrap_or("").to_owned();
    assert_eq!(of("holders.py:50"), "__main__.failures[…].__traceback__.tb_next.tb_frame local scaled");
    assert_eq!(of("check"), of("holders.py:50"), "by its function");
    assert!(of("grid").starts_with("__main__.grid cache[…]"), "{}", of("grid"));
    let output = oomph(&["holders", "--of", "nowhere.py:1", RECORDING]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("no block allocated there was alive at that time")
    );
}

#[test]
fn the_tree_leads_from_variables_to_tensors() {
    let tree = text(&["holders", "--tree", RECORDING]);
    for expected in [
        "__main__  dict",
        ".trainer  __main__.Trainer",
        ".store  dict",
        "18 × torch.Tensor",
        "18 × __main__.Node",
    ] {
        assert!(tree.contains(expected), "{expected} in\n{tree}");
    }
    let paths = text(&["holders", "--path", "--top", "3", RECORDING]);
    assert_eq!(paths.lines().filter(|line| line.contains("cuda:0  ")).count(), 3, "{paths}");
}

#[test]
fn what_grew_is_told_place_by_place() {
    let growing = format!("{RECORDING}/rank0.growing.heap");
    let changes = input(&["--since", &growing])["changes"].clone();
    let of = |place: &str| {
        let changes = changes.as_array().expect("changes").iter();
        changes.clone().find(|change| change["place"] == place).cloned().unwrap_or_default()
    };
    let store = of("__main__.trainer.meter.store['val'][…]");
    assert!(store["after"]["storages"].as_u64() > store["before"]["storages"].as_u64(), "{changes:#}");
    assert!(
        of("__main__.failures[…].__traceback__.tb_next.tb_frame local scaled")["after"]["bytes"].is_u64(),
        "{changes:#}"
    );
}

#[test]
fn a_file_of_references_alone_is_enough() {
    let alone = json(&["holders", "--json", &format!("{RECORDING}/rank0.heap")])["inputs"][0].clone();
    assert_eq!(alone["cycles"][0]["count"], 18);
    assert_eq!(alone.get("unheld"), None, "without events nothing is known of the rest");
}

#[test]
fn a_recording_without_references_says_how_to_get_them() {
    let output = oomph(&["holders", "fixtures/recordings/gpu"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("has no heap file") && said.contains("oomph run -o run train.py"), "{said}");
}

#[test]
fn a_broken_file_of_references_is_named_and_the_report_goes_on() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken-heap");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    for entry in std::fs::read_dir(root().join(RECORDING)).expect("the recording") {
        let path = entry.expect("readable").path();
        std::fs::copy(&path, folder.join(path.file_name().expect("a name"))).expect("a copy");
    }
    std::fs::write(folder.join("rank0.heap"), "{\"version\": 1").expect("written");
    std::fs::remove_file(folder.join("rank0.growing.heap")).expect("removed");
    let output = oomph(&["report", folder.to_str().expect("a path")]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("rank0.heap` cannot be read") && said.contains("the holders of memory are unknown"),
        "{said}"
    );
}
