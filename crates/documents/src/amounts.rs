//! Bytes by category, and values of two runs.

use analysis::{ByCategory, Category};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Bytes by the names of categories.
pub(crate) type BytesByCategory = BTreeMap<&'static str, u64>;

/// Bytes of every category.
pub(crate) fn by_category(held: &ByCategory) -> BytesByCategory {
    Category::ALL.iter().map(|&of| (of.name(), held.get(of).0)).collect()
}

/// A value in both runs.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "BeforeAfter_{T}")]
pub(crate) struct BeforeAfter<T> {
    /// Value in the first run.
    pub(crate) before: T,
    /// Value in the second run.
    pub(crate) after: T,
}
