//! The arguments of `oomph holders`.

use clap::Args;
use documents::HoldersPart;
use std::path::PathBuf;

#[derive(Args, Default, Debug)]
#[command(after_help = "\
Examples:
  oomph holders run/                           the largest holders, from `oomph run -o run train.py`
  oomph holders --of train.py:20 run/          holders of what that line allocates
  oomph holders --cycles run/                  objects that refer to each other in a cycle
  oomph holders --tree --depth 8 run/          the dominator tree, with retained sizes
  oomph holders --path --top 20 run/           the reference path to each of the largest tensors
  oomph holders --since before/ run/           what grew between two recordings of one program
  oomph holders --json run/ | jq .inputs[0].holders

In a program or notebook: `oomph.holders(tensor)`.")]
pub(crate) struct HoldersArgs {
    #[arg(
        required = true,
        value_name = "INPUT",
        help = "Recordings of `oomph run` or `oomph.record()`: folders, their pickles, or a `rank0.heap`"
    )]
    pub(crate) inputs: Vec<PathBuf>,

    /// Only tensors allocated at a site: `train.py:20`, `train.py`, or a function's name
    #[arg(long, value_name = "SITE")]
    pub(crate) of: Option<String>,

    /// Only reference cycles that hold memory
    #[arg(long, conflicts_with_all = ["of", "tree", "path", "since"])]
    pub(crate) cycles: bool,

    /// The dominator tree, with the retained size of each object
    #[arg(long, conflicts_with_all = ["of", "path", "since"])]
    pub(crate) tree: bool,

    /// The reference path from a variable to each of the largest tensors
    #[arg(long, conflicts_with = "since")]
    pub(crate) path: bool,

    /// What grew since this recording, or this `rank0.heap`
    #[arg(long, value_name = "BEFORE")]
    pub(crate) since: Option<PathBuf>,

    /// Number of entries to show; in a tree, per object
    #[arg(long, value_name = "N", default_value_t = HoldersArgs::TOP)]
    pub(crate) top: usize,

    /// Levels of the tree
    #[arg(long, value_name = "N", default_value_t = 6, requires = "tree")]
    pub(crate) depth: usize,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl HoldersArgs {
    const TOP: usize = 8;

    /// The largest holders of a process; `top` of them.
    pub(crate) fn of_process(top: Option<usize>, json: bool) -> HoldersArgs {
        HoldersArgs { top: top.unwrap_or(HoldersArgs::TOP), json, ..HoldersArgs::default() }
    }

    /// The part that JSON lists.
    pub(crate) fn part(&self) -> HoldersPart {
        match self {
            HoldersArgs { tree: true, depth, .. } => HoldersPart::Tree { depth: *depth },
            HoldersArgs { path: true, .. } => HoldersPart::Paths,
            HoldersArgs { cycles: true, .. } => HoldersPart::Cycles,
            _ => HoldersPart::Holders,
        }
    }

    /// Whether the largest holders are shown, and nothing else in their place.
    pub(crate) fn shows_holders(&self) -> bool {
        !self.tree && !self.path && !self.cycles && self.since.is_none()
    }
}
