//! Explains a snapshot. Nothing here can fail, print, or look at a clock: the same snapshot always gives the same
//! answer, and what is missing from it becomes a caveat beside the number that it affects.

#![forbid(unsafe_code)]

mod device;
mod live;
mod retries;
mod site;

pub use device::{Device, Moment, Pool, devices};
pub use live::{Group, Key, Live, Origin, Rest, live};
pub use retries::retries;
pub use site::{Site, Sites};
