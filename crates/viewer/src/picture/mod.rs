//! Pictures: memory over events or time, drawn as tiles of columns.

pub(crate) mod cache;
pub(crate) mod columns;
pub(crate) mod exported;
pub(crate) mod map;
pub(crate) mod tile;
pub(crate) mod timeline;
