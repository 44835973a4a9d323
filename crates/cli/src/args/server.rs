//! The arguments of `oomph server`.

use clap::Args;

#[derive(Args, Debug)]
#[command(after_help = "\
Your editor starts it: docs/how-to/editors.md has the settings of editors. It speaks the Language Server
Protocol on standard input and output. Settings are those of `oomph lint`, in `[tool.oomph.lint]` of
pyproject.toml.")]
pub(crate) struct ServerArgs {
    /// Accepted because many editors add it; standard input and output are what the server uses anyway
    #[arg(long, hide = true)]
    stdio: bool,
}
