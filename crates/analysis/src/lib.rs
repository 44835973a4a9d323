//! Explains a snapshot. Nothing here can fail, print, or look at a clock: the same snapshot always gives the same
//! answer, and what is missing from it becomes a caveat beside the number that it affects.

#![forbid(unsafe_code)]

mod alarm;
mod compare;
mod findings;
pub mod messages;
mod recording;
mod run;
mod trace;
pub mod words;

pub use alarm::{Alarm, GrowthAlert, Pace, Trail};
pub use compare::{
    Change, DeviceSummary, FindingChange, FindingSummary, SiteName, SiteUsage, Skew, changes, difference,
    finding_changes, holdings, skew,
};
pub use findings::finding::{Cause, Finding, Kind, Severity, Value};
pub use findings::fragmentation::never_needed;
pub use findings::retries::retries;
pub use findings::{Diagnosis, findings};
pub use recording::{
    Card, Counts, HeapDump, Label, LabelMark, Labels, Outside, Placed, Process, Recording, Shortage,
    StepMark, Tensor, own_process,
};
pub use run::categories::{ByCategory, Categories, Category};
pub use run::device::{Device, Moment, Pool, devices, recorded_devices};
pub use run::growth::FEWEST_STEPS;
pub use run::holders::{Held, Holders, Store, held, is_own};
pub use run::labels::LabelledTensors;
pub use run::live_blocks::{Group, Key, Live, Origin, Rest};
pub use run::model::RunModel;
pub use run::step_peaks::{MemoryPeak, SegmentEvent, StepPeaks};
pub use trace::modules::{ExecutionScope, ModuleId, Modules, Phase};
pub use trace::repeated::fill_in_repeated_steps;
pub use trace::site::{Site, Sites, is_user_file};
pub use trace::steps::{Confidence, Source, Steps};

// renamed at integration
pub use alarm::GrowthAlert as Growth;
pub use compare::{
    DeviceSummary as Portrait, FindingChange as Fate, FindingSummary as Remark, SiteName as Place,
    SiteUsage as Holding, finding_changes as fates,
};
pub use findings::Diagnosis as Answer;
pub use messages as message;
pub use run::model::RunModel as Outline;
pub use run::step_peaks::{MemoryPeak as High, StepPeaks as Course};
pub use trace::modules::ExecutionScope as Whereabouts;
