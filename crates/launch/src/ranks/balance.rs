//! What makes one stage of a pipeline need more than the others, and what would balance it.

use analysis::{Key, Origin, RunModel};
use snapshot::Bytes;
use std::collections::BTreeMap;

/// Modules at the peak of a rank.
const MAX_MODULES: usize = 1 << 16;

/// Difference between stages, as a share of the highest, that is worth a word.
const MIN_IMBALANCE: f64 = 0.05;

/// Memory of a rank at its peak, by the outermost modules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RankUsage {
    pub(crate) rank: u32,
    pub(crate) peak: Bytes,
    pub(crate) modules: BTreeMap<String, Bytes>,
}

/// How much more a rank needs than the one that needs least, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankNeed {
    /// The rank that needs most.
    pub rank: u32,
    /// Bytes beyond the rank that needs least.
    pub extra: Bytes,
    /// The rank that needs least.
    pub lowest: u32,
    /// Modules that make the difference, with the bytes that the highest rank has of them beyond the lowest.
    pub modules: Vec<(String, Bytes)>,
    /// What would balance the two.
    pub balanced_by: Option<StageMove>,
}

/// Layers to move from one stage to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageMove {
    /// How many.
    pub layers: u64,
    /// Bytes of one at the peak.
    pub bytes_each: Bytes,
}

impl RankUsage {
    pub(crate) fn new(rank: u32, model: &RunModel<'_>) -> RankUsage {
        let peak = model.device.history.allocated_peak;
        let position = peak.position;
        let mut modules: BTreeMap<String, Bytes> = BTreeMap::new();
        for group in model.live_at(position, Key::Module { most: MAX_MODULES }).groups {
            if group.origin != Origin::Module(None) {
                let (path, _) = model.device.words_for(group.origin);
                *modules.entry(outermost(&path)).or_default() += group.bytes;
            }
        }
        RankUsage { rank, peak: peak.bytes, modules }
    }
}

/// A path up to its first number: a layer; or its first two names.
fn outermost(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('.') {
        parts.push(part);
        if is_number(part) {
            return parts.join(".");
        }
    }
    parts.truncate(2);
    parts.join(".")
}

fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|letter| letter.is_ascii_digit())
}

/// Compares the rank that needs most with the one that needs least, if they differ enough.
pub(crate) fn need(usages: &[RankUsage]) -> Option<RankNeed> {
    // Of equal ones the first.
    let highest = usages.iter().rev().max_by_key(|usage| usage.peak)?;
    let lowest = usages.iter().min_by_key(|usage| usage.peak)?;
    let extra = highest.peak.saturating_sub(lowest.peak);
    if (extra.0 as f64) < MIN_IMBALANCE * highest.peak.0 as f64 {
        return None;
    }
    let mut modules: Vec<(String, Bytes)> = kinds(&highest.modules)
        .into_iter()
        .map(|(kind, bytes)| {
            let other = kinds(&lowest.modules).get(&kind).copied().unwrap_or_default();
            (kind, bytes.saturating_sub(other))
        })
        .filter(|(_, bytes)| bytes.0 as f64 > 0.1 * extra.0 as f64)
        .collect();
    modules.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    modules.truncate(3);
    let balanced_by = layers(&highest.modules).and_then(|(count, bytes_each)| {
        let layers = extra.0 / (2 * bytes_each.0.max(1));
        (1..count).contains(&layers).then_some(StageMove { layers, bytes_each })
    });
    Some(RankNeed { rank: highest.rank, extra, lowest: lowest.rank, modules, balanced_by })
}

/// Bytes of modules, with numbered layers of one list together: `layers.N`.
fn kinds(modules: &BTreeMap<String, Bytes>) -> BTreeMap<String, Bytes> {
    let mut kinds: BTreeMap<String, Bytes> = BTreeMap::new();
    for (path, bytes) in modules {
        let kind: Vec<&str> = path.split('.').map(|part| if is_number(part) { "N" } else { part }).collect();
        *kinds.entry(kind.join(".")).or_default() += *bytes;
    }
    kinds
}

/// Number of numbered layers and the median of their bytes, if there are several.
fn layers(modules: &BTreeMap<String, Bytes>) -> Option<(u64, Bytes)> {
    let is_layer = |path: &&String| path.rsplit('.').next().is_some_and(is_number);
    let mut sizes: Vec<Bytes> =
        modules.iter().filter(|(path, _)| is_layer(path)).map(|(_, bytes)| *bytes).collect();
    sizes.sort_unstable();
    (sizes.len() > 1).then(|| (sizes.len() as u64, sizes[sizes.len() / 2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(rank: u32, modules: &[(&str, u64)]) -> RankUsage {
        let modules: BTreeMap<String, Bytes> =
            modules.iter().map(|&(path, bytes)| (path.to_owned(), Bytes(bytes))).collect();
        RankUsage { rank, peak: modules.values().copied().sum(), modules }
    }

    #[test]
    fn the_module_that_only_one_stage_has_is_named() {
        let middle = usage(1, &[("layers.1", 100), ("layers.2", 100), ("layers.3", 100)]);
        let last = usage(2, &[("layers.4", 100), ("layers.5", 100), ("layers.6", 100), ("lm_head", 400)]);
        let need = need(&[middle, last]).expect("an imbalance");
        assert_eq!((need.rank, need.lowest, need.extra), (2, 1, Bytes(400)));
        assert_eq!(need.modules, [("lm_head".to_owned(), Bytes(400))]);
        assert_eq!(need.balanced_by, Some(StageMove { layers: 2, bytes_each: Bytes(100) }));
    }

    #[test]
    fn a_stage_keeps_at_least_one_of_its_layers() {
        let first = usage(0, &[("layers.0", 100), ("layers.1", 100)]);
        let last = usage(1, &[("layers.2", 100), ("layers.3", 100), ("lm_head", 4000)]);
        assert_eq!(need(&[first, last]).expect("an imbalance").balanced_by, None);
    }

    #[test]
    fn equal_stages_need_nothing() {
        assert_eq!(need(&[usage(0, &[("layers.0", 100)]), usage(1, &[("layers.1", 101)])]), None);
        assert_eq!(outermost("model.layers.3.mlp.up"), "model.layers.3");
        assert_eq!(outermost("model.lm_head.weight"), "model.lm_head");
    }
}
