//! Reference cycles. Reference counting never frees them: they stay until the garbage collector runs.

use crate::analyzed::{AnalyzedHeap, add};
use crate::components::components;
use crate::dominators::dominators;
use crate::edges::Edges;
use crate::graph::{ReferenceKind, StorageDevice};
use crate::path_text;
use std::collections::{HashMap, VecDeque};

/// Reference cycles of one shape.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cycle {
    /// Number of cycles.
    pub count: usize,
    /// All objects of all cycles.
    pub members: Vec<u32>,
    /// Positions of the edges around the first cycle.
    pub around: Vec<usize>,
    /// Whether nothing else refers to them.
    pub is_garbage: bool,
    /// Bytes that would be freed without them, per device.
    pub retained: Vec<(StorageDevice, u64)>,
}

impl Cycle {
    /// Returns the bytes on all devices.
    pub fn bytes(&self) -> u64 {
        self.retained.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl AnalyzedHeap {
    /// Returns the cycles that retain memory, largest first.
    pub fn cycles(&self) -> &[Cycle] {
        self.cycles.get_or_init(|| self.find_cycles())
    }

    fn find_cycles(&self) -> Vec<Cycle> {
        let heap = &self.heap;
        // Every object refers to its class, and a class to itself: these are not cycles of the program.
        let is_class = self.classes();
        let counts = |to: u32| !is_class[to as usize];
        let pairs = (0..heap.len() as u32).flat_map(|from| {
            heap.edges.of(from).iter().copied().filter(|&to| counts(to)).map(move |to| (from, to))
        });
        let edges = Edges::new(heap.len(), pairs);
        let found = components(&edges);
        if !found.cyclic.contains(&true) {
            return Vec::new();
        }
        let mut members: HashMap<u32, Vec<u32>> = HashMap::new();
        for node in 0..heap.len() as u32 {
            let of = found.of[node as usize];
            if found.cyclic[of as usize] {
                members.entry(of).or_default().push(node);
            }
        }
        let retained = self.retained_by_component(&found.of, found.count);
        let mut groups: HashMap<String, Cycle> = HashMap::new();
        for (of, nodes) in members {
            let held = self.devices.iter().zip(&retained).map(|(device, bytes)| (device, bytes[of as usize]));
            let held: Vec<(&StorageDevice, u64)> = held.filter(|(_, bytes)| *bytes > 0).collect();
            if held.is_empty() {
                continue;
            }
            let around = self.around(&nodes, &found.of, &is_class);
            let is_garbage = self.is_garbage(nodes[0]);
            let group =
                groups.entry(format!("{is_garbage} {}", self.shape(&around))).or_insert_with(|| Cycle {
                    count: 0,
                    members: Vec::new(),
                    around: around.clone(),
                    is_garbage,
                    retained: Vec::new(),
                });
            group.count += 1;
            group.around = around.min(std::mem::take(&mut group.around));
            group.members.extend(nodes);
            for (device, bytes) in held {
                add(&mut group.retained, device, bytes);
            }
        }
        let mut cycles: Vec<Cycle> = groups.into_values().collect();
        cycles.sort_by_key(|cycle| (std::cmp::Reverse(cycle.bytes()), cycle.around.clone()));
        cycles
    }

    fn classes(&self) -> Vec<bool> {
        let heap = &self.heap;
        let mut is_class: Vec<bool> = (0..heap.len() as u32).map(|node| heap.class(node) == "type").collect();
        for node in 0..heap.len() as u32 {
            for (name, to) in heap.references(node) {
                is_class[to as usize] |= name.link == ReferenceKind::Attribute && name.text == "__class__";
            }
        }
        is_class
    }

    /// Computes what each component retains as a whole: the dominator tree of the graph in which it is one
    /// node.
    fn retained_by_component(&self, of: &[u32], count: usize) -> Vec<Vec<u64>> {
        let heap = &self.heap;
        let pairs = (0..heap.len() as u32)
            .flat_map(|from| heap.edges.of(from).iter().map(move |&to| (of[from as usize], of[to as usize])));
        let edges = Edges::new(count, pairs);
        let roots: Vec<u32> = self.roots.iter().map(|(node, _)| of[*node as usize]).collect();
        let tree = dominators(&edges, &roots);
        let retained = self.devices.iter().map(|device| {
            let mut own = vec![0u64; count];
            for (storage, &bytes) in heap.storages.iter().zip(&self.bytes) {
                own[of[storage.node as usize] as usize] += if storage.device == *device { bytes } else { 0 };
            }
            tree.retained(&own)
        });
        retained.collect()
    }

    /// Returns the shortest cycle, starting at a member that is an instance of a class if there is one.
    fn around(&self, members: &[u32], of: &[u32], is_class: &[bool]) -> Vec<usize> {
        let heap = &self.heap;
        let is_plain = |node: u32| matches!(heap.class(node), "dict" | "list" | "tuple" | "cell" | "set");
        let Some(&start) =
            members.iter().min_by_key(|&&node| (is_plain(node), self.is_kept_thing(node), node))
        else {
            return Vec::new();
        };
        let mut came_by: HashMap<u32, usize> = HashMap::new();
        let mut waiting = VecDeque::from([start]);
        while let Some(node) = waiting.pop_front() {
            for position in heap.edges.positions(node) {
                let to = heap.edges.targets()[position];
                let is_inside = of[to as usize] == of[start as usize] && !is_class[to as usize];
                if !is_inside || came_by.contains_key(&to) {
                    continue;
                }
                came_by.insert(to, position);
                if to == start {
                    let mut around = vec![position];
                    let mut at = self.source(position);
                    while at != start {
                        around.push(came_by[&at]);
                        at = self.source(came_by[&at]);
                    }
                    around.reverse();
                    return around;
                }
                waiting.push_back(to);
            }
        }
        Vec::new()
    }

    /// Returns the node that an edge comes from.
    pub(crate) fn source(&self, position: usize) -> u32 {
        let starts = |node: u32| self.heap.edges.positions(node).start <= position;
        let (mut low, mut high) = (0, self.heap.len() as u32);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if starts(middle) { low = middle } else { high = middle }
        }
        low
    }

    /// Describes the shape of a cycle, `Node.other → Node.other`: the same for cycles created by the same
    /// code.
    pub fn shape(&self, around: &[usize]) -> String {
        let mut steps: Vec<String> = Vec::new();
        let mut class = "";
        for &position in around {
            let (name, from) = (self.heap.name(position), self.source(position));
            if class.is_empty() {
                class = self.heap.class(from);
            }
            if name.link == ReferenceKind::Inside {
                continue;
            }
            let short = class.rsplit('.').next().unwrap_or(class);
            steps.push(match name.link {
                ReferenceKind::Attribute
                | ReferenceKind::Item
                | ReferenceKind::Local
                | ReferenceKind::Closure => {
                    format!("{short}{}", path_text::step(name, true))
                }
                _ => short.to_owned(),
            });
            class = "";
        }
        steps.join(" → ")
    }
}
