//! What a change to a program would touch: its lines, and what the blocks of its model keep (`observing.py`).

use serde::Deserialize;

/// A program that was observed for a step, by `oomph fit`.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct ObservedProgram {
    /// Lines that a change may have to edit.
    pub lines: ObservedLines,
    /// How functions of the program call the model, innermost first.
    pub model: Vec<ModelName>,
    /// The library whose trainer runs the steps: `transformers` or `lightning`.
    pub trainer: Option<String>,
    /// Whether the model has `gradient_checkpointing_enable()`.
    pub knows_how: bool,
    /// Whether layers of the model use statistics of the whole batch.
    #[serde(default)]
    pub has_batch_statistics: bool,
    /// Repeated blocks of the model, in the order of their indexes.
    pub blocks: Vec<ObservedBlock>,
    /// Floating point operations of a forward pass; 0 if they were not counted.
    pub flops: u64,
    /// Whether gradients are set to zero, not to `None`.
    #[serde(default)]
    pub has_zeroed_gradients: bool,
}

/// Lines of the program.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct ObservedLines {
    /// The first call of the model in training.
    pub forward: Vec<ObservedLine>,
    /// The first backward pass.
    pub backward: Vec<ObservedLine>,
    /// Each optimizer that was created.
    pub optimizer: Vec<ObservedLine>,
    /// Each data loader that was created.
    pub loader: Vec<ObservedLine>,
}

/// A line of the program.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct ObservedLine {
    /// Path of the file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: u32,
    /// Name of the function.
    pub function: String,
    /// Class of the optimizer.
    pub kind: Option<String>,
    /// Samples in a batch of the data loader.
    pub batch: Option<u64>,
}

/// How a function calls the model.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct ModelName {
    /// Path of the file.
    pub file: String,
    /// Line that runs in this function, from 1.
    pub line: u32,
    /// Name of the function.
    pub function: String,
    /// `model`, or `self.model`.
    pub name: String,
}

/// A repeated block of the model.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct ObservedBlock {
    /// Path from the model: `layers.0`.
    pub name: String,
    /// Its class.
    pub kind: String,
    /// Bytes that its forward pass keeps besides its output.
    pub kept: i64,
    /// Floating point operations of its forward pass.
    pub flops: i64,
}
