//! Convolutions, as a program describes them through the backend interface.
//!
//! Descriptors are set attribute by attribute and nested, and may be destroyed after they were set into
//! another, so the necessary parts of each are stored while it is being set.

use super::Descriptor;
use super::backend::{attribute, kind, value};
use std::collections::HashMap;
use std::ffi::c_void;

/// Values of a tensor beyond any card; products of such sizes would overflow.
const MAX_VALUES: i64 = 1 << 40;

/// Which of its tensors a convolution computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pass {
    Forward,
    BackwardData,
    BackwardFilter,
}

#[derive(Clone, Default, Debug)]
pub(super) struct GraphTensor {
    pub(super) data_type: i32,
    pub(super) sizes: Vec<i64>,
    strides: Vec<i64>,
    /// Whether it has some of the channels of a tensor.
    pub(super) is_slice: bool,
}

impl GraphTensor {
    pub(super) fn is_channels_last(&self) -> bool {
        self.strides.get(1) == Some(&1)
    }

    pub(super) fn size(&self, dimension: usize) -> i64 {
        self.sizes.get(dimension).copied().unwrap_or(1)
    }

    /// Positions of one image.
    pub(super) fn positions(&self) -> i64 {
        self.sizes.iter().skip(2).product()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Convolution {
    pub(super) pass: Pass,
    pub(super) x: GraphTensor,
    pub(super) w: GraphTensor,
    pub(super) y: GraphTensor,
    window: FilterWindow,
}

impl Convolution {
    fn new(pass: Pass) -> Convolution {
        Convolution {
            pass,
            x: GraphTensor::default(),
            w: GraphTensor::default(),
            y: GraphTensor::default(),
            window: FilterWindow::default(),
        }
    }

    /// A convolution without padding or dilation whose tensors `x`, `w` and `y` have four dimensions.
    #[cfg(test)]
    pub(super) fn example(
        pass: Pass,
        data_type: i32,
        is_channels_last: bool,
        [x, w, y]: [[i64; 4]; 3],
        step: i64,
    ) -> Convolution {
        let tensor = |sizes: [i64; 4]| {
            let [_, channels, height, width] = sizes;
            let strides = if is_channels_last {
                [height * width * channels, 1, width * channels, channels]
            } else {
                [channels * height * width, height * width, width, 1]
            };
            GraphTensor { data_type, sizes: sizes.to_vec(), strides: strides.to_vec(), is_slice: false }
        };
        let window = FilterWindow { padding: vec![0; 2], steps: vec![step; 2], dilations: vec![1; 2] };
        Convolution { pass, x: tensor(x), w: tensor(w), y: tensor(y), window }
    }

    #[cfg(test)]
    pub(super) fn padded(mut self, padding: i64) -> Convolution {
        self.window.padding = vec![padding; 2];
        self
    }

    #[cfg(test)]
    pub(super) fn dilated(mut self, dilation: i64) -> Convolution {
        self.window.dilations = vec![dilation; 2];
        self
    }

    /// Whether every output depends on one position of the input, with all channels: a matrix product.
    pub(super) fn is_matrix_product(&self) -> bool {
        self.w.positions() == 1
            && self.has_stride(1)
            && self.window.padding.iter().all(|padding| *padding == 0)
            && self.groups() == 1
    }

    /// Whether the filter has this stride in all directions, and no dilation between its positions.
    pub(super) fn has_stride(&self, step: i64) -> bool {
        let mut dilations = self.window.dilations.iter().zip(self.w.sizes.iter().skip(2));
        self.window.steps.iter().all(|other| *other == step)
            && dilations.all(|(dilation, size)| *dilation == 1 || *size == 1)
    }

    /// Whether no tensor is empty or larger than any card.
    pub(super) fn fits_a_card(&self) -> bool {
        let values = |sizes: &[i64]| sizes.iter().try_fold(1_i64, |values, size| values.checked_mul(*size));
        let fits = |sizes: &[i64]| values(sizes).is_some_and(|values| (1..MAX_VALUES).contains(&values));
        [&self.x, &self.y, &self.w].into_iter().all(|tensor| fits(&tensor.sizes))
    }

    pub(super) fn groups(&self) -> i64 {
        (self.x.size(1) / self.w.size(1).max(1)).max(1)
    }

    /// The convolution of one group.
    pub(super) fn group(&self) -> Convolution {
        let groups = self.groups();
        let mut group = self.clone();
        for (tensor, channels) in [(&mut group.x, 1), (&mut group.y, 1), (&mut group.w, 0)] {
            if let Some(channels) = tensor.sizes.get_mut(channels) {
                *channels /= groups;
            }
        }
        group.x.is_slice = groups > 1;
        group.y.is_slice = groups > 1;
        group
    }

    /// Padding of images on each side, in height and width.
    pub(super) fn padding(&self) -> Option<[i64; 2]> {
        self.window.padding.as_slice().try_into().ok()
    }
}

/// How the filter moves over the input.
#[derive(Clone, Default, Debug)]
struct FilterWindow {
    padding: Vec<i64>,
    steps: Vec<i64>,
    dilations: Vec<i64>,
}

/// What is known about a descriptor.
enum GraphNode {
    Tensor(GraphTensor),
    Window(FilterWindow),
    Operation(Convolution),
    /// `None` unless the graph is a single convolution.
    Graph(Option<Convolution>),
    Heuristics {
        convolution: Option<Convolution>,
        is_fallback: bool,
    },
    /// An engine, a configuration or a plan, and its convolution.
    Planned(Option<Convolution>),
}

/// What is known about all descriptors.
#[derive(Default)]
pub(super) struct Graphs {
    nodes: HashMap<usize, GraphNode>,
}

impl Graphs {
    pub(super) fn create(&mut self, descriptor: Descriptor, descriptor_kind: i32) {
        let node = match descriptor_kind {
            kind::TENSOR => GraphNode::Tensor(GraphTensor::default()),
            kind::CONVOLUTION => GraphNode::Window(FilterWindow::default()),
            kind::FORWARD => GraphNode::Operation(Convolution::new(Pass::Forward)),
            kind::BACKWARD_DATA => GraphNode::Operation(Convolution::new(Pass::BackwardData)),
            kind::BACKWARD_FILTER => GraphNode::Operation(Convolution::new(Pass::BackwardFilter)),
            kind::OPERATION_GRAPH => GraphNode::Graph(None),
            kind::ENGINE_HEURISTICS => GraphNode::Heuristics { convolution: None, is_fallback: false },
            kind::ENGINE | kind::ENGINE_CONFIGURATION | kind::EXECUTION_PLAN => GraphNode::Planned(None),
            _ => return,
        };
        self.nodes.insert(descriptor as usize, node);
    }

    pub(super) fn destroy(&mut self, descriptor: Descriptor) {
        self.nodes.remove(&(descriptor as usize));
    }

    /// Convolution for which heuristics should find the best engine. Fallback heuristics only find what
    /// works.
    pub(super) fn convolution_of(&self, heuristics: Descriptor) -> Option<&Convolution> {
        match self.nodes.get(&(heuristics as usize)) {
            Some(GraphNode::Heuristics { convolution, is_fallback: false }) => convolution.as_ref(),
            _ => None,
        }
    }

    /// Records that heuristics found a configuration.
    pub(super) fn plan(&mut self, heuristics: Descriptor, configuration: Descriptor) {
        if let Some(GraphNode::Heuristics { convolution, .. }) = self.nodes.get(&(heuristics as usize)) {
            let planned = GraphNode::Planned(convolution.clone());
            self.nodes.insert(configuration as usize, planned);
        }
    }

    /// Convolution of an engine, a configuration or a plan.
    pub(super) fn planned(&self, descriptor: Descriptor) -> Option<&Convolution> {
        match self.nodes.get(&(descriptor as usize)) {
            Some(GraphNode::Planned(convolution)) => convolution.as_ref(),
            _ => None,
        }
    }

    pub(super) unsafe fn set(&mut self, descriptor: Descriptor, name: i32, given: AttributeValue) {
        let Some(mut node) = self.nodes.remove(&(descriptor as usize)) else { return };
        unsafe { self.set_in(&mut node, name, given) };
        self.nodes.insert(descriptor as usize, node);
    }

    unsafe fn set_in(&self, node: &mut GraphNode, name: i32, given: AttributeValue) {
        let other = unsafe { given.descriptor() }.and_then(|other| self.nodes.get(&(other as usize)));
        match (node, name, other) {
            (GraphNode::Tensor(tensor), attribute::TENSOR_DATA_TYPE, _) => {
                tensor.data_type = unsafe { *given.values.cast::<i32>() };
            }
            (GraphNode::Tensor(tensor), attribute::TENSOR_SIZES, _) => {
                tensor.sizes = unsafe { given.numbers() }
            }
            (GraphNode::Tensor(tensor), attribute::TENSOR_STRIDES, _) => {
                tensor.strides = unsafe { given.numbers() }
            }
            (GraphNode::Window(window), attribute::CONVOLUTION_STEPS, _) => {
                window.steps = unsafe { given.numbers() }
            }
            (GraphNode::Window(window), attribute::CONVOLUTION_DILATIONS, _) => {
                window.dilations = unsafe { given.numbers() };
            }
            (GraphNode::Window(window), attribute::CONVOLUTION_PADDING, _) => {
                window.padding = unsafe { given.numbers() };
            }
            (GraphNode::Operation(convolution), _, Some(GraphNode::Window(window))) => {
                convolution.window = window.clone();
            }
            (GraphNode::Operation(convolution), _, Some(GraphNode::Tensor(tensor))) => match name {
                attribute::FORWARD_X | attribute::BACKWARD_DATA_X | attribute::BACKWARD_FILTER_X => {
                    convolution.x = tensor.clone();
                }
                attribute::FORWARD_W | attribute::BACKWARD_DATA_W | attribute::BACKWARD_FILTER_W => {
                    convolution.w = tensor.clone();
                }
                attribute::FORWARD_Y | attribute::BACKWARD_DATA_Y | attribute::BACKWARD_FILTER_Y => {
                    convolution.y = tensor.clone();
                }
                _ => {}
            },
            (
                GraphNode::Graph(content),
                attribute::OPERATION_GRAPH_OPERATIONS,
                Some(GraphNode::Operation(convolution)),
            ) if given.count == 1 => {
                *content = Some(convolution.clone());
            }
            (GraphNode::Heuristics { convolution, .. }, _, Some(GraphNode::Graph(graph))) => {
                convolution.clone_from(graph)
            }
            (
                GraphNode::Planned(convolution),
                _,
                Some(GraphNode::Graph(planned) | GraphNode::Planned(planned)),
            ) => {
                convolution.clone_from(planned);
            }
            (GraphNode::Heuristics { is_fallback, .. }, attribute::ENGINE_HEURISTICS_MODE, _) => {
                const FALLBACK: i32 = 2; // `cudnnBackendHeurMode_t`
                *is_fallback = unsafe { *given.values.cast::<i32>() } == FALLBACK;
            }
            _ => {}
        }
    }
}

/// Value of an attribute, as passed to the setter.
#[derive(Clone, Copy)]
pub(super) struct AttributeValue {
    pub(super) kind: i32,
    pub(super) count: i64,
    pub(super) values: *const c_void,
}

impl AttributeValue {
    unsafe fn numbers(&self) -> Vec<i64> {
        unsafe { std::slice::from_raw_parts(self.values.cast::<i64>(), self.count.max(0) as usize) }.to_vec()
    }

    /// The descriptor, or the first of several, if the value is one.
    pub(super) unsafe fn descriptor(&self) -> Option<Descriptor> {
        let is_descriptor = self.kind == value::DESCRIPTOR && self.count > 0;
        is_descriptor.then(|| unsafe { *self.values.cast::<Descriptor>() })
    }
}
