//! Explains a PyTorch memory snapshot: what its memory is in use for, which lines of code that comes from,
//! what to change.
//!
//! Nothing here can fail, print, or look at a clock: the same snapshot always gives the same answer, and what
//! is missing from it becomes a caveat of the number that it affects.
//!
//! | module | from → to |
//! |---|---|
//! | `trace` | events → sites, steps, modules: what the events say by themselves |
//! | `run` | a device → [`RunModel`]: categories, step peaks, growing sites, holders |
//! | `findings` | [`RunModel`] → [`Finding`]s: leaks, spikes, fragmentation, failed allocations |
//! | [`messages`] | a log → out-of-memory messages, their cause and what to do |
//! | [`serving`] | a log of vLLM or SGLang → memory by use, and which way to change its setting |
//! | `compare` | two runs, or the ranks of a job → what differs |
//! | `holders_view` | a heap dump → holders, the tree, reference paths |
//! | `ledger` | what the driver and libraries count → the memory of a process by owner |
//! | `alarm` | the counters of a running program → whether it leaks |
//!
//! Each uses those above it only.
//!
//! # Example
//!
//! A program that keeps a tensor of 8 MiB from every step:
//!
//! ```
//! use analysis::{Diagnosis, FindingKind};
//!
//! let event = |action: &str, addr: u64, mib: u64, frames: &str| {
//!     let size = mib << 20;
//!     format!(
//!         r#"{{"action": "{action}", "addr": {addr}, "size": {size}, "stream": 0, "frames": [{frames}]}}"#
//!     )
//! };
//! let line = |number: u32| format!(r#"{{"filename": "train.py", "line": {number}, "name": "<module>"}}"#);
//! let steps = (0..20).flat_map(|step| {
//!     let (batch, kept) = (1 << 40, (step + 1) << 30);
//!     [
//!         event("alloc", batch, 1, &line(6)),
//!         event("alloc", kept, 8, &line(7)),
//!         event("free_requested", batch, 1, ""),
//!         event("free_completed", batch, 1, ""),
//!     ]
//! });
//! let events: Vec<String> = steps.collect();
//! let json = format!(r#"{{"segments": [], "device_traces": [[{}]]}}"#, events.join(","));
//!
//! let snapshot = snapshot::read(json.as_bytes())?;
//! let devices = analysis::devices(&snapshot);
//! let diagnosis = Diagnosis::new(&devices[0]);
//! let leak = diagnosis.findings.iter().find(|finding| finding.kind == FindingKind::Leak).expect("a leak");
//! assert_eq!(leak.summary, "8.00 MiB per step, still growing");
//! let site = leak.site.map(|site| analysis::words::site_name(&snapshot, site));
//! assert_eq!(site.as_deref(), Some("train.py:7"));
//! # Ok::<(), snapshot::Error>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod alarm;
mod compare;
mod findings;
mod holders_view;
mod ledger;
pub mod messages;
mod phases;
mod rank_findings;
mod renames;
mod run;
pub mod serving;
mod trace;
pub mod words;

pub use alarm::{GrowthAlarm, GrowthAlert, Pace, Trail};
pub use compare::{
    DeviceSummary, FindingChange, FindingSummary, SiteName, SiteUsage, Skew, UsageChange, changes,
    difference, finding_changes, rank_in_name, site_usage, skew,
};
pub use findings::finding::{EvidenceValue, Finding, FindingKind, Focus, OomCause, Severity};
pub use findings::fragmentation::never_needed;
pub use findings::not_found::not_found;
pub use findings::retries::retries;
pub use findings::room::CARD_SIZES_GIB;
pub use findings::{Diagnosis, findings};
pub use holders_view::{HeldTensor, HoldersView, TensorAddress};
pub use ledger::{DeviceLedger, LedgerOwner, LedgerRow};
pub use phases::{EndedPhase, PhaseChange, PhaseLine, PhaseMoment, PhaseSummary, RunPhases};
pub use rank_findings::{RankFinding, rank_findings};
pub use renames::{DevicePair, RenamedFile};
pub use run::categories::{ByCategory, Categories, Category};
pub use run::device::{Device, Moment, PoolCategory, devices, recorded_devices};
pub use run::growth::{MIN_STEPS_FOR_LEAK, Trend};
pub use run::holders::{Held, Holders, StoreHint};
pub use run::labels::LabelledTensors;
pub use run::live_blocks::{Key, Live, LiveGroup, Origin, Rest};
pub use run::model::RunModel;
pub use run::step_peaks::{MemoryPeak, SegmentEvent, StepPeaks};
pub use trace::counted::events_before_changes;
pub use trace::modules::{ExecutionScope, ModuleId, Modules, Phase};
pub use trace::repeated::fill_in_repeated_steps;
pub use trace::site::{Site, Sites, in_package, is_user_file};
pub use trace::steps::{Confidence, StepSource, Steps};
