//! The arguments of every command, with their help.

use crate::terminal::shown_argument;
use allocator::Release;
use analysis::{Device, Key, Moment, Severity};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use whatif::WhatIfOptions;

mod bundle;
mod check;
mod doctor;
mod exporter;
mod gpu;
mod lint;
mod live;
mod programs;

pub(crate) use bundle::BundleArgs;
pub(crate) use check::{CheckArgs, CheckFormat, CheckOutput};
pub use check::{growth, tolerance};
pub(crate) use doctor::DoctorArgs;
pub(crate) use exporter::ExporterArgs;
pub use gpu::gpu_memory;
pub(crate) use lint::{LintArgs, LintFormat, RuleArgs};
pub(crate) use live::{Target, WatchArgs};
use programs::is_script;
pub(crate) use programs::{PredictArgs, RunArgs};

/// Why your PyTorch job ran out of GPU memory, and which line to change.
#[derive(Parser, Debug)]
#[command(name = "oomph", version, about, max_term_width = 100)]
#[command(after_help = "\
Start here:
  oomph run train.py              record a program, and say what went wrong
  oomph explain train.log         explain the out-of-memory messages in a log
  oomph report snapshot.pickle    explain what torch.cuda.memory._dump_snapshot() wrote

Exit codes: 0 success; 1 it does not fit, a limit is exceeded, or `lint` or --fail-on has findings;
2 error; 130 Ctrl-C. `oomph run` ends with the exit code of the program.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// When to use color (NO_COLOR is respected)
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub(crate) color: Color,
}

/// When to colour the output.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Color {
    /// If standard output is a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Find what is wrong with a run's memory, which line to change, and what fills it
    Report(ReportArgs),
    /// Replay a recorded run with other allocator settings or on another GPU
    Simulate(SimulateArgs),
    /// Run your program on an emulated GPU: does it fit, what fills it, what would save memory
    Predict(PredictArgs),
    /// Run a program under the recorder, then print its report
    Run(RunArgs),
    /// Watch programs while they run: what they hold, whether it grows, and who else is on the GPU
    Watch(WatchArgs),
    /// Check a run's memory against a budget: a gate for CI, with or without a GPU
    Check(CheckArgs),
    /// Explain the out-of-memory messages in a log: why it failed, and what to do next
    Explain(ExplainArgs),
    /// Compare two runs: what changed, and where
    Diff(DiffArgs),
    /// Show what keeps tensors alive: variables, reference cycles, and how much each retains
    Holders(HoldersArgs),
    /// Open a page in the browser: timeline, memory map, flame graph and findings, at any size
    View(ViewArgs),
    /// Serve the metrics of running recorders to Prometheus and to `oomph watch` on another machine
    Exporter(ExporterArgs),
    /// Find code that keeps or wastes GPU memory: static checks of Python files and notebooks
    Lint(LintArgs),
    /// Explain the rules of `oomph lint`: why each matters, what it costs, what to write instead
    Rule(RuleArgs),
    /// Export events, blocks, segments, frames and stacks as tables for other tools
    Export(ExportArgs),
    /// Pack a recording and its report into one file, for a bug report or a colleague
    Bundle(BundleArgs),
    /// Check this machine: torch, driver, GPUs, permissions, and whether programs can be recorded
    Doctor(DoctorArgs),
    /// Print a completion script for your shell
    #[command(
        after_help = "Example:\n  oomph completions bash > ~/.local/share/bash-completion/completions/oomph"
    )]
    Completions(CompletionsArgs),
    /// Print the manual page
    #[command(after_help = "Example:\n  oomph man > ~/.local/share/man/man1/oomph.1")]
    Man(ManArgs),
}

/// What INPUT may be, in the help of every command that takes one.
pub(crate) const INPUT_HELP: &str = "Snapshots: pickles of any protocol, `torch.save` zips, JSON, \
    each plain or compressed with gzip, xz or zstd; a folder or a glob of them; `-` for standard input";

/// Parses the arguments. Everything after a script belongs to the program; options may also follow
/// the files that `oomph check` reads.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let cli = Cli::try_parse_from(arguments)?;
    match &cli.command {
        Command::Check(args) if !args.has_script() && !args.inputs.is_empty() => {
            // Not `mut_arg`, which would change the order of positional arguments.
            let files_only = |arg: clap::Arg| match arg.get_id().as_str() {
                "inputs" => arg.allow_hyphen_values(false),
                "output" => arg.conflicts_with("inputs"),
                _ => arg,
            };
            let cli = Cli::command().mut_subcommand("check", |check| check.mut_args(files_only));
            let matches = cli.try_get_matches_from(arguments)?;
            Cli::from_arg_matches(&matches)
        }
        Command::Run(RunArgs { program, .. }) | Command::Predict(PredictArgs { program, .. }) => {
            match program.script.first().map(|first| first.to_string_lossy()) {
                Some(first) if first.starts_with('-') && !is_script(&program.script) => Err(Cli::command()
                    .error(ErrorKind::UnknownArgument, format!("unexpected argument '{first}' found"))),
                _ => Ok(cli),
            }
        }
        _ => Ok(cli),
    }
}

/// The command that is meant by a file in the place of a command.
pub(crate) fn command_for(word: &OsString) -> Option<String> {
    let path = Path::new(word);
    let command = match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "py" => "run",
        "log" | "txt" | "out" | "err" => "explain",
        "ipynb" => "lint",
        "pickle" | "pkl" | "pt" | "zip" | "xz" | "gz" | "zst" | "json" => "report",
        _ => return None,
    };
    Some(format!("oomph {command} {}", shown_argument(word)))
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph report snapshot.pickle                 the first screen
  oomph report --at end --by stack a.pickle    what is left at the end, by whole call stack
  oomph report --by module --top 20 run/       a recording: what each layer of the model holds
  oomph report --at 1200 --top 30 a.pickle     what was live just after event 1,200
  oomph report --summary a.pickle              the table of torch.cuda.memory_summary()
  oomph report ranks/                          the ranks of one job: which peaks, and why
  oomph report --fail-on high a.pickle         exit code 1 if there is a finding of high severity
  oomph report --json a.pickle | jq .          for programs")]
pub(crate) struct ReportArgs {
    #[arg(required = true, value_name = "INPUT", help = INPUT_HELP)]
    pub(crate) inputs: Vec<PathBuf>,

    /// Moment to look at: peak, oom, end, or an event's index; default: the last OOM, else the peak
    #[arg(long, value_name = "MOMENT", value_parser = moment)]
    pub(crate) at: Option<Moment>,

    /// What to group live memory by
    #[arg(long, value_enum, value_name = "KEY", default_value_t = By::Site)]
    pub(crate) by: By,

    /// Number of groups to show; the rest is summed
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) top: usize,

    /// Exit with 1 if a finding is at least this severe
    #[arg(long, value_enum, value_name = "SEVERITY")]
    pub(crate) fail_on: Option<FailOn>,

    /// Print the table of `torch.cuda.memory_summary()`, recomputed from the file
    #[arg(long, conflicts_with_all = ["at", "by", "top", "fail_on"])]
    pub(crate) summary: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl ReportArgs {
    /// The default report, for a run that was just recorded.
    pub(crate) fn for_new_run() -> ReportArgs {
        let (by, top) = (By::Site, 5);
        ReportArgs { inputs: Vec::new(), at: None, by, top, fail_on: None, summary: false, json: false }
    }

    /// What to group live memory by.
    pub(crate) fn key(&self) -> Key {
        match self.by {
            By::Site => Key::Site,
            By::Category => Key::Category,
            By::Stack => Key::Stack,
            By::Module => Key::Module { most: self.top.max(MAX_UNGROUPED_MODULES) },
            By::Size => Key::Size,
        }
    }

    /// The moment to look at on one device.
    pub(crate) fn moment(&self, device: &Device<'_>) -> Moment {
        let default = if device.position_of(Moment::Oom).is_some() { Moment::Oom } else { Moment::Peak };
        self.at.unwrap_or(default)
    }
}

/// More modules than this are grouped by layer, unless `--top` asks for more.
const MAX_UNGROUPED_MODULES: usize = 24;

/// How severe a finding has to be to fail.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FailOn {
    /// Any finding
    Low,
    /// Findings worth changing something for
    Medium,
    /// Findings that will run out of memory
    High,
}

impl From<FailOn> for Severity {
    fn from(limit: FailOn) -> Severity {
        match limit {
            FailOn::Low => Severity::Low,
            FailOn::Medium => Severity::Medium,
            FailOn::High => Severity::High,
        }
    }
}

#[derive(Args, Default, Debug)]
#[command(after_help = "\
Examples:
  oomph holders run/                           the largest holders, from `oomph run -o run train.py`
  oomph holders --of train.py:20 run/          holders of what that line allocates
  oomph holders --cycles run/                  objects that refer to each other in a cycle
  oomph holders --tree --depth 8 run/          the dominator tree, with retained sizes
  oomph holders --path --top 20 run/           the reference path to each of the largest tensors
  oomph holders --since before/ run/           what grew between two recordings of one program
  oomph holders --json run/ | jq .inputs[0].holders

In a program or notebook: `oomph.holders(tensor)`.")]
pub(crate) struct HoldersArgs {
    #[arg(
        required = true,
        value_name = "INPUT",
        help = "Recordings of `oomph run` or `oomph.record()`: folders, their pickles, or a `rank0.heap`"
    )]
    pub(crate) inputs: Vec<PathBuf>,

    /// Only tensors allocated at a site: `train.py:20`, `train.py`, or a function's name
    #[arg(long, value_name = "SITE")]
    pub(crate) of: Option<String>,

    /// Only reference cycles that hold memory
    #[arg(long, conflicts_with_all = ["of", "tree", "path", "since"])]
    pub(crate) cycles: bool,

    /// The dominator tree, with the retained size of each object
    #[arg(long, conflicts_with_all = ["of", "path", "since"])]
    pub(crate) tree: bool,

    /// The reference path from a variable to each of the largest tensors
    #[arg(long, conflicts_with = "since")]
    pub(crate) path: bool,

    /// What grew since this recording, or this `rank0.heap`
    #[arg(long, value_name = "BEFORE")]
    pub(crate) since: Option<PathBuf>,

    /// Number of entries to show; in a tree, per object
    #[arg(long, value_name = "N", default_value_t = HoldersArgs::TOP)]
    pub(crate) top: usize,

    /// Levels of the tree
    #[arg(long, value_name = "N", default_value_t = 6, requires = "tree")]
    pub(crate) depth: usize,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl HoldersArgs {
    const TOP: usize = 8;

    /// The largest holders of a process; `top` of them.
    pub(crate) fn of_process(top: Option<usize>, json: bool) -> HoldersArgs {
        HoldersArgs { top: top.unwrap_or(HoldersArgs::TOP), json, ..HoldersArgs::default() }
    }

    /// Whether the largest holders are shown, and nothing else in their place.
    pub(crate) fn shows_holders(&self) -> bool {
        !self.tree && !self.path && !self.cycles && self.since.is_none()
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph view snapshot.pickle                   opens the browser; press Ctrl-C to stop
  oomph view --no-open --port 8765 run/        prints the address only
  oomph view before.pickle after.pickle        two runs, to compare
  oomph view ranks/                            the ranks of one job
  oomph view --html page.html a.pickle         one file to share: no server, no network

Over SSH the page needs a tunnel; oomph prints the command for it.")]
pub(crate) struct ViewArgs {
    #[arg(required = true, value_name = "INPUT", help = INPUT_HELP)]
    pub(crate) inputs: Vec<PathBuf>,

    /// Write one page with the data inside instead of serving it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["port", "no_open"])]
    pub(crate) html: Option<PathBuf>,

    /// Maximum size of the page; finer detail is left out until it fits
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "16MiB", requires = "html")]
    pub(crate) max_size: u64,

    /// Port to listen on; default: any free port
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub(crate) port: u16,

    /// Do not open a browser
    #[arg(long)]
    pub(crate) no_open: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph explain train.log                  a whole log, of one rank or many
  oomph explain                            paste the message, then Ctrl-D
  python train.py 2>&1 | oomph explain     a program's output
  dmesg | oomph explain                    what Linux killed
  oomph explain --json train.log | jq .    for programs

What each kind of message means: docs/reference/messages.md.")]
pub(crate) struct ExplainArgs {
    /// A log, or a file with the message; `-` or none for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph diff before.pickle after.pickle        did the change help, and where
  oomph diff monday/ tuesday/                  two folders with the same ranks
  oomph diff --json a.pickle b.pickle | jq .pairs[0].findings")]
pub(crate) struct DiffArgs {
    /// The run to compare with: a snapshot, or a folder of ranks
    #[arg(value_name = "BEFORE")]
    pub(crate) before: PathBuf,

    /// The run to look at
    #[arg(value_name = "AFTER")]
    pub(crate) after: PathBuf,

    /// Number of lines to show; the rest is summed
    #[arg(long, value_name = "N", default_value_t = DiffArgs::TOP)]
    pub(crate) top: usize,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl DiffArgs {
    pub(crate) const TOP: usize = 10;
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph simulate --search a.pickle                         settings that need less memory
  oomph simulate --gpu 24GiB a.pickle                      would it fit on a 24 GiB GPU
  oomph simulate --conf expandable_segments:True a.pickle  what one setting would have done
  oomph simulate --smallest-gpu --search a.pickle          the least memory for each setting
  oomph simulate --verify a.pickle                         does the model match the recording
  oomph simulate --conf max_split_size_mb:128 -o sim.pickle a.pickle && oomph report sim.pickle

Sizes: 24GiB, 512MiB, 80GB (decimal), or bytes. The model and its limits: docs/how-to/simulate.md.
Exit codes: 0 it fits, or all is identical; 1 it runs out of memory, or differs; 2 error.")]
pub(crate) struct SimulateArgs {
    #[arg(
        required = true,
        value_name = "INPUT",
        help = "A snapshot, as for `oomph report`; several, a folder or a glob with --verify"
    )]
    pub(crate) inputs: Vec<PathBuf>,

    /// Settings to try, as in PYTORCH_CUDA_ALLOC_CONF; default: the recorded ones
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) conf: Option<String>,

    /// The GPU to try, by its memory or its name; default: what the recorded run had available
    #[arg(long, value_name = "SIZE|NAME", value_parser = gpu_memory)]
    pub(crate) gpu: Option<u64>,

    /// Memory of that GPU that PyTorch cannot use: the CUDA context, libraries, other processes
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "700MiB")]
    pub(crate) non_pytorch: u64,

    /// `set_per_process_memory_fraction`: a share of the GPU's memory (needs --gpu)
    #[arg(long, value_name = "SHARE", value_parser = fraction, conflicts_with = "limit", requires = "gpu")]
    pub(crate) fraction: Option<f64>,

    /// Memory limit of the process itself
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) limit: Option<u64>,

    /// Try common allocator settings and rank them
    #[arg(long, conflicts_with_all = ["conf", "verify", "output"])]
    pub(crate) search: bool,

    /// Find the smallest GPU memory that still works
    #[arg(long, conflicts_with = "verify")]
    pub(crate) smallest_gpu: bool,

    /// Compare every decision of the model with the recording, under the recorded settings
    #[arg(long)]
    pub(crate) verify: bool,

    /// Write the replayed run as a snapshot for other commands and PyTorch's viewer
    #[arg(short, long, value_name = "FILE", conflicts_with = "verify")]
    pub(crate) output: Option<PathBuf>,

    /// torch release whose rules to use, such as 2.11; default: the file's
    #[arg(long, value_name = "RELEASE", value_parser = release)]
    pub(crate) torch: Option<Release>,

    /// The settings of the recorded run, where the file does not have them (torch 2.0 to 2.2)
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) recorded_conf: Option<String>,

    /// The device to replay; default: the one with the most events
    #[arg(long, value_name = "ORDINAL", conflicts_with = "verify")]
    pub(crate) device: Option<u32>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl SimulateArgs {
    /// The what-if question that the options ask.
    pub(crate) fn question(&self) -> WhatIfOptions {
        WhatIfOptions {
            conf: self.conf.clone(),
            gpu: self.gpu,
            non_pytorch: self.non_pytorch,
            fraction: self.fraction,
            limit: self.limit,
            search: self.search,
            smallest_gpu: self.smallest_gpu,
            verify: self.verify,
            torch: self.torch,
            recorded_conf: self.recorded_conf.clone(),
            device: self.device,
        }
    }
}

/// Default non-PyTorch memory of a process, in bytes.
pub const DEFAULT_NON_PYTORCH: u64 = 700 << 20;

/// Parses a size: `24GiB`, `80GB`, `512M`, or bytes.
pub fn size(text: &str) -> Result<u64, String> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err("expected a size such as 24GiB, 512MiB, 80GB or bytes".to_owned()),
    };
    let number: f64 =
        number.parse().map_err(|_| "expected a size such as 24GiB, 512MiB, 80GB or bytes".to_owned())?;
    let bytes = number * scale as f64;
    if !(1.0..=MAX_SIZE).contains(&bytes) {
        return Err("expected a size between 1 byte and 4 TiB".to_owned());
    }
    Ok(bytes as u64)
}

/// Largest size that is accepted, in bytes: no card has more.
const MAX_SIZE: f64 = (1u64 << 42) as f64;

fn fraction(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "expected a share from 0 to 1".to_owned())
}

/// Parses a torch release, such as `2.11`.
pub fn release(text: &str) -> Result<Release, String> {
    let minor = text.strip_prefix("2.").and_then(|rest| rest.split('.').next()?.parse().ok());
    minor
        .filter(|&minor| minor <= Release::NEWEST.0)
        .map(Release)
        .ok_or_else(|| format!("expected a release from 2.0 to {}", Release::NEWEST))
}

/// What to group live memory by.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The line of your own code
    Site,
    /// What it is for: parameter, gradient, optimizer, activation, …
    Category,
    /// The whole call stack
    Stack,
    /// The module it belongs to, with parameters, gradients and optimizer state (needs `oomph run`)
    Module,
    /// The size of the block
    Size,
}

/// Parses a moment: `peak`, `oom`, `end`, or an event's index.
pub fn moment(text: &str) -> Result<Moment, String> {
    match text {
        "peak" => Ok(Moment::Peak),
        "oom" => Ok(Moment::Oom),
        "end" => Ok(Moment::End),
        _ => text
            .replace([',', '_'], "")
            .parse()
            .map(Moment::Event)
            .map_err(|_| "expected peak, oom, end or the number of an event".to_owned()),
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph export --to parquet -o tables/ snapshot.pickle         one file per table
  oomph export --to sqlite -o snapshot.db snapshot.pickle      one database
  oomph export --to perfetto -o trace.pftrace snapshot.pickle  then open it in ui.perfetto.dev

The tables and their columns are described in docs/reference/tables.md.")]
pub(crate) struct ExportArgs {
    #[arg(
        value_name = "INPUT",
        help = "A snapshot, or a folder with one: pickle, `torch.save` zip or JSON, plain or compressed; \
        `-` for \
        standard input"
    )]
    pub(crate) input: PathBuf,

    /// Format of the output
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) to: ExportFormatArg,

    /// File to write; for parquet and arrow a folder, which gets one file per table
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// A format of `oomph export`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExportFormatArg {
    /// Apache Parquet, one file per table
    Parquet,
    /// Arrow IPC (Feather), one file per table
    Arrow,
    /// One SQLite database
    Sqlite,
    /// One JSON document
    Json,
    /// A Perfetto trace with memory counters
    Perfetto,
}

impl From<ExportFormatArg> for export::ExportFormat {
    fn from(format: ExportFormatArg) -> export::ExportFormat {
        match format {
            ExportFormatArg::Parquet => export::ExportFormat::Parquet,
            ExportFormatArg::Arrow => export::ExportFormat::Arrow,
            ExportFormatArg::Sqlite => export::ExportFormat::Sqlite,
            ExportFormatArg::Json => export::ExportFormat::Json,
            ExportFormatArg::Perfetto => export::ExportFormat::Perfetto,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Args, Debug)]
pub(crate) struct ManArgs {}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        std::iter::once("oomph").chain(text.split_whitespace()).map(OsString::from).collect()
    }

    /// The program's arguments, without the interpreter or launcher.
    fn program(text: &str) -> String {
        let host = crate::Host::default();
        let command = match parse(&words(text)).expect("arguments").command {
            Command::Run(args) => args.program.command(&host),
            Command::Predict(args) => args.program.command(&host),
            Command::Check(args) => args.command(&host),
            _ => panic!("no program"),
        };
        command[1..].join(&OsString::from(" ")).into_string().expect("text")
    }

    #[test]
    fn everything_after_the_script_is_the_programs() {
        let theirs = "a.py --gpus 4 --gpu h100 --json --try amp --vary x=1 --gpu-memory 8GiB -o x --force \
                      --help -- --json -- -m";
        for own in [
            "run",
            "run --",
            "run -- python",
            "run -o rec --json",
            "predict --gpu l4",
            "predict --gpu=l4 -q --",
            "--color never predict -qo dir --gpu t4 --steps 5",
            "predict --gpu l4 -- /usr/bin/python3",
            "check --no-leaks",
            "check --no-leaks --",
            "check --no-leaks -- python",
        ] {
            assert_eq!(program(&format!("{own} {theirs}")), theirs, "{own}");
        }
        let module = "-m torch.distributed.run --nproc-per-node 2 -- a.py --json -- x";
        for own in ["run", "run --", "run -- python", "check --no-leaks", "predict --gpu l4"] {
            assert_eq!(program(&format!("{own} {module}")), module, "{own}");
        }
        assert_eq!(program("run - x"), "- x");
        assert_eq!(program("run -- torchrun --nproc-per-node 2 a.py"), "--nproc-per-node 2 a.py");
    }

    #[test]
    fn options_may_follow_files() {
        let text = "check a.pickle --max-peak 1GiB b.pickle --no-leaks";
        let Command::Check(args) = parse(&words(text)).expect("arguments").command else {
            panic!("another command")
        };
        assert_eq!(args.files(), ["a.pickle", "b.pickle"].map(PathBuf::from));
        assert!(args.limits.no_leaks && args.limits.max_peak == Some(1 << 30));
        assert!(parse(&words("check a.pickle --no-leaks -o kept")).is_err());
        assert!(parse(&words("check a.pickle --no-leekage")).is_err());
    }
}
