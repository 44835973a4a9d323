//! The backend (graph) interface: the real library plans for a described card.

use super::graph::{Given, Graphs};
use super::shadow::Shadow;
use super::{Descriptor, SUCCESS, Status, autotuning, cluster, deviceless, fourier, matrix_product, real};
use crate::put;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// `cudnnBackendDescriptorType_t`.
pub(super) mod kind {
    pub(in super::super) const CONVOLUTION: i32 = 1;
    pub(in super::super) const ENGINE: i32 = 2;
    pub(in super::super) const ENGINE_CONFIGURATION: i32 = 3;
    pub(in super::super) const ENGINE_HEURISTICS: i32 = 4;
    pub(in super::super) const EXECUTION_PLAN: i32 = 5;
    pub(in super::super) const KNOB_CHOICE: i32 = 7;
    pub(in super::super) const FORWARD: i32 = 10;
    pub(in super::super) const BACKWARD_FILTER: i32 = 11;
    pub(in super::super) const BACKWARD_DATA: i32 = 12;
    pub(in super::super) const OPERATION_GRAPH: i32 = 15;
    pub(in super::super) const TENSOR: i32 = 17;
    pub(in super::super) const DEVICE_PROPERTIES: i32 = 38;
}

/// `cudnnBackendAttributeName_t`.
pub(super) mod attribute {
    pub(in super::super) const CONVOLUTION_DILATIONS: i32 = 102;
    pub(in super::super) const CONVOLUTION_STEPS: i32 = 103;
    pub(in super::super) const CONVOLUTION_PADDING: i32 = 105;
    pub(in super::super) const ENGINE_HEURISTICS_MODE: i32 = 200;
    pub(in super::super) const ENGINE_HEURISTICS_RESULTS: i32 = 202;
    pub(in super::super) const ENGINE_HEURISTICS_DEVICE: i32 = 204;
    pub(in super::super) const ENGINE_CONFIGURATION_ENGINE: i32 = 300;
    pub(in super::super) const ENGINE_CONFIGURATION_KNOBS: i32 = 302;
    pub(in super::super) const EXECUTION_PLAN_CONFIGURATION: i32 = 401;
    pub(in super::super) const EXECUTION_PLAN_WORKSPACE: i32 = 402;
    pub(in super::super) const EXECUTION_PLAN_DEVICE: i32 = 407;
    pub(in super::super) const KNOB_CHOICE_KIND: i32 = 600;
    pub(in super::super) const KNOB_CHOICE_VALUE: i32 = 601;
    pub(in super::super) const FORWARD_W: i32 = 703;
    pub(in super::super) const FORWARD_X: i32 = 704;
    pub(in super::super) const FORWARD_Y: i32 = 705;
    pub(in super::super) const BACKWARD_DATA_W: i32 = 709;
    pub(in super::super) const BACKWARD_DATA_X: i32 = 710;
    pub(in super::super) const BACKWARD_DATA_Y: i32 = 711;
    pub(in super::super) const BACKWARD_FILTER_W: i32 = 715;
    pub(in super::super) const BACKWARD_FILTER_X: i32 = 716;
    pub(in super::super) const BACKWARD_FILTER_Y: i32 = 717;
    pub(in super::super) const OPERATION_GRAPH_OPERATIONS: i32 = 801;
    pub(in super::super) const TENSOR_DATA_TYPE: i32 = 901;
    pub(in super::super) const TENSOR_SIZES: i32 = 902;
    pub(in super::super) const TENSOR_STRIDES: i32 = 903;
    pub(in super::super) const ENGINE_GLOBAL_INDEX: i32 = 1301;
    pub(in super::super) const ENGINE_NUMERICAL_NOTES: i32 = 1303;
    pub(in super::super) const ENGINE_DEVICE: i32 = 1307;
    pub(in super::super) const DEVICE_PROPERTIES_JSON: i32 = 2702;
}

/// `cudnnBackendAttributeType_t`.
pub(super) mod value {
    pub(in super::super) const HANDLE: i32 = 0;
    pub(in super::super) const INTEGER: i32 = 3;
    pub(in super::super) const KNOB_KIND: i32 = 9;
    pub(in super::super) const DESCRIPTOR: i32 = 15;
    pub(in super::super) const CHARACTER: i32 = 24;
}

/// What we know of the descriptors that exist.
#[derive(Default)]
struct Descriptors {
    kinds: HashMap<usize, i32>,
    graphs: Graphs,
    /// Engines, configurations and plans that are not the real library's.
    shadows: HashMap<usize, Shadow>,
    /// What plans run, where it is in clusters of blocks.
    kernels: HashMap<usize, cluster::Kernel>,
}

/// The lock is never held while the real library is called: it calls some of these functions itself.
fn descriptors() -> MutexGuard<'static, Descriptors> {
    static DESCRIPTORS: LazyLock<Mutex<Descriptors>> = LazyLock::new(Default::default);
    DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Descriptors {
    fn kind(&self, descriptor: Descriptor) -> Option<i32> {
        self.kinds.get(&(descriptor as usize)).copied()
    }

    fn shadow(&self, descriptor: Descriptor) -> Option<Shadow> {
        self.shadows.get(&(descriptor as usize)).copied()
    }

    /// The engines that come before and after those that the real library's heuristics give.
    fn first_and_last(&self, heuristics: Descriptor) -> (Option<Shadow>, Option<Shadow>) {
        let convolution = self.graphs.convolution_of(heuristics);
        (convolution.and_then(matrix_product::first_choice), convolution.and_then(fourier::last_choice))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendCreateDescriptor(kind: i32, to: *mut Descriptor) -> Status {
    let status = unsafe { real::cudnnBackendCreateDescriptor(kind, to) };
    if status != SUCCESS {
        return status;
    }
    let descriptor = unsafe { *to };
    let mut descriptors = descriptors();
    descriptors.kinds.insert(descriptor as usize, kind);
    descriptors.graphs.create(descriptor, kind);
    if let Some(shadow) = deviceless::instead_of_planning(kind) {
        descriptors.shadows.insert(descriptor as usize, shadow);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendDestroyDescriptor(descriptor: Descriptor) -> Status {
    let mut descriptors = descriptors();
    descriptors.kinds.remove(&(descriptor as usize));
    descriptors.shadows.remove(&(descriptor as usize));
    descriptors.kernels.remove(&(descriptor as usize));
    descriptors.graphs.destroy(descriptor);
    drop(descriptors);
    autotuning::forget(descriptor);
    unsafe { real::cudnnBackendDestroyDescriptor(descriptor) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendSetAttribute(
    descriptor: Descriptor,
    name: i32,
    kind: i32,
    count: i64,
    values: *const c_void,
) -> Status {
    // Our handles must not reach the real library; the described card takes their place.
    if kind == value::HANDLE {
        return SUCCESS;
    }
    let given = Given { kind, count, values };
    let mut descriptors = descriptors();
    unsafe { descriptors.graphs.set(descriptor, name, given) };
    if name == attribute::EXECUTION_PLAN_CONFIGURATION
        && let Some(configuration) = unsafe { given.descriptor() }
        && let Some(shadow) = descriptors.shadow(configuration)
    {
        descriptors.shadows.insert(descriptor as usize, shadow);
    }
    if descriptors.shadow(descriptor).is_some() {
        return SUCCESS;
    }
    let pass = descriptors.graphs.planned(descriptor).map(|convolution| convolution.pass);
    drop(descriptors);
    if name == attribute::EXECUTION_PLAN_CONFIGURATION
        && let Some(pass) = pass
        && let Some(configuration) = unsafe { given.descriptor() }
        && let Some(kernel) = cluster::Kernel::of(pass, configuration)
    {
        self::descriptors().kernels.insert(descriptor as usize, kernel);
    }
    unsafe { real::cudnnBackendSetAttribute(descriptor, name, kind, count, values) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendFinalize(descriptor: Descriptor) -> Status {
    let (kind, shadow) = {
        let descriptors = descriptors();
        (descriptors.kind(descriptor), descriptors.shadow(descriptor))
    };
    if kind == Some(kind::EXECUTION_PLAN) {
        autotuning::plan(descriptor);
    }
    if shadow.is_some() {
        return SUCCESS;
    }
    match kind {
        Some(kind::ENGINE) => deviceless::set_card(descriptor, attribute::ENGINE_DEVICE),
        Some(kind::ENGINE_HEURISTICS) => {
            deviceless::set_card(descriptor, attribute::ENGINE_HEURISTICS_DEVICE)
        }
        Some(kind::EXECUTION_PLAN) => deviceless::set_card(descriptor, attribute::EXECUTION_PLAN_DEVICE),
        _ => {}
    }
    unsafe { real::cudnnBackendFinalize(descriptor) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendGetAttribute(
    descriptor: Descriptor,
    name: i32,
    kind: i32,
    room: i64,
    count: *mut i64,
    values: *mut c_void,
) -> Status {
    if name == attribute::ENGINE_HEURISTICS_RESULTS {
        return unsafe { configurations(descriptor, room, count, values.cast()) };
    }
    let shadow = {
        let mut descriptors = descriptors();
        let shadow = descriptors.shadow(descriptor);
        if let Some(shadow) = shadow
            && name == attribute::ENGINE_CONFIGURATION_ENGINE
            && room > 0
        {
            descriptors.shadows.insert(unsafe { *values.cast::<Descriptor>() } as usize, shadow);
        }
        shadow
    };
    if let Some(shadow) = shadow {
        return unsafe { shadow.get(name, room, count, values) };
    }
    let status = unsafe { real::cudnnBackendGetAttribute(descriptor, name, kind, room, count, values) };
    if name == attribute::EXECUTION_PLAN_WORKSPACE && status == SUCCESS && room > 0 && !values.is_null() {
        unsafe { correct_workspace(descriptor, values.cast()) };
    }
    status
}

/// Puts the workspace that a plan has on the card in place of the one that the real library counts here.
unsafe fn correct_workspace(plan: Descriptor, workspace: *mut i64) {
    let (convolution, kernel) = {
        let descriptors = descriptors();
        (descriptors.graphs.planned(plan).cloned(), descriptors.kernels.get(&(plan as usize)).copied())
    };
    if let (Some(convolution), Some(kernel)) = (convolution, kernel) {
        unsafe { *workspace = cluster::workspace(&convolution, kernel, *workspace) };
    }
}

/// The configurations that heuristics found, between ours. Who asks has put descriptors into the array: they become the
/// configurations.
unsafe fn configurations(
    heuristics: Descriptor,
    room: i64,
    count: *mut i64,
    values: *mut Descriptor,
) -> Status {
    autotuning::candidates_follow();
    let (instead, (first, last)) = {
        let descriptors = descriptors();
        (descriptors.shadow(heuristics), descriptors.first_and_last(heuristics))
    };
    // Gives the descriptor at a place to an engine of ours, if there is one and the array reaches so far.
    let give = |place: i64, shadow: Option<Shadow>| {
        let Some(shadow) = shadow.filter(|_| place < room) else { return 0 };
        let configuration = unsafe { *values.add(place as usize) };
        descriptors().shadows.insert(configuration as usize, shadow);
        1
    };
    let theirs = |from: i64| {
        let mut found = 0;
        let status = unsafe {
            real::cudnnBackendGetAttribute(
                heuristics,
                attribute::ENGINE_HEURISTICS_RESULTS,
                value::DESCRIPTOR,
                room - from,
                &mut found,
                values.wrapping_add(from as usize).cast(),
            )
        };
        (status, found)
    };
    let (status, found) = if instead.is_some() {
        give(0, instead);
        (SUCCESS, 1)
    } else if room == 0 {
        // Only the number of configurations is asked for.
        let (status, found) = theirs(0);
        (status, found + i64::from(first.is_some()) + i64::from(last.is_some()))
    } else {
        let before = give(0, first);
        let (status, found) = if before < room { theirs(before) } else { (SUCCESS, 0) };
        (status, before + found + give(before + found, last))
    };
    unsafe { put(count, found) };
    for place in 0..found.min(room) {
        let configuration = unsafe { *values.add(place as usize) };
        descriptors().graphs.plan(heuristics, configuration);
    }
    status
}

#[unsafe(no_mangle)]
extern "C" fn cudnnBackendExecute(_handle: u64, plan: Descriptor, _variant_pack: Descriptor) -> Status {
    autotuning::run(plan);
    SUCCESS
}
