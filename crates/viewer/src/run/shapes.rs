//! Shapes that several answers share: a group of blocks, a frame of a call stack.

use serde::Serialize;

/// A group of blocks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "Group"))]
pub(crate) struct BlockGroup {
    /// Rank by the most bytes held at one time; 0 is the largest.
    pub(crate) id: u32,
    /// `train.py:20`
    pub(crate) label: String,
    /// The function, or what else there is to say.
    pub(crate) detail: String,
    /// Number of its blocks in the whole run.
    pub(crate) blocks: u64,
}

/// A frame of a call stack.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct StackFrame {
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) function: String,
    /// Whether it is the user's own code.
    pub(crate) user: bool,
}
