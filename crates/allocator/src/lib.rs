//! A model of PyTorch's CUDA caching allocator, equal to it byte for byte.

#![forbid(unsafe_code)]

mod addresses;
mod card;
mod conf;
mod difference;
mod explain;
mod follow;
mod model;
mod owners;
mod record;
mod recorded;
mod replayed;
mod requests;
mod rules;
mod search;
mod simulate;
mod start;
mod understand;

pub use conf::{Conf, ConfError, Parsed};
pub use difference::Difference;
pub use recorded::{Conditions, Given, Recorded, Verification};
pub use rules::Release;
pub use search::worth_trying;
pub use simulate::{Oom, Outcome, WhatIf};
