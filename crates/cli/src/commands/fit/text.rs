//! `oomph fit` as text.

use crate::args::FitArgs;
use crate::commands::predict::confidence;
use crate::terminal::{Style, Terminal};
use crate::words::paragraph;
use analysis::words::{counted, grouped, percent, printable, share};
use documents::FittedProgram;
use fit::{Fit, Insufficient, Proposal};
use launch::FitVerdict;
use snapshot::Bytes;
use std::io::Write;

pub(crate) fn print(
    args: &FitArgs,
    program: &FittedProgram<'_>,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let found = program.fit;
    let name = terminal.paint(Style::Bold, program.command);
    let torch = found.base.info.torch.as_deref().unwrap_or_default();
    let card = args.emulated.words();
    writeln!(terminal.out(), "{name} · {card}, {} · torch {torch}\n", Bytes(found.base.memory))?;
    if found.fits_already() {
        return fits_already(found, terminal);
    }
    does_not_fit(found, terminal)?;
    if let FitVerdict::FillsUp { .. } = found.base.verdict {
        let text = "memory grows from step to step, so no technique makes it fit: `oomph run` names the line \
                    that keeps it";
        return paragraph("   ", "   ", text, None, terminal);
    }
    let Some((best, others)) = found.proposals.split_first() else {
        return no_change(found, terminal);
    };
    proposal(best, found, terminal)?;
    alternatives(others, found, terminal)?;
    insufficient(&found.insufficient, terminal)?;
    certainty(best, found, terminal)
}

fn fits_already(found: &Fit, terminal: &mut Terminal) -> anyhow::Result<()> {
    let label = terminal.paint(Style::Green, "✓ FITS");
    writeln!(terminal.out(), " {label}  as it is: {}", room(&found.base, found))?;
    Ok(())
}

fn room(prediction: &launch::Prediction, found: &Fit) -> String {
    let (total, memory) = (prediction.highest.total(), Bytes(found.base.memory));
    let left = memory.saturating_sub(total);
    format!("{total} of {memory}, {left} ({}) to spare", percent(share(left, memory)))
}

fn does_not_fit(found: &Fit, terminal: &mut Terminal) -> anyhow::Result<()> {
    let (total, memory) = (found.base.highest.total(), Bytes(found.base.memory));
    let text = match found.base.verdict {
        FitVerdict::FillsUp { at_step, .. } => format!("as it is: full in step {}", grouped(at_step)),
        _ if total > memory => {
            format!(
                "as it is: it needs {total}, and the GPU has {memory}: {} short",
                Bytes(total.0 - memory.0)
            )
        }
        _ => {
            let kept = memory.saturating_sub(found.target);
            format!("as it is: {total} of {memory}, and {kept} should stay free (--margin)")
        }
    };
    let label = if found.base.verdict.fits() { "✗ TOO TIGHT" } else { "✗ DOES NOT FIT" };
    let label = terminal.paint(Style::Red, label);
    Ok(writeln!(terminal.out(), " {label}  {text}")?)
}

fn no_change(found: &Fit, terminal: &mut Terminal) -> anyhow::Result<()> {
    let runs = counted(found.runs as u64, "change");
    if launch::stop_signal().is_some() {
        writeln!(terminal.out(), "   stopped after {runs}; none of them is enough")?;
        return insufficient(&found.insufficient, terminal);
    }
    writeln!(terminal.out(), "   none of {runs} is enough")?;
    insufficient(&found.insufficient, terminal)?;
    let text = "next: a smaller model or batch (`oomph predict --vary batch-size=1..64`), or a larger GPU";
    paragraph("\n ", "   ", text, Some(Style::Dim), terminal)
}

/// The change to make.
fn proposal(best: &Proposal, found: &Fit, terminal: &mut Terminal) -> anyhow::Result<()> {
    let label = terminal.paint(Style::Green, "✓ FITS WITH");
    let name = terminal.paint(Style::Bold, &names(best));
    writeln!(terminal.out(), " {label}  {name}: {}", room(&best.prediction, found))?;
    for words in &best.applied {
        paragraph("   - ", "     ", words, None, terminal)?;
    }
    let mut costs = vec![format!("saves {}", best.saved)];
    costs.extend(best.time.words.iter().cloned());
    costs.push(best.results.words().to_owned());
    paragraph("   ", "   ", &costs.join(" · "), None, terminal)?;
    let title = terminal.paint(Style::Bold, "the change");
    writeln!(terminal.out(), "\n {title}")?;
    for instruction in &best.change.instructions {
        let mut lines = instruction.split('\n');
        paragraph("   - ", "     ", lines.next().unwrap_or_default(), None, terminal)?;
        for line in lines {
            writeln!(terminal.out(), "     {}", printable(line))?;
        }
    }
    for file in &best.change.files {
        for line in file.diff.lines() {
            let text = terminal.diff_line(line);
            writeln!(terminal.out(), "   {text}")?;
        }
    }
    Ok(())
}

fn alternatives(others: &[Proposal], found: &Fit, terminal: &mut Terminal) -> anyhow::Result<()> {
    if others.is_empty() {
        return Ok(());
    }
    let title = terminal.paint(Style::Bold, "these fit too");
    writeln!(terminal.out(), "\n {title}")?;
    let width = others.iter().map(|of| names(of).chars().count()).max().unwrap_or(0);
    for other in others {
        let mut parts = vec![format!("{} of {}", other.prediction.highest.total(), Bytes(found.base.memory))];
        parts.extend(other.time.words.iter().cloned());
        parts.push(other.results.words().to_owned());
        paragraph(
            &format!("   {:<width$}  ", names(other)),
            &" ".repeat(width + 5),
            &parts.join(" · "),
            None,
            terminal,
        )?;
    }
    Ok(())
}

fn insufficient(tried: &[Insufficient], terminal: &mut Terminal) -> anyhow::Result<()> {
    if tried.is_empty() {
        return Ok(());
    }
    let title = terminal.paint(Style::Bold, "not enough alone");
    writeln!(terminal.out(), "\n {title}")?;
    let width = tried.iter().map(|of| of.technique.chars().count()).max().unwrap_or(0);
    for Insufficient { technique, outcome } in tried {
        let text = match outcome {
            Ok(total) => total.to_string(),
            Err(why) => why.clone(),
        };
        paragraph(&format!("   {technique:<width$}  "), &" ".repeat(width + 5), &text, None, terminal)?;
    }
    Ok(())
}

fn certainty(best: &Proposal, found: &Fit, terminal: &mut Terminal) -> anyhow::Result<()> {
    let runs = counted(found.runs as u64, "change");
    let exact = format!("{runs} were run, and their memory is not an estimate");
    let estimate = format!("{runs} were run; a real run may differ because");
    confidence(&best.prediction.confidence, &exact, &estimate, terminal)
}

/// The techniques of a proposal, without the blocks.
fn names(of: &Proposal) -> String {
    let short = |technique: &String| match technique.split_once(':') {
        Some(("checkpoint", _)) => "checkpoint".to_owned(),
        _ => technique.clone(),
    };
    of.techniques.iter().map(short).collect::<Vec<_>>().join(" + ")
}
