//! Histories that no program writes: every answer still comes, without an overflow.

use analysis::{DeviceSummary, RunModel, changes, devices, findings, skew};
use serde_json::{Value, json};

fn event(action: &str, addr: u64, size: u64, time_us: i64) -> Value {
    let frames = json!([
        {"filename": "/home/user/train.py", "line": 9 + addr % 3, "name": "main"},
        {"filename": "/home/user/train.py", "line": 1, "name": "<module>"},
    ]);
    let addr_key = if action == "oom" { "device_free" } else { "addr" };
    json!({"action": action, addr_key: addr, "size": size, "stream": 0, "time_us": time_us, "frames": frames})
}

fn steps(count: i64) -> Vec<Value> {
    (0..count)
        .map(|step| json!({"name": format!("ProfilerStep#{step}"), "stage": "START", "device": 0, "time_us": step * 10}))
        .collect()
}

fn document(events: Vec<Value>, annotations: Vec<Value>) -> Value {
    json!({"segments": [], "device_traces": [events], "allocator_settings": {}, "external_annotations": annotations})
}

fn summary(name: &str, document: &Value) -> DeviceSummary {
    let snapshot =
        snapshot::read(document.to_string().as_bytes()).unwrap_or_else(|_| panic!("{name} is readable"));
    let devices = devices(&snapshot);
    let Some(device) = devices.first() else { return DeviceSummary::empty(name) };
    let model = RunModel::new(device);
    let findings = findings(&model);
    for finding in &findings {
        let texts = finding.details.iter().chain([&finding.summary, &finding.fix, &finding.reason]);
        for text in texts {
            let is_odd =
                ["NaN", "inf ", ": .", "from .", "at least 0 B"].iter().any(|part| text.contains(part));
            assert!(!is_odd && !text.is_empty(), "{name}: {text}");
        }
    }
    DeviceSummary::new(name, &model, &findings)
}

/// Documents with sizes and times at the ends of their ranges, and events that fit nothing.
fn documents() -> Vec<(String, Value)> {
    let mut all = vec![
        ("only an oom".to_owned(), document(vec![event("oom", 1 << 30, 2 << 30, 1)], Vec::new())),
        ("only frees".to_owned(), document(vec![event("free_requested", 4096, 512, 1); 9], steps(9))),
        ("no events".to_owned(), document(Vec::new(), steps(3))),
    ];
    for size in [0, 1, 1 << 20, 1 << 50, 1 << 58, 1 << 62, 1 << 63, u64::MAX] {
        let grows =
            (0..20).map(|step| event("alloc", (step + 1) << 20, size, step as i64 * 10 + 1)).collect();
        all.push((format!("20 blocks of {size}"), document(grows, steps(20))));
        let churns = (0..60)
            .map(|at| {
                let action = ["alloc", "free_requested", "free_completed"][at % 3];
                event(action, 1 << 40, if at == 30 { size } else { 512 }, at as i64 * 4)
            })
            .collect();
        all.push((format!("one block of {size} among small ones"), document(churns, steps(20))));
        let mut fails: Vec<Value> =
            (0..10).map(|at| event("alloc", (at + 1) << 30, size, at as i64)).collect();
        fails.push(event("oom", size, size, 11));
        all.push((format!("an oom after blocks of {size}"), document(fails, steps(4))));
        let over =
            (0..40).map(|at| event("alloc", 1 << (40 + at % 2), size.min(1 << 40), at as i64 * 5)).collect();
        all.push((format!("blocks of {size} over each other"), document(over, steps(20))));
    }
    let clock = [i64::MIN, -1, 0, i64::MAX];
    let odd = (0..24)
        .map(|at| {
            event(
                ["segment_alloc", "alloc", "free_requested", "segment_free"][at % 4],
                1 << 30,
                64 << 20,
                clock[at / 4 % 4],
            )
        })
        .collect();
    all.push(("a clock that jumps".to_owned(), document(odd, steps(6))));
    all
}

#[test]
fn every_history_gets_an_answer() {
    let documents = documents();
    let summaries: Vec<DeviceSummary> =
        documents.iter().map(|(name, document)| summary(name, document)).collect();
    assert!(summaries.len() > 30);
    for pair in summaries.windows(2) {
        changes(&pair[0].sites, &pair[1].sites);
    }
    assert!(skew(&summaries).is_some());
}

#[test]
fn what_the_walk_holds_never_exceeds_the_peak() {
    for (name, document) in documents() {
        let summary = summary(&name, &document);
        if summary.allocated.0.0 >= i64::MAX as u64 {
            // PyTorch's counters are signed; beyond that they stand still.
            continue;
        }
        let sum = summary.at_peak.0.iter().copied().sum::<snapshot::Bytes>();
        assert_eq!(sum, summary.allocated.0, "{name}");
        for held in summary.most.0 {
            assert!(held <= summary.allocated.0, "{name}: {held} of {}", summary.allocated.0);
        }
    }
}
