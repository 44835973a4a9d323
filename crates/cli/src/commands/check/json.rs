//! `--format json`: the numbers and the verdict. Fields are added, never renamed.

use crate::commands::report::json::{ChangeReport, by_category, site_name_report};
use crate::terminal::Terminal;
use gate::BaselineComparison;
use gate::{BudgetVerdict, DeviceVerdict};
use gate::{LimitResult, LimitState};
use serde_json::{Map, Value, json};
use std::io::Write;

/// Lines of code reported per device.
const MAX_SITES: usize = 16;

pub(super) fn print(verdict: &BudgetVerdict, terminal: &mut Terminal) -> anyhow::Result<()> {
    let document = json!({
        "version": 1,
        "ok": verdict.state() == LimitState::Kept,
        "verdict": verdict.state().name(),
        "devices": verdict.devices.iter().map(device).collect::<Vec<_>>(),
        "notes": verdict.notes,
        "baseline_written": verdict.written,
    });
    serde_json::to_writer_pretty(terminal.out(), &document)?;
    Ok(writeln!(terminal.out())?)
}

fn device(judged: &DeviceVerdict) -> Value {
    let measured = &judged.measured;
    let replayed = measured.replayed.as_ref().ok();
    let messages = judged.results.iter().flat_map(|judgement| &judgement.breaches);
    json!({
        "input": measured.input,
        "rank": measured.rank,
        "device": measured.device,
        "steps": measured.steps,
        "peak_allocated": measured.peak_allocated.0,
        "peak_requested": measured.peak_requested.0,
        "peak_reserved": measured.recorded_reserved.0,
        "replayed_reserved": replayed.map(|replayed| replayed.reserved.0),
        "fragmentation": replayed.map(|replayed| replayed.fragmentation),
        "growth_per_step": measured.growth.as_ref().ok().map(|growth| growth.0),
        "leaks": measured.leaks.len(),
        "categories": by_category(&measured.categories),
        "sites": measured.sites.iter().take(MAX_SITES).map(|site| json!({
            "site": site.site.as_ref().map(site_name_report),
            "in_backward": site.in_backward,
            "requested": site.bytes.0,
        })).collect::<Vec<_>>(),
        "broken": messages.map(|breach| &breach.message).collect::<Vec<_>>(),
        "limits": judged.results.iter().map(limit).collect::<Vec<_>>(),
    })
}

fn limit(judgement: &LimitResult) -> Value {
    json!({
        "limit": judgement.limit,
        "verdict": judgement.state().name(),
        "value": judgement.value.map(number),
        "allowed": judgement.allowed.map(number),
        "broken": judgement.breaches.iter().map(|breach| json!({
            "message": breach.message,
            "site": breach.site.as_ref().map(site_name_report),
            "advice": breach.advice,
        })).collect::<Vec<_>>(),
        "unmeasured": judgement.unmeasured.as_ref().map(|why| json!({ "why": why.what, "hint": why.hint })),
        "baseline": judgement.comparison.as_ref().map(compared),
    })
}

/// Bytes are whole numbers.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 { json!(value as u64) } else { json!(value) }
}

fn compared(comparison: &BaselineComparison) -> Value {
    let numbers: Map<String, Value> = comparison
        .rows
        .iter()
        .map(|row| {
            let number = json!({ "before": row.before, "after": row.after, "allowed": row.allowed });
            (row.key.to_owned(), number)
        })
        .collect();
    let categories: Map<String, Value> = comparison
        .categories
        .iter()
        .map(|(of, before, after)| (of.name().to_owned(), json!({ "before": before.0, "after": after.0 })))
        .collect();
    json!({
        "file": comparison.file,
        "numbers": numbers,
        "categories": categories,
        "sites": comparison.lines.iter().take(MAX_SITES).map(ChangeReport::from).collect::<Vec<_>>(),
        "more_sites": comparison.lines.len().saturating_sub(MAX_SITES),
    })
}
