//! What a report says: one finding, one sentence, one line to change, and the evidence for it.

use crate::run::holders::Held;
use crate::trace::modules::ModuleId;
use snapshot::{Bytes, FrameId, StackId};

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// An allocation failed.
    Oom,
    /// Memory growing_sites up step after step.
    Leak,
    /// A few steps need far more than the others.
    Spike,
    /// Reserved memory that the program cannot use.
    Fragmentation,
    /// Memory goes back to the device and is taken again in the steady state.
    Churn,
    /// Freed blocks that wait for other streams.
    Pending,
    /// Memory of CUDA graphs and `MemPool`s.
    PrivatePool,
    /// Scratch memory of cuBLAS and cuDNN.
    Workspace,
    /// Memory of other processes on the device.
    Outside,
}

impl Kind {
    /// Its word in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Oom => "oom",
            Kind::Leak => "leak",
            Kind::Spike => "spike",
            Kind::Fragmentation => "fragmentation",
            Kind::Churn => "churn",
            Kind::Pending => "pending",
            Kind::PrivatePool => "private_pool",
            Kind::Workspace => "workspace",
            Kind::Outside => "outside",
        }
    }
}

/// How much it matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Worth knowing.
    Low,
    /// Worth changing.
    Medium,
    /// It ends the run, or will.
    High,
}

impl Severity {
    /// Its word in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Low => "low",
            Severity::Medium => "medium",
            Severity::High => "high",
        }
    }
}

/// Why an allocation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// What the program holds and asks for does not fit, however it is arranged.
    Capacity,
    /// It would have fitted if the free memory had been in one piece.
    Fragmentation,
}

impl Cause {
    /// Its word in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Capacity => "capacity",
            Cause::Fragmentation => "fragmentation",
        }
    }
}

/// One piece of evidence.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Bytes.
    Bytes(Bytes),
    /// A number of things, or the index of an event or step.
    Count(u64),
    /// A ratio.
    Ratio(f64),
    /// Words.
    Text(String),
    /// Whether something is so.
    Flag(bool),
    /// A line of code.
    Site(FrameId),
    /// A whole call stack.
    Stack(StackId),
    /// Several values.
    List(Vec<Value>),
    /// Named values.
    Record(Vec<(&'static str, Value)>),
}

/// One answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Finding {
    /// What was found.
    pub kind: Kind,
    /// How much it matters.
    pub severity: Severity,
    /// Why it matters that much: the threshold that was crossed.
    pub reason: String,
    /// One sentence.
    pub summary: String,
    /// More sentences, for people.
    pub details: Vec<String>,
    /// Bytes that it is about.
    pub bytes: Bytes,
    /// Bytes that each step adds, for leaks.
    pub bytes_per_step: Option<Bytes>,
    /// Blocks, calls or steps that it is about.
    pub count: u64,
    /// The line to look at.
    pub site: Option<FrameId>,
    /// The module that the blocks of that line lie in, where a recorder noted it.
    pub module: Option<ModuleId>,
    /// Who keeps it, where a recorder noted the references.
    pub held: Option<Held>,
    /// For a failed allocation.
    pub cause: Option<Cause>,
    /// The numbers behind it.
    pub evidence: Vec<(&'static str, Value)>,
    /// What to change.
    pub fix: String,
    /// What is not certain.
    pub caveats: Vec<String>,
}

impl Finding {
    /// Whether memory still piled up when the recording ended.
    pub fn is_growing(&self) -> bool {
        let is_growing = |value: &Value| matches!(value, Value::Text(trend) if trend == "growing");
        self.kind == Kind::Leak
            && self.evidence.iter().any(|(name, value)| *name == "trend" && is_growing(value))
    }

    /// A finding without the parts that not every kind has.
    pub(crate) fn new(
        kind: Kind,
        severity: Severity,
        reason: String,
        summary: String,
        bytes: Bytes,
    ) -> Finding {
        Finding {
            kind,
            severity,
            reason,
            summary,
            details: Vec::new(),
            bytes,
            bytes_per_step: None,
            count: 0,
            site: None,
            module: None,
            held: None,
            cause: None,
            evidence: Vec::new(),
            fix: String::new(),
            caveats: Vec::new(),
        }
    }
}
