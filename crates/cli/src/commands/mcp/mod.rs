//! `oomph mcp` and `oomph skill`: for coding agents.

use crate::args::{Color, McpArgs, SkillArgs};
use crate::terminal::{Terminal, shown_path};
use crate::{ExitCode, Host};
use mcp::{ServerOptions, skill};
use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

pub(crate) fn serve(args: &McpArgs, host: &Host, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &args.folder {
        mcp::confine(&args.roots, folder, args.allow_run)?;
        let words = ["oomph", "--color", "never"].map(OsString::from).into_iter().chain(args.command.clone());
        let code = crate::run(words, host);
        // Python, in whose process this may be, would look for files before it ends.
        std::process::exit(code.into());
    }
    let time_limit = Duration::from_secs(args.time_limit);
    let options = ServerOptions { roots: args.roots.clone(), allow_run: args.allow_run, time_limit };
    // A terminal locks standard output, to which the server's threads write.
    *terminal = Terminal::in_memory();
    let served = mcp::serve(&options, host);
    *terminal = Terminal::new(Color::Auto);
    served.map(|()| 0)
}

pub(crate) fn skill(args: &SkillArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let folder = if args.user { skill::user_folder()? } else { args.dir.clone() };
    let file = skill::install(&folder, args.force)?;
    writeln!(terminal.out(), "wrote `{}`\n\n{}", shown_path(file), skill::REGISTRATION)?;
    Ok(0)
}
