//! Imports that a file asks for, and definitions that answer: those with which its findings may differ.

use crate::facts::{HasGraph, Returned};
use crate::summary::{Definition, DefinitionKind, FunctionSummary};
use crate::torch;
use rustc_hash::FxHashMap;

/// Import that was not given, and might make a difference.
#[derive(Clone, Debug)]
pub struct AskedImport {
    pub(crate) path: String,
    pub(crate) reason: AskedFor,
}

/// Imports that are asked for, by path.
pub(crate) type Asked = FxHashMap<String, AskedFor>;

/// Why an import is asked for; without a reason given here, a function is decorated with it.
#[derive(Clone, Default, Debug)]
pub(crate) struct AskedFor {
    pub(crate) is_class: bool,
    /// Calls of it with a model, an optimizer, or a tensor with a graph.
    pub(crate) calls: Option<TensorArguments>,
}

/// Arguments with tensors, of all these calls.
#[derive(Clone, Default, Debug)]
pub(crate) struct TensorArguments {
    pub(crate) places: Vec<usize>,
    pub(crate) keywords: Vec<String>,
}

impl AskedImport {
    /// Returns the path of the import, as the file writes it: `.meters.AverageMeter`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns whether the findings of the file may differ with this definition.
    pub fn is_answered_by(&self, definition: &Definition) -> bool {
        let AskedFor { is_class, calls } = &self.reason;
        match &definition.0 {
            DefinitionKind::Class(_) => *is_class || calls.is_some(),
            DefinitionKind::Function(summary) => {
                let matter = |given: &TensorArguments| {
                    torch::reads_as_loss_function(&self.path) || given.matter_to(summary)
                };
                *is_class || summary.turns_gradients_off || calls.as_ref().is_some_and(matter)
            }
        }
    }
}

impl TensorArguments {
    /// Returns whether a function does anything with these tensors, or returns one of its own.
    fn matter_to(&self, summary: &FunctionSummary) -> bool {
        summary.keeps.iter().any(|keeps| self.contain(keeps.parameter, summary))
            || summary.backwards.iter().any(|parameter| self.contain(*parameter, summary))
            || self.tell_more(&summary.returned, summary)
    }

    fn contain(&self, parameter: usize, summary: &FunctionSummary) -> bool {
        let name = summary.parameters.get(parameter);
        self.places.contains(&parameter) || name.is_some_and(|name| self.keywords.contains(name))
    }

    /// Returns whether more is known about what is returned than that it may be a tensor.
    fn tell_more(&self, returned: &Returned, summary: &FunctionSummary) -> bool {
        match returned {
            Returned::Unknown | Returned::Plain => false,
            Returned::Model => true,
            Returned::Tuple(items) => items.iter().any(|item| self.tell_more(item, summary)),
            Returned::Tensor { graph, freed, scalar, on_device, parameters } => {
                let has_property = *graph == HasGraph::Yes || *freed || *scalar || *on_device;
                has_property || parameters.iter().any(|parameter| self.contain(*parameter, summary))
            }
        }
    }
}
