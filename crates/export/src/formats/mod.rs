//! One file per tabular format. Each writes the batches of a table without knowing what they mean.

pub(super) mod arrow;
pub(crate) mod cells;
pub(super) mod json;
pub(super) mod parquet;
pub(crate) mod sqlite;
