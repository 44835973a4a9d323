//! `oomph holders`: who keeps tensors alive.

mod text;

use crate::ExitCode;
use crate::args::HoldersArgs;
use crate::commands::document::print_sorted;
use crate::terminal::{Failure, TALK, Terminal};
use analysis::{Device, HoldersView, TensorAddress};
use documents::{HeldTensorReport, HoldersDocument, HoldersOfPage, HoldersReport};
use heap::{AnalyzedHeap, TreeLimits};
use inputs::Input;
use recording::{HeapDump, Recording};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) fn run(args: &HoldersArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let before = args.since.as_deref().map(earlier).transpose()?;
    let mut reports = Vec::new();
    for (place, file) in inputs::expand(&args.inputs)?.iter().enumerate() {
        let recorded = Recorded::open(file)?;
        let devices = recorded.devices();
        let view = asked(recorded.view(&devices, before.as_ref()), args)?;
        if args.json {
            reports.push(HoldersReport::new(&view, args.part(), args.top));
        } else {
            if place > 0 {
                writeln!(terminal.out())?;
            }
            text::print(&view, args, terminal)?;
        }
    }
    if args.json {
        print_sorted(&HoldersDocument::new(reports), terminal)?;
    }
    Ok(0)
}

/// Holders in the calling process: all of them, or those of one tensor.
pub(crate) fn of_process(
    dump: HeapDump,
    wanted: Option<&TensorAddress>,
    args: &HoldersArgs,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let recorded = Recorded { name: "this process".to_owned(), input: None, dump: Arc::new(dump) };
    let view = recorded.view(&[], None);
    match wanted {
        None => {
            let view = asked(view, args)?;
            match args.json {
                true => print_sorted(&HoldersReport::new(&view, args.part(), args.top), terminal)?,
                false => text::print(&view, args, terminal)?,
            }
        }
        Some(wanted) => {
            let tensor = view.tensor(wanted, args.top).ok_or_else(|| {
                let cause = "it is empty, on the meta device, or of a type without storage";
                Failure::new("this tensor has no memory to hold", Some(cause.to_owned()), None)
            })?;
            match args.json {
                true => print_sorted(&HeldTensorReport::new(&tensor), terminal)?,
                false => text::tensor(&tensor, terminal)?,
            }
        }
    }
    Ok(0)
}

/// The heap of an earlier recording.
fn earlier(path: &Path) -> anyhow::Result<AnalyzedHeap> {
    let files = inputs::expand(&[path.to_owned()])?;
    let first = files.first().map_or(path, PathBuf::as_path);
    let recorded = Recorded::open(first)?;
    let devices = recorded.devices();
    Ok(recorded.view(&devices, None).holdings)
}

/// A recording with references, or the file of references alone.
struct Recorded {
    name: String,
    input: Option<Input>,
    dump: Arc<HeapDump>,
}

impl Recorded {
    fn open(file: &Path) -> anyhow::Result<Recorded> {
        let name = file.to_string_lossy().into_owned();
        if file.extension().is_some_and(|ending| ending == "heap") {
            let bytes = std::fs::read(file).map_err(|error| {
                Failure::new(format!("`{name}` cannot be read"), Some(error.to_string()), None)
                    .refused(error.kind())
            })?;
            let dump = HeapDump::parse(&bytes).map_err(|error| {
                Failure::new(format!("`{name}` is not a heap file"), Some(error.to_string()), None)
            })?;
            return Ok(Recorded { name, input: None, dump: Arc::new(dump) });
        }
        let input = inputs::load(file, &TALK)?;
        let Some(dump) = most_useful(&input.recording).cloned() else {
            return Err(Failure::new(
                format!("`{}` has no heap file", input.name),
                Some("there is no `rank0.heap` next to it".to_owned()),
                Some("record one: `oomph run -o run train.py`, or `with oomph.record(\"run\"):`"),
            )
            .into());
        };
        Ok(Recorded { name: input.name.clone(), input: Some(input), dump })
    }

    fn devices(&self) -> Vec<Device<'_>> {
        self.input.as_ref().map(Input::devices).unwrap_or_default()
    }

    fn view<'a>(&'a self, devices: &'a [Device<'a>], before: Option<&AnalyzedHeap>) -> HoldersView<'a> {
        let mut view = HoldersView::new(&self.name, &self.dump, devices);
        view.changes = before.map(|before| heap::changes(before, &view.holdings));
        view
    }
}

/// A view with the holders that are to be shown.
fn asked<'a>(mut view: HoldersView<'a>, args: &HoldersArgs) -> anyhow::Result<HoldersView<'a>> {
    let Some(site) = &args.of else {
        if args.shows_holders() {
            view.ask_all(args.top);
        }
        return Ok(view);
    };
    view.ask_of(site);
    if view.holders.is_empty() {
        let cause = match (view.devices.is_empty(), &view.site) {
            (true, _) => "this file has no events: only a recording knows which line allocated what",
            (_, Some(_)) => "its blocks are not held by any known Python object",
            (_, None) => "no block allocated there was alive at that time",
        };
        let hint = Some("`oomph report` shows the lines; `oomph holders` without --of shows all");
        let what = format!("no holder is known for what `{site}` allocates");
        return Err(Failure::new(what, Some(cause.to_owned()), hint).into());
    }
    Ok(view)
}

/// The most useful heap dump: the last, unless the program had released most of its memory by then.
fn most_useful(recording: &Recording) -> Option<&Arc<HeapDump>> {
    let bytes =
        |dump: &Arc<HeapDump>| -> u64 { dump.heap.storages.iter().map(|storage| storage.bytes).sum() };
    let last = recording.heaps.first();
    let fullest = recording.heaps.iter().max_by_key(|dump| bytes(dump));
    last.filter(|last| fullest.is_some_and(|most| 2 * bytes(last) >= bytes(most))).or(fullest)
}

/// The tree and the cycles of a recording, for the page; `None` if it has no references.
pub(super) fn for_page(
    name: &str,
    recording: &Recording,
    devices: &[Device<'_>],
) -> Option<serde_json::Value> {
    let view = HoldersView::new(name, most_useful(recording)?, devices);
    let limits = TreeLimits { depth: PAGE_DEPTH, most: PAGE_WIDTH, least: 1 };
    serde_json::to_value(HoldersOfPage::new(&view, &view.holdings.tree(limits))).ok()
}

/// Levels of the tree on the page, and branches of each.
const PAGE_DEPTH: usize = 16;
const PAGE_WIDTH: usize = 32;
