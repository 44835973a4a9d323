//! Packs a recording into one file for a bug report or a colleague: the snapshots, what the recorder wrote
//! about them, and the report.
//!
//! The file is a zip with a manifest, `bundle.json`. `inputs` reads it back, so every command takes it in
//! place of the recording. If it would be too large, the heap files are left out first, then the oldest
//! events. [`Names`] replaces names by numbers for people who may not show theirs.
//!
//! ```
//! use bundle::Names;
//!
//! let mut names = Names::default();
//! assert_eq!(names.path("/home/me/secret/train.py"), "/folder1/folder2/folder3/file1.py");
//! assert_eq!(names.path("/home/me/secret/model.py"), "/folder1/folder2/folder3/file2.py");
//! assert_eq!(names.path("/home/me/venv/torch/nn/init.py"), "/site-packages/torch/nn/init.py");
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod names;
mod sidecars;
mod write;

pub use names::Names;
pub use write::{BundleOptions, Written, write};
