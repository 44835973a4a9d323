//! The screen of `oomph watch`: what running programs hold now, and whether it grows.
//!
//! [`look`] gathers the rows there are to see, [`verdict`] says in words whether memory grows, [`screen`] draws them with keys.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod bar;
pub mod details;
pub mod keys;
pub mod palette;
pub mod screen;
pub mod state;
pub mod timeline;
pub mod verdict;
