//! Explains a snapshot. Nothing here can fail, print, or look at a clock: the same snapshot always gives the same
//! answer, and what is missing from it becomes a caveat beside the number that it affects.

#![forbid(unsafe_code)]

mod advice;
mod alarm;
mod backward;
mod categories;
mod churn;
mod counted;
mod course;
mod device;
mod explain;
mod failure;
mod finding;
mod fragmentation;
mod growth;
mod holding;
mod labels;
mod layout;
mod leaks;
mod live;
mod loops;
pub mod message;
mod modules;
mod nature;
mod oom;
mod order;
mod outside;
mod parallel;
mod pending;
mod portrait;
mod private_pools;
mod repeated;
mod retries;
mod roles;
mod site;
mod sizes;
mod spike;
mod steps;
pub mod words;
mod workspace;

pub use alarm::{Alarm, Growth, Pace, Trail};
pub use categories::{ByCategory, Categories, Category};
pub use course::{Course, High, SegmentEvent};
pub use device::{Device, Moment, Pool, devices, recorded_devices};
pub use explain::{Answer, Outline, findings};
pub use finding::{Cause, Finding, Kind, Severity, Value};
pub use fragmentation::never_needed;
pub use growth::FEWEST_STEPS;
pub use holding::{Held, Holders, Store, held, is_own};
pub use labels::LabelledTensors;
pub use live::{Group, Key, Live, Origin, Rest};
pub use modules::{ModuleId, Modules, Phase, Whereabouts};
pub use portrait::{
    Change, Fate, Holding, Place, Portrait, Remark, Skew, changes, difference, fates, holdings, skew,
};
pub use repeated::fill_in_repeated_steps;
pub use retries::retries;
pub use site::{Site, Sites, in_package, is_user_file};
pub use steps::{Confidence, Source, Steps};
