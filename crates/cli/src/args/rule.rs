//! The arguments of `oomph rule`.

use clap::Args;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph rule                                   all rules
  oomph rule OOM101                            why it matters, what it costs, what to write instead
  oomph rule --markdown --all > rules.md")]
pub(crate) struct RuleArgs {
    /// A rule's code or name; default: list all rules
    #[arg(value_name = "RULE", conflicts_with = "all")]
    pub(crate) rule: Option<String>,

    /// Print the pages of all rules
    #[arg(long)]
    pub(crate) all: bool,

    /// Print Markdown
    #[arg(long, conflicts_with = "json")]
    pub(crate) markdown: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
