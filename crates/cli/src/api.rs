//! The answers of the commands for programs that hold a snapshot in memory: what the wheel is made from.
//!
//! A question is asked with the options of the command line, read by the same parser, and answered with the bytes that the
//! command prints: there is no second place that could say something else.

mod rows;

use crate::args::{DiffArgs, HoldersArgs, ReportArgs, SimulateArgs};
use crate::commands::{diff, holders, report, simulate};
use crate::terminal::{Failure, TALK, Terminal};
use analysis::Device;
use clap::{Args, Parser};
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
    file: File,
}

type Devices<'a> = Vec<Device<'a>>;

self_cell!(
    struct File {
        owner: Input,
        #[covariant]
        dependent: Devices,
    }
);

/// What a command prints, and what it says beside it.
pub struct Answer {
    /// Standard output.
    pub text: String,
    /// Standard error.
    pub notes: Vec<String>,
}

/// Whether memory grows, for a recorder that has no `oomph run` beside it.
#[derive(Default)]
pub struct Alarm(analysis::GrowthAlarm);

/// Memory that grows step after step.
pub struct Growth {
    /// What a person is to know.
    pub message: String,
    /// The step that it was found in, counted from 1.
    pub step: usize,
    /// What each step adds.
    pub bytes_per_step: u64,
    /// What is allocated by now.
    pub allocated: u64,
}

impl Alarm {
    /// Hears what is allocated at the end of a step; says once that it grows.
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
            Some("a table is about one".to_owned()),
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
        let file = File::new(input, Input::devices);
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
pub fn report(loaded: &[Arc<Loaded>], options: &[String]) -> Result<Answer, Failure> {
    let args: ReportArgs = parse(options, loaded.iter().map(|each| &each.path))?;
    answer(|terminal| {
        let mut report = report::Report::new(&args, loaded.len());
        loaded.iter().try_for_each(|each| report.add(each.input(), each.devices(), terminal))?;
        report.finish(terminal)
    })
}

/// `oomph simulate`, and with the option `--verify` the comparison with the record.
pub fn simulate(loaded: &[Arc<Loaded>], options: &[String]) -> Result<Answer, Failure> {
    let args: SimulateArgs = parse(options, loaded.iter().map(|each| &each.path))?;
    answer(|terminal| {
        // Histories are rebuilt by the rules of a release and its settings: with others, from the file.
        if !whatif::is_as_recorded(&args.question()) {
            return simulate::run(&args, terminal);
        }
        if !args.verify {
            let only = whatif::only(loaded)?;
            return simulate::replay(only.input(), only.devices(), &args, terminal);
        }
        let mut comparison = simulate::Comparison::new(&args, loaded.len());
        for each in loaded {
            for device in each.devices() {
                comparison.add(each.input(), &device.history, terminal)?;
            }
        }
        comparison.finish(loaded.first().map_or("", |first| first.name()), terminal)
    })
}

/// `oomph diff`: the ranks of one run against those of another.
pub fn diff(before: &[Arc<Loaded>], after: &[Arc<Loaded>], options: &[String]) -> Result<Answer, Failure> {
    let args: DiffArgs = parse(options, [side(before), side(after)])?;
    let portraits = |of: &[Arc<Loaded>]| {
        of.iter().flat_map(|each| report::portraits_of(each.input(), each.devices())).collect::<Vec<_>>()
    };
    answer(|terminal| diff::show(&portraits(before), &portraits(after), &args, terminal))
}

/// `oomph holders` for the process that asks: `graph` is what its walk found, `tensor` the device, ordinal and address of the
/// one that is asked about.
pub fn holders(
    graph: &str,
    tensor: Option<(String, u32, u64)>,
    options: &[String],
) -> Result<Answer, Failure> {
    let args: HoldersArgs = parse(options, ["this process"])?;
    let dump = recording::HeapDump::parse(graph.as_bytes())
        .map_err(|error| Failure::new("the walk gave no graph", Some(error.to_string()), None))?;
    let wanted = tensor.map(|(kind, index, address)| holders::Wanted {
        device: heap::StorageDevice { kind, index },
        address,
    });
    answer(|terminal| holders::of_process(dump, wanted.as_ref(), &args, terminal))
}

/// What one side of a comparison is called: its file, or the folder of its ranks.
fn side(loaded: &[Arc<Loaded>]) -> &Path {
    match loaded {
        [] => Path::new(""),
        [only] => &only.path,
        [first, ..] => first.path.parent().unwrap_or(&first.path),
    }
}

fn answer(command: impl FnOnce(&mut Terminal) -> anyhow::Result<crate::Status>) -> Result<Answer, Failure> {
    let mut terminal = Terminal::in_memory();
    command(&mut terminal)?;
    let (data, notes) = terminal.kept();
    Ok(Answer { text: String::from_utf8_lossy(&data).into_owned(), notes })
}

#[derive(Parser)]
#[command(name = "oomph", no_binary_name = true)]
struct Only<Of: Args> {
    #[command(flatten)]
    args: Of,
}

fn parse<Of: Args>(
    options: &[String],
    inputs: impl IntoIterator<Item = impl AsRef<Path>>,
) -> Result<Of, Failure> {
    let options = options.iter().map(Into::into).chain([std::ffi::OsString::from("--")]);
    let inputs = inputs.into_iter().map(|path| path.as_ref().as_os_str().to_owned());
    Only::try_parse_from(options.chain(inputs)).map(|only: Only<Of>| only.args).map_err(|error| {
        // Behind the first paragraph clap explains how to get help in a shell.
        let text = error.to_string();
        let what = text.split("\n\n").next().unwrap_or(&text);
        Failure::new(what.strip_prefix("error: ").unwrap_or(what), None, None)
    })
}
