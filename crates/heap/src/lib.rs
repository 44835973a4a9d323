//! Graphs of objects: who keeps what alive, and how many bytes hang on it. Objects are numbers here, and what they
//! point at is a list of numbers; a heap of millions has to be answered in seconds.
//!
//! Nothing here prints or looks at a clock, and nothing fails as long as every number is that of a node: who reads
//! numbers from outside checks them first. No function calls itself: an autograd graph can be a
//! chain as long as a training run that forgot to detach it, and the stack of a thread is short.

#![forbid(unsafe_code)]

pub mod components;
mod cycles;
pub mod dominators;
pub mod edges;
mod graph;
mod growth;
mod habit;
mod holder;
mod holdings;
mod paths;
mod top;
mod tree;
pub mod words;

pub use cycles::Cycle;
pub use graph::{Device, Heap, Link, Name, Parts, Root, Storage};
pub use growth::{Amount, Change, changes};
pub use habit::{Called, Habit};
pub use holder::Holder;
pub use holdings::Holdings;
pub use paths::Path;
pub use top::Held;
pub use tree::{Branch, Limits};
