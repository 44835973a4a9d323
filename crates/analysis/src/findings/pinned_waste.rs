//! Pinned memory that only rounding takes: PyTorch's host allocator rounds requests up to powers of two.

use super::finding::{EvidenceValue, Finding, FindingKind, Severity};
use super::line::NamedSite;
use crate::run::model::RunModel;
use crate::words::{counted, percent, share};
use recording::{HostMemory, PinnedBlocks};
use snapshot::Bytes;
use std::cmp::Reverse;

/// Bytes from which it is reported.
const MIN_BYTES: Bytes = Bytes(64 << 20);
/// Share of all pinned memory from which it is reported: a quarter is usual for requests of any size.
const MIN_SHARE: f64 = 0.3;
/// Bytes from which the severity is medium.
const MEDIUM_BYTES: Bytes = Bytes(1 << 30);
/// Lines that are named.
const MAX_LINES: usize = 3;
/// Setting of torch 2.13 and later that shows whether rounding can be limited.
const ROUNDING_SETTING: &str = "max_round_threshold";

/// Rounding of pinned memory, in numbers.
pub(super) struct PinnedWasteFacts {
    waste: Bytes,
    reserved: Bytes,
    /// Blocks with their lines, the most wasteful first.
    blocks: Vec<(PinnedBlocks, NamedSite)>,
    /// Whether this release can be told not to round large requests.
    can_limit: bool,
}

/// The facts, if a good part of pinned memory was requested by nobody.
pub(super) fn measure(model: &RunModel<'_>, host: &HostMemory) -> Option<PinnedWasteFacts> {
    let pinned = host.pinned.as_ref()?;
    let mut wasteful: Vec<&PinnedBlocks> =
        pinned.blocks.iter().filter(|blocks| blocks.waste() > Bytes::ZERO).collect();
    wasteful.sort_by_key(|blocks| Reverse(blocks.waste()));
    let waste = wasteful.iter().map(|blocks| blocks.waste()).sum();
    if waste < MIN_BYTES || share(waste, pinned.reserved) < MIN_SHARE {
        return None;
    }
    let snapshot = model.device.snapshot;
    let mut settings = snapshot.settings.pairs.iter();
    Some(PinnedWasteFacts {
        waste,
        reserved: pinned.reserved,
        blocks: wasteful
            .into_iter()
            .map(|blocks| (blocks.clone(), NamedSite::new(model, blocks.line.frame)))
            .collect(),
        can_limit: settings.any(|(key, _)| snapshot.strings.get(*key) == ROUNDING_SETTING),
    })
}

/// The finding in words.
pub(super) fn describe(facts: &PinnedWasteFacts) -> Finding {
    let PinnedWasteFacts { waste, reserved, blocks, .. } = facts;
    let reason = format!("rounding is {} of pinned memory", percent(share(*waste, *reserved)));
    let severity = if *waste >= MEDIUM_BYTES { Severity::Medium } else { Severity::Low };
    let summary = format!("{waste} of {reserved} of pinned memory is rounding, which no tensor uses");
    let (worst, _) = &blocks[0];
    let details = blocks.iter().take(MAX_LINES).map(|(blocks, line)| {
        format!(
            "{} of {} for requests of {} at {}",
            counted(blocks.count, "block"),
            blocks.size,
            blocks.requested,
            line.or("a line that was not recorded")
        )
    });
    let evidence = blocks.iter().take(MAX_LINES).map(|(blocks, line)| {
        let mut record = vec![
            ("size", EvidenceValue::Bytes(blocks.size)),
            ("requested", EvidenceValue::Bytes(blocks.requested)),
            ("count", EvidenceValue::Count(blocks.count)),
        ];
        record.extend(line.evidence());
        EvidenceValue::Record(record)
    });
    Finding {
        count: blocks.iter().map(|(blocks, _)| blocks.count).sum(),
        site: blocks[0].1.frame,
        fix: fix(worst, facts.can_limit),
        details: details.collect(),
        evidence: vec![
            ("waste", EvidenceValue::Bytes(*waste)),
            ("reserved", EvidenceValue::Bytes(*reserved)),
            ("blocks", EvidenceValue::List(evidence.collect())),
            ("threshold", EvidenceValue::Ratio(MIN_SHARE)),
        ],
        ..Finding::new(FindingKind::PinnedWaste, severity, reason, summary, *waste)
    }
}

fn fix(worst: &PinnedBlocks, can_limit: bool) -> String {
    let below = Bytes(worst.size.0 / 2);
    let sizes = format!(
        "pin tensors whose size is a power of two or a little less: {} takes {}, and {below} takes {below}",
        worst.requested, worst.size
    );
    if can_limit {
        let limit = (below.0 >> 20).max(1);
        return format!(
            "set `PYTORCH_ALLOC_CONF=pinned_max_round_threshold_mb:{limit}`, so that larger requests are not \
             rounded; or {sizes}"
        );
    }
    format!("{sizes}; torch 2.13 and later can be told not to round (`pinned_max_round_threshold_mb`)")
}
