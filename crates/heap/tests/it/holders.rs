//! Holders, on heaps that are written line by line.

use heap::{
    AnalyzedHeap, Heap, HolderKind, Parts, ReferenceKind, ReferenceName, Root, Storage, StorageDevice,
    TreeLimits, changes, path_text,
};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

/// Builds a heap from lines. `main .history list:kept` is a reference by attribute, `kept [0] t` by item, and
/// further `local x`, `closure x`, `cache`, `inside`, `part`. A node's class precedes its name where it first
/// appears; `s…=64` is a storage of 64 bytes. `module NAME: main`, `frame NAME: main` and `outside: x` are
/// roots.
fn drawn(lines: &str) -> Heap {
    let mut parts = Parts::default();
    let mut nodes: HashMap<String, u32> = HashMap::new();
    let mut types: HashMap<String, u32> = HashMap::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut node = |word: &str, parts: &mut Parts| {
            let (word, bytes) =
                word.split_once('=').map_or((word, None), |(name, bytes)| (name, bytes.parse().ok()));
            let (class, name) = word.rsplit_once(':').unwrap_or(("object", word));
            *nodes.entry(name.to_owned()).or_insert_with(|| {
                let count = types.len() as u32;
                let class = *types.entry(class.to_owned()).or_insert_with(|| {
                    parts.types.push(class.to_owned());
                    count
                });
                parts.nodes.push(class);
                let number = parts.nodes.len() as u32 - 1;
                if let Some(bytes) = bytes {
                    let device = StorageDevice { kind: "cuda".to_owned(), index: 0 };
                    parts.storages.push(Storage { node: number, device, address: u64::from(number), bytes });
                }
                number
            })
        };
        if let Some((root, of)) = line.split_once(": ") {
            let at = node(of, &mut parts);
            let root = match root.split_once(' ') {
                Some(("module", name)) => Root::Module { name: name.to_owned(), file: "train.py".to_owned() },
                Some((_, name)) => {
                    parts.texts.push((at, name.to_owned()));
                    Root::Frame { thread: String::new(), file: "train.py".to_owned(), line: 1 }
                }
                None => Root::Outside,
            };
            parts.roots.push((at, root));
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let from = node(words[0], &mut parts);
        let to = node(words[words.len() - 1], &mut parts);
        let (link, text) = match words[1] {
            "local" => (ReferenceKind::Local, words[2]),
            "closure" => (ReferenceKind::Closure, words[2]),
            "cache" => (ReferenceKind::Cached, ""),
            "inside" => (ReferenceKind::Inside, ""),
            "part" => (ReferenceKind::Part, ""),
            word if word.starts_with('[') => (ReferenceKind::Item, word.trim_matches(['[', ']'])),
            word => (ReferenceKind::Attribute, word.trim_start_matches('.')),
        };
        parts.names.push(ReferenceName { link, text: text.to_owned() });
        parts.edges.push((from, to, parts.names.len() as u32 - 1));
    }
    Heap::new(parts)
}

fn holdings(lines: &str) -> AnalyzedHeap {
    AnalyzedHeap::new(&Arc::new(drawn(lines)), |_| true, |storage| storage.bytes)
}

/// Checks the holder of all memory, as one line.
fn check(lines: &str, expected: &str) {
    let holdings = holdings(lines);
    let wanted: Vec<(u32, u64)> =
        holdings.heap.storages.iter().map(|storage| (storage.node, storage.bytes)).collect();
    let holder = holdings.holder(&wanted).expect("a holder");
    let called = holdings.describe(&holder);
    let found = format!(
        "{:?} {} × {} by {}: {} of {}, {} free",
        called.kind,
        called.path,
        holder.similar,
        called.held_by,
        holder.bytes,
        wanted.iter().map(|(_, bytes)| bytes).sum::<u64>(),
        holdings.retained_bytes(holder.node),
    );
    assert_eq!(found, expected);
}

const GRAPHS: &str = "
    kept [0] Tensor:a
    kept [1] Tensor:b
    a inside s1=1
    b inside s2=1
    a .grad_fn MulBackward0:fa
    b .grad_fn MulBackward0:fb
    fa ._saved_self s3=100
    fb .next_functions[0][0] ExpBackward0:ea
    ea ._saved_result s4=100
";

#[test]
fn a_list_holds_the_graphs_of_its_tensors() {
    check(
        &format!("module __main__: dict:main \n main .history list:kept \n {GRAPHS}"),
        "Container __main__.history × 1 by __main__.history[…].grad_fn._saved_self: 202 of 202, 202 free",
    );
}

#[test]
fn the_last_entry_may_also_be_a_variable() {
    check(
        &format!(
            "module __main__: dict:main \n main .history list:kept \n main .loss Tensor:b \n kept [2] \
             Tensor:c \n c inside s9=100 \n {GRAPHS}"
        ),
        "Container __main__.history × 1 by __main__.history[…]: 201 of 302, 201 free",
    );
}

#[test]
fn a_path_leads_through_objects_and_their_dictionaries() {
    check(
        &format!(
            "module __main__: dict:main \n main .trainer Trainer:trainer \n trainer inside dict:inner \n \
             inner .meter Meter:meter \n meter .store dict:store \n store ['train'] list:kept \n {GRAPHS}"
        ),
        "Container __main__.trainer.meter.store['train'] × 1 by \
         __main__.trainer.meter.store['train'][…].grad_fn._saved_self: 202 of 202, 202 free",
    );
}

#[test]
fn a_running_total_holds_the_graph_of_every_step() {
    check(
        "module __main__: dict:main
         main .total Tensor:total
         total inside s0=1
         total .grad_fn AddBackward0:f1
         f1 .next_functions[0][0] AddBackward0:f2
         f1 .next_functions[1][0] MulBackward0:g1
         f2 .next_functions[1][0] MulBackward0:g2
         g1 ._saved_self s1=50
         g2 ._saved_self s2=50",
        "Chain __main__.total × 1 by __main__.total.grad_fn…_saved_self: 101 of 101, 101 free",
    );
}

#[test]
fn cycles_that_nothing_refers_to_are_counted_together() {
    let one = |number: usize| {
        format!(
            "Node:a{number} .other Node:b{number} \n b{number} .other a{number} \n a{number} .tensor \
             Tensor:t{number} \n t{number} inside s{number}=10 \n"
        )
    };
    let lines = format!("module __main__: dict:main \n {}{}{}", one(1), one(2), one(3));
    check(&lines, "Cycle <Node, garbage> × 3 by <Node, garbage>.tensor: 30 of 30, 10 free");
    let holdings = holdings(&lines);
    let cycles = holdings.cycles();
    let found: Vec<_> =
        cycles.iter().map(|cycle| (holdings.shape(&cycle.around), cycle.count, cycle.bytes())).collect();
    assert_eq!(found, [("Node.other → Node.other".to_owned(), 3, 30)]);
    assert!(cycles[0].is_garbage);
}

#[test]
fn a_cycle_in_use_is_not_garbage_and_a_class_is_not_a_cycle() {
    let holdings = holdings(
        "module __main__: dict:main
         main .model Model:model
         model inside dict:inner
         inner .forward method:bound
         bound .__self__ model
         inner .weight Tensor:weight
         weight inside s1=8
         main .Cache type:cache
         cache inside dict:names
         names .instance Single:single
         single .__class__ cache
         single .t Tensor:t
         t inside s2=16",
    );
    let cycles = holdings.cycles();
    let found: Vec<_> =
        cycles.iter().map(|cycle| (holdings.shape(&cycle.around), cycle.is_garbage, cycle.bytes())).collect();
    assert_eq!(found, [("Model.forward → method.__self__".to_owned(), false, 8)]);
}

#[test]
fn the_path_shows_the_holder_kind() {
    for (lines, expected) in [
        (
            "main .errors list:l \n l [0] ValueError:e \n e .__traceback__ traceback:t \n t .tb_frame \
             frame:f \n f local h Tensor:x",
            HolderKind::Exception,
        ),
        ("main .grid functools._lru_cache_wrapper:g \n g cache Tensor:x", HolderKind::Cache),
        ("main .grid functools._lru_cache_wrapper:g \n g cache dict:d \n d [3] Tensor:x", HolderKind::Cache),
        (
            "main .model Net:m \n m ._forward_hooks dict:h \n h [0] function:f \n f closure acts list:a \n \
             a [0] Tensor:x",
            HolderKind::Hook,
        ),
        (
            "main .callback function:f \n f inside tuple:t \n t closure batch cell:c \n c inside Tensor:x",
            HolderKind::Closure,
        ),
        (
            "main .loss Tensor:loss \n loss inside s7=1 \n loss .grad_fn MineBackward:ctx \n ctx inside \
             dict:d \n d .y Tensor:x",
            HolderKind::Context,
        ),
        ("main .log my.RunLogger:l \n l .records list:r \n r [0] Tensor:x", HolderKind::Logger),
        ("main .batches list:l \n l [0] generator:g \n g local batch Tensor:x", HolderKind::Generator),
        ("main .Out dict:o \n o [3] Tensor:x", HolderKind::Notebook),
        ("main ._12 Tensor:x", HolderKind::Notebook),
        ("main .seen set:s \n s part Tensor:x", HolderKind::Container),
        ("main .batch Tensor:x", HolderKind::Variable),
    ] {
        let holdings = holdings(&format!("module __main__: dict:main \n {lines} \n x inside s0=64"));
        let storage =
            holdings.heap.storages.iter().find(|storage| storage.bytes == 64).expect("the storage").node;
        assert_eq!(holdings.holder(&[(storage, 64)]).map(|holder| holder.kind), Some(expected), "{lines}");
    }
    let last = holdings(
        "module sys: dict:main \n main .last_traceback traceback:t \n t .tb_frame frame:f \n f local x \
         Tensor:x \n x inside s0=64",
    );
    let holder = last.holder(&[(last.heap.storages[0].node, 64)]).expect("a holder");
    assert_eq!(holder.kind, HolderKind::LastError);
}

#[test]
fn memory_held_by_two_names_is_freed_with_both() {
    let holdings = holdings(
        "module __main__: dict:main
         main .history list:kept
         main .trainer Trainer:trainer
         trainer .log kept
         kept [0] Tensor:a
         a inside s1=64",
    );
    let holder = holdings.holder(&[(holdings.heap.storages[0].node, 64)]).expect("a holder");
    let also: Vec<String> = holder
        .also
        .iter()
        .map(|way| path_text::path(&holdings.heap, &holdings.roots, way, |_| false))
        .collect();
    assert_eq!(also, ["__main__.trainer.log"]);
}

#[test]
fn variables_precede_c_code_and_user_code_precedes_libraries() {
    let heap = Arc::new(drawn(
        "module lib: dict:lib
         module __main__: dict:main
         outside: x
         lib .x Tensor:x
         main .deep Deep:deep
         deep .est Deep:est
         est .x x
         x inside s0=1",
    ));
    let is_own = |root: &Root| matches!(root, Root::Module { name, .. } if name == "__main__");
    let holdings = AnalyzedHeap::new(&heap, is_own, |storage| storage.bytes);
    let path = holdings.path(heap.storages[0].node);
    assert_eq!(path_text::path(&heap, &holdings.roots, &path, |_| false), "__main__.deep.est.x");
}

#[test]
fn the_tree_groups_similar_objects_and_omits_small_ones() {
    let holdings = holdings(&format!(
        "module __main__: dict:main \n main .history list:kept \n main .x Tensor:x \n x inside s9=1 \n \
         {GRAPHS}"
    ));
    let tree = holdings.tree(TreeLimits { depth: 4, most: 5, least: 2 });
    let main = &tree.branches[0];
    assert_eq!((tree.bytes(), main.name.as_str(), main.bytes()), (203, "__main__", 203));
    let names: Vec<(&str, u64)> =
        main.branches.iter().map(|branch| (branch.name.as_str(), branch.bytes())).collect();
    assert_eq!(names, [(".history", 202)]);
    let inner = &main.branches[0].branches;
    assert_eq!(inner.iter().map(|branch| (branch.count, branch.bytes())).collect::<Vec<_>>(), [(2, 202)]);
}

#[test]
fn growth_is_reported_by_path() {
    let before = holdings(
        "module __main__: dict:main \n main .history list:kept \n kept [0] Tensor:a \n a inside s1=8",
    );
    let after = holdings(
        "module __main__: dict:main \n main .history list:kept \n kept [0] Tensor:a \n a inside s1=8 \n \
         kept [1] Tensor:b \n b inside s2=8 \n main .x Tensor:x \n x inside s3=1",
    );
    let found: Vec<_> =
        changes(&before, &after).into_iter().map(|change| (change.place.clone(), change.growth())).collect();
    assert_eq!(found, [("__main__.history[…]".to_owned(), 8), ("__main__.x".to_owned(), 1)]);
}

#[test]
fn the_top_is_split_at_objects_but_not_at_containers() {
    let holdings = holdings(
        "module __main__: dict:main
         main .trainer Trainer:trainer
         trainer .history list:kept
         trainer .best Tensor:best
         kept [0] Tensor:a
         kept [1] Tensor:b
         a inside s1=10
         b inside s2=20
         best inside s3=15",
    );
    let top: Vec<(String, u64)> = holdings
        .top(5)
        .iter()
        .map(|held| {
            (path_text::path(&holdings.heap, &holdings.roots, &held.holder.path, |_| false), held.bytes)
        })
        .collect();
    assert_eq!(top, [("__main__.trainer.history".to_owned(), 30), ("__main__.trainer.best".to_owned(), 15)]);
}

/// Random references between some objects and tensors.
fn random() -> impl Strategy<Value = Parts> {
    (2u32..24, 0.5f64..3.0).prop_flat_map(|(nodes, density)| {
        let count = (f64::from(nodes) * density) as usize;
        (
            proptest::collection::vec((0..nodes, 0..nodes), count),
            proptest::collection::vec(0..nodes, 1..4),
            proptest::collection::vec(0..nodes, 1..8),
        )
            .prop_map(move |(pairs, roots, storages)| {
                let mut storages: Vec<u32> = storages;
                storages.sort_unstable();
                storages.dedup();
                let is_storage = |node: &u32| storages.contains(node);
                let root = |node: u32| (node, Root::Module { name: format!("m{node}"), file: String::new() });
                Parts {
                    types: vec!["object".to_owned()],
                    nodes: vec![0; nodes as usize],
                    names: vec![ReferenceName { link: ReferenceKind::Item, text: "0".to_owned() }],
                    // A storage refers to nothing.
                    edges: pairs
                        .into_iter()
                        .filter(|(from, _)| !is_storage(from))
                        .map(|(from, to)| (from, to, 0))
                        .collect(),
                    roots: roots.into_iter().filter(|node| !is_storage(node)).map(root).collect(),
                    storages: storages
                        .iter()
                        .map(|&node| Storage {
                            node,
                            device: StorageDevice { kind: "cuda".to_owned(), index: node % 2 },
                            address: u64::from(node),
                            bytes: 1 << node,
                        })
                        .collect(),
                    ..Parts::default()
                }
            })
    })
}

/// Bytes that are reachable from the roots, and from garbage, without some nodes.
fn reached(holdings: &AnalyzedHeap, removed: &[u32]) -> u64 {
    let heap = &holdings.heap;
    let mut seen = vec![false; heap.len()];
    let mut waiting: Vec<u32> = holdings.roots.iter().map(|(node, _)| *node).collect();
    while let Some(node) = waiting.pop() {
        if !removed.contains(&node) && !std::mem::replace(&mut seen[node as usize], true) {
            waiting.extend(heap.edges.of(node));
        }
    }
    heap.storages.iter().filter(|storage| seen[storage.node as usize]).map(|storage| storage.bytes).sum()
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_retained_size_is_what_a_removal_frees(parts in random()) {
        let holdings = AnalyzedHeap::new(&Arc::new(Heap::new(parts)), |_| true, |storage| storage.bytes);
        let all = reached(&holdings, &[]);
        let stored = holdings.heap.storages.iter().map(|storage| storage.bytes).sum::<u64>();
        prop_assert_eq!(all, stored, "garbage is held, too");
        for node in 0..holdings.heap.len() as u32 {
            prop_assert_eq!(holdings.retained_bytes(node), all - reached(&holdings, &[node]));
            let by_device: u64 = holdings.retained(node).iter().map(|(_, bytes)| bytes).sum();
            prop_assert_eq!(by_device, holdings.retained_bytes(node));
        }
    }

    #[test]
    fn a_cycle_retains_what_its_removal_frees(parts in random()) {
        let holdings = AnalyzedHeap::new(&Arc::new(Heap::new(parts)), |_| true, |storage| storage.bytes);
        let all = reached(&holdings, &[]);
        for cycle in holdings.cycles().iter().filter(|cycle| cycle.count == 1) {
            prop_assert_eq!(cycle.bytes(), all - reached(&holdings, &cycle.members));
        }
    }

    #[test]
    fn all_memory_has_a_holder(parts in random()) {
        let holdings = AnalyzedHeap::new(&Arc::new(Heap::new(parts)), |_| true, |storage| storage.bytes);
        for storage in &holdings.heap.storages {
            let holder = holdings.holder(&[(storage.node, storage.bytes)]).expect("a holder");
            let nodes = holder.example.nodes(&holdings.heap, &holdings.roots);
            prop_assert_eq!(nodes.last(), Some(&storage.node));
        }
        let held: u64 = holdings.top(usize::MAX).iter().map(|held| held.bytes).sum();
        prop_assert_eq!(held, reached(&holdings, &[]));
    }
}
