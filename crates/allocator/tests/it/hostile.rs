//! Replay cannot fail: files that no allocator wrote also give a result.

use allocator::{Conf, KnownConditions, RecordedRun, Release, WhatIf, candidate_settings};
use snapshot::History;

/// One event as JSON.
fn event(action: &str, addr: u64, size: u64) -> String {
    format!(
        r#"{{"action":"{action}","addr":{addr},"device_free":{addr},"size":{size},"stream":0,"time_us":1}}"#
    )
}

fn segment(addr: u64, size: u64, expandable: bool) -> String {
    format!(
        r#"{{"device":0,"address":{addr},"total_size":{size},"stream":0,"segment_type":"large",
        "is_expandable":{expandable},"segment_pool_id":[0,0],
        "blocks":[{{"address":{addr},"size":{size},"requested_size":1,"state":"active_allocated"}}]}}"#
    )
}

/// Verifies, replays and writes a file under several releases and settings.
fn survives(events: &[String], segments: &[String]) {
    let text = format!(r#"{{"segments":[{}],"device_traces":[[{}]]}}"#, segments.join(","), events.join(","));
    let snapshot = snapshot::read(text.as_bytes()).expect("JSON of the right shape");
    for device in snapshot.devices() {
        let history = History::new(&snapshot, device);
        for release in [Release(2), Release(11), Release(12), Release(15)] {
            let given = KnownConditions { release: Some(release), ..KnownConditions::default() };
            let recorded = RecordedRun::new(&snapshot, &history, given);
            for conf in candidate_settings(release, true) {
                let conf_text = conf;
                let conf = Conf::parse(conf, release).expect("taken").conf.into();
                let what =
                    WhatIf { conf, total: Some(1 << 30), available: Some(900 << 20), limit: Some(800 << 20) };
                let outcome = recorded.simulate(&what);
                assert!(outcome.peak_allocated <= outcome.peak_reserved, "{conf_text}");
                let replayed = recorded.replayed(&what, conf_text);
                snapshot::write(&replayed, &mut std::io::sink()).expect("a sink accepts everything");
            }
        }
    }
}

const ODD: [u64; 8] = [0, 1, 511, 1 << 20, 1 << 59, 1 << 60, u64::MAX - (2 << 20), u64::MAX];

#[test]
fn odd_addresses_and_sizes_are_survived() {
    for odd in ODD {
        survives(
            &[
                event("segment_alloc", odd, 20 << 20),
                event("alloc", odd, 3 << 20),
                event("free_requested", odd, 3 << 20),
                event("free_completed", odd, 3 << 20),
                event("segment_free", odd, 20 << 20),
                event("oom", odd, 1 << 30),
            ],
            &[],
        );
        survives(
            &[
                event("segment_alloc", 1 << 40, odd),
                event("alloc", 1 << 40, odd),
                event("alloc", 2 << 40, odd),
            ],
            &[segment(odd, 20 << 20, false), segment(1 << 41, odd, true)],
        );
        survives(
            &[
                event("segment_map", odd, 20 << 20),
                event("alloc", odd, 5 << 20),
                event("segment_map", odd, 20 << 20),
                event("segment_unmap", odd, 20 << 20),
            ],
            &[segment(odd, 40 << 20, true)],
        );
    }
}

#[test]
fn sums_beyond_any_device_are_survived() {
    let size = 1 << 59;
    let events: Vec<String> = (0..40u64)
        .flat_map(|n| [event("segment_alloc", n << 20, size), event("alloc", n << 20, size)])
        .collect();
    survives(&events, &[]);
    let segments: Vec<String> = (0..12u64).map(|n| segment(n << 59, (1 << 59) - 512, n % 2 == 0)).collect();
    survives(&[event("alloc", 7, 7)], &segments);
}

#[test]
fn contradictions_are_survived() {
    let a = 1 << 40;
    for order in [
        ["free_requested", "free_requested", "alloc", "alloc"],
        ["alloc", "segment_free", "alloc", "free_completed"],
        ["segment_free", "segment_alloc", "segment_alloc", "oom"],
        ["free_completed", "segment_unmap", "segment_free", "oom"],
        ["segment_map", "segment_alloc", "alloc", "segment_unmap"],
    ] {
        let events: Vec<String> = (0..60u64)
            .map(|n| event(order[n as usize % 4], a + ((n % 7) << 21), 1 + ((n % 5) << 21)))
            .collect();
        survives(&events, &[segment(a, 20 << 20, false), segment(a + (8 << 20), 20 << 20, true)]);
    }
}
