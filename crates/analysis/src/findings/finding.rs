//! What a report says: one finding, one sentence, one line to change, and the evidence for it.

use crate::run::growth::Trend;
use crate::run::holders::Held;
use crate::trace::modules::ModuleId;
use snapshot::{Bytes, FrameId, StackId};

/// Kind of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FindingKind {
    /// An allocation failed.
    Oom,
    /// Memory accumulates step after step.
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
    NonPytorch,
}

impl FindingKind {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::Oom => "oom",
            FindingKind::Leak => "leak",
            FindingKind::Spike => "spike",
            FindingKind::Fragmentation => "fragmentation",
            FindingKind::Churn => "churn",
            FindingKind::Pending => "pending",
            FindingKind::PrivatePool => "private_pool",
            FindingKind::Workspace => "workspace",
            FindingKind::NonPytorch => "outside",
        }
    }
}

/// How much a finding matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Worth knowing.
    Low,
    /// Worth changing.
    Medium,
    /// Ends the run, or will.
    High,
}

impl Severity {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Low => "low",
            Severity::Medium => "medium",
            Severity::High => "high",
        }
    }
}

/// Cause of a failed allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OomCause {
    /// What the program holds and asks for does not fit, however it is arranged.
    Capacity,
    /// The request would have fitted if the free memory had been in one piece.
    Fragmentation,
}

impl OomCause {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            OomCause::Capacity => "capacity",
            OomCause::Fragmentation => "fragmentation",
        }
    }
}

/// Value of one piece of evidence.
#[derive(Clone, PartialEq, Debug)]
pub enum EvidenceValue {
    /// An amount of memory, in bytes.
    Bytes(Bytes),
    /// A number of things, or the index of an event or step.
    Count(u64),
    /// A ratio.
    Ratio(f64),
    /// A text.
    Text(String),
    /// Whether something is so.
    Flag(bool),
    /// A line of code.
    Site(FrameId),
    /// A whole call stack.
    Stack(StackId),
    /// Several values.
    List(Vec<EvidenceValue>),
    /// Named values.
    Record(Vec<(&'static str, EvidenceValue)>),
}

/// One finding: a sentence, a line to change, and the evidence for it.
#[derive(Clone, PartialEq, Debug)]
pub struct Finding {
    /// What was found.
    pub kind: FindingKind,
    /// How much it matters.
    pub severity: Severity,
    /// Reason for the severity: the threshold that was crossed.
    pub reason: String,
    /// The finding in one sentence, without a full stop.
    pub summary: String,
    /// More sentences, most important first.
    pub details: Vec<String>,
    /// Memory that the finding is about, in bytes.
    pub bytes: Bytes,
    /// Bytes per step, for leaks.
    pub bytes_per_step: Option<Bytes>,
    /// Whether it still grows, for leaks.
    pub trend: Option<Trend>,
    /// Blocks, calls or steps that it is about.
    pub count: u64,
    /// The line to look at.
    pub site: Option<FrameId>,
    /// The module that the blocks of that line are in, where a recorder noted it.
    pub module: Option<ModuleId>,
    /// Holder of the memory, where a recorder noted the references.
    pub held: Option<Held>,
    /// Cause, for a failed allocation.
    pub cause: Option<OomCause>,
    /// The numbers behind it.
    pub evidence: Vec<(&'static str, EvidenceValue)>,
    /// What to change.
    pub fix: String,
    /// What is not certain.
    pub caveats: Vec<String>,
}

impl Finding {
    /// Whether it is a leak that still grew when the recording ended.
    pub fn is_growing(&self) -> bool {
        self.trend == Some(Trend::Growing)
    }

    /// A finding without the parts that not every kind has.
    pub(crate) fn new(
        kind: FindingKind,
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
            trend: None,
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
