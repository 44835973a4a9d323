//! A recording predicts what the same program reserves under other settings: compared with runs on a real
//! H200.

use crate::common::{fixtures, json, recordings, stat};
use allocator::{Conditions, Conf, KnownConditions, Outcome, RecordedRun, WhatIf};
use snapshot::{History, Metric, PoolClass, Snapshot};
use std::path::PathBuf;

const SETTINGS: [&str; 6] = ["default", "expand", "gc60", "pow8", "split128gc80", "split64"];
const PROGRAMS: [&str; 2] = ["clean_resnet50_amp", "frag_variable_length"];

fn open(path: PathBuf) -> Snapshot {
    snapshot::open(&path).expect("a snapshot")
}

/// Recording of a program with PyTorch's defaults.
fn recording(program: &str) -> PathBuf {
    let field = fixtures().join(format!("field/{program}.pickle.xz"));
    if field.exists() { field } else { fixtures().join(format!("zoo/{program}.pickle.xz")) }
}

fn what(recorded: &RecordedRun<'_>, conf: &str) -> WhatIf {
    let conf = Conf::parse(conf, recorded.release).expect("taken").conf.into();
    WhatIf { conf, total: None, available: None, limit: None }
}

/// Returns whether the real figure is in the range, and the width of the range as a share of the figure.
fn judge(outcome: &Outcome, real: u64) -> (bool, f64) {
    let (low, high) = outcome.peak_reserved_range;
    assert!((low..=high).contains(&outcome.peak_reserved), "the figure is in its own range");
    ((low..=high).contains(&real), (high - low) as f64 / real as f64)
}

#[test]
fn any_recording_predicts_the_peak_under_every_other_setting() {
    for program in PROGRAMS {
        for from in SETTINGS {
            let snapshot = open(fixtures().join(format!("whatif/{from}/{program}.pickle.xz")));
            let history = History::new(&snapshot, 0);
            let recorded = RecordedRun::new(&snapshot, &history, KnownConditions::default());
            for setting in SETTINGS {
                let label = json(&fixtures().join(format!("whatif/{setting}/{program}.truth.json")));
                let conf = label["conf"].as_str().expect("settings");
                let outcome = recorded.simulate(&what(&recorded, conf));
                let real = stat(&label, "reserved_bytes.all.peak");
                let name = format!("{program}: {from} to {setting}");
                assert_eq!(outcome.peak_reserved, real, "{name}");
                let (is_inside, width) = judge(&outcome, real);
                assert!(is_inside && width < 0.02, "{name}: {:?}", outcome.peak_reserved_range);
                assert_eq!(outcome.device_allocs, stat(&label, "num_device_alloc"), "{name}");
                assert_eq!(outcome.retries, stat(&label, "num_alloc_retries"), "{name}");
            }
        }
    }
}

/// The snapshot of a replay has the statistics of the real run, to the last byte and count. If the driver's
/// addresses differ from run to run, a request may get another block of nearly its size: then the sums of
/// block sizes are not compared.
#[test]
fn a_replayed_run_equals_the_real_one() {
    let snapshot = open(fixtures().join("whatif/default/frag_variable_length.pickle.xz"));
    let history = History::new(&snapshot, 0);
    let recorded = RecordedRun::new(&snapshot, &history, KnownConditions::default());
    for setting in SETTINGS {
        let label = json(&fixtures().join(format!("whatif/{setting}/frag_variable_length.truth.json")));
        let conf = label["conf"].as_str().expect("settings");
        let replayed = recorded.replayed(&what(&recorded, conf), conf);
        let history = History::new(&replayed, 0);
        assert_eq!(history.caveats, Vec::<String>::new(), "{setting}");
        let by_request = [
            Metric::ReservedBytes,
            Metric::Segment,
            Metric::Allocation,
            Metric::Active,
            Metric::RequestedBytes,
        ];
        let depends_on_addresses = !matches!(setting, "default" | "expand");
        for metric in Metric::ALL.into_iter().filter(|of| !depends_on_addresses || by_request.contains(of)) {
            let ours = history.stats.get(metric, PoolClass::All);
            let theirs = |part: &str| stat(&label, &format!("{}.all.{part}", metric.key())) as i64;
            assert_eq!(ours.current, theirs("current"), "{setting} {}", metric.key());
            assert_eq!(ours.peak, theirs("peak"), "{setting} {}", metric.key());
            assert_eq!(ours.allocated, theirs("allocated"), "{setting} {}", metric.key());
        }
        let again = RecordedRun::new(&replayed, &history, KnownConditions::default());
        assert_eq!(again.verification().difference, None, "{setting}: the model reproduces its own run");
    }
}

/// 32 programs, recorded once with PyTorch's defaults, against their real runs under ten settings.
#[test]
fn real_peaks_of_programs_under_ten_settings_are_predicted() {
    let real = json(&fixtures().join("whatif/field.json"));
    let (mut pairs, mut exact, mut outside) = (0, 0, Vec::new());
    for (program, peaks) in real.as_object().expect("programs") {
        let snapshot = open(recording(program));
        let history = History::new(&snapshot, 0);
        let recorded = RecordedRun::new(&snapshot, &history, KnownConditions::default());
        for (conf, peak) in peaks.as_object().expect("settings") {
            let real = peak.as_u64().expect("bytes");
            let outcome = recorded.simulate(&what(&recorded, conf));
            let (is_inside, width) = judge(&outcome, real);
            assert!(width < 0.04, "{program} {conf}: {:?}", outcome.peak_reserved_range);
            let off = outcome.peak_reserved.abs_diff(real) as f64 / real as f64;
            assert!(off < 0.02, "{program} {conf}: {} for {real}", outcome.peak_reserved);
            pairs += 1;
            exact += usize::from(outcome.peak_reserved == real);
            if !is_inside {
                outside.push(format!("{program} {conf}: {:?} for {real}", outcome.peak_reserved_range));
            }
        }
    }
    assert_eq!(pairs, 320);
    assert!(exact >= 309, "{exact} of {pairs} are exact");
    assert!(outside.len() <= 2, "{}", outside.join("\n"));
}

/// 14 programs under seven settings and three memory limits each: whether a request fails, and if not, how
/// close it came.
#[test]
fn memory_limits_act_as_in_the_real_runs() {
    let total = 150_109_880_320;
    let real = json(&fixtures().join("whatif/limits.json"));
    let (mut runs, mut went_through, mut exact, mut equal) = (0, 0, 0, 0);
    for (program, cases) in real.as_object().expect("programs") {
        let snapshot = open(recording(program));
        let history = History::new(&snapshot, 0);
        let recorded = RecordedRun::new(&snapshot, &history, KnownConditions::default());
        for case in cases.as_array().expect("a list") {
            let text = case["conf"].as_str().expect("settings");
            let limit = case["limit"].as_u64();
            let conf = Conf::parse(text, recorded.release).expect("taken").conf.into();
            let what = WhatIf { conf, total: Some(total), available: Some(total), limit };
            let outcome = recorded.simulate(&what);
            // cuDNN catches the failure of a workspace and continues with less; the request failed
            // nevertheless.
            assert_eq!(outcome.oom.is_some(), case["failed"].is_string(), "{program} {text}");
            runs += 1;
            if outcome.oom.is_some() {
                continue;
            }
            went_through += 1;
            let number = |key: &str| case[key].as_u64().expect("a number");
            let off = outcome.peak_reserved.abs_diff(number("peak_reserved"));
            assert!(off <= 2 << 20, "{program} {text}: {}", outcome.peak_reserved);
            exact += usize::from(off == 0);
            let ours = [outcome.device_allocs, outcome.device_frees, outcome.retries];
            equal +=
                usize::from(off == 0 && ours == ["device_allocs", "device_frees", "retries"].map(number));
        }
    }
    assert_eq!((runs, went_through), (294, 212));
    assert!(exact >= 210, "{exact}");
    assert!(equal >= 207, "{equal}");
}

/// Under its own settings and available memory, a run is replayed as it was recorded.
#[test]
fn a_run_is_reproduced_under_its_own_conditions() {
    let folders = ["zoo", "field", "oracle", "whatif/default", "whatif/expand", "whatif/split64"];
    let mut wrong = Vec::new();
    for file in folders.into_iter().flat_map(recordings) {
        let snapshot = open(file.clone());
        let history = History::new(&snapshot, 0);
        let recorded = RecordedRun::new(&snapshot, &history, KnownConditions::default());
        let Conditions { available, limit } = recorded.conditions();
        let what = WhatIf { conf: recorded.conf.clone(), total: None, available, limit };
        let outcome = recorded.simulate(&what);
        let theirs = (history.reserved_peak.bytes.0, history.end.reserved.0, history.stats.device_allocs);
        let ours = (outcome.peak_reserved, outcome.end_reserved, outcome.device_allocs);
        if ours != theirs {
            wrong.push(format!("{}: {ours:?}, recorded {theirs:?}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Among recordings of a real H200, the order of addresses matters for some and not for others; the range
/// contains the recorded peaks of each.
#[test]
fn ranges_over_addresses_contain_the_recorded_peaks() {
    let range = |program: &str| {
        let snapshot = open(recording(program));
        let history = History::new(&snapshot, 0);
        let recorded = RecordedRun::new(&snapshot, &history, KnownConditions::default());
        let ranges = recorded.peaks_with_other_addresses(None);
        let (allocated, reserved) = (history.allocated_peak.bytes.0, history.reserved_peak.bytes.0);
        assert!((ranges.allocated.0..=ranges.allocated.1).contains(&allocated), "{program}: {ranges:?}");
        assert!((ranges.reserved.0..=ranges.reserved.1).contains(&reserved), "{program}: {ranges:?}");
        (ranges.allocated.1 - ranges.allocated.0, ranges.reserved.1 - ranges.reserved.0)
    };
    assert_eq!(range("leak_retain_graph"), (0, 0));
    assert_eq!(range("cuda_graph"), (0, 0));
    let (allocated, reserved) = range("frag_variable_length");
    assert!(allocated > 0 && reserved > 2 << 20, "{allocated} {reserved}");
}
