//! Reader, replay and writer for PyTorch's CUDA memory snapshots.
//!
//! Snapshots of every torch release since 2.0 are read, as pickle, as JSON or in the zip of `torch.save`,
//! plain or compressed. A snapshot is a pickle from another machine, so nothing in it is ever executed, and
//! no length that it claims is trusted with memory. The result is one set of interned columns, a
//! [`Snapshot`]. A [`History`] replays the events of one device: the size of every block, and the counters of
//! `memory_stats()` at any event. [`write()`] turns a snapshot into a pickle again.
//!
//! ```
//! use snapshot::{Bytes, History};
//!
//! let json = br#"{"segments": [], "device_traces": [[
//!     {"action": "segment_alloc", "addr": 4096, "size": 2097152, "stream": 0},
//!     {"action": "alloc", "addr": 4096, "size": 1000, "stream": 0},
//!     {"action": "free_requested", "addr": 4096, "size": 1000, "stream": 0},
//!     {"action": "free_completed", "addr": 4096, "size": 1000, "stream": 0}
//! ]]}"#;
//! let snapshot = snapshot::read(&json[..])?;
//! let history = History::new(&snapshot, 0);
//! // PyTorch rounds requests up to multiples of 512 bytes.
//! assert_eq!(history.allocated_peak.bytes, Bytes(1024));
//! assert_eq!(history.end.reserved.to_string(), "2.00 MiB");
//! # Ok::<(), snapshot::Error>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod builder;
mod bytes;
mod compression;
mod error;
mod history;
mod input;
mod json;
mod pickle;
mod rename;
mod replayed;
mod settings;
mod snapshot;
mod stacks;
mod tables;
mod text;
mod window;
mod words;
mod write;

pub use bytes::Bytes;
pub use compression::unpacked;
pub use error::{Error, ErrorKind};
pub use history::{
    Allocation, Counters, Cursor, History, Metric, Peak, PoolClass, Region, SegmentAtStart, Stat, Stats,
};
pub use input::{open, open_file, read, read_sized};
pub use rename::Renamer;
pub use replayed::ReplayedEvent;
pub use settings::{EarlierSettings, Settings, TorchRange, rounded};
pub use snapshot::{DeviceKind, PinnedTables, Snapshot};
pub use stacks::{Frame, FrameId, StackId, Stacks};
pub use tables::{Action, Annotation, Block, BlockState, Context, Event, Events, PoolId, Segment, Trace};
pub use text::{StrId, Strings};
pub use write::write;
