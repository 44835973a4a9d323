use allocator::*;
use snapshot::History;
use std::path::Path;
fn main() {
    let labels: serde_json::Value = serde_json::from_str(&std::fs::read_to_string("/tmp/wi/labels.json").unwrap()).unwrap();
    let labels = labels.as_object().unwrap();
    let mut names: Vec<&str> = labels.keys().filter_map(|k| k.strip_prefix("default/")).collect();
    names.sort();
    let (mut n, mut exact, mut inside, mut wide, mut outside, mut point) = (0,0,0,0,0,0);
    for name in names {
        let mut path = Path::new("fixtures/field").join(format!("{name}.pickle.xz"));
        if !path.exists() { path = Path::new("fixtures/zoo").join(format!("{name}.pickle.xz")); }
        let snap = snapshot::open(&path).unwrap();
        let history = History::new(&snap, 0);
        let recorded = Recorded::new(&snap, &history, Given::default());
        let own = std::fs::read_to_string(path.to_string_lossy().replace(".pickle.xz", ".truth.json")).unwrap();
        let own: serde_json::Value = serde_json::from_str(&own).unwrap();
        for (key, label) in labels.iter().filter(|(k, _)| k.ends_with(&format!("/{name}"))) {
            let stat = |l: &serde_json::Value, k: &str| l["final_stats"][k].as_u64().unwrap();
            let same = ["allocation.all.allocated", "requested_bytes.all.allocated"].iter().all(|k| stat(label, k) == stat(&own, k));
            if !same { println!("{key}: other requests"); continue; }
            let conf = Conf::parse(label["conf"].as_str().unwrap(), recorded.release).unwrap().conf;
            let out = recorded.simulate(&WhatIf { conf, total: None, available: None, limit: None });
            let real = stat(label, "reserved_bytes.all.peak");
            let (lo, hi) = out.peak_reserved_range;
            n += 1;
            if out.peak_reserved == real { point += 1; }
            if lo == hi && lo == real { exact += 1; continue; }
            let w = (hi - lo) as f64 / real as f64 * 100.0;
            if w > 4.0 { wide += 1; }
            let m = if lo <= real && real <= hi { inside += 1; "inside" } else { outside += 1; "OUTSIDE" };
            println!("{key:34} real {:7} point {:7} [{} {}] {m} {w:.2}%  err {:.2}%", real>>20, out.peak_reserved>>20, lo>>20, hi>>20, (out.peak_reserved as f64/real as f64-1.0)*100.0);
        }
    }
    println!("{n} pairs: point exact {point}; range single and exact {exact}, inside {inside}, outside {outside}; wider than 4 %: {wide}");
}
