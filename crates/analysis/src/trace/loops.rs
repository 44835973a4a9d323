//! Finds the loop that a program spends its time in, from the order in which its lines allocate.
//!
//! A line inside a loop is *entered* once per iteration: from another line of the same function, under the
//! same callers. Counting how often each line is entered, at each depth of the call stack, gives the
//! iterations without knowing anything of the program.

use crate::trace::order::Order;
use rustc_hash::FxHashMap;
use snapshot::{FrameId, Snapshot, StackId};
use std::ops::Range;

/// Fewest iterations that make a loop.
const MIN_ITERATIONS: u32 = 3;
/// With this many iterations an outer loop is preferred to a loop inside it; with fewer it is one of epochs,
/// trials or phases, and the steps are further in.
const PREFERRED_ITERATIONS: u32 = 6;

/// Every stack as a path of frames from the outermost one; equal beginnings are shared.
pub(crate) struct Paths {
    nodes: Vec<LoopNode>,
    of_stack: Vec<u32>,
}

struct LoopNode {
    parent: u32,
    /// The line; of its own work too.
    frame: Option<FrameId>,
    /// Nodes from the root.
    level: u32,
    /// Frames from the root: a line's own work is as deep as the line.
    depth: u32,
    /// The node at depth 1 above it: one for each thread's entry point.
    root: u32,
    /// Whether that entry point is a script's own code.
    in_script: bool,
}

/// The path without frames.
const EMPTY_PATH: u32 = 0;
/// What a line does itself, not in calls: returning to it from a call enters it again.
const OWN_CODE: FrameId = FrameId(u32::MAX);

impl Paths {
    /// The paths through those frames that `keep` wants.
    pub(crate) fn new(snapshot: &Snapshot, keep: impl Fn(FrameId) -> bool) -> Paths {
        let mut nodes = vec![LoopNode {
            parent: EMPTY_PATH,
            frame: None,
            level: 0,
            depth: 0,
            root: EMPTY_PATH,
            in_script: false,
        }];
        let mut children: FxHashMap<(u32, FrameId), u32> = FxHashMap::default();
        // Threads are distinguished by their outermost function, whatever its line.
        let mut roots: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        let of_stack = (0..snapshot.stacks.len() as u32)
            .map(|stack| {
                let mut at = EMPTY_PATH;
                let mut descend = |at: u32, id: FrameId| {
                    let next = nodes.len() as u32;
                    let node = *children.entry((at, id)).or_insert(next);
                    if node == next {
                        let above = &nodes[at as usize];
                        let (level, depth) = (above.level + 1, above.depth + u32::from(id != OWN_CODE));
                        let (root, in_script) = match at {
                            EMPTY_PATH => {
                                let frame = snapshot.stacks.frame(id);
                                let root = *roots.entry((frame.file.0, frame.function.0)).or_insert(next);
                                let function = snapshot.strings.get(frame.function);
                                (root, matches!(function, "<module>" | "_run_module_as_main"))
                            }
                            _ => (above.root, above.in_script),
                        };
                        let frame = if id == OWN_CODE { above.frame } else { Some(id) };
                        nodes.push(LoopNode { parent: at, frame, level, depth, root, in_script });
                    }
                    node
                };
                for &id in snapshot.stacks.frames(StackId(stack)).iter().rev().filter(|&&id| keep(id)) {
                    at = descend(at, id);
                }
                if at == EMPTY_PATH { at } else { descend(at, OWN_CODE) }
            })
            .collect();
        Paths { nodes, of_stack }
    }

    pub(crate) fn of(&self, stack: StackId) -> u32 {
        self.of_stack[stack.0 as usize]
    }

    /// Where the two paths part: the deepest node that is on both.
    fn common(&self, mut a: u32, mut b: u32) -> u32 {
        while a != b {
            let (node_a, node_b) = (&self.nodes[a as usize], &self.nodes[b as usize]);
            if node_a.level >= node_b.level {
                a = node_a.parent;
            } else {
                b = node_b.parent;
            }
        }
        a
    }

    /// Calls `enter(node, event)` for every line that the allocations of `events` enter, in order. With
    /// `after_backward` a line that goes on after `backward()` has run counts as entered again.
    fn entries(
        &self,
        order: &Order<'_>,
        events: Range<usize>,
        after_backward: bool,
        mut enter: impl FnMut(u32, usize),
    ) {
        let mut last: FxHashMap<u32, u32> = FxHashMap::default();
        let mut current = (EMPTY_PATH, EMPTY_PATH);
        let mut interrupted = false;
        for (alloc_event, stack) in order.allocations(events) {
            let node = self.of_stack[stack.0 as usize];
            if node == EMPTY_PATH {
                interrupted = after_backward;
                continue;
            }
            if node == current.1 && !interrupted {
                continue;
            }
            if node == current.1 {
                enter(node, alloc_event);
            }
            interrupted = false;
            let root = self.nodes[node as usize].root;
            let before = if root == current.0 {
                current.1
            } else {
                last.insert(current.0, current.1);
                last.get(&root).copied().unwrap_or(EMPTY_PATH)
            };
            let common = self.common(before, node);
            let mut at = node;
            while at != common {
                enter(at, alloc_event);
                at = self.nodes[at as usize].parent;
            }
            current = (root, node);
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Visits {
    count: u32,
    first: u32,
    last: u32,
}

/// The loop that a program spends its time in.
#[derive(Default)]
pub(crate) struct MainLoop {
    /// The events at which its iterations begin; empty if there is no loop.
    pub(crate) starts: Vec<usize>,
    /// The line whose visits count the iterations.
    pub(crate) line: Option<FrameId>,
}

/// Finds the main loop among `events`.
pub(crate) fn main_loop(
    paths: &Paths,
    order: &Order<'_>,
    events: Range<usize>,
    after_backward: bool,
) -> MainLoop {
    let mut visits = vec![Visits::default(); paths.nodes.len()];
    paths.entries(order, events.clone(), after_backward, |node, event| {
        let visits = &mut visits[node as usize];
        if visits.count == 0 {
            visits.first = event as u32;
        }
        visits.count += 1;
        visits.last = event as u32;
    });
    let span = |visits: &Visits| f64::from(visits.last - visits.first) / events.len().max(1) as f64;
    let Some(anchor) = anchor(paths, &visits, span) else { return MainLoop::default() };
    let mut starts = Vec::with_capacity(visits[anchor as usize].count as usize);
    paths.entries(order, events, after_backward, |node, event| {
        if node == anchor {
            starts.push(event);
        }
    });
    MainLoop { starts, line: paths.nodes[anchor as usize].frame }
}

/// The line whose visits count the iterations: of the outermost loop that has enough of them and covers most
/// of the run, the first line that is entered as often as most lines there.
fn anchor(paths: &Paths, visits: &[Visits], span: impl Fn(&Visits) -> f64) -> Option<u32> {
    // The main thread first: recomputation in `backward()` and data loaders run the user's code in threads of
    // their own.
    let tries = [
        (PREFERRED_ITERATIONS, 0.5),
        (MIN_ITERATIONS, 0.5),
        (PREFERRED_ITERATIONS, 0.2),
        (MIN_ITERATIONS, 0.2),
    ];
    for (in_script, (fewest, cover)) in
        [true, false].into_iter().flat_map(|main| tries.map(|limits| (main, limits)))
    {
        let candidates = || {
            (1..visits.len() as u32).filter(|&node| {
                let visits = &visits[node as usize];
                visits.count >= fewest
                    && span(visits) >= cover
                    && paths.nodes[node as usize].in_script == in_script
            })
        };
        let Some(depth) = candidates().map(|node| paths.nodes[node as usize].depth).min() else { continue };
        let here: Vec<u32> = candidates().filter(|&node| paths.nodes[node as usize].depth == depth).collect();
        let widest = here.iter().map(|&node| span(&visits[node as usize])).fold(0.0, f64::max);
        let mut lines: FxHashMap<u32, (u32, u32)> = FxHashMap::default();
        for &node in here.iter().filter(|&&node| span(&visits[node as usize]) >= 0.8 * widest) {
            let (count, first) = (visits[node as usize].count, visits[node as usize].first);
            let entry = lines.entry(count).or_insert((0, node));
            entry.0 += 1;
            if first < visits[entry.1 as usize].first {
                entry.1 = node;
            }
        }
        // As often as most lines; among equals the more frequent one, which is the inner loop.
        return lines
            .into_iter()
            .max_by_key(|&(count, (lines, _))| (lines, count))
            .map(|(_, (_, node))| node);
    }
    None
}
