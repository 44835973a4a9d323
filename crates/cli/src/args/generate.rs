//! The arguments of `oomph completions`, `oomph man` and `oomph schema`.

use clap::{Args, ValueEnum};
use clap_complete::Shell;

#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Args, Debug)]
pub(crate) struct ManArgs {}

#[derive(Args, Debug)]
pub(crate) struct SchemaArgs {
    /// The command; default: list all commands with a schema
    #[arg(value_enum)]
    pub(crate) command: Option<JsonCommand>,
}

/// A command with `--json`. The report of `oomph run` is that of `oomph report`.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum JsonCommand {
    Check,
    Diff,
    Doctor,
    Explain,
    Holders,
    Lint,
    Predict,
    Report,
    Rule,
    Simulate,
    Watch,
}

impl JsonCommand {
    /// Name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}
