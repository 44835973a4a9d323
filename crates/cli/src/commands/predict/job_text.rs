//! The ranks of a predicted job as text: which ran, what they need, and what makes the difference.

use crate::terminal::{Style, Terminal};
use crate::words::paragraph;
use analysis::words::{counted, grouped, printable};
use launch::{DevicePeak, JobLayout, PredictedJob, Prediction, RankNeed};
use std::io::Write;

pub(super) fn print(
    job: &PredictedJob,
    prediction: &Prediction,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let PredictedJob { layout, ranks, need } = job;
    let title = terminal.paint(Style::Bold, "ranks");
    writeln!(terminal.out(), "\n {title}  {}", shape(layout))?;
    let columns = terminal.paint(Style::Dim, "    rank   allocated    reserved  like it  position");
    writeln!(terminal.out(), " {columns}")?;
    let needs_most = prediction.highest.rank;
    for &rank in ranks {
        // A rank has requests on its own device; others that it can see have none.
        let own = prediction.all.iter().filter(|peak| peak.rank == rank);
        let Some(DevicePeak { allocated, reserved, .. }) = own.max_by_key(|peak| peak.total()) else {
            continue;
        };
        let position = printable(&layout.words(rank)).into_owned();
        let mark = match rank == needs_most && ranks.len() > 1 {
            true => format!("  {}", terminal.paint(Style::Bold, "← needs most")),
            false => String::new(),
        };
        let alike = grouped(layout.stands_for(rank, ranks).into());
        writeln!(
            terminal.out(),
            "   {:>6}  {allocated:>10}  {reserved:>10}  {alike:>7}  {position}{mark}",
            grouped(rank.into())
        )?;
    }
    match need {
        Some(need) => paragraph("   ", "   ", &imbalance(layout, need), None, terminal),
        None => Ok(()),
    }
}

/// `pp 4 × dp 8 × tp 2`, in the order of the program's mesh.
fn shape(layout: &JobLayout) -> String {
    let dimensions =
        layout.dimensions.iter().map(|of| format!("{} {}", printable(&of.name), grouped(of.size.into())));
    dimensions.collect::<Vec<_>>().join(" × ")
}

fn imbalance(layout: &JobLayout, need: &RankNeed) -> String {
    let name = |rank: u32| format!("rank {rank} ({})", printable(&layout.stage_words(rank)));
    let modules: Vec<String> =
        need.modules.iter().map(|(module, bytes)| format!("`{}` {bytes}", printable(module))).collect();
    let because = if modules.is_empty() { String::new() } else { format!(": {}", modules.join(", ")) };
    let balance = match &need.balanced_by {
        Some(moved) if layout.dimensions.iter().any(|of| of.is_pipeline) => format!(
            "; moving {} of about {} each to the latter would balance them",
            counted(moved.layers, "layer"),
            moved.bytes_each
        ),
        _ => String::new(),
    };
    format!("{} needs {} more than {}{because}{balance}", name(need.rank), need.extra, name(need.lowest))
}
