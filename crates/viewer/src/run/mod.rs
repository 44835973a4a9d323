//! Inputs and their devices, with the indexes that pictures and answers are computed from.

pub(crate) mod changes;
pub(crate) mod groups;
pub(crate) mod inputs;
pub(crate) mod live;
pub(crate) mod runs;
pub(crate) mod shapes;
pub(crate) mod space;
pub(crate) mod view;
