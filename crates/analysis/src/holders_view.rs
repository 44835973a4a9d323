//! The heap of one input, and what was asked about it: holders, the tree, reference paths, one tensor.

use crate::compare::SiteName;
use crate::run::device::Device;
use crate::run::holders::{Held, held, is_own};
use crate::run::model::RunModel;
use heap::{AnalyzedHeap, Branch, PathChange, Storage, StorageDevice, TreeLimits};
use recording::HeapDump;
use rustc_hash::FxHashMap;
use snapshot::Bytes;
use std::cmp::Reverse;

/// Branches of the tree below 1/500 of all memory are left out.
const LEAST_SHARE: u64 = 500;

/// The heap of one input, and what was asked about it.
pub struct HoldersView<'a> {
    /// Name of the input.
    pub name: &'a str,
    /// Heap as the recorder wrote it.
    pub dump: &'a HeapDump,
    /// Devices of the recording; empty for a heap alone.
    pub devices: &'a [Device<'a>],
    /// Heap with the sizes that the allocator gave.
    pub holdings: AnalyzedHeap,
    /// Reference paths whose memory changed since an earlier heap, if there is one.
    pub changes: Option<Vec<PathChange>>,
    /// Bytes, and who holds them.
    pub holders: Vec<(Bytes, Held)>,
    /// A line that allocates what was asked about.
    pub site: Option<SiteName>,
}

/// Device and address of a tensor's memory.
pub struct TensorAddress {
    /// Device that has the memory.
    pub device: StorageDevice,
    /// Address of its storage.
    pub address: u64,
}

/// What keeps one tensor's memory.
pub struct HeldTensor {
    /// Device that has the memory.
    pub device: StorageDevice,
    /// Bytes of its storage.
    pub bytes: Bytes,
    /// Reference paths to it.
    pub ways: Vec<String>,
    /// Whether no variable leads to it.
    pub is_garbage: bool,
    /// Object that keeps it.
    pub held: Option<Held>,
}

impl<'a> HoldersView<'a> {
    /// Analyzes a heap; nothing is asked yet.
    pub fn new(name: &'a str, dump: &'a HeapDump, devices: &'a [Device<'a>]) -> HoldersView<'a> {
        let holdings = holdings(dump, devices);
        HoldersView { name, dump, devices, holdings, changes: None, holders: Vec::new(), site: None }
    }

    /// Asks for the largest holders of all memory.
    pub fn ask_all(&mut self, most: usize) {
        let is_cpu = !self.holdings.devices.iter().any(|device| !device.is_cpu());
        let top = self.holdings.top(most);
        self.holders =
            top.iter().map(|of| (Bytes(of.bytes), held(&self.holdings, &of.holder, is_cpu))).collect();
    }

    /// Asks for the holders of what a site allocates: `train.py:20`, `train.py`, or the name of a function.
    pub fn ask_of(&mut self, site: &str) {
        for device in self.devices {
            let model = RunModel::new(device);
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
    }

    /// Returns what keeps one tensor, with at most `most` reference paths; `None` if it has no memory.
    pub fn tensor(&self, wanted: &TensorAddress, most: usize) -> Option<HeldTensor> {
        let is_it = |storage: &&Storage| storage.device == wanted.device && storage.address == wanted.address;
        let storage = self.dump.heap.storages.iter().find(is_it)?;
        let holdings = &self.holdings;
        let is_cpu = storage.device.is_cpu();
        let ways = holdings.reference_paths(storage.node, most);
        let holder = holdings.holder(&[(storage.node, storage.bytes.max(1))]);
        Some(HeldTensor {
            device: storage.device.clone(),
            bytes: Bytes(storage.bytes),
            ways: ways
                .iter()
                .map(|way| heap::path_text::path(&holdings.heap, &holdings.roots, way, |_| false))
                .collect(),
            is_garbage: holdings.is_garbage(storage.node),
            held: holder.map(|holder| held(holdings, &holder, is_cpu)),
        })
    }

    /// Returns the number of storages and the bytes of each device.
    pub fn totals<'s>(&'s self) -> Vec<(&'s StorageDevice, usize, u64)> {
        let of = |device: &'s StorageDevice| {
            let storages = self.dump.heap.storages.iter().zip(&self.holdings.bytes);
            let is_here = |storage: &Storage, bytes: u64| storage.device == *device && bytes > 0;
            let here = storages.filter(|(storage, bytes)| is_here(storage, **bytes)).map(|(_, bytes)| bytes);
            (device, here.clone().count(), here.sum())
        };
        self.holdings.devices.iter().map(of).filter(|(_, storages, _)| *storages > 0).collect()
    }

    /// Returns the memory of each device that no known object holds.
    pub fn unheld(&self) -> Option<Vec<(String, Bytes)>> {
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

    /// Returns the dominator tree with limited depth, and the largest branches of each object.
    pub fn tree(&self, depth: usize, most: usize) -> Branch {
        let total: u64 = self.holdings.bytes.iter().sum();
        self.holdings.tree(TreeLimits { depth, most, least: total / LEAST_SHARE })
    }

    /// Returns the largest storages, and the reference path to each.
    pub fn paths(&self, most: usize) -> Vec<(&StorageDevice, u64, String)> {
        let mut storages: Vec<_> = self.dump.heap.storages.iter().zip(&self.holdings.bytes).collect();
        storages.sort_by_key(|(storage, bytes)| (Reverse(**bytes), storage.node));
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

    /// Returns what limits the answer, as sentences.
    pub fn caveats(&self) -> &[String] {
        &self.dump.caveats
    }
}

fn holdings(dump: &HeapDump, devices: &[Device<'_>]) -> AnalyzedHeap {
    let sizes: FxHashMap<u32, Bytes> = devices.iter().flat_map(|device| device.holders.sizes(dump)).collect();
    let bytes_of = |storage: &Storage| sizes.get(&storage.node).map_or(storage.bytes, |size| size.0);
    AnalyzedHeap::new(&dump.heap, is_own, bytes_of)
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
