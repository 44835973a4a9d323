//! What callers need to know about a function: what it returns, keeps, and calls `backward()` on. Callers in
//! the same file ask for it by the function, those in other files by the name that they import.

use crate::checked::Checked;
use crate::facts::{
    AbstractValue, FunctionFacts, GradMode, HasGraph, NodeId, Returned, TensorOrigin, TensorStore,
};
use crate::file::{FunctionId, PythonFile};
use crate::torch;
use crate::tree::{ExprKind, SourceRange};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Parameter that a function keeps.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Keeps {
    /// Place among the parameters, `self` included.
    pub(crate) parameter: usize,
    /// Whether it is added to a sum, not put into a list.
    pub(crate) summed: bool,
    /// Store, as the function names it.
    pub(crate) name: String,
    /// Line that keeps it.
    pub(crate) place: SourceRange,
}

/// What callers need to know about a function.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct FunctionSummary {
    pub(crate) parameters: Vec<String>,
    pub(crate) returned: Returned,
    pub(crate) keeps: Vec<Keeps>,
    /// Parameters that `backward()` is called on.
    pub(crate) backwards: Vec<usize>,
    /// Whether it is a decorator that runs what it decorates without gradients.
    pub(crate) turns_gradients_off: bool,
}

/// What callers need to know about a class.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct ClassSummary {
    pub(crate) is_module: bool,
    /// Whether its `forward` computes derivatives.
    pub(crate) differentiates: bool,
    pub(crate) methods: FxHashMap<String, FunctionSummary>,
}

/// Function or class that other files can import.
#[derive(Clone, Debug)]
pub struct Definition(pub(crate) DefinitionKind);

#[derive(Clone, Debug)]
pub(crate) enum DefinitionKind {
    Function(Arc<FunctionSummary>),
    Class(Arc<ClassSummary>),
}

/// What other files need to know about a file.
#[derive(Default, Debug)]
pub struct ModuleSummary {
    definitions: FxHashMap<String, Definition>,
    /// Names that it imports itself, which others may import from it.
    imports: FxHashMap<String, String>,
    /// Functions for evaluation that it mentions.
    mentioned: Mentioned,
    knows_cuda: bool,
}

impl ModuleSummary {
    /// Returns whether the file mentions CUDA.
    pub fn knows_cuda(&self) -> bool {
        self.knows_cuda
    }

    /// Returns a function or class of the file that makes a difference to its callers.
    pub fn definition(&self, name: &str) -> Option<&Definition> {
        self.definitions.get(name)
    }

    /// Returns where the file imports a name from: `.meters.AverageMeter`.
    pub fn import(&self, name: &str) -> Option<&str> {
        self.imports.get(name).map(String::as_str)
    }

    /// Returns the functions for evaluation that the file mentions, of any file, and whether gradients are
    /// off wherever it does.
    pub fn mentioned(&self) -> impl Iterator<Item = (&str, bool)> {
        self.mentioned.iter().map(|(name, is_off)| (name.as_str(), *is_off))
    }

    pub(crate) fn of(checked: &Checked<'_, '_, '_>, mentioned: Mentioned) -> ModuleSummary {
        let file = checked.file;
        let (mut functions, mut classes) = (FxHashMap::default(), FxHashMap::default());
        let around: FxHashSet<FunctionId> = file.functions.iter().map(|defined| defined.parent).collect();
        for facts in &checked.facts {
            let defined = &file.functions[facts.id.0];
            if defined.parent != FunctionId::MODULE || facts.id == FunctionId::MODULE {
                continue;
            }
            let mut summary = FunctionSummary::of(file, facts);
            summary.turns_gradients_off =
                around.contains(&facts.id) && turns_gradients_off(file, facts.id, checked.facts.iter());
            // A list that another method empties does not grow; whether that is called is unknown.
            summary
                .keeps
                .retain(|keeps| keeps.summed || !checked.is_emptied_anywhere(&keeps.name, facts, None));
            let name = file.name_of(facts.id);
            match defined.class {
                None if summary.matters(name) => {
                    functions.insert(name.to_owned(), DefinitionKind::Function(Arc::new(summary)));
                }
                None => {}
                Some(class) => {
                    let class = &file.classes[class.0];
                    let of: &mut ClassSummary = classes.entry(class.class.name).or_default();
                    of.is_module = class.kind.is_module();
                    of.differentiates |= of.is_module && name == "forward" && checked.differentiates(facts);
                    if summary.matters(name) {
                        of.methods.insert(name.to_owned(), summary);
                    }
                }
            }
        }
        let keeps = |of: &ClassSummary| of.methods.values().any(|method| !method.keeps.is_empty());
        let classes = classes.into_iter().filter(|(_, of)| of.is_module || keeps(of));
        let classes = classes.map(|(name, of)| (name.to_owned(), DefinitionKind::Class(Arc::new(of))));
        let definitions = functions.into_iter().chain(classes).map(|(name, kind)| (name, Definition(kind)));
        let imports = file.imports().map(|(name, path)| (name.to_owned(), path.to_owned()));
        ModuleSummary {
            definitions: definitions.collect(),
            imports: imports.collect(),
            mentioned,
            knows_cuda: file.knows_cuda(),
        }
    }
}

impl FunctionSummary {
    pub(crate) fn of(file: &PythonFile<'_, '_>, facts: &FunctionFacts<'_, '_>) -> FunctionSummary {
        let parameter = |node: NodeId| match facts.node(node).origin {
            TensorOrigin::Parameter(place) => Some(place),
            _ => None,
        };
        let sources =
            |node: NodeId| facts.ancestors(node).into_iter().filter_map(parameter).collect::<Vec<_>>();
        let graph = |node: NodeId| facts.node(node).graph != HasGraph::No;
        let kept = facts.kept.iter().filter_map(|kept| match (&kept.store, &kept.value) {
            (TensorStore::Outside { name }, AbstractValue::Tensor(node)) if graph(*node) => {
                Some((*node, kept.summed, *name, kept.place()))
            }
            _ => None,
        });
        let summed = facts.carried.iter().filter(|carried| carried.name.contains('.') && graph(carried.node));
        let summed = summed.map(|carried| (carried.node, true, carried.name, carried.range));
        let keeps = kept.chain(summed).flat_map(|(node, summed, name, place)| {
            let parameters = sources(node).into_iter();
            parameters.map(move |parameter| Keeps { parameter, summed, name: name.to_owned(), place })
        });
        let backwards = facts
            .backwards
            .iter()
            .filter(|backward| backward.at.in_loop.is_none())
            .flat_map(|backward| &backward.nodes)
            .flat_map(|node| sources(*node));
        let mut keeps: Vec<Keeps> = keeps.collect();
        keeps.sort_by(|a, b| (a.parameter, a.place, &a.name).cmp(&(b.parameter, b.place, &b.name)));
        keeps.dedup();
        let mut summary = FunctionSummary {
            parameters: Vec::new(),
            returned: facts.returned.clone(),
            keeps,
            backwards: backwards.collect(),
            turns_gradients_off: false,
        };
        let function = file.functions[facts.id.0].function.filter(|of| summary.matters(of.name));
        let names = function.iter().flat_map(|function| &function.parameters);
        summary.parameters = names.map(|parameter| parameter.name.to_owned()).collect();
        summary
    }

    /// Returns whether a caller learns more from it than from a function that it knows nothing about.
    fn matters(&self, name: &str) -> bool {
        fn has_graph(returned: &Returned) -> bool {
            match returned {
                Returned::Tensor { graph, parameters, .. } => {
                    *graph == HasGraph::Yes || *graph == HasGraph::Unknown && !parameters.is_empty()
                }
                Returned::Tuple(items) => items.iter().any(has_graph),
                Returned::Model => true,
                Returned::Unknown | Returned::Plain => false,
            }
        }
        !self.keeps.is_empty()
            || !self.backwards.is_empty()
            || self.turns_gradients_off
            || has_graph(&self.returned)
            || torch::reads_as_loss_function(name) && self.returned != Returned::Unknown
    }
}

/// Returns whether a function is a decorator whose wrapper calls what it decorates without gradients.
pub(crate) fn turns_gradients_off<'x, 't: 'x, 'a: 'x>(
    file: &PythonFile<'t, 'a>,
    decorator: FunctionId,
    all: impl Iterator<Item = &'x FunctionFacts<'t, 'a>>,
) -> bool {
    let function = file.functions[decorator.0].function;
    let Some(decorated) = function.and_then(|of| of.parameters.first()).map(|of| of.name) else {
        return false;
    };
    let mut calls = all
        .filter(|of| file.functions[of.id.0].parent == decorator)
        .flat_map(|of| &of.calls)
        .filter(|call| matches!(call.call.callee.kind, ExprKind::Name(name) if name == decorated))
        .peekable();
    calls.peek().is_some() && calls.all(|call| call.at.mode == GradMode::Off)
}

/// What a file knows about the others of its project: definitions, by the path that it imports them under,
/// and functions that are used without gradients.
#[derive(Default, Debug)]
pub struct Imports {
    definitions: FxHashMap<String, Definition>,
    used_without_gradients: FxHashSet<String>,
    knows_cuda: bool,
}

impl Imports {
    /// Adds a function that the whole project uses without gradients only.
    pub fn insert_without_gradients(&mut self, function: &str) {
        self.used_without_gradients.insert(function.to_owned());
    }

    /// Notes that a file of the project mentions CUDA.
    pub fn note_cuda(&mut self) {
        self.knows_cuda = true;
    }

    pub(crate) fn know_cuda(&self) -> bool {
        self.knows_cuda
    }

    pub(crate) fn are_off_in(&self, function: &str) -> bool {
        self.used_without_gradients.contains(function)
    }

    /// Adds what an import means.
    pub fn insert(&mut self, path: &str, definition: Definition) {
        self.definitions.insert(path.to_owned(), definition);
    }

    /// Returns whether this import is known.
    pub fn contains(&self, path: &str) -> bool {
        self.definitions.contains_key(path)
    }

    pub(crate) fn get(&self, path: &str) -> Option<&DefinitionKind> {
        self.definitions.get(path).map(|definition| &definition.0)
    }

    /// Returns whether a model among them computes derivatives in its `forward`.
    pub(crate) fn differentiate(&self) -> bool {
        self.definitions.values().any(|definition| match &definition.0 {
            DefinitionKind::Class(class) => class.differentiates,
            DefinitionKind::Function(_) => false,
        })
    }
}

/// Names, and whether gradients are off wherever they are mentioned.
pub(crate) type Mentioned = FxHashMap<String, bool>;
