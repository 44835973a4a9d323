//! The arguments of `oomph completions`, `oomph man` and `oomph schema`.

use clap::Args;
use clap::builder::PossibleValuesParser;
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
    #[arg(value_parser = PossibleValuesParser::new(documents::commands()))]
    pub(crate) command: Option<String>,
}
