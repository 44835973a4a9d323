//! The arguments of `oomph lint`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph lint                                   all Python and notebooks below this folder
  oomph lint --diff train.py                   what --fix would change
  oomph lint --diff --unsafe-fixes train.py    what it would change beyond that
  oomph lint --min-severity high --format github .  for a CI job
  oomph lint --select OOM1 --ignore loss-kept-in-list src/
  cat train.py | oomph lint --stdin-filename train.py -

`# oomph: ignore[rule]` silences a line, `# oomph: ignore-file` a file. `oomph rule` lists the rules.
Settings are in `[tool.oomph.lint]` of pyproject.toml: docs/how-to/lint.md.
Exit codes: 0 nothing found, 1 findings, 2 error.")]
pub(crate) struct LintArgs {
    /// Python files, notebooks, and folders of them (what git ignores is left out); `-` for standard input
    #[arg(value_name = "PATH", default_value = ".")]
    pub(crate) paths: Vec<PathBuf>,

    /// Check only these rules: codes, prefixes of codes, or names
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    pub(crate) select: Option<Vec<String>>,

    /// Skip these rules
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    pub(crate) ignore: Option<Vec<String>>,

    /// Only findings that are at least this severe
    #[arg(long, value_enum, value_name = "SEVERITY")]
    pub(crate) min_severity: Option<MinSeverity>,

    /// Apply the fixes that cannot change what a program does
    #[arg(long)]
    pub(crate) fix: bool,

    /// With --fix and --diff: include fixes that are right in most programs only; review the changes
    #[arg(long)]
    pub(crate) unsafe_fixes: bool,

    /// Show what --fix would change, without changing anything
    #[arg(long, conflicts_with_all = ["fix", "format", "json", "statistics"])]
    pub(crate) diff: bool,

    /// Format of the output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LintFormat::Text)]
    pub(crate) format: LintFormat,

    /// Print JSON: the same as --format json
    #[arg(long, conflicts_with = "format")]
    pub(crate) json: bool,

    /// Exit with 0 even if something was found
    #[arg(long)]
    pub(crate) exit_zero: bool,

    /// Count findings per rule instead of listing them
    #[arg(long)]
    pub(crate) statistics: bool,

    /// Name to report for standard input
    #[arg(long, value_name = "NAME")]
    pub(crate) stdin_filename: Option<PathBuf>,
}

impl LintArgs {
    /// The fixes that the user allows.
    pub(crate) fn allowed(&self) -> lint::Applicability {
        if self.unsafe_fixes { lint::Applicability::Unsafe } else { lint::Applicability::Safe }
    }
}

impl From<&LintArgs> for project::LintOptions {
    fn from(args: &LintArgs) -> project::LintOptions {
        project::LintOptions {
            paths: args.paths.clone(),
            select: args.select.clone(),
            ignore: args.ignore.clone(),
            min_severity: args.min_severity.map(Into::into),
            fixes: match (args.diff, args.fix) {
                (true, _) => project::FixMode::Show,
                (false, true) => project::FixMode::Write,
                (false, false) => project::FixMode::Leave,
            },
            allowed: args.allowed(),
            stdin_filename: args.stdin_filename.clone(),
        }
    }
}

/// Format of findings.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LintFormat {
    /// For people
    Text,
    /// A list of findings
    Json,
    /// SARIF 2.1.0, for code scanning
    Sarif,
    /// Annotations of GitHub Actions
    Github,
}

/// How severe a finding of the linter has to be.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MinSeverity {
    /// All findings
    Low,
    /// Raises the peak or wastes a fixed amount
    Medium,
    /// Leaks GPU memory every step
    High,
}

impl From<MinSeverity> for lint::RuleSeverity {
    fn from(least: MinSeverity) -> lint::RuleSeverity {
        match least {
            MinSeverity::Low => lint::RuleSeverity::Low,
            MinSeverity::Medium => lint::RuleSeverity::Medium,
            MinSeverity::High => lint::RuleSeverity::High,
        }
    }
}
