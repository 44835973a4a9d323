//! Findings about host memory, from samples of the kernel's counters.

use crate::common::recorded;
use analysis::{Diagnosis, EvidenceValue, Finding, FindingKind, Severity, recorded_devices};
use recording::HostMemory;
use serde_json::{Value, json};
use snapshot::Bytes;

const MIB: u64 = 1 << 20;

/// Findings about the host, of a program whose host memory was recorded in these lines.
fn found(lines: &[Value]) -> Vec<Finding> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let (mut snapshot, mut recording) = recorded("+w 1MiB train.py:3 <module>");
    let mut host = HostMemory::parse(text.as_bytes()).expect("readable");
    host.join(&mut snapshot);
    recording.host = Some(host);
    let devices = recorded_devices(&snapshot, &recording);
    let mut findings = Diagnosis::new(&devices[0]).findings;
    findings.retain(|finding| finding.kind >= FindingKind::PinnedWaste);
    let sites = findings.iter().filter_map(|finding| finding.site);
    sites.for_each(|site| assert_eq!(analysis::words::site_name(&snapshot, site), "data.py:9"));
    findings
}

fn loader() -> Value {
    json!({"loader": 0, "file": "/home/me/data.py", "line": 9, "function": "main"})
}

/// Samples of two workers, one per second: private and shared MiB.
fn workers(amounts: &[(u64, u64)]) -> Vec<Value> {
    let sample = |(second, (private, shared)): (usize, &(u64, u64))| {
        let worker = |pid: u64| {
            json!({
                "pid": pid, "loader": 0, "rss": (private + shared) * MIB, "private": private * MIB, "shmem": 0
            })
        };
        json!({"time_us": second as u64 * 1_000_000, "rss": 900 * MIB, "workers": [worker(7), worker(8)]})
    };
    [loader()].into_iter().chain(amounts.iter().enumerate().map(sample)).collect()
}

#[test]
fn workers_that_copy_what_they_share_with_their_parent_are_found() {
    let findings = found(&workers(&[(20, 600), (60, 560), (110, 510), (160, 460), (220, 400)]));
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!((finding.kind, finding.severity), (FindingKind::WorkerGrowth, Severity::Low));
    assert_eq!((finding.bytes, finding.count), (Bytes(400 * MIB), 2));
    assert_eq!(
        finding.summary,
        "the private memory of 2 data loader workers grew by 400 MiB in 4 s, 200 MiB each"
    );
    assert!(finding.site.is_some() && finding.details[0].contains("copied pages"), "{finding:?}");
    let copied = finding.evidence.iter().find(|(name, _)| *name == "copied");
    assert_eq!(copied, Some(&("copied", EvidenceValue::Bytes(Bytes(400 * MIB)))));
}

#[test]
fn memory_that_only_the_parent_copies_is_not_counted() {
    let mut lines = workers(&[(20, 600), (60, 560), (110, 510), (160, 460), (220, 400)]);
    let mut faulted = |pages_of: fn(u64) -> u64| {
        for (second, line) in lines.iter_mut().skip(1).enumerate() {
            for worker in line["workers"].as_array_mut().into_iter().flatten() {
                worker["faulted"] = json!((70 + pages_of(second as u64)) * MIB);
            }
        }
        found(&lines)
    };
    assert_eq!(faulted(|second| second), []);
    let [finding] = &faulted(|second| second * 20)[..] else { panic!("80 MiB of each are its own copies") };
    assert_eq!(finding.bytes, Bytes(160 * MIB));
    assert!(finding.details[0].contains("copied pages"), "{finding:?}");
}

#[test]
fn workers_whose_own_memory_grows_are_found_when_it_is_much() {
    let findings = found(&workers(&[(20, 600), (400, 600), (800, 600), (1200, 600)]));
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!((finding.kind, finding.severity), (FindingKind::WorkerGrowth, Severity::Medium));
    assert!(finding.details[0].contains("resident memory grew"), "{finding:?}");
}

#[test]
fn workers_that_need_memory_to_get_going_are_not_reported() {
    for amounts in [
        // All of it early: copies of the interpreter's own objects, buffers.
        &[(20, 600), (300, 320), (300, 320), (305, 315)][..],
        // Little of it.
        &[(20, 600), (40, 580), (60, 560), (70, 550)],
        // Allocated, not copied, and less than caches of a healthy dataset.
        &[(20, 600), (80, 600), (140, 600), (200, 600)],
        // Too few samples.
        &[(20, 600), (600, 20)],
        // Memory that is given back.
        &[(300, 320), (200, 420), (100, 520)],
    ] {
        assert_eq!(found(&workers(amounts)), [], "{amounts:?}");
    }
}

#[test]
fn a_full_dev_shm_is_found_with_the_loader_that_has_the_most_workers() {
    let sample = |free: u64| {
        json!({
            "time_us": 1, "rss": MIB, "shmem": MIB, "shm": {"size": 64 * MIB, "free": free * MIB},
            "workers": [{"pid": 7, "loader": 0, "rss": MIB, "shmem": 30 * MIB}]
        })
    };
    let findings = found(&[loader(), sample(20), sample(1), sample(64)]);
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!((finding.kind, finding.severity), (FindingKind::SharedMemoryNearlyFull, Severity::High));
    assert_eq!(finding.summary, "63.0 MiB of 64.0 MiB of /dev/shm was in use");
    assert!(finding.site.is_some() && finding.details[0].contains("mapped 31.0 MiB"), "{finding:?}");
    assert_eq!(found(&[loader(), sample(20), sample(7), sample(64)]), []);
}

/// Samples, ten seconds apart, of a control group with a limit of 1000 MiB on a machine of 4000 MiB.
fn group(used: &[u64]) -> Vec<Value> {
    let sample = |(at, used): (usize, &u64)| {
        json!({
            "time_us": at as u64 * 10_000_000, "rss": 500 * MIB,
            "cgroup": {"limit": 1000 * MIB, "used": used * MIB},
            "machine": {"total": 4000 * MIB, "available": 3000 * MIB}
        })
    };
    used.iter().enumerate().map(sample).collect()
}

#[test]
fn a_control_group_that_fills_up_is_found_with_the_time_that_is_left() {
    let findings = found(&group(&[100, 200, 300, 400, 500, 600, 720, 840, 960]));
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!((finding.kind, finding.severity), (FindingKind::HostMemoryNearlyFull, Severity::High));
    assert_eq!(finding.summary, "960 MiB of 1000 MiB of host memory was in use (the control group's limit)");
    let left = finding.evidence.iter().find(|(name, _)| *name == "seconds_until_full");
    // From 500 to 960 MiB in 40 seconds, with 40 MiB left.
    assert_eq!(left, Some(&("seconds_until_full", EvidenceValue::Count(3))));
}

#[test]
fn host_memory_with_room_is_not_reported_and_level_memory_has_no_time_left() {
    assert_eq!(found(&group(&[100, 400, 800, 890])), []);
    let findings = found(&group(&[920, 921, 920, 921, 920, 922, 921, 920]));
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!(finding.severity, Severity::Medium);
    assert!(!finding.evidence.iter().any(|(name, _)| *name == "seconds_until_full"), "{finding:?}");
}

#[test]
fn a_machine_without_a_control_group_counts_itself() {
    let sample = json!({"time_us": 1, "rss": MIB, "machine": {"total": 1000 * MIB, "available": 30 * MIB}});
    let findings = found(&[sample]);
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!(finding.summary, "970 MiB of 1000 MiB of host memory was in use (the machine's memory)");
}

fn pinned(reserved: u64, blocks: &[(u64, u64, u64)]) -> Value {
    let blocks = blocks.iter().map(|(size, requested, count)| {
        json!({
            "file": "/home/me/data.py", "line": 9, "function": "main",
            "size": size * MIB, "requested": requested * MIB, "count": count
        })
    });
    json!({"pinned": {"reserved": reserved * MIB, "blocks": blocks.collect::<Vec<Value>>()}})
}

#[test]
fn pinned_memory_that_only_rounding_takes_is_found() {
    let findings = found(&[pinned(640, &[(64, 33, 8), (128, 128, 1)])]);
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!((finding.kind, finding.severity), (FindingKind::PinnedWaste, Severity::Low));
    assert_eq!((finding.bytes, finding.count), (Bytes(8 * 31 * MIB), 8));
    assert_eq!(finding.details, ["8 blocks of 64.0 MiB for requests of 33.0 MiB at data.py:9"]);
    assert!(finding.fix.contains("torch 2.13"), "{}", finding.fix);
    // Little of it, a small part of it, nothing.
    for pinned in [pinned(128, &[(64, 33, 2)]), pinned(2000, &[(64, 33, 8)]), pinned(512, &[(64, 64, 8)])] {
        assert_eq!(found(std::slice::from_ref(&pinned)), [], "{pinned}");
    }
}
