//! `--format github`: annotations on the lines that break the budget.

use crate::commands::annotation;
use crate::terminal::Terminal;
use gate::{Breach, LimitResult};
use gate::{BudgetVerdict, DeviceVerdict};

/// Lines of a baseline that are named in one message.
const MAX_LINES: usize = 3;

pub(super) fn print(verdict: &BudgetVerdict, terminal: &mut Terminal) -> anyhow::Result<()> {
    for device in &verdict.devices {
        for judgement in &device.results {
            for line in annotations(device, judgement) {
                terminal.command(&line)?;
            }
        }
    }
    for note in &verdict.notes {
        terminal.command(&annotation::line("notice", &[("title", "oomph check".into())], note))?;
    }
    Ok(())
}

fn annotations(device: &DeviceVerdict, judgement: &LimitResult) -> Vec<String> {
    let title = ("title", format!("oomph check: {} ({})", judgement.limit, device.measured.name()));
    let mut lines: Vec<String> =
        judgement.breaches.iter().map(|breach| of_breach(breach, judgement, title.clone())).collect();
    lines.extend(judgement.unmeasured.as_ref().map(|why| {
        annotation::line(
            "error",
            std::slice::from_ref(&title),
            &format!("could not measure: {}\n{}", why.what, why.hint),
        )
    }));
    lines
}

fn of_breach(breach: &Breach, judgement: &LimitResult, title: (&'static str, String)) -> String {
    let mut properties = Vec::new();
    if let Some(site) = &breach.site {
        properties.extend([("file", site.file.clone()), ("line", site.line.to_string())]);
    }
    properties.push(title);
    let mut message = breach.message.clone();
    let changes = judgement.comparison.iter().flat_map(|comparison| comparison.lines.iter().take(MAX_LINES));
    for change in changes {
        let site = change.site.as_ref().map_or_else(|| "(no stack)".to_owned(), |site| site.short());
        message.push_str(&format!("\n{site}: {} → {}", change.before, change.after));
    }
    if let Some(advice) = &breach.advice {
        message.push('\n');
        message.push_str(advice);
    }
    annotation::line("error", &properties, &message)
}
