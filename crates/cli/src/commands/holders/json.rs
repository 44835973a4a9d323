//! `oomph holders --json`, and who holds a leak in `oomph report --json`.

use super::{HeldTensor, HoldersView};
use crate::args::HoldersArgs;
use analysis::{Held, SiteName};
use heap::{Branch, Cycle, PathChange, StorageDevice};
use recording::DumpReason;
use serde::Serialize;
use serde_json::{Value, json};
use source::stores;

/// Who keeps some memory.
#[derive(Serialize)]
pub(crate) struct HolderReport {
    /// Reference path to the object.
    path: String,
    /// Other reference paths to the same object.
    also: Vec<String>,
    class: String,
    /// Holder kind.
    kind: &'static str,
    /// Its references to such memory.
    entries: u64,
    /// Objects that do the same.
    alike: u64,
    bytes: u64,
    /// Retained size in bytes.
    retained: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stored_at: Option<Value>,
    /// Variables that keep it only together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    together: Vec<String>,
    /// What it does not hold, and who does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rest: Vec<Value>,
}

impl HolderReport {
    /// `near` is a line that allocates what is held.
    pub(crate) fn new(held: &Held, near: Option<&SiteName>) -> HolderReport {
        let stored_at = stores::find(&held.store, near)
            .map(|line| json!({"file": line.site.file, "line": line.site.line, "code": line.code}));
        HolderReport {
            path: held.holder.clone(),
            also: held.also.clone(),
            class: held.class.clone(),
            kind: held.kind.name(),
            entries: held.entries,
            alike: held.alike,
            bytes: held.bytes.0,
            retained: held.retained.0,
            stored_at,
            together: held.together.clone(),
            rest: held.rest.iter().map(|(bytes, by)| json!({"held_by": by, "bytes": bytes.0})).collect(),
        }
    }
}

/// One input.
pub(crate) fn input(view: &HoldersView<'_>, args: &HoldersArgs) -> Value {
    let mut report = json!({
        "file": view.name,
        "dumped": view.dump.reason.map_or("", DumpReason::word),
        "objects": view.dump.heap.len(),
        "held": view.totals().iter().map(|(device, storages, bytes)| {
            json!({"device": named(device), "storages": storages, "bytes": bytes})
        }).collect::<Vec<_>>(),
        "caveats": view.caveats(),
    });
    if let Some(unheld) = view.unheld() {
        report["unheld"] =
            unheld.iter().map(|(device, bytes)| json!({"device": device, "bytes": bytes.0})).collect();
    }
    if let Some(changes) = &view.changes {
        report["changes"] = changes.iter().take(args.top).map(change).collect();
        return report;
    }
    if args.tree {
        report["tree"] = branch(&view.tree(args));
        return report;
    }
    if args.path {
        let paths = view.paths(args.top);
        report["paths"] = paths
            .iter()
            .map(|(device, bytes, path)| json!({"device": named(device), "bytes": bytes, "path": path}))
            .collect();
        return report;
    }
    report["cycles"] = view.holdings.cycles().iter().map(|each| cycle(view, each)).collect();
    if !args.cycles {
        report["holders"] = view
            .holders
            .iter()
            .map(|(bytes, held)| {
                let mut report = json!(HolderReport::new(held, view.site.as_ref()));
                report["bytes"] = bytes.0.into();
                report["held_by"] = held.by.clone().into();
                report["fix"] = held.advice.clone().into();
                report
            })
            .collect();
    }
    report
}

/// The tree and the cycles, for the page of `oomph view`.
pub(crate) fn page(view: &HoldersView<'_>, tree: &Branch) -> Value {
    json!({
        "name": view.name,
        "dumped": view.dump.reason.map_or("", DumpReason::word),
        "tree": branch(tree),
        "cycles": view.holdings.cycles().iter().map(|each| cycle(view, each)).collect::<Vec<_>>(),
        "caveats": view.caveats(),
    })
}

/// One tensor.
pub(crate) fn tensor(tensor: &HeldTensor) -> Value {
    json!({
        "version": 1,
        "device": named(&tensor.device),
        "bytes": tensor.bytes.0,
        "held_by": tensor.ways,
        "garbage": tensor.is_garbage,
        "holder": tensor.held.as_ref().map(|held| HolderReport::new(held, None)),
        "fix": tensor.held.as_ref().map(|held| held.advice.clone()),
    })
}

fn cycle(view: &HoldersView<'_>, cycle: &Cycle) -> Value {
    json!({
        "links": view.holdings.shape(&cycle.around),
        "count": cycle.count,
        "garbage": cycle.is_garbage,
        "retained": retained(&cycle.retained),
    })
}

fn branch(of: &Branch) -> Value {
    json!({
        "name": of.name,
        "what": of.what,
        "count": of.count,
        "retained": retained(&of.retained),
        "branches": of.branches.iter().map(branch).collect::<Vec<_>>(),
        "left_out": of.left_out,
    })
}

fn change(change: &PathChange) -> Value {
    let amount = |of: heap::Amount| json!({"storages": of.count, "bytes": of.bytes});
    json!({
        "place": change.place,
        "device": named(&change.device),
        "before": amount(change.before),
        "after": amount(change.after),
    })
}

fn retained(devices: &[(StorageDevice, u64)]) -> Vec<Value> {
    devices.iter().map(|(device, bytes)| json!({"device": named(device), "bytes": bytes})).collect()
}

/// `cuda:0`, `cpu`
pub(crate) fn named(device: &StorageDevice) -> String {
    if device.is_cpu() { "cpu".to_owned() } else { format!("{}:{}", device.kind, device.index) }
}
