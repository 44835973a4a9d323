//! Graph of a process's objects: which object keeps which tensor alive, and how many bytes it retains.
//!
//! Objects are numbers here, and their references are lists of numbers, so that a heap of millions of objects
//! is analyzed in seconds. Nothing here prints or reads a clock, and nothing fails as long as every number is
//! that of a node: [`Heap::new`] validates what was read. No function is recursive: an autograd graph can be
//! a chain as long as a training run that never detached it, and the stack of a thread is short.
//!
//! ```
//! use heap::dominators::{Parent, dominators};
//! use heap::edges::Edges;
//!
//! // 0 is a module, 1 a list in it; 2 is only in the list, 3 is a variable of the module as well.
//! let edges = Edges::new(4, [(0, 1), (1, 2), (1, 3), (0, 3)].into_iter());
//! let tree = dominators(&edges, &[0]);
//! assert_eq!(tree.parent(2), Parent::Node(1));
//! assert_eq!(tree.parent(3), Parent::Node(0));
//! // Deleting the list would free 2, but not 3.
//! assert_eq!(tree.retained(&[0, 8, 100, 50]), [158, 108, 100, 50]);
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod analyzed;
pub mod components;
mod cycles;
pub mod dominators;
pub mod edges;
mod graph;
mod growth;
mod holder;
mod holder_kind;
pub mod path_text;
mod paths;
mod top;
mod tree;

pub use analyzed::AnalyzedHeap;
pub use cycles::Cycle;
pub use graph::{Heap, Parts, ReferenceKind, ReferenceName, Root, Storage, StorageDevice};
pub use growth::{Amount, PathChange, changes};
pub use holder::Holder;
pub use holder_kind::{HolderDescription, HolderKind};
pub use paths::Path;
pub use top::TopHolder;
pub use tree::{Branch, TreeLimits};
