//! The inputs: their peaks, steps and failed allocations, and how they belong together.

use crate::answers::process::ProcessMemory;
use crate::picture::timeline::{TimelineBy, groupings};
use crate::question::Question;
use crate::run::runs::LoadedInput;
use crate::run::view::DeviceView;
use crate::{Problem, Relation, Viewer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Asks for the inputs; it has no parameters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct OverviewQuery {}

impl Question for OverviewQuery {
    const NAME: &'static str = "overview";
    type Answer = Overview;

    fn answer(&self, viewer: &Viewer<'_>) -> Result<Overview, Problem> {
        viewer.overview()
    }
}

/// Asks for the runs of one input.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct InputQuery {
    /// Number of the input.
    pub(crate) input: usize,
}

impl Question for InputQuery {
    const NAME: &'static str = "input";
    type Answer = Vec<RunOverview>;

    fn answer(&self, viewer: &Viewer<'_>) -> Result<Vec<RunOverview>, Problem> {
        Ok(RunOverview::all_of(&*viewer.inputs.get(self.input)?).collect())
    }
}

/// Everything that is open.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(optional_fields))]
pub(crate) struct Overview {
    /// Version of oomph.
    version: &'static str,
    /// The devices of all inputs; of the first alone if the others are read when someone looks at them.
    runs: Vec<RunOverview>,
    /// Paths of all inputs. The first device of an input has the input's number.
    inputs: Vec<String>,
    relation: RunRelation,
    /// What an exported page can answer; absent where a server answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exported: Option<ExportedMoments>,
}

impl Overview {
    /// Whether there are several runs.
    pub(crate) fn has_ranks(&self) -> bool {
        self.relation != RunRelation::One
    }
}

/// How the runs belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) enum RunRelation {
    /// There is only one.
    One,
    /// Ranks or devices of one job.
    Ranks,
    /// Runs to compare.
    Compared,
}

/// What an exported page can answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct ExportedMoments {
    /// For each run by its number, the positions that have details.
    pub(crate) moments: BTreeMap<usize, Vec<usize>>,
}

/// One device of one input, or a replayed what-if.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS), ts(optional_fields, rename = "Run"))]
pub(crate) struct RunOverview {
    id: usize,
    /// Path of the input.
    name: String,
    /// Number of the input.
    input: usize,
    /// `GPU 0`, `CPU`.
    device: String,
    /// `NVIDIA H200`.
    #[serde(skip_serializing_if = "Option::is_none")]
    card: Option<String>,
    /// PyTorch's release, or a range of releases.
    torch: String,
    /// Allocator settings as in `PYTORCH_CUDA_ALLOC_CONF`.
    settings: String,
    /// Whether it is a replay.
    what_if: bool,
    events: usize,
    /// Whether the history begins with the process.
    complete: bool,
    /// Number of allocations.
    blocks: usize,
    /// Time of the first event in microseconds since the epoch; 0 without a clock.
    begin_us: i64,
    /// Time of the last event; 0 without a clock.
    end_us: i64,
    /// Bytes allocated before the first event.
    start: u64,
    peak: RunPeak,
    reserved_peak: RunPeak,
    end: RunEnd,
    /// Bytes that the process could reserve, if a recorder noted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    steps: RunSteps,
    ooms: Vec<FailedAllocation>,
    /// What the timeline can be split by.
    groupings: Vec<TimelineBy>,
    /// Bytes of address space that were ever reserved: the height of the memory map.
    space: u64,
    /// Whether the recording has heap files.
    has_holders: bool,
    /// Whether the recording has the memory of the process by owner, or phases.
    has_process: bool,
    caveats: Vec<String>,
}

/// The highest point of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct RunPeak {
    bytes: u64,
    position: usize,
    /// Microseconds since the first event.
    time_us: u64,
}

impl RunPeak {
    fn new(view: &DeviceView<'_>, peak: &snapshot::Peak) -> RunPeak {
        let position = peak.position;
        RunPeak { bytes: peak.bytes.0, position, time_us: view.elapsed_us(position) }
    }
}

/// Bytes after the last event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct RunEnd {
    allocated: u64,
    reserved: u64,
}

/// The steps of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct RunSteps {
    /// Where the steps are known from.
    source: &'static str,
    /// Positions at which steps begin and end.
    bounds: Vec<usize>,
    /// The same in microseconds since the first event.
    bounds_us: Vec<u64>,
}

/// An allocation that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct FailedAllocation {
    position: usize,
    /// Microseconds since the first event.
    time_us: u64,
    /// Bytes requested.
    requested: u64,
}

impl RunOverview {
    /// The devices of an input.
    pub(crate) fn all_of(loaded: &LoadedInput) -> impl Iterator<Item = RunOverview> {
        let has_holders = !loaded.input().recording.heaps.is_empty();
        loaded.views().map(move |view| RunOverview::new(&view, has_holders))
    }

    fn new(view: &DeviceView<'_>, has_holders: bool) -> RunOverview {
        let (device, history, snapshot) = (view.device(), view.history(), view.snapshot());
        let card = device.recording.gpu(history.device);
        let bounds = &device.steps.bounds;
        RunOverview {
            id: view.id,
            name: view.name.to_owned(),
            input: view.input,
            device: device.name(),
            card: card.map(|card| card.name.clone()).filter(|name| !name.is_empty()),
            torch: snapshot.torch.to_string(),
            settings: snapshot.settings.conf.clone(),
            what_if: view.is_what_if,
            events: history.len(),
            complete: history.complete,
            blocks: history.allocations.len(),
            begin_us: view.begin_us(),
            end_us: view.begin_us().saturating_add_unsigned(view.duration_us()),
            start: history.start.0,
            peak: RunPeak::new(view, &history.allocated_peak),
            reserved_peak: RunPeak::new(view, &history.reserved_peak),
            end: RunEnd { allocated: history.end.allocated.0, reserved: history.end.reserved.0 },
            limit: card.and_then(recording::GpuInfo::usable).map(|limit| limit.0),
            steps: RunSteps {
                source: device.steps.source.name(),
                bounds: bounds.clone(),
                bounds_us: bounds.iter().map(|&bound| view.elapsed_us(bound)).collect(),
            },
            ooms: failed_allocations(view),
            groupings: groupings(view),
            space: view.space().length,
            has_holders,
            has_process: ProcessMemory::is_there(view),
            caveats: history.caveats.iter().chain(&snapshot.caveats).map(ToString::to_string).collect(),
        }
    }
}

fn failed_allocations(view: &DeviceView<'_>) -> Vec<FailedAllocation> {
    let (history, snapshot) = (view.history(), view.snapshot());
    let ooms = view.model.step_peaks.ooms.iter();
    ooms.map(|&event| FailedAllocation {
        position: event + 1,
        time_us: view.elapsed_us(event + 1),
        requested: snapshot.events.get(history.rows.start + event).size.0,
    })
    .collect()
}

/// The position that people look at first: the last failed allocation, or the peak.
pub(crate) fn first_moment(view: &DeviceView<'_>) -> usize {
    view.model.step_peaks.ooms.last().map_or(view.history().allocated_peak.position, |&event| event + 1)
}

impl Viewer<'_> {
    pub(crate) fn overview(&self) -> Result<Overview, Problem> {
        let inputs = self.inputs.names();
        let shown = if self.inputs.is_on_demand() { self.first..self.first + 1 } else { 0..inputs.len() };
        let mut runs = Vec::new();
        for input in shown {
            runs.extend(RunOverview::all_of(&*self.inputs.get(input)?));
        }
        Ok(self.overview_of(runs))
    }

    /// The overview with these runs.
    pub(crate) fn overview_of(&self, runs: Vec<RunOverview>) -> Overview {
        let inputs = self.inputs.names();
        let relation = match self.relation {
            _ if runs.len().max(inputs.len()) < 2 => RunRelation::One,
            Relation::Compared if inputs.len() > 1 => RunRelation::Compared,
            // Several devices of one input worked on one job.
            _ => RunRelation::Ranks,
        };
        Overview {
            version: env!("CARGO_PKG_VERSION"),
            runs,
            inputs: inputs.to_vec(),
            relation,
            exported: None,
        }
    }
}
