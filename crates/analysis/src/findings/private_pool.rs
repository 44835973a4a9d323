//! Memory of CUDA graphs and `MemPool`s: it looks free and is not.

use crate::findings::finding::{Finding, Kind, Severity, Value};
use crate::run::model::RunModel;
use crate::words::{counted, percent, place_or, share};
use rustc_hash::FxHashMap;
use snapshot::{Bytes, Counters, FrameId, PoolId};
use std::collections::BTreeMap;

const MEDIUM_SHARE: f64 = 0.25;

/// The finding, if there are such pools at the end.
pub(crate) fn private_pools(model: &RunModel<'_>) -> Option<Finding> {
    let (snapshot, history) = (model.device.snapshot, &model.device.history);
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
    for (row, life) in history.lives.iter().enumerate() {
        let pool = history.regions.get(life.region as usize).map_or(PoolId::DEFAULT, |region| region.pool);
        if pool != PoolId::DEFAULT {
            *lines.entry(model.frame_of_life(row)).or_default() += life.size;
        }
    }
    let site = lines
        .into_iter()
        .max_by_key(|&(frame, bytes)| (frame.is_some(), bytes, frame))
        .and_then(|line| line.0);
    let line = place_or(snapshot, site, "a line that was not recorded");
    let ratio = share(reserved, history.end.reserved);
    let idle = reserved.saturating_sub(active);
    let mut finding = Finding::new(
        Kind::PrivatePool,
        if ratio >= MEDIUM_SHARE { Severity::Medium } else { Severity::Low },
        format!("{} of the reserved memory is in private pools at the end", percent(ratio)),
        format!(
            "{reserved} belong to {} of CUDA graphs or `MemPool`s; {idle} of it look unallocated but nothing else may use them",
            counted(pools.len() as u64, "private pool")
        ),
        reserved,
    );
    finding.count = pools.len() as u64;
    finding.site = site;
    finding.details.push(format!(
        "the largest part was allocated at {line}; a graph keeps the memory of its capture, and a `MemPool` its own, for as \
         long as it lives, and `empty_cache()` does not touch it"
    ));
    finding.fix = if pools.len() > 1 {
        "give the graphs one pool (`torch.cuda.graph(g, pool=torch.cuda.graph_pool_handle())`), capture the largest shape \
         first, and delete graphs that are no longer replayed"
            .to_owned()
    } else if pools.keys().any(|pool| pool.1 == 0) {
        "expected for a captured graph: count it as used. Capture fewer shapes, or delete the graph when it is no longer \
         replayed"
            .to_owned()
    } else {
        // The first number belongs to graphs that made their own pool, the second to handles and `MemPool`s.
        "expected for a `MemPool` or a shared graph pool: count it as used, and delete the pool when it is no longer needed"
            .to_owned()
    };
    finding.evidence = vec![
        (
            "pools",
            Value::List(
                pools
                    .iter()
                    .map(|(pool, counters)| {
                        Value::Record(vec![
                            ("id", Value::Text(format!("({}, {})", pool.0, pool.1))),
                            ("reserved", Value::Bytes(counters.reserved)),
                            ("active", Value::Bytes(counters.active)),
                            ("allocated", Value::Bytes(counters.allocated)),
                        ])
                    })
                    .collect(),
            ),
        ),
        ("looks_unallocated", Value::Bytes(idle)),
    ];
    Some(finding)
}
