//! What the page shows first: the runs with their highest points, steps and failures; findings; ranks.

use crate::details::group_of_line;
use crate::groups::{By, named_categories};
use crate::view::View;
use analysis::{Finding, Kind, Portrait, Value as Evidence};
use serde_json::{Value, json};
use snapshot::Peak;
use std::ops::Range;

/// Points of a rank's small picture.
const POINTS: usize = 160;

/// One run.
pub(crate) fn run(view: &View<'_>, has_holders: bool) -> Value {
    let (device, history, snapshot) = (view.device(), view.history(), view.snapshot());
    let peak = |peak: &Peak| json!({"bytes": peak.bytes.0, "position": peak.position, "timeUs": view.elapsed_us(peak.position)});
    let ooms: Vec<Value> = view
        .outline
        .course
        .ooms
        .iter()
        .map(|&event| {
            let requested = snapshot.events.get(history.rows.start + event).size.0;
            json!({"position": event + 1, "timeUs": view.elapsed_us(event + 1), "requested": requested})
        })
        .collect();
    let bounds = &device.steps.bounds;
    let card = device.recording.gpu(history.device);
    let mut run = json!({
        "id": view.id,
        "name": view.name,
        "input": view.input,
        "device": device.name(),
        "torch": snapshot.torch.to_string(),
        "settings": snapshot.settings.conf,
        "whatIf": view.is_what_if,
        "events": history.len(),
        "complete": history.complete,
        "blocks": history.lives.len(),
        "beginUs": view.begin_us(),
        "endUs": view.begin_us().saturating_add_unsigned(view.duration_us()),
        "start": history.start.0,
        "peak": peak(&history.allocated_peak),
        "reservedPeak": peak(&history.reserved_peak),
        "end": {"allocated": history.end.allocated.0, "reserved": history.end.reserved.0},
        "steps": {
            "source": device.steps.source.name(),
            "bounds": bounds,
            "bounds_us": bounds.iter().map(|&bound| view.elapsed_us(bound)).collect::<Vec<_>>(),
        },
        "ooms": ooms,
        "groupings": groupings(view),
        "space": view.space().length,
        "hasHolders": has_holders,
        "caveats": history.caveats.iter().chain(&snapshot.caveats).collect::<Vec<_>>(),
    });
    if let Some(name) = card.map(|card| &card.name).filter(|name| !name.is_empty()) {
        run["card"] = json!(name);
    }
    // The most that the process could have, where a recorder noted it.
    if let Some(limit) = card.and_then(|card| card.limit.or(card.total)) {
        run["limit"] = json!(limit.0);
    }
    run
}

/// What the timeline can be split by.
pub(crate) fn groupings(view: &View<'_>) -> Vec<&'static str> {
    let is_known = |by: &By| *by != By::Module || !view.device().modules.is_empty();
    By::ALL.into_iter().filter(is_known).map(By::name).chain(["block"]).collect()
}

/// The report's findings, `told` as it tells them, each with where to look.
pub(crate) fn findings(view: &View<'_>, told: Vec<Value>, clear: &str) -> Value {
    let focused = view.findings.iter().zip(told).map(|(finding, mut told)| {
        let (window, position) = focus(view, finding);
        let group = finding.site.and_then(|frame| group_of_line(view, frame));
        told["focus"] = json!({"from": window.start, "to": window.end, "position": position, "group": group});
        told
    });
    let peak = view.history().allocated_peak.position;
    json!({
        "findings": focused.collect::<Vec<_>>(),
        "clear": clear,
        "categories": named_categories(&view.outline.categories.at(view.history(), peak)),
        "categoriesReason": view.outline.categories.reason,
    })
}

/// The stretch of positions that shows a finding, and the moment in it that shows it best.
pub(crate) fn focus(view: &View<'_>, finding: &Finding) -> (Range<usize>, usize) {
    let (history, steps) = (view.history(), &view.device().steps);
    let whole = 0..history.len() + 1;
    let number = |wanted: &str| {
        finding.evidence.iter().find_map(|(name, value)| match value {
            Evidence::Count(number) if *name == wanted => Some(*number as usize),
            _ => None,
        })
    };
    let position = number("event").map_or(history.allocated_peak.position, |event| event + 1);
    let position = view.clamped(position);
    let around = |steps_before: usize, steps_after: usize| {
        let step = steps.bounds.partition_point(|&bound| bound < position);
        let bound = |place: usize| steps.bounds.get(place).copied();
        let from = bound(step.saturating_sub(steps_before)).unwrap_or(0);
        from..bound(step + steps_after).unwrap_or(history.len()) + 1
    };
    match finding.kind {
        // Growth shows over all steps, and most at the peak.
        Kind::Leak => {
            let first = number("since_step").and_then(|step| steps.bounds.get(step)).copied().unwrap_or(0);
            let margin = (history.len() - first) / 20;
            (first.saturating_sub(margin)..history.len() + 1, history.allocated_peak.position.max(first))
        }
        Kind::Spike if steps.count() > 0 => (around(3, 3), position),
        Kind::Oom if steps.count() > 0 => (around(4, 1), position),
        _ => (whole, position),
    }
}

/// Where people look first: the last failure, or the peak.
pub(crate) fn first_moment(view: &View<'_>) -> usize {
    view.outline.course.ooms.last().map_or(view.history().allocated_peak.position, |&event| event + 1)
}

/// The runs as the ranks of one job.
pub(crate) fn ranks(views: &[View<'_>]) -> Value {
    let portraits: Vec<Portrait> =
        views.iter().map(|view| Portrait::new(view.name, view.outline, view.findings)).collect();
    let ranks: Vec<Value> = views
        .iter()
        .zip(&portraits)
        .map(|(view, portrait)| {
            let remarks = portrait.remarks.iter().map(|remark| {
                json!({"kind": remark.kind.name(), "severity": remark.severity.name(), "summary": remark.summary})
            });
            json!({
                "run": view.id,
                "name": portrait.name,
                "peak": portrait.allocated.0.0,
                "reserved": portrait.reserved.0.0,
                "course": course(view),
                "findings": remarks.collect::<Vec<_>>(),
            })
        })
        .collect();
    let skew = analysis::skew(&portraits).map(|skew| {
        let sites: Vec<Value> = skew
            .changes
            .iter()
            .take(24)
            .map(|change| {
                let label = change.place.as_ref().map_or("(no line)".to_owned(), |place| place.short());
                let what = if change.in_backward { format!("{label}, in backward()") } else { label };
                json!({"label": what, "before": change.before.0, "after": change.after.0})
            })
            .collect();
        json!({
            "highest": skew.highest,
            "comparedWith": skew.middle,
            "words": skew.words(&portraits),
            "doubt": skew.doubt(&portraits),
            "sites": sites,
            "categories": skew.categories.iter().map(|(of, by)| (of.name(), by)).collect::<Vec<_>>(),
        })
    });
    json!({"ranks": ranks, "skew": skew})
}

/// The highest points of equal stretches.
fn course(view: &View<'_>) -> Vec<u64> {
    let positions = view.history().len() + 1;
    let bound = |point: usize| point * positions / POINTS.min(positions);
    (0..POINTS.min(positions))
        .map(|point| view.curve().extremes(view.device(), bound(point)..bound(point + 1)).highest)
        .collect()
}
