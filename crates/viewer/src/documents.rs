//! Documents of other commands that the page shows.
//!
//! The page shows what the commands print, so [`crate::Commands`] hands over their JSON as it is. The types
//! here describe the parts that the page reads; its TypeScript is generated from them.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::marker::PhantomData;

/// The JSON of another command, which can be read as a `T`.
///
/// ```
/// use viewer::documents::{TypedJson, SiteDocument};
///
/// let site = serde_json::json!({"file": "train.py", "line": 20, "function": "step"});
/// let document: TypedJson<SiteDocument> = TypedJson::new(site);
/// let text = serde_json::to_string(&document).unwrap();
/// assert_eq!(text, r#"{"file":"train.py","function":"step","line":20}"#);
/// ```
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(transparent)]
pub struct TypedJson<T> {
    json: Value,
    #[serde(skip)]
    shape: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> TypedJson<T> {
    /// Wraps a document. Debug builds panic if it cannot be read as a `T`, so that every test of the page
    /// checks the types.
    pub fn new(json: Value) -> TypedJson<T> {
        if cfg!(debug_assertions)
            && let Err(error) = T::deserialize(&json)
        {
            panic!("{} does not describe its document: {error}", std::any::type_name::<T>());
        }
        TypedJson { json, shape: PhantomData }
    }
}

/// A document has the TypeScript type of its shape.
#[cfg(test)]
impl<T: ts_rs::TS + 'static> ts_rs::TS for TypedJson<T> {
    type WithoutGenerics = T::WithoutGenerics;
    type OptionInnerType = T::OptionInnerType;

    fn name(config: &ts_rs::Config) -> String {
        T::name(config)
    }

    fn inline(config: &ts_rs::Config) -> String {
        T::inline(config)
    }

    fn inline_flattened(config: &ts_rs::Config) -> String {
        T::inline_flattened(config)
    }

    fn visit_dependencies(visitor: &mut impl ts_rs::TypeVisitor)
    where
        Self: 'static,
    {
        T::visit_dependencies(visitor);
    }

    fn visit_generics(visitor: &mut impl ts_rs::TypeVisitor)
    where
        Self: 'static,
    {
        visitor.visit::<T>();
    }
}

/// A finding in `oomph report --json`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(optional_fields, rename = "FindingReport"))]
pub struct FindingDocument {
    /// Name of the kind: `leak`, `oom`, ….
    pub kind: String,
    /// How much it matters.
    pub severity: SeverityName,
    /// Why it matters that much.
    pub severity_reason: String,
    /// The finding in one sentence.
    pub summary: String,
    /// Bytes that the finding is about.
    pub bytes: u64,
    /// Bytes that it grows by per step.
    pub bytes_per_step: Option<u64>,
    /// Number of things that the finding is about.
    pub count: u64,
    /// The user's line.
    pub site: Option<SiteDocument>,
    /// Path of the module that the blocks of that line belong to.
    pub module: Option<String>,
    /// The reference path to the holder, in words.
    pub held_by: Option<String>,
    /// Name of the cause.
    pub cause: Option<String>,
    /// More sentences.
    pub details: Vec<String>,
    /// The numbers behind the finding, by name.
    #[cfg_attr(test, ts(type = "Record<string, unknown>"))]
    pub evidence: Map<String, Value>,
    /// What to change.
    pub fix: String,
    /// What is uncertain.
    pub caveats: Vec<String>,
}

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub enum SeverityName {
    /// The run fails or wastes much memory.
    High,
    /// Worth a change.
    Medium,
    /// Worth knowing.
    Low,
}

/// A line of code.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "SiteReport"))]
pub struct SiteDocument {
    /// Path of the file.
    pub file: String,
    /// Line number, from 1.
    pub line: u32,
    /// Name of the function.
    pub function: String,
}

/// What `oomph simulate --json` prints of one replay.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ReplayReport {
    /// Settings as in `PYTORCH_CUDA_ALLOC_CONF`; empty for PyTorch's defaults.
    pub settings: String,
    /// The shell line that applies these settings.
    pub export: String,
    /// Bytes that the process may reserve, if limited.
    pub limit: Option<u64>,
    /// Peak of allocated bytes.
    pub peak_allocated: u64,
    /// Peak of reserved bytes.
    pub peak_reserved: u64,
    /// Reserved bytes at the end.
    pub end_reserved: u64,
    /// Segments that were reserved and released.
    pub segments: SegmentCounts,
    /// Allocations that succeeded only after cached memory was released.
    pub retries: u64,
    /// The allocation that failed.
    pub oom: Option<ReplayedOom>,
    /// The recorded run.
    pub recorded: RecordedCounts,
    /// Bytes of the smallest GPU that would do, if that was asked.
    pub smallest_gpu: Option<u64>,
}

/// Segments that were reserved and released.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct SegmentCounts {
    /// Segments reserved.
    pub allocs: u64,
    /// Segments released.
    pub frees: u64,
}

/// The recorded run, for comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RecordedCounts {
    /// Segments that were reserved and released.
    pub segments: SegmentCounts,
}

/// The allocation that fails in a replay.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ReplayedOom {
    /// Number of the event.
    pub event: u64,
    /// Bytes requested.
    pub requested: u64,
    /// Bytes allocated at that moment.
    pub allocated: u64,
    /// Bytes reserved at that moment.
    pub reserved: u64,
    /// Bytes of the largest free block.
    pub largest_free: u64,
    /// `fragmentation` or `capacity`.
    pub cause: String,
    /// Number of the step, from 1.
    pub step: Option<u64>,
    /// The user's line.
    pub site: Option<SiteDocument>,
}

/// The dominator tree of `oomph holders`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct HolderTree {
    /// Name of the input.
    pub name: String,
    /// When the heap file was written.
    pub dumped: Option<String>,
    /// The root.
    pub tree: HolderBranch,
    /// Reference cycles that hold tensors.
    pub cycles: Vec<ReferenceCycle>,
    /// What is uncertain.
    pub caveats: Vec<String>,
}

/// An object in the dominator tree, or several of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct HolderBranch {
    /// The reference that leads to it.
    pub name: String,
    /// Its type.
    pub what: String,
    /// Number of objects.
    pub count: u64,
    /// Retained size on each device.
    pub retained: Vec<RetainedSize>,
    /// What it dominates.
    pub branches: Vec<HolderBranch>,
    /// Number of branches that are not listed.
    pub left_out: u64,
}

/// Memory of one device that would be freed with an object.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RetainedSize {
    /// `cuda:0`, `cpu`.
    pub device: String,
    /// The bytes.
    pub bytes: u64,
}

/// Reference cycles of one shape.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ReferenceCycle {
    /// The references around the cycle, in words.
    pub links: String,
    /// Number of such cycles.
    pub count: u64,
    /// Whether only the garbage collector can free them.
    pub garbage: bool,
    /// Retained size on each device.
    pub retained: Vec<RetainedSize>,
}
