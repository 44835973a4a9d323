//! Findings as text: the summary, the line, the reasons, the fix.

use crate::terminal::{Style, Terminal};
use crate::words::{paragraph, sentence, wrap};
use analysis::words::printable;
use analysis::{Finding, FindingKind, RunModel, Severity, SiteName, not_found};
use source::linted::{LintCache, LintRemark};
use source::stores;
use std::io::Write;

/// Findings that are shown in full; the others get a line each.
const MAX_IN_FULL: usize = 3;

/// Prints the findings of one device.
pub(crate) fn print(
    model: &RunModel<'_>,
    findings: &[Finding],
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    // Findings of low severity get one line, unless there are no others.
    let full =
        findings.iter().filter(|finding| finding.severity > Severity::Low).count().clamp(1, MAX_IN_FULL);
    let mut linted = LintCache::default();
    for (index, finding) in findings.iter().enumerate() {
        let line = finding.site.map(|frame| SiteName::of(model.device.snapshot, frame));
        if index < full {
            writeln!(terminal.out())?;
            let module = finding.module.map(|module| model.device.modules.path(module));
            in_full(finding, line.as_ref(), module, terminal)?;
            for remark in linted.of(finding, model.device.snapshot) {
                remark_line(&remark, line.as_ref(), terminal)?;
            }
        } else {
            if index == full {
                writeln!(terminal.out())?;
            }
            let site = line.map(|line| format!(" · {}", line.short())).unwrap_or_default();
            let text = format!("{}{site}", finding.summary);
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
        let site = terminal.paint(Style::Bold, &line.short());
        let code = source::line(&line.file, line.line).unwrap_or_default();
        let code = if code.is_empty() { code } else { terminal.paint(Style::Cyan, &format!("   {code}")) };
        // The summary names the line that requested memory; this line holds most of it.
        let role = if finding.kind == FindingKind::Oom { "most was allocated at " } else { "" };
        let module = module.map(|path| format!(" · in {}", printable(path))).unwrap_or_default();
        writeln!(terminal.out(), "   {role}{site}  {}{module}{code}", printable(&line.function))?;
    }
    for detail in &finding.details {
        paragraph("   ", "   ", &sentence(detail), None, terminal)?;
    }
    if let Some(stored) = finding.held.as_ref().and_then(|held| stores::find(&held.store, line)) {
        let (site, code) =
            (terminal.paint(Style::Bold, &stored.site.short()), terminal.paint(Style::Cyan, &stored.code));
        writeln!(terminal.out(), "   stored at {site}   {code}")?;
    }
    paragraph("   ", "        ", &format!("fix: {}", finding.fix), Some(Style::Green), terminal)?;
    for caveat in &finding.caveats {
        paragraph("   ", "         ", &format!("note: {caveat}"), Some(Style::Dim), terminal)?;
    }
    Ok(())
}

/// `lint: infer.py:10 OOM102 outputs-kept-with-graph — keep them under `torch.no_grad()``
fn remark_line(remark: &LintRemark, line: Option<&SiteName>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let Some(line) = line else { return Ok(()) };
    let site = SiteName { line: remark.line as u32, ..line.clone() };
    let rule = remark.found.rule;
    let text = format!("lint: {} {} {} — {}", site.short(), rule.code, rule.name, remark.found.advice);
    paragraph("   ", "         ", &printable(&text), Some(Style::Cyan), terminal)
}

/// ` ✗ LEAK  171 MiB per step, …`
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
    let title = kind.title().to_uppercase();
    let indent = " ".repeat(5 + title.chars().count());
    let lines = wrap(text, terminal.width().saturating_sub(indent.len()));
    let label = terminal.paint(style, &format!("{mark} {title}"));
    for (place, line) in lines.iter().enumerate() {
        let start = if place == 0 { format!(" {label}  ") } else { indent.clone() };
        writeln!(terminal.out(), "{start}{line}")?;
    }
    Ok(())
}

/// What was looked for and not found, in one line.
pub(crate) fn nothing_else(
    model: &RunModel<'_>,
    findings: &[Finding],
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let Some(text) = not_found(model, findings) else { return Ok(()) };
    let (first, style) = if findings.is_empty() { (" ✓ ", Some(Style::Green)) } else { (" ", None) };
    writeln!(terminal.out())?;
    paragraph(first, first.replace('✓', " ").as_str(), &text, style, terminal)
}
