//! The arguments of `oomph mcp` and `oomph skill`.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  claude mcp add oomph -- oomph mcp                       recordings below the client's folder
  claude mcp add oomph -- oomph mcp --root /data/runs --root ~/train
  codex mcp add oomph -- oomph mcp --root /data/runs

A client starts this program and talks to it on standard input and output. It reads files below the
roots, writes nothing and runs nothing. Other clients, tools and safety: docs/how-to/agents.md.")]
pub(crate) struct McpArgs {
    /// Folder whose files may be read, as often as needed; default: the current one
    #[arg(long = "root", value_name = "DIR", default_value = ".")]
    pub(crate) roots: Vec<PathBuf>,

    /// Offer the tool `predict`, which runs scripts below the roots on an emulated GPU
    #[arg(long)]
    pub(crate) allow_run: bool,

    /// Time limit of a call in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) time_limit: u64,

    /// Of a worker: the root to work in
    #[arg(long, value_name = "DIR", hide = true, requires = "command")]
    pub(crate) folder: Option<PathBuf>,

    /// Of a worker: the command to run
    #[arg(last = true, hide = true, requires = "folder")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph skill                    into .claude/skills/oomph of this project
  oomph skill --user             into ~/.claude/skills/oomph, for all projects
  oomph skill --dir .agents/skills/oomph")]
pub(crate) struct SkillArgs {
    /// Folder for SKILL.md
    #[arg(long, value_name = "DIR", default_value = mcp::skill::PROJECT_FOLDER)]
    pub(crate) dir: PathBuf,

    /// Install it for all projects of this user
    #[arg(long, conflicts_with = "dir")]
    pub(crate) user: bool,

    /// Replace a SKILL.md that oomph did not write
    #[arg(long)]
    pub(crate) force: bool,
}
