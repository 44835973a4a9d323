//! What a report says: one finding, one sentence, one line to change, and the evidence for it.

use crate::run::growth::Trend;
use crate::run::holders::Held;
use crate::trace::modules::ModuleId;
use snapshot::{Bytes, FrameId, StackId};

/// Kind of a finding. Each has its row in [`KINDS`], in the same order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FindingKind {
    /// Memory accumulates step after step.
    Leak,
    /// Memory accumulated for a while and has stayed level since.
    RetainedGrowth,
    /// Each step needs more than the one before.
    RisingPeak,
    /// Reserved memory that the program cannot use.
    Fragmentation,
    /// A few steps need far more than the others.
    Spike,
    /// Memory goes back to the device and is taken again in the steady state.
    Churn,
    /// Freed blocks that wait for other streams.
    Pending,
    /// An allocation failed.
    Oom,
    /// Memory of CUDA graphs and `MemPool`s.
    PrivatePool,
    /// Scratch memory of cuBLAS and cuDNN.
    Workspace,
    /// Memory of other processes on the device.
    NonPytorch,
    /// Pinned memory that only rounding takes.
    PinnedWaste,
    /// Memory of data loader workers that grows while they work.
    WorkerGrowth,
    /// Hardly any room in `/dev/shm`.
    SharedMemoryNearlyFull,
    /// Hardly any memory left on the host.
    HostMemoryNearlyFull,
}

impl FindingKind {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Title for people, in lower case.
    pub fn title(self) -> &'static str {
        self.row().title
    }

    /// What [`Finding::count`] counts, in the singular.
    pub fn count_noun(self) -> &'static str {
        self.row().count_noun
    }

    /// Whether a replay with other settings or on another device can show how to avoid it.
    pub fn can_be_replayed(self) -> bool {
        self.row().can_be_replayed
    }

    /// The part of the run that shows it.
    pub fn focus(self) -> Focus {
        self.row().focus
    }

    /// Its row in [`KINDS`].
    pub(super) fn row(self) -> &'static FindingRow {
        &KINDS[self as usize]
    }
}

/// The part of a run that shows a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Focus {
    /// The whole run.
    Run,
    /// From the step in which the growth begins to the end of the run.
    Growth,
    /// Steps before and after the event of the finding; the whole run if it has no steps.
    Steps(usize, usize),
}

/// What the list of things that were not found says about a kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Absence {
    /// Nothing: most runs do not have it.
    Unmentioned,
    /// Fixed words.
    Words(&'static str),
    /// The number of steps without a leak.
    StepsWithoutLeak,
    /// The share of fragmentation.
    FragmentationShare,
}

/// All that is specific to one kind of finding, besides how it is measured and described.
pub(super) struct FindingRow {
    /// The kind; its position in the enum is that of the row.
    pub(super) kind: FindingKind,
    /// Name in JSON.
    pub(super) name: &'static str,
    /// Title for people, in lower case.
    pub(super) title: &'static str,
    /// What the count of a finding counts, in the singular.
    pub(super) count_noun: &'static str,
    /// What is said of a run that does not have it.
    pub(super) absence: Absence,
    /// Whether it is relative to other steps, so that a run without steps cannot be said not to have it.
    pub(super) needs_steps: bool,
    /// Whether it is about CUDA's caching allocator or its streams, which the CPU does not have.
    pub(super) needs_cuda: bool,
    /// Whether other settings or another device may avoid it, which a replay can show.
    pub(super) can_be_replayed: bool,
    /// The part of the run that shows it.
    pub(super) focus: Focus,
}

/// A row without what is specific.
const DEFAULT: FindingRow = FindingRow {
    kind: FindingKind::Leak,
    name: "",
    title: "",
    count_noun: "block",
    absence: Absence::Unmentioned,
    needs_steps: false,
    needs_cuda: false,
    can_be_replayed: false,
    focus: Focus::Run,
};

/// Every kind of finding, in the order of [`FindingKind`].
pub(super) static KINDS: &[FindingRow] = &[
    FindingRow {
        kind: FindingKind::Leak,
        name: "leak",
        title: "leak",
        absence: Absence::StepsWithoutLeak,
        focus: Focus::Growth,
        ..DEFAULT
    },
    FindingRow {
        kind: FindingKind::RetainedGrowth,
        name: "retained_growth",
        title: "retained growth",
        focus: Focus::Growth,
        ..DEFAULT
    },
    FindingRow {
        kind: FindingKind::RisingPeak,
        name: "rising_peak",
        title: "rising peak",
        count_noun: "step",
        ..DEFAULT
    },
    FindingRow {
        kind: FindingKind::Fragmentation,
        name: "fragmentation",
        title: "fragmentation",
        count_noun: "free block",
        absence: Absence::FragmentationShare,
        needs_cuda: true,
        can_be_replayed: true,
        ..DEFAULT
    },
    FindingRow {
        kind: FindingKind::Spike,
        name: "spike",
        title: "spike",
        count_noun: "step",
        absence: Absence::Words("no spike"),
        needs_steps: true,
        focus: Focus::Steps(3, 3),
        ..DEFAULT
    },
    FindingRow {
        kind: FindingKind::Churn,
        name: "churn",
        title: "churn",
        count_noun: "call",
        absence: Absence::Words("no churn"),
        needs_steps: true,
        needs_cuda: true,
        can_be_replayed: true,
        ..DEFAULT
    },
    FindingRow {
        kind: FindingKind::Pending,
        name: "pending",
        title: "pending frees",
        absence: Absence::Words("no pending frees"),
        needs_cuda: true,
        ..DEFAULT
    },
    FindingRow {
        kind: FindingKind::Oom,
        name: "oom",
        title: "out of memory",
        count_noun: "failed allocation",
        absence: Absence::Words("no failed allocation"),
        can_be_replayed: true,
        focus: Focus::Steps(4, 1),
        ..DEFAULT
    },
    FindingRow {
        kind: FindingKind::PrivatePool,
        name: "private_pool",
        title: "private pools",
        count_noun: "pool",
        needs_cuda: true,
        ..DEFAULT
    },
    FindingRow {
        kind: FindingKind::Workspace,
        name: "workspace",
        title: "workspace",
        needs_cuda: true,
        ..DEFAULT
    },
    FindingRow {
        kind: FindingKind::NonPytorch,
        name: "non_pytorch",
        title: "non-PyTorch memory",
        count_noun: "process",
        ..DEFAULT
    },
    FindingRow {
        kind: FindingKind::PinnedWaste,
        name: "pinned_waste",
        title: "pinned memory waste",
        needs_cuda: true,
        ..DEFAULT
    },
    FindingRow {
        kind: FindingKind::WorkerGrowth,
        name: "worker_growth",
        title: "worker growth",
        count_noun: "worker",
        ..DEFAULT
    },
    FindingRow {
        kind: FindingKind::SharedMemoryNearlyFull,
        name: "shared_memory_nearly_full",
        title: "shared memory nearly full",
        count_noun: "worker",
        ..DEFAULT
    },
    FindingRow {
        kind: FindingKind::HostMemoryNearlyFull,
        name: "host_memory_nearly_full",
        title: "host memory nearly full",
        count_noun: "worker",
        ..DEFAULT
    },
];

/// Checks that each row is at the index of its kind, and has names.
const _: () = {
    let mut row = 0;
    while row < KINDS.len() {
        assert!(KINDS[row].kind as usize == row, "the rows of `KINDS` are not in the order of `FindingKind`");
        assert!(!KINDS[row].name.is_empty() && !KINDS[row].title.is_empty(), "a row of `KINDS` has no name");
        row += 1;
    }
};

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
    /// A duration in microseconds.
    Micros(u64),
    /// The number of a process.
    Pid(u64),
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

impl EvidenceValue {
    /// Name of the unit, for a number.
    pub fn unit(&self) -> Option<&'static str> {
        match self {
            EvidenceValue::Bytes(_) => Some("bytes"),
            EvidenceValue::Count(_) => Some("count"),
            EvidenceValue::Micros(_) => Some("us"),
            EvidenceValue::Pid(_) => Some("pid"),
            EvidenceValue::Ratio(_) => Some("ratio"),
            _ => None,
        }
    }
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
    /// Bytes per step, for what grows.
    pub bytes_per_step: Option<Bytes>,
    /// Further steps until the memory is full, for what still grows.
    pub steps_until_full: Option<u64>,
    /// Whether it still grows, for leaks and retained growth.
    pub trend: Option<Trend>,
    /// Number of things that it is about; [`FindingKind::count_noun`] names them.
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
            steps_until_full: None,
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
