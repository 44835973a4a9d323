//! `rankN.labels`: names and addresses of tensors over time, and the paths of modules.

use crate::{AllocationCounts, FileError};
use serde::Deserialize;
use std::collections::BTreeMap;

/// What a tensor is used for. If a block has several labels, the first counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Label {
    /// A parameter of a module.
    Parameter,
    /// A buffer of a module.
    Buffer,
    /// `.grad` of a parameter.
    Gradient,
    /// Optimizer state of a parameter.
    Optimizer,
    /// An argument of a call of a module.
    Input,
}

impl Label {
    /// All labels, in order of precedence.
    pub const ALL: [Label; 5] =
        [Label::Parameter, Label::Buffer, Label::Gradient, Label::Optimizer, Label::Input];

    /// Returns the word used in files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Label::Parameter => "parameter",
            Label::Buffer => "buffer",
            Label::Gradient => "gradient",
            Label::Optimizer => "optimizer",
            Label::Input => "input",
        }
    }
}

/// A tensor with its label and name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabeledTensor {
    /// What it is used for.
    pub label: Label,
    /// Dotted name in the root module: `h.0.attn.weight`.
    pub name: String,
    /// Class of the root module; empty if unknown.
    pub root: String,
}

/// The storage of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Index into [`Labels::tensors`].
    pub tensor: u32,
    /// Device ordinal.
    pub device: u32,
    /// Address of the storage.
    pub addr: u64,
    /// Bytes of the storage.
    pub bytes: u64,
}

/// A moment at which the recorder listed the tensors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabelMark {
    /// Allocations made by then.
    pub allocations: AllocationCounts,
    /// Index into [`Labels::sets`].
    pub set: usize,
}

/// Names and addresses of tensors over time. Indices may be out of range.
#[derive(Clone, Default, Debug)]
pub struct Labels {
    /// All tensors ever listed.
    pub tensors: Vec<LabeledTensor>,
    /// Sets of tensors that were alive together.
    pub sets: Vec<Vec<Placed>>,
    /// Moments at which a set was alive, in order of time.
    pub marks: Vec<LabelMark>,
}

#[derive(Deserialize)]
struct LabelsFile {
    version: u64,
    /// Label, name, class of the root module.
    #[serde(default)]
    tensors: Vec<(String, String, String)>,
    /// Tensor, device, address, bytes.
    #[serde(default)]
    sets: Vec<Vec<(u32, i64, u64, u64)>>,
    #[serde(default)]
    marks: Vec<(BTreeMap<String, u64>, usize)>,
    /// Paths that the metadata of events refers to by number.
    #[serde(default)]
    modules: Vec<String>,
}

/// Parses the file into labels and module paths.
pub(crate) fn parse(bytes: &[u8]) -> Result<(Labels, Vec<String>), FileError> {
    let mut file: LabelsFile = serde_json::from_slice(bytes)?;
    if file.version != 1 {
        return Err(FileError::UnknownVersion(file.version));
    }
    let modules = std::mem::take(&mut file.modules);
    Ok((file.into_labels(), modules))
}

impl LabelsFile {
    /// Leaves out tensors whose label this version does not know.
    fn into_labels(self) -> Labels {
        let mut tensors = Vec::new();
        let indices: Vec<Option<u32>> = self
            .tensors
            .into_iter()
            .map(|(kind, name, root)| {
                let label = Label::ALL.into_iter().find(|label| label.name() == kind)?;
                tensors.push(LabeledTensor { label, name, root });
                Some(tensors.len() as u32 - 1)
            })
            .collect();
        let placed = |(tensor, device, addr, bytes): (u32, i64, u64, u64)| {
            let tensor = (*indices.get(tensor as usize)?)?;
            Some(Placed { tensor, device: u32::try_from(device).ok()?, addr, bytes })
        };
        let sets = self.sets.into_iter().map(|set| set.into_iter().filter_map(placed).collect()).collect();
        let mark = |(by_device, set)| LabelMark { allocations: AllocationCounts::from(by_device), set };
        let marks = self.marks.into_iter().map(mark).collect();
        Labels { tensors, sets, marks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_out_of_range_are_left_out() {
        let (labels, _) = parse(
            br#"{"version": 1, "tensors": [["mystery", "x", ""], ["parameter", "weight", "Net"]],
                "sets": [[[0, 0, 512, 4], [1, 0, 1024, 8], [7, 0, 2048, 8], [1, -1, 4096, 8]]],
                "marks": [[{"0": 3, "x": 4}, 0]], "more": {}}"#,
        )
        .expect("readable");
        assert_eq!(labels.sets, [[Placed { tensor: 0, device: 0, addr: 1024, bytes: 8 }]]);
        assert_eq!(labels.marks, [LabelMark { allocations: AllocationCounts(vec![(0, 3)]), set: 0 }]);
    }
}
