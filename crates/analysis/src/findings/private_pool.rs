//! Memory of CUDA graphs and `MemPool`s: it looks free and is not.

use super::finding::{EvidenceValue, Finding, FindingKind, Severity};
use super::line::NamedSite;
use crate::run::model::RunModel;
use crate::words::{counted, percent, share};
use rustc_hash::FxHashMap;
use snapshot::{Bytes, Counters, FrameId, PoolId};
use std::collections::BTreeMap;

/// Share of the reserved memory from which the severity is medium.
const MEDIUM_SHARE: f64 = 0.25;

/// Private pools at the end, in numbers.
pub(super) struct PrivatePoolFacts {
    severity: Severity,
    pools: BTreeMap<PoolId, Counters>,
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
    let mut lines: FxHashMap<Option<FrameId>, Bytes> = FxHashMap::default();
    for (row, allocation) in history.allocations.iter().enumerate() {
        let pool =
            history.regions.get(allocation.region as usize).map_or(PoolId::DEFAULT, |region| region.pool);
        if pool != PoolId::DEFAULT {
            *lines.entry(model.frame_of_allocation(row)).or_default() += allocation.size;
        }
    }
    let largest = lines.into_iter().max_by_key(|&(frame, bytes)| (frame.is_some(), bytes, frame));
    let ratio = share(reserved, history.end.reserved);
    Some(PrivatePoolFacts {
        severity: if ratio >= MEDIUM_SHARE { Severity::Medium } else { Severity::Low },
        pools,
        reserved,
        idle: reserved.saturating_sub(active),
        share: ratio,
        line: NamedSite::new(model, largest.and_then(|line| line.0)),
    })
}

/// The finding in words.
pub(super) fn describe(facts: &PrivatePoolFacts) -> Finding {
    let PrivatePoolFacts { pools, reserved, idle, .. } = facts;
    let pool = |(pool, counters): (&PoolId, &Counters)| {
        EvidenceValue::Record(vec![
            ("id", EvidenceValue::Text(format!("({}, {})", pool.0, pool.1))),
            ("reserved", EvidenceValue::Bytes(counters.reserved)),
            ("active", EvidenceValue::Bytes(counters.active)),
            ("allocated", EvidenceValue::Bytes(counters.allocated)),
        ])
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
        details: vec![format!(
            "the largest part was allocated at {}; a graph keeps the memory of its capture, and a `MemPool` \
             its own, for as long as it exists, and `empty_cache()` does not touch it",
            facts.line.or("a line that was not recorded")
        )],
        fix: fix(pools).to_owned(),
        evidence: vec![
            ("pools", EvidenceValue::List(pools.iter().map(pool).collect())),
            ("looks_unallocated", EvidenceValue::Bytes(*idle)),
        ],
        ..Finding::new(FindingKind::PrivatePool, facts.severity, reason, summary, *reserved)
    }
}

fn fix(pools: &BTreeMap<PoolId, Counters>) -> &'static str {
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
