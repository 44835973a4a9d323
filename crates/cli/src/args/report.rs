//! The arguments of `oomph report`.

use super::INPUT_HELP;
use analysis::{Device, Key, Moment, Severity};
use clap::{Args, ValueEnum};
use documents::ReportOptions;
use std::path::PathBuf;

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
        self.at.unwrap_or_else(|| device.default_moment())
    }
}

impl From<&ReportArgs> for ReportOptions {
    fn from(args: &ReportArgs) -> ReportOptions {
        ReportOptions { at: args.at, by: args.key(), top: args.top, with_stats: args.summary }
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
