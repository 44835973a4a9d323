//! `oomph server`: the linter in editors.

use crate::ExitCode;
use crate::terminal::Terminal;

pub(crate) fn run(terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    Ok(language_server::serve(std::io::stdin(), terminal.data())?)
}
