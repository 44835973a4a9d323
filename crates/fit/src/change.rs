//! The change that switches techniques on for good: edits of the program, or settings of its trainer.

use crate::blocks::{expressions, indexes};
use analysis::words::printable;
use lint::{PythonSource, Rewrite};
use recording::{ModelName, ObservedLine, ObservedProgram};
use similar::TextDiff;
use std::collections::BTreeMap;
use std::path::Path;

/// A change to make.
#[derive(Default, Debug)]
pub struct ProgramChange {
    /// Edits of the program's files.
    pub files: Vec<FileDiff>,
    /// What to set or write where no edit was certain, as sentences.
    pub instructions: Vec<String>,
}

/// Edits of one file.
#[derive(Debug)]
pub struct FileDiff {
    /// Path of the file.
    pub path: String,
    /// The edits as a unified diff.
    pub diff: String,
}

/// Headers of the block with the forward pass and the loss.
const AUTOCAST: &str = "with torch.autocast(\"cuda\", dtype=torch.bfloat16):";
const SAVE_ON_CPU: &str = "with torch.autograd.graph.save_on_cpu(pin_memory=True):";

/// Trainers of libraries, by the name that the observation gives them.
const TRANSFORMERS: &str = "transformers";
const LIGHTNING: &str = "lightning";

impl ProgramChange {
    /// Writes techniques as a change to the program.
    pub(crate) fn new(techniques: &[String], program: Option<&ObservedProgram>) -> ProgramChange {
        let nothing = ObservedProgram::default();
        let program = program.unwrap_or(&nothing);
        let paths = files(program);
        let sources: BTreeMap<&str, PythonSource> = paths
            .into_iter()
            .filter_map(|path| Some((path, PythonSource::python(&std::fs::read(path).ok()?))))
            .collect();
        let rewrites = sources.iter().filter_map(|(path, source)| Some((*path, Rewrite::new(source).ok()?)));
        let mut writer = ChangeWriter { program, rewrites: rewrites.collect(), instructions: Vec::new() };
        for technique in techniques {
            let (name, setting) = technique.split_once(':').unwrap_or((technique, ""));
            writer.write(name, setting);
        }
        let ChangeWriter { rewrites, instructions, .. } = writer;
        let files = rewrites.into_iter().filter_map(|(path, rewrite)| {
            let before = sources[path].text();
            let after = rewrite.finish()?;
            let diff = TextDiff::from_lines(before, after.text());
            let name = launch::shown(Path::new(path));
            (before != after.text()).then(|| FileDiff {
                path: path.to_owned(),
                diff: diff.unified_diff().header(&name, &name).to_string(),
            })
        });
        ProgramChange { files: files.collect(), instructions }
    }
}

/// Returns the files that a change may edit.
fn files(program: &ObservedProgram) -> Vec<&str> {
    let lines = &program.lines;
    let of_lines = [&lines.forward, &lines.backward, &lines.optimizer, &lines.loader].into_iter().flatten();
    let mut files: Vec<&str> = of_lines
        .map(|line| line.file.as_str())
        .chain(program.model.iter().map(|name| name.file.as_str()))
        .collect();
    files.sort_unstable();
    files.dedup();
    files
}

struct ChangeWriter<'a> {
    program: &'a ObservedProgram,
    rewrites: BTreeMap<&'a str, Rewrite<'a>>,
    instructions: Vec<String>,
}

impl ChangeWriter<'_> {
    fn write(&mut self, name: &str, setting: &str) {
        if self.has_setting(name, setting) {
            return;
        }
        let is_done = match name {
            "amp" => self.around_forward(AUTOCAST),
            "offload" => self.around_forward(SAVE_ON_CPU),
            "fused" => self.optimizer_argument("fused=True"),
            "foreach-off" => self.optimizer_argument("foreach=False"),
            "adafactor" => self.adafactor(),
            "checkpoint" => return self.checkpoint(setting),
            "accumulate" => return self.accumulate(setting.parse().unwrap_or(2)),
            "bf16" => return self.bf16(),
            _ => false,
        };
        if !is_done {
            self.instructions.extend(self.instruction(name));
        }
    }

    /// Returns what to do for a technique that is not an edit.
    fn instruction(&self, name: &str) -> Option<String> {
        let lines = &self.program.lines;
        let (forward, optimizer) = (place(lines.forward.first()), place(lines.optimizer.first()));
        let around = |header: &str| format!("put `{header}` around the forward pass and the loss{forward}");
        Some(match name {
            "expandable" => {
                "set the environment variable `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`".to_owned()
            }
            "set-to-none" => "call `zero_grad()` without `set_to_none=False`".to_owned(),
            "amp" => around(AUTOCAST),
            "offload" => around(SAVE_ON_CPU),
            "fused" => format!("pass `fused=True` to the optimizer{optimizer}"),
            "foreach-off" => format!("pass `foreach=False` to the optimizer{optimizer}"),
            "adafactor" => format!(
                "use `torch.optim.Adafactor`, with the learning rate and weight decay of the \
                 optimizer{optimizer}"
            ),
            _ => return None,
        })
    }

    /// Writes a technique that the program's trainer has a setting for.
    fn has_setting(&mut self, name: &str, setting: &str) -> bool {
        let parts: u64 = setting.parse().unwrap_or(2);
        let setting = match (self.program.trainer.as_deref(), name) {
            (Some(TRANSFORMERS), "amp") => "`bf16=True` in `TrainingArguments`".to_owned(),
            (Some(TRANSFORMERS), "checkpoint") if setting.is_empty() => {
                "`gradient_checkpointing=True` in `TrainingArguments`".to_owned()
            }
            (Some(TRANSFORMERS), "accumulate") => {
                let batch = self.program.lines.loader.iter().filter_map(|loader| loader.batch).max();
                let batch = batch.map_or("`per_device_train_batch_size` divided by it".to_owned(), |batch| {
                    format!("`per_device_train_batch_size={}`", (batch / parts).max(1))
                });
                format!("`gradient_accumulation_steps={parts}` and {batch} in `TrainingArguments`")
            }
            (Some(TRANSFORMERS), "fused") => {
                "`optim=\"adamw_torch_fused\"` in `TrainingArguments`".to_owned()
            }
            (Some(TRANSFORMERS), "adafactor") => "`optim=\"adafactor\"` in `TrainingArguments`".to_owned(),
            (Some(LIGHTNING), "amp") => "`precision=\"bf16-mixed\"` in `Trainer`".to_owned(),
            (Some(LIGHTNING), "bf16") => "`precision=\"bf16-true\"` in `Trainer`".to_owned(),
            (Some(LIGHTNING), "accumulate") => {
                if !self.divide_batches(parts as u32) {
                    self.instructions.push(format!("divide the batch size of the data loader by {parts}"));
                }
                format!("`accumulate_grad_batches={parts}` in `Trainer`")
            }
            _ => return false,
        };
        self.instructions.push(format!("set {setting}"));
        true
    }

    fn around_forward(&mut self, header: &str) -> bool {
        let lines = &self.program.lines;
        let (Some(forward), Some(backward)) = (lines.forward.first(), lines.backward.first()) else {
            return false;
        };
        let is_one_function = (&forward.file, &forward.function) == (&backward.file, &backward.function);
        let rewrite = self.rewrites.get_mut(forward.file.as_str());
        is_one_function
            && rewrite.is_some_and(|rewrite| {
                rewrite.mentions("torch") && rewrite.wrap(forward.line, backward.line, header)
            })
    }

    fn optimizer_argument(&mut self, argument: &str) -> bool {
        let optimizers = &self.program.lines.optimizer;
        !optimizers.is_empty()
            && optimizers.iter().all(|line| {
                let rewrite = self.rewrites.get_mut(line.file.as_str());
                rewrite
                    .zip(line.kind.as_deref())
                    .is_some_and(|(rewrite, kind)| rewrite.add_argument(line.line, kind, argument))
            })
    }

    fn adafactor(&mut self) -> bool {
        let optimizers = &self.program.lines.optimizer;
        let is_kept = |name: &str| matches!(name, "params" | "lr" | "weight_decay");
        !optimizers.is_empty()
            && optimizers.iter().all(|line| {
                let rewrite = self.rewrites.get_mut(line.file.as_str());
                rewrite.zip(line.kind.as_deref()).is_some_and(|(rewrite, kind)| {
                    // Observed without the technique: the class is the program's own choice.
                    rewrite.mentions("torch")
                        && rewrite.replace_callee(line.line, kind, "torch.optim.Adafactor", is_kept)
                })
            })
    }

    /// Converts the model where it is created; which inputs are floating-point numbers is not known.
    fn bf16(&mut self) {
        let converted = self.program.model.iter().rev().any(|ModelName { file, line, name, .. }| {
            let rewrite = self.rewrites.get_mut(file.as_str());
            rewrite.is_some_and(|rewrite| {
                let convert = [format!("{name}.to(torch.bfloat16)")];
                rewrite.mentions("torch") && rewrite.insert_after_assignment(name, *line, &convert)
            })
        });
        let what = if converted { "" } else { "the model, `model.to(torch.bfloat16)`, and " };
        let at = place(self.program.lines.forward.first());
        self.instructions.push(format!("convert {what}floating-point inputs of the model to bfloat16{at}"));
    }

    fn divide_batches(&mut self, parts: u32) -> bool {
        let loaders: Vec<&ObservedLine> = self
            .program
            .lines
            .loader
            .iter()
            .filter(|line| line.batch.is_some_and(|batch| batch > 1))
            .collect();
        // The program may make one loader after the other on the same line.
        let mut done: Vec<(&str, u32)> = Vec::new();
        for loader in &loaders {
            let line = (loader.file.as_str(), loader.line);
            if done.contains(&line) {
                continue;
            }
            let rewrite = self.rewrites.get_mut(line.0);
            if !rewrite.is_some_and(|of| of.divide_argument(line.1, "DataLoader", "batch_size", 1, parts)) {
                return false;
            }
            done.push(line);
        }
        !done.is_empty()
    }

    fn accumulate(&mut self, parts: u32) {
        let backward = self.program.lines.backward.first();
        if !self.divide_batches(parts) {
            let at = place(self.program.lines.loader.first());
            self.instructions.push(format!("divide the batch size of the data loader by {parts}{at}"));
        }
        let rewrite = backward.and_then(|line| Some((self.rewrites.get_mut(line.file.as_str())?, line.line)));
        if !rewrite.is_some_and(|(rewrite, line)| rewrite.accumulate(line, parts)) {
            self.instructions.push(format!(
                "divide the loss by {parts}, and call `step()` and `zero_grad()` once for every {parts} \
                 batches{}",
                place(backward)
            ));
        }
    }

    /// Writes which blocks to checkpoint, after the line that creates the model.
    fn checkpoint(&mut self, setting: &str) {
        let program = self.program;
        let all = program.blocks.len();
        let chosen = indexes(setting, all);
        let lines = |model: &str| match program.knows_how {
            true => known_how(model, program, &chosen),
            false => blocks_forward(model, program, &chosen),
        };
        // The outermost function that has the model is where it was made.
        for ModelName { file, line, name, .. } in program.model.iter().rev() {
            let Some(rewrite) = self.rewrites.get_mut(file.as_str()) else { continue };
            if !program.knows_how && (rewrite.mentions("partial") || rewrite.mentions("checkpoint")) {
                continue;
            }
            if rewrite.insert_after_assignment(name, *line, &lines(name)) {
                if !program.knows_how {
                    for import in IMPORTS {
                        rewrite.import(import);
                    }
                }
                return;
            }
        }
        let model = program.model.last().map_or("model", |name| name.name.as_str());
        let imports = if program.knows_how { &[][..] } else { &IMPORTS[..] };
        let text: Vec<String> = imports
            .iter()
            .map(|&line| line.to_owned())
            .chain(lines(model))
            .map(|line| format!("  {line}"))
            .collect();
        self.instructions.push(format!("run this once, after the model is created:\n{}", text.join("\n")));
    }
}

const IMPORTS: [&str; 2] = ["from functools import partial", "from torch.utils.checkpoint import checkpoint"];

/// Returns the lines that have blocks compute their forward pass again in the backward pass.
fn blocks_forward(model: &str, program: &ObservedProgram, chosen: &[usize]) -> Vec<String> {
    let parts = expressions(model, &program.blocks, chosen);
    vec![
        format!("for block in {}:", sequence(&parts)),
        "    block.forward = partial(checkpoint, block.forward, use_reentrant=False)".to_owned(),
    ]
}

/// Returns the lines for a model of Hugging Face transformers: its own method checkpoints every block.
fn known_how(model: &str, program: &ObservedProgram, chosen: &[usize]) -> Vec<String> {
    let mut lines = vec![format!(
        "{model}.gradient_checkpointing_enable(gradient_checkpointing_kwargs={{\"use_reentrant\": False}})"
    )];
    let others: Vec<usize> = (0..program.blocks.len()).filter(|index| !chosen.contains(index)).collect();
    if !others.is_empty() {
        lines.push(format!("for block in {}:", sequence(&expressions(model, &program.blocks, &others))));
        lines.push("    block.gradient_checkpointing = False".to_owned());
    }
    lines
}

/// Returns one expression for a sequence of blocks and slices.
fn sequence(parts: &[(String, bool)]) -> String {
    match parts {
        [(only, true)] => only.clone(),
        _ => {
            let items: Vec<String> = parts
                .iter()
                .map(|(text, is_slice)| if *is_slice { format!("*{text}") } else { text.clone() })
                .collect();
            format!("[{}]", items.join(", "))
        }
    }
}

fn place(line: Option<&ObservedLine>) -> String {
    line.map_or_else(String::new, |ObservedLine { file, line, .. }| {
        format!(" ({}:{line})", printable(file.rsplit('/').next().unwrap_or(file)))
    })
}
