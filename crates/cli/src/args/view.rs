//! The arguments of `oomph view`.

use super::{INPUT_HELP, size};
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph view snapshot.pickle                   opens the browser; press Ctrl-C to stop
  oomph view --no-open --port 8765 run/        prints the address only
  oomph view before.pickle after.pickle        two runs, to compare
  oomph view ranks/                            the ranks of one job
  oomph view --html page.html a.pickle         one file to share: no server, no network

Over SSH the page needs a tunnel; oomph prints the command for it.")]
pub(crate) struct ViewArgs {
    #[arg(required = true, value_name = "INPUT", help = INPUT_HELP)]
    pub(crate) inputs: Vec<PathBuf>,

    /// Write one page with the data inside instead of serving it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["port", "no_open"])]
    pub(crate) html: Option<PathBuf>,

    /// Maximum size of the page; finer detail is left out until it fits
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "16MiB", requires = "html")]
    pub(crate) max_size: u64,

    /// Port to listen on; default: any free port
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub(crate) port: u16,

    /// Do not open a browser
    #[arg(long)]
    pub(crate) no_open: bool,
}
