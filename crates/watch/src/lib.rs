//! The screen of `oomph watch`: the memory of running programs, and whether it grows.
//!
//! [`state`] collects the rows to show, [`verdict`] says in words whether memory grows, [`screen`] draws
//! both and handles keys.
//!
//! ```
//! use snapshot::Bytes;
//! use watch::bar::bar;
//! use watch::palette::{Palette, Part};
//!
//! let parts = [(Part::Tensors, Bytes(3 << 30)), (Part::Free, Bytes(1 << 30))];
//! assert_eq!(bar(&parts, 8, Palette::new(false)).width(), 8);
//! assert_eq!(watch::verdict::duration(std::time::Duration::from_secs(300)), "5 min");
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod bar;
pub mod details;
pub mod keys;
pub mod palette;
pub mod screen;
mod signals;
pub mod state;
pub mod timeline;
pub mod verdict;
