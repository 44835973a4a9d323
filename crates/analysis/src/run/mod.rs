//! The run model: a device with its history, the category of each block, the peak of each step, what grows,
//! and who holds it. It knows nothing of findings.

pub(crate) mod categories;
pub(crate) mod device;
pub(crate) mod growth;
mod holder_words;
pub(crate) mod holders;
pub(crate) mod labels;
pub(crate) mod live_blocks;
pub(crate) mod model;
mod parallel;
mod sizes;
pub(crate) mod step_peaks;
