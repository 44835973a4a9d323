//! Retries inferred from real traces, against what `memory_stats()` counted.

use std::path::Path;

#[test]
fn retries_equal_the_label_wherever_the_trace_tells() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let (mut counted, mut unknown, mut sum) = (0, 0, 0);
    for folder in ["zoo", "field", "oracle", "torch"] {
        for entry in std::fs::read_dir(fixtures.join(folder)).expect("fixtures are there") {
            let path = entry.expect("readable").path();
            let Some(stem) = path.to_str().and_then(|path| path.strip_suffix(".pickle.xz")) else { continue };
            let label = [".truth.json", ".stats.json"]
                .iter()
                .find_map(|ending| std::fs::read_to_string(format!("{stem}{ending}")).ok())
                .expect("every snapshot has a label");
            let key = "\"num_alloc_retries\":";
            let from = label.find(key).expect("a label counts retries") + key.len();
            let expected: u64 = label[from..]
                .trim_start()
                .split(|c: char| !c.is_ascii_digit())
                .next()
                .and_then(|digits| digits.parse().ok())
                .expect("a number");
            let snapshot = snapshot::open(&path).expect("readable");
            match analysis::retries(&analysis::devices(&snapshot)[0]) {
                Some(retries) => {
                    assert_eq!(retries, expected, "{stem}");
                    counted += 1;
                    sum += retries;
                }
                None => unknown += 1,
            }
        }
    }
    assert!(counted >= 15 && sum > 20, "{counted} counted, {unknown} not, {sum} retries");
}
