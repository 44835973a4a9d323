//! Findings for people: the answer, the line, the reasons, the fix.

use crate::terminal::{Style, Terminal};
use crate::words::{paragraph, sentence, wrap};
use analysis::words::{grouped, percent, printable, share};
use analysis::{FEWEST_STEPS, Finding, FindingKind, OomCause, RunModel, Severity, SiteName, never_needed};
use source::linted::{Linted, Remark};
use source::stores;
use std::io::Write;

/// Findings that are shown in full; the others get a line each.
const IN_FULL: usize = 3;

/// Prints the findings of one device.
pub(crate) fn print(
    outline: &RunModel<'_>,
    findings: &[Finding],
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    // What hardly matters is a line, unless there is nothing else to say.
    let full = findings.iter().filter(|finding| finding.severity > Severity::Low).count().clamp(1, IN_FULL);
    let mut linted = Linted::default();
    for (place, finding) in findings.iter().enumerate() {
        let line = finding.site.map(|frame| SiteName::of(outline.device.snapshot, frame));
        if place < full {
            writeln!(terminal.out())?;
            let module = finding.module.map(|module| outline.device.modules.path(module));
            in_full(finding, line.as_ref(), module, terminal)?;
            for remark in linted.of(finding, outline.device.snapshot) {
                remark_line(&remark, line.as_ref(), terminal)?;
            }
        } else {
            if place == full {
                writeln!(terminal.out())?;
            }
            let place = line.map(|line| format!(" · {}", line.short())).unwrap_or_default();
            let text = format!("{}{place}", finding.summary);
            headline(finding.kind, finding.severity, &text, terminal)?;
        }
    }
    Ok(())
}

fn in_full(
    finding: &Finding,
    line: Option<&SiteName>,
    module: Option<&str>,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    headline(finding.kind, finding.severity, &finding.summary, terminal)?;
    if let Some(line) = line {
        let place = terminal.paint(Style::Bold, &line.short());
        let code = source::line(&line.file, line.line).unwrap_or_default();
        let code = if code.is_empty() { code } else { terminal.paint(Style::Cyan, &format!("   {code}")) };
        // The summary names the line that asked; this is the one that holds the memory.
        let role = if finding.kind == FindingKind::Oom { "most is held by " } else { "" };
        let module = module.map(|path| format!(" · in {}", printable(path))).unwrap_or_default();
        writeln!(terminal.out(), "   {role}{place}  {}{module}{code}", printable(&line.function))?;
    }
    for detail in &finding.details {
        paragraph("   ", "   ", &sentence(detail), None, terminal)?;
    }
    if let Some(stored) = finding.held.as_ref().and_then(|held| stores::find(&held.store, line)) {
        let (place, code) =
            (terminal.paint(Style::Bold, &stored.place.short()), terminal.paint(Style::Cyan, &stored.code));
        writeln!(terminal.out(), "   stored at {place}   {code}")?;
    }
    paragraph("   ", "        ", &format!("fix: {}", finding.fix), Some(Style::Green), terminal)?;
    for caveat in &finding.caveats {
        paragraph("   ", "         ", &format!("note: {caveat}"), Some(Style::Dim), terminal)?;
    }
    Ok(())
}

/// `lint: infer.py:10 OOM102 outputs-kept-with-graph — keep them under `torch.no_grad()``
fn remark_line(remark: &Remark, line: Option<&SiteName>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let Some(line) = line else { return Ok(()) };
    let place = SiteName { line: remark.line as u32, ..line.clone() };
    let rule = remark.found.rule;
    let text = format!("lint: {} {} {} — {}", place.short(), rule.code, rule.name, remark.found.advice);
    paragraph("   ", "         ", &printable(&text), Some(Style::Cyan), terminal)
}

/// ` ✗ LEAK  171 MiB every step, …`
pub(crate) fn headline(
    kind: FindingKind,
    severity: Severity,
    text: &str,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let (mark, style) = match severity {
        Severity::High => ("✗", Style::Red),
        Severity::Medium => ("!", Style::Yellow),
        Severity::Low => ("·", Style::Dim),
    };
    let name = name(kind);
    let indent = " ".repeat(5 + name.chars().count());
    let lines = wrap(text, terminal.width().saturating_sub(indent.len()));
    let label = terminal.paint(style, &format!("{mark} {name}"));
    for (place, line) in lines.iter().enumerate() {
        let start = if place == 0 { format!(" {label}  ") } else { indent.clone() };
        writeln!(terminal.out(), "{start}{line}")?;
    }
    Ok(())
}

fn name(kind: FindingKind) -> String {
    match kind {
        FindingKind::Oom => "OUT OF MEMORY".to_owned(),
        kind => kind.name().replace('_', " ").to_uppercase(),
    }
}

/// What was looked for and not found, in one line.
pub(crate) fn nothing_else(
    outline: &RunModel<'_>,
    findings: &[Finding],
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let Some(text) = not_found(outline, findings) else { return Ok(()) };
    let (first, style) = if findings.is_empty() { (" ✓ ", Some(Style::Green)) } else { (" ", None) };
    writeln!(terminal.out())?;
    paragraph(first, first.replace('✓', " ").as_str(), &text, style, terminal)
}

/// The same in words; `None` where all of it was found.
pub(crate) fn not_found(outline: &RunModel<'_>, findings: &[Finding]) -> Option<String> {
    let missing = |kind: FindingKind| !findings.iter().any(|finding| finding.kind == kind);
    let mut parts = Vec::new();
    if missing(FindingKind::Leak) {
        parts.push(match outline.device.steps.count() {
            0 => "no loop was found, so leaks cannot be told".to_owned(),
            steps if steps < FEWEST_STEPS => format!("{steps} steps are too few to tell a leak"),
            steps => format!("no leak in {} steps", grouped(steps as u64)),
        });
    }
    let is_fragmented = findings.iter().any(|finding| finding.cause == Some(OomCause::Fragmentation));
    if missing(FindingKind::Fragmentation) && !is_fragmented && !outline.device.is_cpu() {
        let reserved = outline.device.history.reserved_peak.bytes;
        parts.push(format!(
            "fragmentation {}",
            percent(share(never_needed(&outline.device.history), reserved))
        ));
    }
    for (kind, text) in [
        (FindingKind::Spike, "no spike"),
        (FindingKind::Churn, "no churn"),
        (FindingKind::Pending, "no pending frees"),
        (FindingKind::Oom, "no failed allocation"),
    ] {
        // Without steps there is nothing that a step could stand out from.
        let needs_steps = matches!(kind, FindingKind::Spike | FindingKind::Churn);
        // The CPU's memory has no cache and no streams.
        let is_of_cuda = matches!(kind, FindingKind::Churn | FindingKind::Pending);
        if outline.device.is_cpu() && is_of_cuda {
            continue;
        }
        if missing(kind) && !(needs_steps && outline.device.steps.count() == 0) {
            parts.push(text.to_owned());
        }
    }
    let start = if findings.is_empty() { "nothing stands out" } else { "nothing else stands out" };
    (!parts.is_empty()).then(|| format!("{start}: {}", parts.join(", ")))
}
