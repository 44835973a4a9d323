//! Memory of CUDA graphs and `MemPool`s: it looks free and is not.

use super::finding::{EvidenceValue, Finding, FindingKind, Severity};
use super::line::NamedSite;
use crate::run::model::RunModel;
use crate::words::{counted, percent, printable, share};
use recording::{PoolOwner, PoolOwnerKind};
use rustc_hash::FxHashMap;
use snapshot::{Bytes, Counters, FrameId, PoolId};
use std::collections::BTreeMap;

/// Share of the reserved memory from which the severity is medium.
const MEDIUM_SHARE: f64 = 0.25;

/// Pools that are described one by one.
const MAX_DESCRIBED_POOLS: usize = 4;
/// Compiled functions that are named for a pool.
const MAX_NAMED_FUNCTIONS: usize = 3;

/// A private pool at the end.
struct PrivatePool {
    counters: Counters,
    owner: Option<PoolOwner>,
    /// The line that allocated most of it.
    line: NamedSite,
}

impl PrivatePool {
    fn idle(&self) -> Bytes {
        self.counters.reserved.saturating_sub(self.counters.active)
    }

    fn is_compiled(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.kind == PoolOwnerKind::Compile)
    }

    /// The owner in words, if the recorder found it.
    fn owner_name(&self) -> Option<String> {
        let owner = self.owner.as_ref()?;
        let graphs = counted(owner.graphs, "CUDA graph");
        Some(match owner.kind {
            PoolOwnerKind::Compile => {
                let named = owner.names.iter().take(MAX_NAMED_FUNCTIONS).map(|name| printable(name));
                let named: Vec<_> = named.collect();
                let more = match owner.names.len().saturating_sub(MAX_NAMED_FUNCTIONS) {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                format!("{graphs} of torch.compile ({}{more})", named.join("; "))
            }
            PoolOwnerKind::MemPool if owner.graphs == 0 => "a `MemPool`".to_owned(),
            PoolOwnerKind::MemPool => format!("a `MemPool` with {graphs}"),
            PoolOwnerKind::Graph => graphs,
        })
    }
}

/// Private pools at the end, in numbers.
pub(super) struct PrivatePoolFacts {
    severity: Severity,
    pools: BTreeMap<PoolId, PrivatePool>,
    reserved: Bytes,
    /// Bytes that look unallocated: reserved, and in no block.
    idle: Bytes,
    /// Share of the memory that is reserved at the end.
    share: f64,
    /// The line that allocated most of it.
    line: NamedSite,
}

/// The facts, if there are such pools at the end.
pub(super) fn measure(model: &RunModel<'_>) -> Option<PrivatePoolFacts> {
    let history = &model.device.history;
    let mut pools: BTreeMap<PoolId, Counters> = BTreeMap::new();
    for (pool, counters) in model.device.pools_at_end() {
        if pool.pool != PoolId::DEFAULT {
            *pools.entry(pool.pool).or_default() += counters;
        }
    }
    let sum = |part: fn(&Counters) -> Bytes| pools.values().map(part).sum::<Bytes>();
    let (reserved, active) = (sum(|counters| counters.reserved), sum(|counters| counters.active));
    if reserved == Bytes::ZERO {
        return None;
    }
    let mut lines: FxHashMap<(PoolId, Option<FrameId>), Bytes> = FxHashMap::default();
    for (row, allocation) in history.allocations.iter().enumerate() {
        let pool =
            history.regions.get(allocation.region as usize).map_or(PoolId::DEFAULT, |region| region.pool);
        if pool != PoolId::DEFAULT {
            *lines.entry((pool, model.frame_of_allocation(row))).or_default() += allocation.size;
        }
    }
    let owners = model.device.recording.ledger.as_ref().map_or(&[][..], |ledger| &ledger.pools);
    let largest = |of: Option<PoolId>| {
        let lines = lines.iter().filter(|((pool, _), _)| of.is_none_or(|of| *pool == of));
        lines.max_by_key(|&(&(_, frame), &bytes)| (frame.is_some(), bytes, frame)).and_then(|line| line.0.1)
    };
    let pool = |(id, counters): (PoolId, Counters)| {
        let owner = owners.iter().find(|owner| owner.pool() == id).cloned();
        (id, PrivatePool { counters, owner, line: NamedSite::new(model, largest(Some(id))) })
    };
    let ratio = share(reserved, history.end.reserved);
    Some(PrivatePoolFacts {
        severity: if ratio >= MEDIUM_SHARE { Severity::Medium } else { Severity::Low },
        line: NamedSite::new(model, largest(None)),
        pools: pools.into_iter().map(pool).collect(),
        reserved,
        idle: reserved.saturating_sub(active),
        share: ratio,
    })
}

/// The finding in words.
pub(super) fn describe(facts: &PrivatePoolFacts) -> Finding {
    let PrivatePoolFacts { pools, reserved, idle, .. } = facts;
    let pool = |(id, pool): (&PoolId, &PrivatePool)| {
        let mut record = vec![
            ("id", EvidenceValue::Text(format!("({}, {})", id.0, id.1))),
            ("reserved", EvidenceValue::Bytes(pool.counters.reserved)),
            ("active", EvidenceValue::Bytes(pool.counters.active)),
            ("allocated", EvidenceValue::Bytes(pool.counters.allocated)),
        ];
        record.extend(pool.owner_name().map(|owner| ("owner", EvidenceValue::Text(owner))));
        EvidenceValue::Record(record)
    };
    let reason = format!("{} of the reserved memory is in private pools at the end", percent(facts.share));
    let summary = format!(
        "{reserved} belongs to {} of CUDA graphs or `MemPool`s; {idle} of it is free but reserved for \
         {}",
        counted(pools.len() as u64, "private pool"),
        if pools.len() == 1 { "that pool" } else { "those pools" }
    );
    Finding {
        count: pools.len() as u64,
        site: facts.line.frame,
        details: details(facts),
        fix: fix(pools).to_owned(),
        evidence: vec![
            ("pools", EvidenceValue::List(pools.iter().map(pool).collect())),
            ("looks_unallocated", EvidenceValue::Bytes(*idle)),
        ],
        ..Finding::new(FindingKind::PrivatePool, facts.severity, reason, summary, *reserved)
    }
}

fn details(facts: &PrivatePoolFacts) -> Vec<String> {
    let mut details = vec![format!(
        "the largest part was allocated at {}; a graph keeps the memory of its capture, and a `MemPool` its \
         own, for as long as it exists, and `empty_cache()` does not touch it",
        facts.line.or("a line that was not recorded")
    )];
    let mut owned: Vec<(&PrivatePool, String)> =
        facts.pools.values().filter_map(|pool| Some((pool, pool.owner_name()?))).collect();
    owned.sort_by_key(|(pool, _)| std::cmp::Reverse(pool.counters.reserved));
    details.extend(owned.iter().take(MAX_DESCRIBED_POOLS).map(|(pool, owner)| {
        let line = pool.line.or("a line that was not recorded");
        let (reserved, idle) = (pool.counters.reserved, pool.idle());
        format!("{owner}: {reserved}, {idle} of it free, most of it from {line}")
    }));
    details
}

fn fix(pools: &BTreeMap<PoolId, PrivatePool>) -> &'static str {
    if pools.values().any(PrivatePool::is_compiled) {
        return "expected for `torch.compile` with CUDA graphs: count it as used. Fewer input shapes record \
                fewer graphs (`dynamic=True`, padded batches); `mode=\"default\"` records none";
    }
    // The first number belongs to graphs that made their own pool, the second to handles and `MemPool`s.
    let is_graphs_own = pools.keys().any(|pool| pool.1 == 0);
    if pools.len() > 1 {
        "give the graphs one pool (`torch.cuda.graph(g, pool=torch.cuda.graph_pool_handle())`), capture the \
         largest shape first, and delete graphs that are no longer replayed"
    } else if is_graphs_own {
        "expected for a captured graph: count it as used. Capture fewer shapes, or delete the graph when it \
         is no longer replayed"
    } else {
        "expected for a `MemPool` or a shared graph pool: count it as used, and delete the pool when it is \
         no longer needed"
    }
}
