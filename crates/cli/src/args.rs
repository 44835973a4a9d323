//! The arguments of every command, with their help.

use crate::cards::{CARDS, Card};
use crate::child::Pretend;
use crate::commands::vary::Vary;
use allocator::Release;
use analysis::{Device, Key, Moment, Severity};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::ffi::OsString;
use std::path::PathBuf;

/// Why your PyTorch job ran out of GPU memory, and which line to change.
#[derive(Parser, Debug)]
#[command(name = "oomph", version, about, max_term_width = 100, disable_help_subcommand = true)]
#[command(after_help = "\
Record a snapshot in your program:
  torch.cuda.memory._record_memory_history(stacks=\"python\")
  …
  torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")
then ask:
  oomph report snapshot.pickle

Exit codes: 0 fine, 1 findings, 2 could not do it.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// When to use colour (NO_COLOR is respected)
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub(crate) color: Color,
}

/// When to colour the output.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Color {
    /// If it goes to a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// What is wrong with a run's memory, which line to change, and what fills it
    Report(ReportArgs),
    /// What other allocator settings or another card would have made of a recorded run
    Simulate(SimulateArgs),
    /// Run your program on a pretended GPU: does it fit, what fills it, what would save memory
    Predict(PredictArgs),
    /// Run a program under the recorder, then print its report
    Run(RunArgs),
    /// Hold a run's memory against a budget: the gate for CI, also without a GPU
    Check(CheckArgs),
    /// What has changed from one run to another
    Diff(DiffArgs),
    /// The events, blocks, segments, frames and stacks as tables for other tools
    Export(ExportArgs),
    /// A completion script for your shell
    #[command(
        after_help = "Example:\n  oomph completions bash > ~/.local/share/bash-completion/completions/oomph"
    )]
    Completions(CompletionsArgs),
    /// The manual page
    #[command(after_help = "Example:\n  oomph man > ~/.local/share/man/man1/oomph.1")]
    Man(ManArgs),
}

/// What INPUT may be, in the help of every command that takes one.
pub(crate) const INPUT_HELP: &str = "Snapshots: pickles of any protocol, `torch.save` zips, JSON, each plain or \
    under gzip, xz or zstd; a folder or a glob of them; `-` for standard input";

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph report snapshot.pickle                 the first screen
  oomph report --at end --by stack a.pickle    what is left at the end, by whole call stack
  oomph report --at 1200 --top 30 a.pickle     what was live just after event 1,200
  oomph report --summary a.pickle              the table of torch.cuda.memory_summary()
  oomph report ranks/                          the ranks of one job: which peaks, and why
  oomph report --fail-on high a.pickle         exit code 1 if something serious was found
  oomph report --json a.pickle | jq .          for programs")]
pub(crate) struct ReportArgs {
    #[arg(required = true, value_name = "INPUT", help = INPUT_HELP)]
    pub(crate) inputs: Vec<PathBuf>,

    /// Moment to look at: peak, oom, end, or the number of an event; by default the last OOM, or the peak if there was none
    #[arg(long, value_name = "MOMENT", value_parser = moment)]
    pub(crate) at: Option<Moment>,

    /// What to group live memory by
    #[arg(long, value_enum, value_name = "KEY", default_value_t = By::Site)]
    pub(crate) by: By,

    /// How many groups to show; the rest is summed
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
    /// The usual report, for a run that was just made.
    pub(crate) fn for_a_run() -> ReportArgs {
        let (by, top) = (By::Site, 5);
        ReportArgs { inputs: Vec::new(), at: None, by, top, fail_on: None, summary: false, json: false }
    }

    /// The moment to look at on one device.
    pub(crate) fn moment(&self, device: &Device<'_>) -> Moment {
        let default = if device.position_of(Moment::Oom).is_some() { Moment::Oom } else { Moment::Peak };
        self.at.unwrap_or(default)
    }
}

/// How severe a finding has to be to fail.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FailOn {
    /// Any finding
    Low,
    /// Findings worth changing something for
    Medium,
    /// Findings that end the run, or will
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

    /// How many lines to show; the rest is summed
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph simulate --search a.pickle                        which settings would have needed less memory
  oomph simulate --gpu 24GiB a.pickle                     would it fit on a 24 GiB card
  oomph simulate --conf expandable_segments:True a.pickle  what one setting would have done
  oomph simulate --smallest-gpu --search a.pickle         the least memory that works, for each setting
  oomph simulate --verify a.pickle                        does the model do just what PyTorch did
  oomph simulate --conf max_split_size_mb:128 -o sim.pickle a.pickle && oomph report sim.pickle

Sizes: 24GiB, 512MiB, 80GB (decimal), or bytes. How the model works and what it does not know: docs/allocator.md.
Exit codes: 0 it fits, or all is identical; 1 it runs out of memory, or differs; 2 could not do it.")]
pub(crate) struct SimulateArgs {
    #[arg(
        required = true,
        value_name = "INPUT",
        help = "A snapshot, as for `oomph report`; several, a folder or a glob with --verify"
    )]
    pub(crate) inputs: Vec<PathBuf>,

    /// Settings to try, as in PYTORCH_CUDA_ALLOC_CONF; otherwise the recorded ones
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) conf: Option<String>,

    /// Memory of the card to try; otherwise what the recorded run could have
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) gpu: Option<u64>,

    /// Memory of that card which PyTorch cannot have: the CUDA context, libraries, other processes
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "700MiB")]
    pub(crate) outside: u64,

    /// `set_per_process_memory_fraction`: a share of the card (needs --gpu)
    #[arg(long, value_name = "SHARE", value_parser = fraction, conflicts_with = "limit", requires = "gpu")]
    pub(crate) fraction: Option<f64>,

    /// The limit of the process itself
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) limit: Option<u64>,

    /// Try the settings that matter and rank them
    #[arg(long, conflicts_with_all = ["conf", "verify", "output"])]
    pub(crate) search: bool,

    /// Find the least memory of a card that still works
    #[arg(long, conflicts_with = "verify")]
    pub(crate) smallest_gpu: bool,

    /// Compare every decision of the model with the record, under the recorded settings
    #[arg(long)]
    pub(crate) verify: bool,

    /// Write the replayed run as a snapshot that every other command and PyTorch's viewer read
    #[arg(short, long, value_name = "FILE", conflicts_with = "verify")]
    pub(crate) output: Option<PathBuf>,

    /// Release of torch whose rules to use, such as 2.11; otherwise the file's
    #[arg(long, value_name = "RELEASE", value_parser = release)]
    pub(crate) torch: Option<Release>,

    /// The settings of the recorded run, where the file does not have them (torch 2.0 to 2.2)
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) recorded_conf: Option<String>,

    /// The device to replay; otherwise the one with the most events
    #[arg(long, value_name = "ORDINAL", conflicts_with = "verify")]
    pub(crate) device: Option<u32>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A program to run.
#[derive(Args, Debug)]
pub(crate) struct ProgramArgs {
    /// The script or `-m MODULE`, and its own arguments
    #[arg(required = true, last = true, value_name = "SCRIPT", allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,

    /// Stop after N steps; `all`: run to the end; otherwise when memory per step repeats itself, after 20 steps at the earliest
    #[arg(long, value_name = "N", value_parser = steps)]
    pub(crate) steps: Option<u32>,

    /// The Python interpreter; otherwise that of the active environment, or python3
    #[arg(long, value_name = "FILE")]
    pub(crate) python: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(
    override_usage = "oomph predict --gpu NAME [OPTIONS] SCRIPT [ARGS]...\n       oomph predict --gpu NAME [OPTIONS] -m MODULE [ARGS]...",
    after_help = concat!("\
Examples:
  oomph predict --gpu l4 train.py --batch-size 16             does it fit on an L4
  oomph predict --gpu h100 --vary batch-size=8,16,32 train.py  one run for each
  oomph predict --gpu a10g --vary batch-size=1..512 train.py  the largest batch that fits
  oomph predict --gpu rtx4090 --try amp,checkpoint,amp+checkpoint,expandable train.py
  oomph predict --gpu h100 --gpus 2 -m torch.distributed.run --nproc-per-node 2 train.py
  oomph predict --gpu t4 -o recording/ train.py && oomph report recording/

The unmodified torch of your environment runs on a stand-in for CUDA whose kernels do nothing: memory requests are real,
values are not. Nothing is written by torch.save. What that means: docs/predict.md.

Cards: b200 h200 gh200 h100 h100-pcie h100-nvl a100 a100-40 a40 a30 a10 a10g l40s l40 l4 rtx6000-ada rtxa6000 rtxa5000
rtx5090 rtx5080 rtx4090 rtx4080 rtx3090 rtx3080 rtx3060 rtx2080ti v100 v100-32 t4
Exit codes: 0 it fits, 1 it runs out of memory, 2 could not do it."))]
pub(crate) struct PredictArgs {
    #[command(flatten)]
    pub(crate) program: ProgramArgs,

    /// The card to pretend
    #[arg(long, value_name = "NAME", value_parser = card)]
    pub(crate) gpu: Card,

    /// Memory of the card, if it is not the usual one
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) gpu_memory: Option<u64>,

    /// How many such cards
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) gpus: u32,

    /// Run again with an argument or environment variable changed: NAME=VALUE,VALUE… or NAME=SMALLEST..LARGEST
    #[arg(long, value_name = "NAME=VALUES", value_parser = Vary::parse)]
    pub(crate) vary: Option<Vary>,

    /// Run again with techniques switched on from outside: amp, checkpoint, batch/2, accumulate, set-to-none, fused,
    /// foreach-off, offload, bf16, expandable; several at once with `+`
    #[arg(long = "try", value_name = "TECHNIQUES", value_delimiter = ',', value_parser = technique)]
    pub(crate) techniques: Vec<String>,

    /// Do not run a second time to see whether values that only a real GPU computes matter
    #[arg(long)]
    pub(crate) once: bool,

    /// Let the program write checkpoints, although their values are not real
    #[arg(long)]
    pub(crate) keep_files: bool,

    /// Keep the recording in this folder
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,

    /// Do not show the program's own output
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A card to pretend, where that is a choice.
#[derive(Args, Debug)]
pub(crate) struct PretendArgs {
    /// Run on a pretended card, without a GPU; the cards are those of `oomph predict`
    #[arg(long, value_name = "NAME", value_parser = card)]
    pretend: Option<Card>,

    /// Memory of the pretended card, if it is not the usual one
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "pretend")]
    gpu_memory: Option<u64>,

    /// How many such cards
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    gpus: u32,
}

impl PretendArgs {
    pub(crate) fn pretend(&self) -> Option<Pretend> {
        let card = self.pretend.clone()?;
        let memory = self.gpu_memory.unwrap_or(card.memory);
        Some(Pretend { card, memory, devices: self.gpus, unknown: 0 })
    }
}

#[derive(Args, Debug)]
#[command(
    override_usage = "oomph run [OPTIONS] SCRIPT [ARGS]...\n       oomph run [OPTIONS] -m MODULE [ARGS]...",
    after_help = "\
Examples:
  oomph run train.py --epochs 1                    record on this machine's GPU
  oomph run --pretend h100 -o recording train.py   record without a GPU
  oomph report recording

The exit code is the program's."
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) program: ProgramArgs,

    #[command(flatten)]
    pub(crate) pretend: PretendArgs,

    /// Folder for the recording
    #[arg(short, long, value_name = "DIR", default_value = "oomph-recording")]
    pub(crate) output: PathBuf,

    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    override_usage = "oomph check [OPTIONS] INPUT...\n       oomph check [OPTIONS] --pretend NAME -- COMMAND...",
    after_help = "\
Examples:
  oomph check snapshot.pickle --max-peak 20GiB --no-leaks
  oomph check --pretend h100 --max-peak 60GiB --no-leaks -- python train.py    in CI, without a GPU

Limits may also stand at the end of the command, if none stands in front.
Exit codes: 0 within the budget, 1 over it, 2 could not measure."
)]
pub(crate) struct CheckArgs {
    #[arg(value_name = "INPUT", help = INPUT_HELP)]
    pub(crate) inputs: Vec<PathBuf>,

    /// A command to run and measure
    #[arg(last = true, value_name = "COMMAND", allow_hyphen_values = true, conflicts_with = "inputs")]
    pub(crate) command: Vec<OsString>,

    #[command(flatten)]
    pub(crate) limits: Limits,

    #[command(flatten)]
    pub(crate) pretend: PretendArgs,

    /// Stop the command after N steps instead of running it to the end
    #[arg(long, value_name = "N", value_parser = steps)]
    pub(crate) steps: Option<u32>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a run may take.
#[derive(Args, Clone, Default, Debug)]
pub(crate) struct Limits {
    /// The most memory that may be allocated at one time on a device
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) max_peak: Option<u64>,

    /// The most memory that may be reserved at one time on a device
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) max_reserved: Option<u64>,

    /// No finding of a leak
    #[arg(long)]
    pub(crate) no_leaks: bool,
}

impl Limits {
    pub(crate) fn is_empty(&self) -> bool {
        self.max_peak.is_none() && self.max_reserved.is_none() && !self.no_leaks
    }
}

/// Techniques that can be switched on from outside.
pub(crate) const TECHNIQUES: [&str; 10] = [
    "amp",
    "checkpoint",
    "batch/2",
    "accumulate",
    "set-to-none",
    "fused",
    "foreach-off",
    "offload",
    "bf16",
    "expandable",
];

fn technique(text: &str) -> Result<String, String> {
    match text.split('+').find(|name| !TECHNIQUES.contains(name)) {
        None => Ok(text.to_owned()),
        Some(_) => Err(format!("expected some of {}, joined by `+`", TECHNIQUES.join(", "))),
    }
}

fn card(text: &str) -> Result<Card, String> {
    Card::find(text).cloned().ok_or_else(|| {
        let known: Vec<&str> = CARDS.iter().map(|card| card.key).collect();
        format!("expected one of {}; for another card take the nearest and --gpu-memory", known.join(", "))
    })
}

/// A number of steps; 0 stands for all.
fn steps(text: &str) -> Result<u32, String> {
    match text {
        "all" => Ok(0),
        _ => text
            .parse()
            .ok()
            .filter(|&steps| steps > 0)
            .ok_or_else(|| "expected a number or `all`".to_owned()),
    }
}

/// `24GiB`, `80GB`, `512M`, or bytes.
fn size(text: &str) -> Result<u64, String> {
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
    if !(1.0..=LARGEST).contains(&bytes) {
        return Err("expected a size between 1 byte and 4 TiB".to_owned());
    }
    Ok(bytes as u64)
}

/// No card has more.
const LARGEST: f64 = (1u64 << 42) as f64;

fn fraction(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "expected a share from 0 to 1".to_owned())
}

fn release(text: &str) -> Result<Release, String> {
    let minor = text.strip_prefix("2.").and_then(|rest| rest.split('.').next()?.parse().ok());
    minor
        .filter(|&minor| minor <= Release::NEWEST.0)
        .map(Release)
        .ok_or_else(|| format!("expected a release from 2.0 to {}", Release::NEWEST))
}

/// What to group live memory by.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// The line of your own code
    Site,
    /// What it is for: parameter, gradient, optimizer, activation, …
    Category,
    /// The whole call stack
    Stack,
    /// The size of the block
    Size,
}

impl From<By> for Key {
    fn from(by: By) -> Key {
        match by {
            By::Site => Key::Site,
            By::Category => Key::Category,
            By::Stack => Key::Stack,
            By::Size => Key::Size,
        }
    }
}

fn moment(text: &str) -> Result<Moment, String> {
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
  oomph export --to parquet -o tables/ snapshot.pickle     one file per table
  oomph export --to sqlite -o snapshot.db snapshot.pickle
  oomph export --to perfetto -o trace.pftrace snapshot.pickle   then open it in ui.perfetto.dev

The tables and their columns are described in docs/tables.md.")]
pub(crate) struct ExportArgs {
    #[arg(
        value_name = "INPUT",
        help = "A snapshot: pickle, `torch.save` zip or JSON, plain or compressed; `-` for \
        standard input"
    )]
    pub(crate) input: PathBuf,

    /// Format of the output
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) to: Format,

    /// File to write; for parquet and arrow a folder, which gets one file per table
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// A format of `oomph export`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
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

#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Args, Debug)]
pub(crate) struct ManArgs {}
