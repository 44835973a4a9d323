//! Watches programs while they run: asks their recorders over the live sockets, and the driver about the
//! GPUs.
//!
//! A recorder answers one line of JSON with another ([`RecorderRequest`], [`RecorderState`]). A [`Watcher`]
//! polls all recorders that this user may see, a few times per second, and keeps for each what its steps say
//! about growth ([`WatchedRecorder`]).
//!
//! ```
//! use live::{MemorySplit, WatchSource, Watcher};
//! use std::time::Duration;
//!
//! let source = WatchSource::Process(std::process::id());
//! let watcher = Watcher::start(source, Duration::from_millis(200), false)?;
//! for (_, recorder) in watcher.recorders() {
//!     for device in &recorder.state.devices {
//!         let split = MemorySplit::new(&recorder.state, device);
//!         println!("{}: {} of tensors, {} cached", recorder.state.job(), split.tensors, split.cached);
//!     }
//! }
//! assert!(watcher.recorders().is_empty(), "nothing records this process");
//! # Ok::<(), failure::Failure>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod connection;
mod discovery;
mod driver;
mod limits;
mod polling;
mod remote;
mod split;
mod system;
mod timeline;
mod watched;
mod watcher;
mod wire;

pub use driver::{Driver, Gpu};
pub use remote::{ExporterAddress, ExporterAnswer};
pub use split::MemorySplit;
pub use timeline::{DeviceLevel, MemoryTimeline, TimelineSpan};
pub use watched::{LiveSite, WatchedRecorder};
pub use watcher::{MAX_RECORDERS, MAX_RECORDERS_PER_USER, WatchSource, Watcher};
pub use wire::{
    DeviceCounters, GpuProcess, LiveFrame, LiveStack, LiveStep, LiveStepCounters, RecorderRequest,
    RecorderState,
};
