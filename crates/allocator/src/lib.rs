//! Model of PyTorch's CUDA caching allocator, equal to it byte for byte.
//!
//! A [`RecordedRun`] verifies the model against a recorded history, event by event, and extracts the requests
//! of the program from it. A [`WhatIf`] replays those requests under other settings or on another card.
//!
//! ```
//! use allocator::{Conf, KnownConditions, RecordedRun, Release, WhatIf};
//! use snapshot::History;
//!
//! let json = br#"{"segments": [], "device_traces": [[
//!     {"action": "segment_alloc", "addr": 1073741824, "size": 20971520, "stream": 0},
//!     {"action": "alloc", "addr": 1073741824, "size": 4194304, "stream": 0},
//!     {"action": "free_requested", "addr": 1073741824, "size": 4194304, "stream": 0},
//!     {"action": "free_completed", "addr": 1073741824, "size": 4194304, "stream": 0}
//! ]]}"#;
//! let snapshot = snapshot::read(&json[..])?;
//! let history = History::new(&snapshot, 0);
//! let run = RecordedRun::new(&snapshot, &history, KnownConditions::default());
//!
//! let conf = Conf::parse("expandable_segments:True", Release::NEWEST)?.conf;
//! let outcome = run.simulate(&WhatIf { conf: conf.into(), total: None, available: None, limit: None });
//! assert_eq!(outcome.peak_reserved, 20 << 20);
//! assert!(outcome.oom.is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod addresses;
mod candidates;
mod conf;
mod conf_timeline;
mod difference;
mod explain;
mod infer;
mod model;
mod owners;
mod recorded;
mod replayed;
mod requests;
mod rules;
mod simulate;
mod simulated_device;
mod start;
mod toggles;
mod trace_environment;
mod verify;

pub use candidates::candidate_settings;
pub use conf::{Conf, ConfError, ParsedConf};
pub use conf_timeline::{ConfChange, ConfTimeline};
pub use difference::ModelDifference;
pub use recorded::{Conditions, KnownConditions, RecordedRun, Verification};
pub use rules::Release;
pub use simulate::{Oom, Outcome, PeakRanges, WhatIf};
