//! `oomph holders`: who keeps tensors alive.

pub(super) mod json;
mod text;

use crate::ExitCode;
use crate::args::HoldersArgs;
use crate::commands::document::print_sorted;
use crate::terminal::{Failure, TALK, Terminal};
use analysis::{Device, Held, SiteName};
use heap::{AnalyzedHeap, Branch, PathChange, TreeLimits};
use inputs::Input;
use recording::{HeapDump, Recording};
use snapshot::Bytes;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Branches of the tree below 1/500 of all memory are left out.
const LEAST_SHARE: u64 = 500;

pub(crate) fn run(args: &HoldersArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let before = args.since.as_deref().map(earlier).transpose()?;
    let mut reports = Vec::new();
    for (place, file) in inputs::expand(&args.inputs)?.iter().enumerate() {
        let recorded = Recorded::open(file)?;
        let devices = recorded.devices();
        let view = recorded.view(&devices, before.as_ref()).ask(args)?;
        if args.json {
            reports.push(json::input(&view, args));
        } else {
            if place > 0 {
                writeln!(terminal.out())?;
            }
            text::print(&view, args, terminal)?;
        }
    }
    if args.json {
        print_sorted(&json::HoldersDocument { version: 1, inputs: reports }, terminal)?;
    }
    Ok(0)
}

/// Device and address of a tensor's memory.
pub(crate) struct TensorAddress {
    pub(crate) device: heap::StorageDevice,
    pub(crate) address: u64,
}

/// Holders in the calling process: all of them, or those of one tensor.
pub(crate) fn of_process(
    dump: HeapDump,
    wanted: Option<&TensorAddress>,
    args: &HoldersArgs,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let recorded = Recorded { name: "this process".to_owned(), input: None, dump: Arc::new(dump) };
    let view = recorded.view(&[], None);
    match wanted {
        None => {
            let view = view.ask(args)?;
            match args.json {
                true => print_sorted(&json::input(&view, args), terminal)?,
                false => text::print(&view, args, terminal)?,
            }
        }
        Some(wanted) => {
            let tensor = view.tensor(wanted, args.top)?;
            match args.json {
                true => print_sorted(&json::tensor(&tensor), terminal)?,
                false => text::tensor(&tensor, terminal)?,
            }
        }
    }
    Ok(0)
}

/// What keeps one tensor's memory.
pub(super) struct HeldTensor {
    pub(super) device: heap::StorageDevice,
    pub(super) bytes: Bytes,
    /// Reference paths to it.
    pub(super) ways: Vec<String>,
    pub(super) is_garbage: bool,
    pub(super) held: Option<Held>,
}

/// The heap of an earlier recording.
fn earlier(path: &Path) -> anyhow::Result<AnalyzedHeap> {
    let files = inputs::expand(&[path.to_owned()])?;
    let first = files.first().map_or(path, PathBuf::as_path);
    let recorded = Recorded::open(first)?;
    let devices = recorded.devices();
    Ok(holdings(&recorded.dump, &devices))
}

/// A recording with references, or the file of references alone.
struct Recorded {
    name: String,
    input: Option<Input>,
    dump: Arc<HeapDump>,
}

impl Recorded {
    fn open(file: &Path) -> anyhow::Result<Recorded> {
        let name = file.to_string_lossy().into_owned();
        if file.extension().is_some_and(|ending| ending == "heap") {
            let bytes = std::fs::read(file).map_err(|error| {
                Failure::new(format!("`{name}` cannot be read"), Some(error.to_string()), None)
                    .refused(error.kind())
            })?;
            let dump = HeapDump::parse(&bytes).map_err(|error| {
                Failure::new(format!("`{name}` is not a heap file"), Some(error.to_string()), None)
            })?;
            return Ok(Recorded { name, input: None, dump: Arc::new(dump) });
        }
        let input = inputs::load(file, &TALK)?;
        let Some(dump) = most_useful(&input.recording).cloned() else {
            return Err(Failure::new(
                format!("`{}` has no heap file", input.name),
                Some("there is no `rank0.heap` next to it".to_owned()),
                Some("record one: `oomph run -o run train.py`, or `with oomph.record(\"run\"):`"),
            )
            .into());
        };
        Ok(Recorded { name: input.name.clone(), input: Some(input), dump })
    }

    fn devices(&self) -> Vec<Device<'_>> {
        self.input.as_ref().map(Input::devices).unwrap_or_default()
    }

    fn view<'a>(&'a self, devices: &'a [Device<'a>], before: Option<&AnalyzedHeap>) -> HoldersView<'a> {
        let mut view = HoldersView::new(&self.name, &self.dump, devices);
        view.changes = before.map(|before| heap::changes(before, &view.holdings));
        view
    }
}

/// The most useful heap dump: the last, unless the program had released most of its memory by then.
fn most_useful(recording: &Recording) -> Option<&Arc<HeapDump>> {
    let bytes =
        |dump: &Arc<HeapDump>| -> u64 { dump.heap.storages.iter().map(|storage| storage.bytes).sum() };
    let last = recording.heaps.first();
    let fullest = recording.heaps.iter().max_by_key(|dump| bytes(dump));
    last.filter(|last| fullest.is_some_and(|most| 2 * bytes(last) >= bytes(most))).or(fullest)
}

/// The tree and the cycles of a recording, for the page; `None` if it has no references.
pub(super) fn for_page(
    name: &str,
    recording: &Recording,
    devices: &[Device<'_>],
) -> Option<serde_json::Value> {
    let view = HoldersView::new(name, most_useful(recording)?, devices);
    let limits = TreeLimits { depth: PAGE_DEPTH, most: PAGE_WIDTH, least: 1 };
    serde_json::to_value(json::page(&view, &view.holdings.tree(limits))).ok()
}

/// Levels of the tree on the page, and branches of each.
const PAGE_DEPTH: usize = 16;
const PAGE_WIDTH: usize = 32;

fn holdings(dump: &HeapDump, devices: &[Device<'_>]) -> AnalyzedHeap {
    let sizes: HashMap<u32, Bytes> = devices.iter().flat_map(|device| device.holders.sizes(dump)).collect();
    let bytes_of = |storage: &heap::Storage| sizes.get(&storage.node).map_or(storage.bytes, |size| size.0);
    AnalyzedHeap::new(&dump.heap, analysis::is_own, bytes_of)
}

/// What is shown of one input.
pub(super) struct HoldersView<'a> {
    pub(super) name: &'a str,
    pub(super) dump: &'a HeapDump,
    devices: &'a [Device<'a>],
    pub(super) holdings: AnalyzedHeap,
    pub(super) changes: Option<Vec<PathChange>>,
    /// Bytes, and who holds them.
    pub(super) holders: Vec<(Bytes, Held)>,
    /// A line that allocates what was asked about.
    pub(super) site: Option<SiteName>,
}

impl<'a> HoldersView<'a> {
    fn new(name: &'a str, dump: &'a HeapDump, devices: &'a [Device<'a>]) -> HoldersView<'a> {
        let holdings = holdings(dump, devices);
        HoldersView { name, dump, devices, holdings, changes: None, holders: Vec::new(), site: None }
    }

    /// With the holders that are to be shown.
    fn ask(mut self, args: &HoldersArgs) -> anyhow::Result<Self> {
        match &args.of {
            Some(site) => self.ask_of(site)?,
            None if args.shows_holders() => self.ask_all(args.top),
            None => {}
        }
        Ok(self)
    }

    fn ask_all(&mut self, most: usize) {
        let is_cpu = !self.holdings.devices.iter().any(|device| !device.is_cpu());
        let top = self.holdings.top(most);
        self.holders = top
            .iter()
            .map(|held| (Bytes(held.bytes), analysis::held(&self.holdings, &held.holder, is_cpu)))
            .collect();
    }

    fn ask_of(&mut self, site: &str) -> anyhow::Result<()> {
        for device in self.devices {
            let model = analysis::RunModel::new(device);
            let moment = device.holders.moment(self.dump);
            let position = moment.map_or(device.history.len(), |(position, _)| position);
            let mut place = None;
            let rows: Vec<usize> = (0..device.history.allocations.len())
                .filter(|&row| device.history.allocations[row].is_allocated_at(position))
                .filter(|&row| {
                    let Some(frame) = model.frame_of_allocation(row) else { return false };
                    let of = SiteName::of(device.snapshot, frame);
                    let is_there = is_at(&of, site);
                    if is_there {
                        place.get_or_insert(of);
                    }
                    is_there
                })
                .collect();
            let bytes = rows.iter().map(|&row| device.history.allocations[row].size).sum();
            self.site = self.site.take().or(place);
            if let Some(held) = device.held(rows.iter().copied()) {
                self.holders.push((bytes, held));
            }
        }
        if self.holders.is_empty() {
            let cause = match (self.devices.is_empty(), &self.site) {
                (true, _) => "this file has no events: only a recording knows which line allocated what",
                (_, Some(_)) => "its blocks are not held by any known Python object",
                (_, None) => "no block allocated there was alive at that time",
            };
            let hint = Some("`oomph report` shows the lines; `oomph holders` without --of shows all");
            let what = format!("no holder is known for what `{site}` allocates");
            return Err(Failure::new(what, Some(cause.to_owned()), hint).into());
        }
        Ok(())
    }

    fn tensor(&self, wanted: &TensorAddress, most: usize) -> anyhow::Result<HeldTensor> {
        let is_it =
            |storage: &&heap::Storage| storage.device == wanted.device && storage.address == wanted.address;
        let Some(storage) = self.dump.heap.storages.iter().find(is_it) else {
            return Err(Failure::new(
                "this tensor has no memory to hold",
                Some("it is empty, on the meta device, or of a type without storage".to_owned()),
                None,
            )
            .into());
        };
        let holdings = &self.holdings;
        let is_cpu = storage.device.is_cpu();
        let ways = holdings.reference_paths(storage.node, most);
        let holder = holdings.holder(&[(storage.node, storage.bytes.max(1))]);
        Ok(HeldTensor {
            device: storage.device.clone(),
            bytes: Bytes(storage.bytes),
            ways: ways
                .iter()
                .map(|way| heap::path_text::path(&holdings.heap, &holdings.roots, way, |_| false))
                .collect(),
            is_garbage: holdings.is_garbage(storage.node),
            held: holder.map(|holder| analysis::held(holdings, &holder, is_cpu)),
        })
    }

    /// Storages and bytes of each device.
    pub(super) fn totals<'s>(&'s self) -> Vec<(&'s heap::StorageDevice, usize, u64)> {
        let of = |device: &'s heap::StorageDevice| {
            let storages = self.dump.heap.storages.iter().zip(&self.holdings.bytes);
            let is_here = |storage: &heap::Storage, bytes: u64| storage.device == *device && bytes > 0;
            let here = storages.filter(|(storage, bytes)| is_here(storage, **bytes)).map(|(_, bytes)| bytes);
            (device, here.clone().count(), here.sum())
        };
        self.holdings.devices.iter().map(of).filter(|(_, storages, _)| *storages > 0).collect()
    }

    /// Memory of each device that no known object holds.
    pub(super) fn unheld(&self) -> Option<Vec<(String, Bytes)>> {
        let of = |device: &Device<'_>| {
            let (_, position) = device.holders.moment(self.dump)?;
            let lives = device.history.allocations.iter().filter(|life| life.is_allocated_at(position));
            let allocated: Bytes = lives.map(|life| life.size).sum();
            let held: Bytes = device.holders.sizes(self.dump).map(|(_, size)| size).sum();
            Some((device.name(), allocated.saturating_sub(held)))
        };
        let found: Vec<_> =
            self.devices.iter().filter_map(of).filter(|(_, bytes)| *bytes > Bytes::ZERO).collect();
        (!found.is_empty()).then_some(found)
    }

    pub(super) fn tree(&self, args: &HoldersArgs) -> Branch {
        let total: u64 = self.holdings.bytes.iter().sum();
        let limits = TreeLimits { depth: args.depth, most: args.top, least: total / LEAST_SHARE };
        self.holdings.tree(limits)
    }

    /// The largest storages, and the way to each.
    pub(super) fn paths(&self, most: usize) -> Vec<(&heap::StorageDevice, u64, String)> {
        let mut storages: Vec<_> = self.dump.heap.storages.iter().zip(&self.holdings.bytes).collect();
        storages.sort_by_key(|(storage, bytes)| (std::cmp::Reverse(**bytes), storage.node));
        storages
            .into_iter()
            .take(most)
            .map(|(storage, &bytes)| {
                let path = self.holdings.path(storage.node);
                let text = heap::path_text::path(&self.holdings.heap, &self.holdings.roots, &path, |_| false);
                (&storage.device, bytes, text)
            })
            .collect()
    }

    pub(super) fn caveats(&self) -> &[String] {
        &self.dump.caveats
    }
}

/// `train.py:20`, `train.py`, or the name of a function.
fn is_at(place: &SiteName, site: &str) -> bool {
    let (file, line) = site.rsplit_once(':').map_or((site, None), |(file, line)| match line.parse::<u32>() {
        Ok(line) => (file, Some(line)),
        Err(_) => (site, None),
    });
    let is_file = place.file == file || place.file.ends_with(&format!("/{file}"));
    is_file && line.is_none_or(|line| line == place.line) || line.is_none() && place.function == site
}
