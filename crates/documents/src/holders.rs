//! The JSON of `oomph holders --json`, and who holds a leak in `oomph report --json`.

use analysis::{Held, HeldTensor, HoldersView, SiteName};
use heap::{Amount, Branch, Cycle, PathChange, StorageDevice};
use recording::DumpReason;
use schemars::JsonSchema;
use serde::Serialize;
use source::stores;

/// What is listed of each recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HoldersPart {
    /// The largest holders, and reference cycles.
    Holders,
    /// Reference cycles.
    Cycles,
    /// The dominator tree.
    Tree {
        /// Number of levels.
        depth: usize,
    },
    /// Reference paths to the largest tensors.
    Paths,
}

/// What keeps tensors alive, for each input.
#[derive(Serialize, JsonSchema)]
pub struct HoldersDocument {
    /// Version of the format.
    version: u32,
    /// One entry per recording.
    inputs: Vec<HoldersReport>,
}

/// What keeps tensors alive in one recording.
#[derive(Serialize, JsonSchema)]
pub struct HoldersReport {
    /// Name of the recording.
    file: String,
    /// What made the recorder write: `exit`, `oom`, `signal`, `alarm`, `asked` or `stop`; empty if unknown.
    dumped: &'static str,
    /// Number of objects in the heap file.
    objects: usize,
    /// Memory of all tensors, by device.
    held: Vec<HeldReport>,
    /// Memory that no known object holds, by device.
    #[serde(skip_serializing_if = "Option::is_none")]
    unheld: Option<Vec<DeviceBytes>>,
    /// With `--since`: reference paths whose memory changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<Vec<PathChangeReport>>,
    /// With `--tree`: the dominator tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    tree: Option<BranchReport>,
    /// With `--path`: reference paths to the largest tensors.
    #[serde(skip_serializing_if = "Option::is_none")]
    paths: Option<Vec<PathReport>>,
    /// Reference cycles that hold memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    cycles: Option<Vec<CycleReport>>,
    /// Holders, the largest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    holders: Option<Vec<ListedHolder>>,
    /// What limits the answer, as sentences.
    caveats: Vec<String>,
}

/// Memory of the tensors on one device.
#[derive(Serialize, JsonSchema)]
struct HeldReport {
    /// Device, such as `cuda:0` or `cpu`.
    device: String,
    /// Number of storages.
    storages: usize,
    /// Their bytes.
    bytes: u64,
}

/// Bytes on one device.
#[derive(Serialize, JsonSchema)]
struct DeviceBytes {
    /// Device, such as `cuda:0` or `cpu`.
    device: String,
    /// Number of bytes.
    bytes: u64,
}

/// A reference path whose memory changed since an earlier recording.
#[derive(Serialize, JsonSchema)]
struct PathChangeReport {
    /// Reference path.
    place: String,
    /// Device, such as `cuda:0` or `cpu`.
    device: String,
    /// Memory in the earlier recording.
    before: AmountReport,
    /// Memory in the later recording.
    after: AmountReport,
}

/// An amount of memory.
#[derive(Serialize, JsonSchema)]
struct AmountReport {
    /// Number of storages.
    storages: u64,
    /// Their bytes.
    bytes: u64,
}

impl From<Amount> for AmountReport {
    fn from(amount: Amount) -> AmountReport {
        AmountReport { storages: amount.count, bytes: amount.bytes }
    }
}

/// An object of the dominator tree.
#[derive(Serialize, JsonSchema)]
struct BranchReport {
    /// Reference from its parent; for the first level the whole reference path.
    name: String,
    /// Class and description.
    what: String,
    /// Number of similar objects.
    count: usize,
    /// Bytes that would be freed without it, by device.
    retained: Vec<DeviceBytes>,
    /// Objects that it dominates.
    branches: Vec<BranchReport>,
    /// Number of branches that are left out.
    left_out: usize,
}

/// The reference path to one tensor.
#[derive(Serialize, JsonSchema)]
struct PathReport {
    /// Device, such as `cuda:0` or `cpu`.
    device: String,
    /// Bytes of the tensor's storage.
    bytes: u64,
    /// Reference path from a variable.
    path: String,
}

/// Objects that refer to each other in a cycle.
#[derive(Serialize, JsonSchema)]
struct CycleReport {
    /// References around the cycle.
    links: String,
    /// Number of such cycles.
    count: usize,
    /// Whether nothing else refers to them.
    garbage: bool,
    /// Bytes that would be freed without them, by device.
    retained: Vec<DeviceBytes>,
}

/// A holder with what to change.
#[derive(Serialize, JsonSchema)]
struct ListedHolder {
    #[serde(flatten)]
    holder: HolderReport,
    /// Reference path to a typical tensor that it holds.
    held_by: String,
    /// What to change.
    fix: String,
}

/// The object that keeps some memory.
#[derive(Serialize, JsonSchema)]
pub(crate) struct HolderReport {
    /// Reference path to the object.
    path: String,
    /// Other reference paths to the same object.
    also: Vec<String>,
    /// Class of the object.
    class: String,
    /// Kind of holder, such as `container` or `cycle`.
    kind: &'static str,
    /// Number of its references to such memory.
    entries: u64,
    /// Number of objects of this class that do the same.
    alike: u64,
    /// Bytes that it holds.
    bytes: u64,
    /// Retained size in bytes: what would be freed without it.
    retained: u64,
    /// Line that stores the reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    stored_at: Option<StoredAt>,
    /// Variables that keep it only together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    together: Vec<String>,
    /// Memory that other objects hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rest: Vec<OtherHolder>,
}

/// A line that stores a reference.
#[derive(Serialize, JsonSchema)]
struct StoredAt {
    /// Text of the line.
    code: String,
    /// Path of the file.
    file: String,
    /// Line number, from 1.
    line: u32,
}

/// Memory that another object holds.
#[derive(Serialize, JsonSchema)]
struct OtherHolder {
    /// Number of bytes.
    bytes: u64,
    /// Reference path to the other object.
    held_by: String,
}

/// What keeps one tensor's memory.
#[derive(Serialize)]
pub struct HeldTensorReport {
    version: u32,
    device: String,
    bytes: u64,
    held_by: Vec<String>,
    garbage: bool,
    holder: Option<HolderReport>,
    fix: Option<String>,
}

/// The tree and the cycles, for the page of `oomph view`.
#[derive(Serialize)]
pub struct HoldersOfPage {
    name: String,
    dumped: &'static str,
    tree: BranchReport,
    cycles: Vec<CycleReport>,
    caveats: Vec<String>,
}

impl HolderReport {
    /// `near` is a line that allocates what is held.
    pub(crate) fn new(held: &Held, near: Option<&SiteName>) -> HolderReport {
        let stored_at = stores::find(&held.store, near).map(|line| StoredAt {
            code: line.code,
            file: line.site.file,
            line: line.site.line,
        });
        let other = |(bytes, by): &(_, String)| {
            let snapshot::Bytes(bytes) = *bytes;
            OtherHolder { bytes, held_by: by.clone() }
        };
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
            rest: held.rest.iter().map(other).collect(),
        }
    }
}

impl HoldersDocument {
    /// One entry per recording.
    pub fn new(inputs: Vec<HoldersReport>) -> HoldersDocument {
        HoldersDocument { version: 1, inputs }
    }
}

impl HoldersReport {
    /// Converts a view: changes if it has any, otherwise one part of it, with at most `top` entries.
    pub fn new(view: &HoldersView<'_>, part: HoldersPart, top: usize) -> HoldersReport {
        let mut report = HoldersReport {
            file: view.name.to_owned(),
            dumped: dumped(view),
            objects: view.dump.heap.len(),
            held: view
                .totals()
                .into_iter()
                .map(|(device, storages, bytes)| HeldReport { device: device.to_string(), storages, bytes })
                .collect(),
            unheld: view.unheld().map(|unheld| {
                unheld.into_iter().map(|(device, bytes)| DeviceBytes { device, bytes: bytes.0 }).collect()
            }),
            changes: None,
            tree: None,
            paths: None,
            cycles: None,
            holders: None,
            caveats: view.caveats().to_vec(),
        };
        if let Some(changes) = &view.changes {
            report.changes = Some(changes.iter().take(top).map(change).collect());
            return report;
        }
        match part {
            HoldersPart::Tree { depth } => report.tree = Some(branch(&view.tree(depth, top))),
            HoldersPart::Paths => {
                let path = |(device, bytes, path): (&StorageDevice, _, _)| PathReport {
                    device: device.to_string(),
                    bytes,
                    path,
                };
                report.paths = Some(view.paths(top).into_iter().map(path).collect());
            }
            HoldersPart::Cycles => report.cycles = Some(cycles(view)),
            HoldersPart::Holders => {
                report.cycles = Some(cycles(view));
                report.holders = Some(holders(view));
            }
        }
        report
    }
}

fn holders(view: &HoldersView<'_>) -> Vec<ListedHolder> {
    let listed = |(bytes, held): &(snapshot::Bytes, Held)| ListedHolder {
        holder: HolderReport { bytes: bytes.0, ..HolderReport::new(held, view.site.as_ref()) },
        held_by: held.by.clone(),
        fix: held.advice.clone(),
    };
    view.holders.iter().map(listed).collect()
}

impl HoldersOfPage {
    /// Converts a view and its tree.
    pub fn new(view: &HoldersView<'_>, tree: &Branch) -> HoldersOfPage {
        HoldersOfPage {
            name: view.name.to_owned(),
            dumped: dumped(view),
            tree: branch(tree),
            cycles: cycles(view),
            caveats: view.caveats().to_vec(),
        }
    }
}

impl HeldTensorReport {
    /// Converts what keeps a tensor.
    pub fn new(tensor: &HeldTensor) -> HeldTensorReport {
        HeldTensorReport {
            version: 1,
            device: tensor.device.to_string(),
            bytes: tensor.bytes.0,
            held_by: tensor.ways.clone(),
            garbage: tensor.is_garbage,
            holder: tensor.held.as_ref().map(|held| HolderReport::new(held, None)),
            fix: tensor.held.as_ref().map(|held| held.advice.clone()),
        }
    }
}

fn dumped(view: &HoldersView<'_>) -> &'static str {
    view.dump.reason.map_or("", DumpReason::word)
}

fn cycles(view: &HoldersView<'_>) -> Vec<CycleReport> {
    let report = |cycle: &Cycle| CycleReport {
        links: view.holdings.shape(&cycle.around),
        count: cycle.count,
        garbage: cycle.is_garbage,
        retained: retained(&cycle.retained),
    };
    view.holdings.cycles().iter().map(report).collect()
}

fn branch(of: &Branch) -> BranchReport {
    BranchReport {
        name: of.name.clone(),
        what: of.what.clone(),
        count: of.count,
        retained: retained(&of.retained),
        branches: of.branches.iter().map(branch).collect(),
        left_out: of.left_out,
    }
}

fn change(change: &PathChange) -> PathChangeReport {
    PathChangeReport {
        place: change.place.clone(),
        device: change.device.to_string(),
        before: change.before.into(),
        after: change.after.into(),
    }
}

fn retained(devices: &[(StorageDevice, u64)]) -> Vec<DeviceBytes> {
    devices.iter().map(|(device, bytes)| DeviceBytes { device: device.to_string(), bytes: *bytes }).collect()
}
