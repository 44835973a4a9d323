//! `oomph predict` as text.

use super::{PredictAnswer, job_text};
use crate::args::ReportArgs;
use crate::commands::report::findings_text;
use crate::commands::report::text as report_text;
use crate::terminal::{Style, Terminal};
use crate::words::paragraph;
use analysis::Device;
use analysis::words::{counted, grouped, percent, printable, share};
use launch::{
    DevicePeak, FitVerdict, FittingLayouts, Prediction, PredictionConfidence, ProgramPart, ProgramPhase,
    ValueSweep, Variant, technique_cost,
};
use recording::{Exit, StopReason};
use snapshot::Bytes;
use std::io::Write;

pub(crate) fn print(answer: &PredictAnswer<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let prediction = &answer.prediction;
    header(answer, terminal)?;
    verdict(answer, terminal)?;
    phases(&prediction.phases, terminal)?;
    findings(prediction, terminal)?;
    match &prediction.job {
        Some(job) => job_text::print(job, prediction, terminal)?,
        None if prediction.all.len() > 1 => ranks(&prediction.all, terminal)?,
        None => {}
    }
    if let Some(varied) = &answer.variants.varied {
        values(varied, terminal)?;
    }
    if !answer.variants.tried.is_empty() {
        techniques(answer, terminal)?;
    }
    sureness(answer, terminal)?;
    next(answer, terminal)
}

/// What was found on this GPU, and what fills the memory at the peak.
fn findings(prediction: &Prediction, terminal: &mut Terminal) -> anyhow::Result<()> {
    let is_shown = |device: &&Device<'_>| device.history.device == prediction.highest.device;
    if let Some(failing) = &prediction.failing {
        let devices = failing.devices();
        if let Some(device) = devices.iter().find(is_shown) {
            let analysis::Diagnosis { model, findings } = analysis::Diagnosis::new(device);
            findings_text::print(&model, &findings, terminal)?;
        }
    }
    let devices = prediction.recording.devices();
    let Some(device) = devices.iter().find(is_shown) else { return Ok(()) };
    let analysis::Diagnosis { model, findings } = analysis::Diagnosis::new(device);
    if prediction.failing.is_none() {
        findings_text::print(&model, &findings, terminal)?;
    }
    report_text::what_fills(&model, &ReportArgs::for_new_run(), terminal)?;
    if prediction.verdict.fits() {
        findings_text::nothing_else(&model, &findings, terminal)?;
    }
    Ok(())
}

fn header(answer: &PredictAnswer<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let Prediction { info, memory, .. } = &answer.prediction;
    let ended = match info.state.exit() {
        Some(Exit::Stopped(StopReason::Periodic)) => ", then every step repeats the one before",
        Some(Exit::Stopped(StopReason::Steps)) => " as asked",
        Some(Exit::Stopped(StopReason::Long)) => ", then stopped: no step repeated the one before",
        Some(Exit::Stopped(StopReason::TimeLimit)) => ", then stopped: its time was over",
        Some(Exit::Finished | Exit::OutOfMemory | Exit::Failed | Exit::Killed) | None => "",
    };
    let name = terminal.paint(Style::Bold, &answer.shown);
    let cards = answer.args.emulated.words();
    let cards = match answer.prediction.job.as_ref().map(|job| &job.layout) {
        Some(layout) if layout.nodes > 1 => {
            format!("{} × {cards}, {} ranks", grouped(layout.nodes.into()), grouped(layout.world().into()))
        }
        _ => cards,
    };
    let steps = info.steps.filter(|&steps| steps > 0);
    let steps = steps.map(|steps| format!(" · {}", counted(steps, "step"))).unwrap_or_default();
    writeln!(
        terminal.out(),
        "{name} · {cards}, {} · torch {}{steps}{ended}",
        Bytes(*memory),
        info.torch.as_deref().unwrap_or_default()
    )?;
    Ok(())
}

fn verdict(answer: &PredictAnswer<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let prediction = &answer.prediction;
    let highest = &prediction.highest;
    let memory = Bytes(prediction.memory);
    let total = highest.total();
    writeln!(terminal.out())?;
    if prediction.verdict.fits_now() {
        fits_now(prediction, terminal)?;
    } else {
        let label = terminal.paint(Style::Red, "✗ DOES NOT FIT");
        let missing = Bytes(total.0.saturating_sub(memory.0));
        let missing = match missing {
            Bytes::ZERO => ", with nothing to spare".to_owned(),
            missing => format!(": {missing} short"),
        };
        writeln!(terminal.out(), " {label}  it needs {total}, and the GPU has {memory}{missing}")?;
        if let Some(exception) = &prediction.info.exception {
            let first = exception.lines().next().unwrap_or_default();
            let first = first.split(". GPU ").next().unwrap_or(first);
            paragraph(
                "   ",
                "   ",
                &format!("step {}: {first}", prediction.info.steps.unwrap_or_default() + 1),
                None,
                terminal,
            )?;
        }
    }
    let parts: Vec<String> =
        [(highest.nccl, "for NCCL, as an estimate"), (highest.symmetric, "symmetric memory")]
            .iter()
            .filter(|(bytes, _)| *bytes > Bytes::ZERO)
            .map(|(bytes, what)| format!(", {bytes} of it {what}"))
            .collect();
    let text = format!(
        "{} allocated · {} reserved · {} for the CUDA context and libraries{}",
        highest.allocated,
        highest.reserved,
        highest.non_pytorch,
        parts.concat()
    );
    paragraph("   ", "   ", &text, None, terminal)
}

/// The verdict on a program whose steps did not run out of memory.
fn fits_now(prediction: &Prediction, terminal: &mut Terminal) -> anyhow::Result<()> {
    let (memory, total) = (Bytes(prediction.memory), prediction.highest.total());
    let left = memory.saturating_sub(total);
    let label = match prediction.verdict {
        FitVerdict::FillsUp { at_step, .. } => {
            let label = format!("✗ FITS NOW, FULL IN STEP {}", grouped(at_step));
            terminal.paint(Style::Red, &label)
        }
        FitVerdict::Tight => terminal.paint(Style::Yellow, "✓ FITS, BUT TIGHT"),
        FitVerdict::Fits | FitVerdict::DoesNotFit => terminal.paint(Style::Green, "✓ FITS"),
    };
    let caught = match prediction.failed_requests {
        0 => String::new(),
        count => format!(", after {} that the program survived", counted(count, "failed request")),
    };
    let spare = percent(share(left, memory));
    let text = match prediction.verdict {
        FitVerdict::FillsUp { per_step, .. } => format!(
            "{total} of {memory} after {}, and each adds {per_step}{caught}",
            counted(prediction.info.steps.unwrap_or_default(), "step")
        ),
        _ => format!("{total} of {memory} at the peak, {left} ({spare}) to spare{caught}"),
    };
    Ok(writeln!(terminal.out(), " {label}  {text}")?)
}

/// The phases of the program; marks the one with the peak.
fn phases(phases: &[ProgramPhase], terminal: &mut Terminal) -> anyhow::Result<()> {
    let needs = |phase: &ProgramPhase| (phase.reserved, phase.allocated);
    let Some(highest) = phases.iter().map(needs).max() else { return Ok(()) };
    let decides = phases.iter().position(|phase| needs(phase) == highest);
    let title = terminal.paint(Style::Bold, "phases");
    let columns = terminal.paint(Style::Dim, "  allocated    reserved");
    writeln!(terminal.out(), "\n {title}\n {columns}")?;
    for (index, phase) in phases.iter().enumerate() {
        let ProgramPhase { allocated, reserved, .. } = phase;
        let name = phase_name(phase);
        let name = match decides == Some(index) {
            true => format!("{}  ← the peak", terminal.paint(Style::Bold, &name)),
            false => name,
        };
        writeln!(terminal.out(), "   {allocated:>9}  {reserved:>10}  {name}")?;
    }
    Ok(())
}

fn phase_name(phase: &ProgramPhase) -> String {
    match &phase.part {
        ProgramPart::SetUp => "setup".to_owned(),
        ProgramPart::BetweenLoops => "outside loops".to_owned(),
        ProgramPart::Loop(of) => {
            let file = printable(of.file.rsplit('/').next().unwrap_or(&of.file));
            let function = of.library.as_deref().unwrap_or(&of.function);
            let runs = if of.runs > 1 { format!(", {} runs", grouped(of.runs)) } else { String::new() };
            let batches = match of.batches {
                Some(batches) if of.skipped > 0 => {
                    format!("{} of {} iterations", grouped(of.iterations), grouped(batches))
                }
                _ => counted(of.iterations, "iteration"),
            };
            format!("{file}:{} {function} · {batches}{runs}", of.line)
        }
    }
}

fn ranks(all: &[DevicePeak], terminal: &mut Terminal) -> anyhow::Result<()> {
    let title = terminal.paint(Style::Bold, "every device");
    writeln!(terminal.out(), "\n {title}")?;
    for DevicePeak { rank, device, allocated, reserved, .. } in all {
        writeln!(
            terminal.out(),
            "   rank {rank} GPU {device}  {allocated:>10} allocated  {reserved:>10} reserved"
        )?;
    }
    Ok(())
}

fn values(varied: &ValueSweep, terminal: &mut Terminal) -> anyhow::Result<()> {
    let title = terminal.paint(Style::Bold, &varied.name);
    writeln!(terminal.out(), "\n {title}")?;
    let width = varied.runs.iter().map(|run| run.label.chars().count()).max().unwrap_or(0);
    for run in &varied.runs {
        let line = match &run.outcome {
            Ok(prediction) => {
                let DevicePeak { allocated, reserved, .. } = &prediction.highest;
                let (total, mark) = (
                    prediction.highest.total(),
                    if prediction.verdict.fits_now() { "fits" } else { "does not fit" },
                );
                format!("{total:>10}  {allocated} allocated, {reserved} reserved  {mark}")
            }
            Err(why) => format!("failed: {why}"),
        };
        writeln!(terminal.out(), "   {:>width$}  {line}", run.label)?;
    }
    if let Some(FittingLayouts { first: Some(first), least: Some(least) }) = &varied.layouts {
        let text = match first == least {
            true => format!("{first} is the first of these that fits, and needs least"),
            false => format!("{first} is the first of these that fits; {least} needs least"),
        };
        let text = terminal.paint(Style::Green, &text);
        writeln!(terminal.out(), "   {text}")?;
    }
    if varied.has_no_effect() {
        let text = format!(
            "`{}` changed nothing: it has no influence on memory, or the program does not read it",
            varied.name
        );
        return paragraph("   ", "   ", &text, Some(Style::Yellow), terminal);
    }
    if let Some(largest) = varied.largest {
        let text = terminal.paint(Style::Green, &format!("{largest} is the largest of these that fits"));
        writeln!(terminal.out(), "   {text}")?;
    }
    Ok(())
}

fn techniques(answer: &PredictAnswer<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let base = &answer.prediction.highest;
    let title = terminal.paint(Style::Bold, "techniques, each on this program");
    writeln!(terminal.out(), "\n {title}  (cost: ResNet-50 and GPT-2 small on an H200)")?;
    let width = answer.variants.tried.iter().map(|tried| tried.label.chars().count()).max().unwrap_or(0);
    for tried in &answer.variants.tried {
        let Variant { label, .. } = tried;
        let line = tried.result().map_or_else(|why| why, |prediction| saving(base, prediction, label));
        paragraph(&format!("   {label:<width$}  "), &" ".repeat(width + 5), &line, None, terminal)?;
    }
    Ok(())
}

fn saving(base: &DevicePeak, prediction: &Prediction, label: &str) -> String {
    let with = &prediction.highest;
    let change = |before: Bytes, after: Bytes| {
        let by = 100.0 * (after.0 as f64 - before.0 as f64) / (before.0 as f64).max(1.0);
        if by.abs() < 0.05 { "±0%".to_owned() } else { format!("{by:+.1}%") }
    };
    let cost = technique_cost(label).map(|cost| format!("; cost: {cost}")).unwrap_or_default();
    let fits = if prediction.verdict.fits_now() { "" } else { ", does not fit" };
    format!(
        "{} allocated ({}), {} reserved ({}){fits}{cost}",
        with.allocated,
        change(base.allocated, with.allocated),
        with.reserved,
        change(base.reserved, with.reserved)
    )
}

fn sureness(answer: &PredictAnswer<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let sureness = &answer.prediction.confidence;
    let exact = "allocated and reserved memory are not estimates";
    confidence(sureness, exact, "a real run may differ because", terminal)?;
    for remark in &sureness.remarks {
        paragraph("   note: ", "         ", remark, Some(Style::Dim), terminal)?;
    }
    Ok(())
}

/// Whether a prediction is exact, and the reasons if it is not.
pub(crate) fn confidence(
    of: &PredictionConfidence,
    exact: &str,
    estimate: &str,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let (style, label, text) = match of.is_exact() {
        true => (Style::Green, "exact:", exact),
        false => (Style::Yellow, "estimate:", estimate),
    };
    let label = terminal.paint(style, label);
    writeln!(terminal.out(), "\n {label} {text}")?;
    for reason in &of.reasons {
        paragraph("   - ", "     ", reason, None, terminal)?;
    }
    Ok(())
}

fn next(answer: &PredictAnswer<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let mut ideas = Vec::new();
    if answer.variants.tried.is_empty() {
        ideas.push("--try amp,checkpoint,expandable measures what each saves here");
    }
    if answer.variants.varied.is_none() {
        ideas.push("--vary batch-size=1..512 finds the largest batch");
    }
    if answer.args.output.is_none() {
        ideas.push("-o DIR keeps the recording for `oomph report` and `oomph simulate`");
    }
    if ideas.is_empty() {
        return Ok(());
    }
    paragraph(" ", "   ", &format!("next: {}", ideas.join(" · ")), Some(Style::Dim), terminal)
}
