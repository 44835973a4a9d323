//! Commands of oomph for coding agents: an MCP server on standard input and output, and a skill file.
//!
//! Each tool of the server is a command of oomph. It runs in a process of its own ([`confine`]), which can
//! read the folders that the user allows and nothing else, is killed when the client cancels the call, and
//! whose failure leaves the server alone. `tools/` has one file per tool: its arguments, the command that
//! they mean, and the calls that may follow its answer. `server.rs` speaks the protocol, and is the only
//! asynchronous code besides `workers.rs`.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod answers;
mod arguments;
mod recordings;
mod roots;
mod server;
pub mod skill;
mod system;
mod tools;
mod workers;

use launch::Host;
use roots::AllowedRoots;
use server::AgentServer;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a server may do.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Folders whose files may be read.
    pub roots: Vec<PathBuf>,
    /// Whether the tool `predict` may run programs in these folders.
    pub allow_run: bool,
    /// Time limit of one call.
    pub time_limit: Duration,
}

/// Serves until the client closes standard input.
pub fn serve(options: &ServerOptions, host: &Host) -> anyhow::Result<()> {
    let server = AgentServer::new(AllowedRoots::new(&options.roots)?, options, host)?;
    server::run(server)
}

/// Makes this process a worker of a server: it works in `folder`, ends with the server, and unless it runs
/// the user's program, it can only read files below the roots.
pub fn confine(roots: &[PathBuf], folder: &Path, allow_run: bool) -> anyhow::Result<()> {
    std::env::set_current_dir(folder)?;
    system::end_with_parent();
    if !allow_run {
        system::limit_memory();
        system::only_read(roots)?;
    }
    Ok(())
}
