//! Reads PyTorch's CUDA memory snapshots: every release since 2.0, every container that people put them in.
//!
//! A snapshot is a pickle from somebody else's machine, so nothing in it is ever executed and no length that it
//! claims is trusted with memory. What comes out is one set of interned columns ([`Snapshot`]).

#![forbid(unsafe_code)]

mod builder;
mod bytes;
mod error;
mod history;
mod input;
mod json;
mod pickle;
mod redone;
mod settings;
mod snapshot;
mod stacks;
mod tables;
mod text;
mod window;
mod words;
mod write;

pub use bytes::Bytes;
pub use error::{Error, ErrorKind};
pub use history::{
    Counters, Cursor, History, Life, Metric, Peak, PoolClass, Region, SegmentAtStart, Stat, Stats,
};
pub use input::{open, open_file, read, read_sized};
pub use redone::Redone;
pub use settings::{Settings, TorchRange, rounded};
pub use snapshot::{DeviceKind, Snapshot};
pub use stacks::{Frame, FrameId, StackId, Stacks};
pub use tables::{Action, Annotation, Block, BlockState, Context, Event, Events, PoolId, Segment, Trace};
pub use text::{StrId, Strings};
pub use write::write;
