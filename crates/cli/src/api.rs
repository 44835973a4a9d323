//! The commands as typed functions, for programs that hold a snapshot in memory; the wheel is built on them.

mod rows;

pub use crate::args::{
    By, DEFAULT_NON_PYTORCH, gpu_memory, growth, moment, release, size as parse_size, tolerance,
};
pub use analysis::Moment;
pub use gate::Budget;
pub use whatif::WhatIfOptions;

use crate::ExitCode;
use crate::args::{DiffArgs, HoldersArgs, ReportArgs};
use crate::commands::simulate::SimulateRequest;
use crate::commands::{check, diff, holders, report, simulate};
use crate::terminal::{Failure, TALK, Terminal};
use analysis::{Device, TensorAddress};
use documents::DeviceTimeline;
use export::{RecordBatchReader, tables};
use inputs::Input;
use self_cell::self_cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The names of the tables that [`Loaded::table`] gives.
pub const TABLES: [&str; 5] = tables::NAMES;

/// A snapshot with the histories of its devices.
pub struct Loaded {
    path: PathBuf,
    file: LoadedFile,
}

type LoadedDevices<'a> = Vec<Device<'a>>;

self_cell!(
    struct LoadedFile {
        owner: Input,
        #[covariant]
        dependent: LoadedDevices,
    }
);

/// Output of a command.
pub struct CommandOutput {
    /// Standard output.
    pub text: String,
    /// Standard error.
    pub notes: Vec<String>,
}

/// Detects growing memory for a recorder without `oomph run`.
#[derive(Default)]
pub struct RecorderAlarm(analysis::GrowthAlarm);

/// Memory that grows step after step.
pub struct Growth {
    /// The warning to show.
    pub message: String,
    /// The step in which it was found, counted from 1.
    pub step: usize,
    /// Bytes that each step adds.
    pub bytes_per_step: u64,
    /// Bytes allocated by now.
    pub allocated: u64,
}

impl RecorderAlarm {
    /// Takes the bytes allocated at the end of a step; returns growth once.
    pub fn step(&mut self, allocated: u64) -> Option<Growth> {
        self.0.step(snapshot::Bytes(allocated)).map(|growth| Growth {
            message: growth.words(),
            step: growth.step,
            bytes_per_step: growth.bytes_per_step.0,
            allocated: growth.allocated.0,
        })
    }
}

/// The files that some paths stand for: folders and globs give the snapshots in them.
pub fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    inputs::expand(paths).map_err(Failure::from)
}

/// The one snapshot that a table can be about.
pub fn only(loaded: &[Arc<Loaded>]) -> Result<&Arc<Loaded>, Failure> {
    let [only] = loaded else {
        return Err(Failure::new(
            format!("{} snapshots are loaded", loaded.len()),
            Some("a table covers one".to_owned()),
            Some("take it from one of `.ranks`"),
        ));
    };
    Ok(only)
}

/// Bytes as every output writes them.
pub fn size(bytes: u64) -> String {
    snapshot::Bytes(bytes).to_string()
}

impl Loaded {
    /// Reads a file.
    pub fn open(path: &Path) -> Result<Loaded, Failure> {
        let input = inputs::load(path, &TALK)?;
        let file = LoadedFile::new(input, Input::devices);
        Ok(Loaded { path: path.to_owned(), file })
    }

    /// The name that reports show.
    pub fn name(&self) -> &str {
        &self.input().name
    }

    /// One of [`TABLES`], from its first row; the rows are made as they are asked for.
    pub fn table(self: &Arc<Loaded>, name: &str) -> Result<Box<dyn RecordBatchReader + Send>, Failure> {
        Ok(Box::new(rows::Rows::of(self.clone(), name)?))
    }

    fn input(&self) -> &Input {
        self.file.borrow_owner()
    }

    fn devices(&self) -> &[Device<'_>] {
        self.file.borrow_dependent()
    }
}

/// `oomph report`. Several snapshots are the ranks of one job.
pub fn report(
    loaded: &[Arc<Loaded>],
    (at, by, top): (Option<Moment>, Option<By>, Option<usize>),
    json: bool,
) -> Result<CommandOutput, Failure> {
    let default = ReportArgs::for_new_run();
    let (by, top) = (by.unwrap_or(default.by), top.unwrap_or(default.top));
    let args = ReportArgs { at, by, top, json, ..default };
    rendered(|terminal| {
        let mut report = report::Report::new(&args, loaded.len());
        loaded.iter().try_for_each(|each| report.add(each.input(), each.devices(), terminal))?;
        report.finish(terminal)
    })
}

/// The memory timeline of each device of each snapshot, in at most `columns` columns, as JSON.
pub fn timeline(loaded: &[Arc<Loaded>], columns: usize) -> String {
    let devices = loaded.iter().flat_map(|each| each.devices());
    let drawn: Vec<_> = devices.map(|device| DeviceTimeline::new(device, columns)).collect();
    serde_json::json!(drawn).to_string()
}

/// `oomph simulate`; `output` gets the replayed run.
pub fn simulate(
    loaded: &[Arc<Loaded>],
    question: WhatIfOptions,
    output: Option<PathBuf>,
    json: bool,
) -> Result<CommandOutput, Failure> {
    if question.fraction.is_some() && (question.gpu.is_none() || question.limit.is_some()) {
        let cause = "it needs `gpu`, and excludes `limit`".to_owned();
        return Err(Failure::new("`fraction` is a share of a GPU's memory", Some(cause), None));
    }
    let request = SimulateRequest { question, output, json };
    rendered(|terminal| {
        // Histories are rebuilt by the rules of a release and its settings: with others, from the file.
        if !whatif::is_as_recorded(&request.question) {
            let files: Vec<PathBuf> = loaded.iter().map(|each| each.path.clone()).collect();
            return simulate::simulate(&files, &request, terminal);
        }
        if !request.question.verify {
            let only = whatif::single_run(loaded)?;
            return simulate::replay(only.input(), only.devices(), &request, terminal);
        }
        let mut verifications = simulate::Verifications::new(&request, loaded.len());
        for each in loaded {
            for device in each.devices() {
                verifications.add(each.input(), &device.history, terminal)?;
            }
        }
        verifications.finish(loaded.first().map_or("", |first| first.name()), terminal)
    })
}

/// `oomph check` for recordings that exist: the ranks of one run against a budget.
pub fn check(loaded: &[Arc<Loaded>], budget: &Budget, json: bool) -> Result<CommandOutput, Failure> {
    let files: Vec<PathBuf> = loaded.iter().map(|each| each.path.clone()).collect();
    rendered(|terminal| check::recordings(&files, budget, json, terminal))
}

/// `oomph diff`: the ranks of one run against those of another.
pub fn diff(
    before: &[Arc<Loaded>],
    after: &[Arc<Loaded>],
    top: Option<usize>,
    json: bool,
) -> Result<CommandOutput, Failure> {
    let top = top.unwrap_or(DiffArgs::TOP);
    let args = DiffArgs { before: side(before).to_owned(), after: side(after).to_owned(), top, json };
    let summaries = |of: &[Arc<Loaded>]| {
        of.iter().flat_map(|each| report::summaries_of(each.input(), each.devices())).collect::<Vec<_>>()
    };
    rendered(|terminal| diff::show(&summaries(before), &summaries(after), &args, terminal))
}

/// `oomph holders` for the calling process: `graph` is the heap it found, `tensor` the device, ordinal and
/// address of the tensor in question.
pub fn holders(
    graph: &str,
    tensor: Option<(String, u32, u64)>,
    top: Option<usize>,
    json: bool,
) -> Result<CommandOutput, Failure> {
    let dump = recording::HeapDump::parse(graph.as_bytes())
        .map_err(|error| Failure::new("the heap walk returned no graph", Some(error.to_string()), None))?;
    let wanted = tensor
        .map(|(kind, index, address)| TensorAddress { device: heap::StorageDevice { kind, index }, address });
    let args = HoldersArgs::of_process(top, json);
    rendered(|terminal| holders::of_process(dump, wanted.as_ref(), &args, terminal))
}

/// What one side of a comparison is called: its file, or the folder of its ranks.
fn side(loaded: &[Arc<Loaded>]) -> &Path {
    match loaded {
        [] => Path::new(""),
        [only] => &only.path,
        [first, ..] => first.path.parent().unwrap_or(&first.path),
    }
}

/// Renders an answer as a pipe would get it.
fn rendered(print: impl FnOnce(&mut Terminal) -> anyhow::Result<ExitCode>) -> Result<CommandOutput, Failure> {
    let mut terminal = Terminal::in_memory();
    print(&mut terminal)?;
    let (data, notes) = terminal.kept();
    Ok(CommandOutput { text: String::from_utf8_lossy(&data).into_owned(), notes })
}
