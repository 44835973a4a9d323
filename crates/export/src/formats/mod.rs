//! One file per tabular format. Each takes the batches of a table and knows nothing of what is in them.

pub(super) mod arrow;
mod cells;
pub(super) mod json;
pub(super) mod parquet;
pub(super) mod sqlite;
