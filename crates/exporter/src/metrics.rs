//! The exported metrics: names, help texts, and how their values are computed.

use crate::exposition::{Family, MetricKind, MetricLabels};
use analysis::Pace;
use live::{DeviceCounters, Gpu, MemorySplit, WatchedRecorder, Watcher};

/// Returns all metrics with their current values.
pub fn families(watcher: &Watcher) -> Vec<Family> {
    watcher.forget_exited();
    let recorders: Vec<WatchedRecorder> =
        watcher.recorders().into_iter().map(|(_, recorder)| recorder).collect();
    families_of(&recorders, watcher.left_out(), &watcher.gpus())
}

fn families_of(
    recorders: &[WatchedRecorder],
    left_out: usize,
    gpus: &Result<Vec<Gpu>, String>,
) -> Vec<Family> {
    let mut families = recorder_families(recorders);
    families.push(recorder_info(recorders));
    families.extend(machine_families(recorders, left_out, gpus));
    families
}

/// Value of a metric for one device of a recorder; `None` if unknown.
type DeviceValue = fn(&WatchedRecorder, &DeviceCounters) -> Option<f64>;
/// Value of a metric for a recorder; `None` if unknown.
type RecorderValue = fn(&WatchedRecorder) -> Option<f64>;

#[rustfmt::skip] // as a table
const DEVICE_METRICS: [(&str, MetricKind, &str, DeviceValue); 16] = [
    ("oomph_memory_allocated_bytes", MetricKind::Gauge,
        "Bytes of live tensors.",
        |_, device| number(device.allocated)),
    ("oomph_memory_reserved_bytes", MetricKind::Gauge,
        "Bytes reserved by PyTorch.",
        |_, device| number(device.reserved)),
    ("oomph_memory_requested_bytes", MetricKind::Gauge,
        "Bytes requested by tensors, before rounding.",
        |_, device| number(device.requested)),
    ("oomph_memory_active_bytes", MetricKind::Gauge,
        "Bytes allocated, or freed and waiting for a stream.",
        |_, device| number(device.active)),
    ("oomph_memory_inactive_split_bytes", MetricKind::Gauge,
        "Free bytes in segments that are partly in use and cannot be released.",
        |_, device| number(device.inactive_split)),
    ("oomph_memory_peak_allocated_bytes", MetricKind::Gauge,
        "Peak of allocated bytes since the program started or reset it.",
        |_, device| number(device.peak)),
    ("oomph_device_total_bytes", MetricKind::Gauge,
        "Memory of the device.",
        |_, device| device.total.and_then(number)),
    ("oomph_device_free_bytes", MetricKind::Gauge,
        "Free memory of the device.",
        |of, device| MemorySplit::new(&of.state, device).free.and_then(|free| number(free.0))),
    ("oomph_device_used_by_others_bytes", MetricKind::Gauge,
        "Memory of the device in use by other processes.",
        |of, device| MemorySplit::new(&of.state, device).others.and_then(|others| number(others.0))),
    ("oomph_process_non_pytorch_bytes", MetricKind::Gauge,
        "Non-PyTorch memory of the process: the CUDA context, libraries, NCCL.",
        |of, device| MemorySplit::new(&of.state, device).non_pytorch.and_then(|bytes| number(bytes.0))),
    ("oomph_alloc_retries_total", MetricKind::Counter,
        "Allocations that had to release cached memory first.",
        |_, device| number(device.retries)),
    ("oomph_ooms_total", MetricKind::Counter,
        "Allocations that failed.",
        |_, device| number(device.ooms)),
    ("oomph_device_allocs_total", MetricKind::Counter,
        "Calls of cudaMalloc and similar functions.",
        |_, device| number(device.device_allocs)),
    ("oomph_growth_bytes_per_step", MetricKind::Gauge,
        "Growth of allocated memory per step; 0 if it does not grow.",
        |of, device| growth(of.pace(device.device))),
    ("oomph_growing", MetricKind::Gauge,
        "1 if memory grows step after step: a leak.",
        |of, device| Some(f64::from(u8::from(matches!(of.pace(device.device), Pace::Growing { .. }))))),
    ("oomph_steps_until_full", MetricKind::Gauge,
        "Steps until the device is full at the current growth.",
        |of, device| of.steps_left(device.device).and_then(number)),
];

#[rustfmt::skip]
const PROCESS_METRICS: [(&str, MetricKind, &str, RecorderValue); 3] = [
    ("oomph_pinned_host_bytes", MetricKind::Gauge,
        "Pinned host memory.",
        |of| of.state.pinned.and_then(number)),
    ("oomph_steps_total", MetricKind::Counter,
        "Steps of the program.",
        |of| number(of.state.count)),
    ("oomph_last_answer_age_seconds", MetricKind::Gauge,
        "Age of the numbers of this recorder; stalled processes do not answer.",
        |of| Some(of.answered_at.elapsed().as_secs_f64())),
];

fn recorder_families(recorders: &[WatchedRecorder]) -> Vec<Family> {
    let mut families = Vec::new();
    for (name, kind, help, of) in DEVICE_METRICS {
        let mut family = Family::new(name, kind, help);
        for recorder in recorders {
            for device in &recorder.state.devices {
                if let Some(value) = of(recorder, device) {
                    family.set(device_labels(recorder, device), value);
                }
            }
        }
        families.push(family);
    }
    families.push(owner_family(recorders));
    for (name, kind, help, of) in PROCESS_METRICS {
        let mut family = Family::new(name, kind, help);
        for recorder in recorders {
            if let Some(value) = of(recorder) {
                family.set(process_labels(recorder), value);
            }
        }
        families.push(family);
    }
    families
}

fn recorder_info(recorders: &[WatchedRecorder]) -> Family {
    let mut family = Family::new("oomph_recorder_info", MetricKind::Info, "Properties of a recorder.");
    for recorder in recorders {
        let state = &recorder.state;
        let mut labels = process_labels(recorder);
        let more = [
            ("torch", &state.torch),
            ("folder", &state.folder),
            ("host", &state.host),
            ("kind", &state.kind),
        ];
        labels.extend(more.map(|(name, value)| (name, value.clone())));
        family.set(labels, 1.0);
    }
    family
}

/// Returns the metrics of the machine, which need no recorder.
fn machine_families(
    recorders: &[WatchedRecorder],
    left_out: usize,
    gpus: &Result<Vec<Gpu>, String>,
) -> [Family; 5] {
    let gauge = |name, help| Family::new(name, MetricKind::Gauge, help);
    let mut count = gauge("oomph_recorders", "Recorders that are queried.");
    count.set(Vec::new(), recorders.len() as f64);
    let mut rest =
        gauge("oomph_recorders_left_out", "Recorders beyond the limits of one user or of the exporter.");
    rest.set(Vec::new(), left_out as f64);
    let mut up = gauge("oomph_driver_up", "1 if the NVIDIA driver of this machine answers.");
    up.set(Vec::new(), f64::from(u8::from(gpus.is_ok())));
    let mut used =
        gauge("oomph_gpu_used_bytes", "Memory of a GPU in use by all processes, as reported by the driver.");
    let mut total = gauge("oomph_gpu_total_bytes", "Memory of a GPU.");
    for gpu in gpus.iter().flatten() {
        let labels =
            vec![("gpu", gpu.index.to_string()), ("uuid", gpu.uuid.clone()), ("name", gpu.name.clone())];
        used.set(labels.clone(), gpu.used as f64);
        total.set(labels, gpu.total as f64);
    }
    [count, rest, up, used, total]
}

/// Returns the labels of a process. Without a launcher its rank is 0, as in its file names.
fn process_labels(recorder: &WatchedRecorder) -> MetricLabels {
    let state = &recorder.state;
    vec![("job", state.job()), ("rank", state.rank.unwrap_or(0).to_string()), ("pid", state.pid.to_string())]
}

/// Non-PyTorch memory by owner, of processes that are run with `--trace-driver`.
fn owner_family(recorders: &[WatchedRecorder]) -> Family {
    let (name, help) = ("oomph_owner_bytes", "Non-PyTorch memory of the process by owner (--trace-driver).");
    let mut family = Family::new(name, MetricKind::Gauge, help);
    for recorder in recorders {
        for device in &recorder.state.devices {
            for row in device.owners() {
                let mut labels = device_labels(recorder, device);
                labels.push(("owner", row.owner.name().to_owned()));
                if let Some(value) = number(row.bytes.0) {
                    family.set(labels, value);
                }
            }
        }
    }
    family
}

fn device_labels(recorder: &WatchedRecorder, device: &DeviceCounters) -> MetricLabels {
    let is_cpu = recorder.state.is_cpu();
    let mut labels = process_labels(recorder);
    labels.push(("device", if is_cpu { "cpu".to_owned() } else { device.device.to_string() }));
    labels
}

fn growth(pace: Pace) -> Option<f64> {
    pace.bytes_per_step().and_then(|bytes| number(bytes.0))
}

/// Converts an integer to a Prometheus value, which is exact up to 8 PiB.
fn number(count: u64) -> Option<f64> {
    Some(count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition::{ExpositionFormat, text};

    /// Rows such as "| `oomph_steps_total` | counter | steps |".
    fn documented() -> Vec<(String, String)> {
        let page = include_str!("../../../docs/reference/metrics.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `oomph_"));
        rows.map(|row| {
            let mut cells = row.split(" | ");
            let (name, kind) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
            (format!("oomph_{}", name.trim_end_matches('`')), kind.to_owned())
        })
        .collect()
    }

    #[test]
    fn the_page_lists_what_is_exported() {
        let exported: Vec<_> = families_of(&[], 0, &Ok(Vec::new()))
            .into_iter()
            .map(|family| {
                let kind = if family.kind == MetricKind::Counter { "counter" } else { "gauge" };
                (family.name.to_owned(), kind.to_owned())
            })
            .collect();
        assert_eq!(exported, documented());
    }

    #[test]
    fn a_machine_without_recorders_still_has_its_gpus() {
        let gpu = Gpu {
            index: 1,
            uuid: "GPU-7".to_owned(),
            name: "NVIDIA H200".to_owned(),
            total: 150_754_820_096,
            used: 4096,
            processes: Vec::new(),
        };
        let seen = text(&families_of(&[], 0, &Ok(vec![gpu])), ExpositionFormat::Prometheus);
        assert!(
            seen.contains(
                "oomph_gpu_total_bytes{gpu=\"1\",uuid=\"GPU-7\",name=\"NVIDIA H200\"} 150754820096\n"
            )
        );
        assert!(seen.contains("oomph_driver_up 1\n") && seen.contains("oomph_recorders 0\n"), "{seen}");
        assert!(
            text(&families_of(&[], 0, &Err("none".to_owned())), ExpositionFormat::Prometheus)
                .contains("oomph_driver_up 0\n")
        );
    }

    #[test]
    fn growth_is_exported_once_it_is_known() {
        assert_eq!(growth(Pace::WarmingUp { steps: 3 }), None);
        assert_eq!(growth(Pace::Flat), Some(0.0));
        assert_eq!(growth(Pace::Rising { bytes_per_step: snapshot::Bytes(512) }), Some(512.0));
    }
}
