//! The command line: the commands, and what their arguments share. Each command has a file of its own.

use crate::terminal::shown_argument;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::Path;

mod attach;
mod bundle;
mod check;
mod diff;
mod doctor;
mod explain;
mod export;
mod exporter;
mod fit;
mod fleet;
mod generate;
mod gpu;
mod holders;
mod lint;
mod mcp;
mod predict;
mod programs;
mod query;
mod report;
mod rule;
mod run;
mod server;
mod simulate;
mod view;
mod watch;

pub(crate) use attach::AttachArgs;
pub(crate) use bundle::BundleArgs;
pub(crate) use check::{CheckArgs, CheckFormat, CheckOutput};
pub use check::{growth, tolerance};
pub(crate) use diff::DiffArgs;
pub(crate) use doctor::DoctorArgs;
pub(crate) use explain::ExplainArgs;
pub(crate) use export::ExportArgs;
pub(crate) use exporter::ExporterArgs;
pub(crate) use fit::FitArgs;
pub(crate) use fleet::{EngineArg, FleetArgs, SummarizeArgs};
pub(crate) use generate::{CompletionsArgs, ManArgs, SchemaArgs};
pub use gpu::gpu_memory;
pub(crate) use holders::HoldersArgs;
pub(crate) use lint::{LintArgs, LintFormat};
pub(crate) use mcp::{McpArgs, SkillArgs};
pub(crate) use predict::PredictArgs;
use programs::is_script;
pub(crate) use programs::python;
pub(crate) use query::QueryArgs;
pub(crate) use report::ReportArgs;
pub use report::{By, moment};
pub(crate) use rule::RuleArgs;
pub(crate) use run::RunArgs;
pub(crate) use server::ServerArgs;
pub(crate) use simulate::SimulateArgs;
pub use simulate::{DEFAULT_NON_PYTORCH, release};
pub(crate) use view::ViewArgs;
pub(crate) use watch::{Target, WatchArgs};

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
    /// Find the cheapest change with which your program fits on a GPU, each tried on an emulated one
    Fit(FitArgs),
    /// Run a program under the recorder, then print its report
    Run(RunArgs),
    /// Report on a running process that was started without oomph, and leave nothing behind in it
    Attach(AttachArgs),
    /// Watch programs while they run: what they hold, whether it grows, and who else is on the GPU
    Watch(WatchArgs),
    /// Check a run's memory against a budget: a gate for CI, with or without a GPU
    Check(CheckArgs),
    /// Explain the out-of-memory messages in a log: why it failed, and what to do next
    Explain(ExplainArgs),
    /// Compare two runs: what changed, and where
    Diff(DiffArgs),
    /// Compare all ranks of a job, thousands of them: which dimension explains memory, who is out of line
    Fleet(FleetArgs),
    /// Write a summary of each rank, which `oomph fleet` reads in place of its snapshot
    Summarize(SummarizeArgs),
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
    /// Show findings of `oomph lint` in your editor, with fixes, while you type: a language server
    Server(ServerArgs),
    /// Export events, blocks, segments, frames and stacks as tables for other tools
    Export(ExportArgs),
    /// Run a SQL query over these tables
    Query(QueryArgs),
    /// Pack a recording and its report into one file, for a bug report or a colleague
    Bundle(BundleArgs),
    /// Serve reports, what-ifs and queries to coding agents, over the Model Context Protocol
    Mcp(McpArgs),
    /// Install a skill for coding agents: a file that tells them how to use oomph
    Skill(SkillArgs),
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
    /// Print the JSON schema of what a command prints with `--json`
    #[command(after_help = "Examples:\n  oomph schema\n  oomph schema report > report.schema.json")]
    Schema(SchemaArgs),
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
        Command::Run(RunArgs { program, .. })
        | Command::Predict(PredictArgs { program, .. })
        | Command::Fit(FitArgs { program, .. }) => {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn words(text: &str) -> Vec<OsString> {
        std::iter::once("oomph").chain(text.split_whitespace()).map(OsString::from).collect()
    }

    /// The program's arguments, without the interpreter or launcher.
    fn program(text: &str) -> String {
        let host = crate::Host::default();
        let command = match parse(&words(text)).expect("arguments").command {
            Command::Run(args) => args.program.command(&host),
            Command::Predict(args) => args.program.command(&host),
            Command::Fit(args) => args.program.command(&host),
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
            "fit --gpu l4 --margin 5",
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
    fn every_command_of_the_skill_is_valid() {
        let code = ::mcp::skill::TEXT.split('`').skip(1).step_by(2).flat_map(str::lines);
        let commands = code.map(str::trim).filter(|line| line.starts_with("oomph ") && !line.contains('…'));
        let mut count = 0;
        for command in commands {
            let (plain, quoted) = command.split_once('\'').unwrap_or((command, ""));
            let sql = quoted.strip_suffix('\'').map(OsString::from);
            let words: Vec<OsString> = plain.split_whitespace().map(OsString::from).chain(sql).collect();
            parse(&words).unwrap_or_else(|error| panic!("{command}: {error}"));
            count += 1;
        }
        assert!(count > 15, "{count} commands");
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
