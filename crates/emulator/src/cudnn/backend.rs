//! The backend (graph) interface: the real library plans for a described card.

use super::emulated_engine::EmulatedEngine;
use super::graph::{AttributeValue, Graphs, Pass};
use super::images::Images;
use super::listed::Listing;
use super::{
    Descriptor, SUCCESS, StatusCode, autotuning, cluster, deviceless, first_choice, fourier, listed,
    matrix_product, real, winograd,
};
use crate::{notes, put};
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

/// What is known about the existing descriptors.
#[derive(Default)]
struct Descriptors {
    kinds: HashMap<usize, i32>,
    graphs: Graphs,
    /// Engines, configurations and plans that the emulator provides instead of the real library.
    emulated_engines: HashMap<usize, EmulatedEngine>,
    /// Kernels of plans that run in clusters of blocks.
    kernels: HashMap<usize, cluster::Kernel>,
}

/// Locks the descriptors. The lock is never held during a call of the real library, which calls some of these
/// functions itself.
fn descriptors() -> MutexGuard<'static, Descriptors> {
    static DESCRIPTORS: LazyLock<Mutex<Descriptors>> = LazyLock::new(Default::default);
    DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Descriptors {
    fn kind(&self, descriptor: Descriptor) -> Option<i32> {
        self.kinds.get(&(descriptor as usize)).copied()
    }

    fn emulated_engine(&self, descriptor: Descriptor) -> Option<EmulatedEngine> {
        self.emulated_engines.get(&(descriptor as usize)).copied()
    }

    /// Pass of the convolution of an engine, a configuration or a plan.
    fn pass(&self, descriptor: Descriptor) -> Option<Pass> {
        self.graphs.planned(descriptor).map(|convolution| convolution.pass)
    }

    /// Engines to insert before and after those returned by the real library's heuristics.
    fn engines_around(&self, heuristics: Descriptor) -> (Option<EmulatedEngine>, Vec<EmulatedEngine>) {
        let Some(convolution) = self.graphs.convolution_of(heuristics) else { return (None, Vec::new()) };
        let product = matrix_product::first_choice(convolution);
        let Some(images) = Images::of(convolution) else { return (product, Vec::new()) };
        let transforms =
            [fourier::engine(convolution.pass, &images), winograd::engine(convolution.pass, &images)];
        let mut last: Vec<_> = transforms.into_iter().flatten().collect();
        // A filter of one position is never given to them first.
        if !last.is_empty() && convolution.w.positions() > 1 {
            notes::modeled("cuDNN's choice among its engines for convolutions");
        }
        let chosen = first_choice::engine(convolution.pass, &images);
        let listing = |engine: &EmulatedEngine| match Some(engine.engine) == chosen {
            true => Listing::First,
            false => listed::listing(engine.engine, &images),
        };
        last.retain(|engine| listing(engine) != Listing::Missing);
        let place = last.iter().position(|engine| listing(engine) == Listing::First);
        let first = place.map(|place| last.remove(place));
        (first.or(product), last)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendCreateDescriptor(kind: i32, to: *mut Descriptor) -> StatusCode {
    let status = unsafe { real::cudnnBackendCreateDescriptor(kind, to) };
    if status != SUCCESS {
        return status;
    }
    let descriptor = unsafe { *to };
    let mut descriptors = descriptors();
    descriptors.kinds.insert(descriptor as usize, kind);
    descriptors.graphs.create(descriptor, kind);
    if let Some(emulated_engine) = deviceless::replacement_for_planning(kind) {
        descriptors.emulated_engines.insert(descriptor as usize, emulated_engine);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendDestroyDescriptor(descriptor: Descriptor) -> StatusCode {
    let mut descriptors = descriptors();
    descriptors.kinds.remove(&(descriptor as usize));
    descriptors.emulated_engines.remove(&(descriptor as usize));
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
) -> StatusCode {
    // The emulator's handles must not reach the real library; the described card replaces them.
    if kind == value::HANDLE {
        return SUCCESS;
    }
    let given = AttributeValue { kind, count, values };
    let mut descriptors = descriptors();
    unsafe { descriptors.graphs.set(descriptor, name, given) };
    if name == attribute::EXECUTION_PLAN_CONFIGURATION
        && let Some(configuration) = unsafe { given.descriptor() }
        && let Some(emulated_engine) = descriptors.emulated_engine(configuration)
    {
        descriptors.emulated_engines.insert(descriptor as usize, emulated_engine);
    }
    if descriptors.emulated_engine(descriptor).is_some() {
        return SUCCESS;
    }
    let pass = descriptors.pass(descriptor);
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
unsafe extern "C" fn cudnnBackendFinalize(descriptor: Descriptor) -> StatusCode {
    let (kind, emulated_engine) = {
        let descriptors = descriptors();
        let (kind, emulated_engine) = (descriptors.kind(descriptor), descriptors.emulated_engine(descriptor));
        if kind == Some(kind::EXECUTION_PLAN) {
            autotuning::plan(descriptor, descriptors.graphs.planned(descriptor), emulated_engine);
        }
        (kind, emulated_engine)
    };
    if emulated_engine.is_some() {
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
) -> StatusCode {
    if name == attribute::ENGINE_HEURISTICS_RESULTS {
        return unsafe { configurations(descriptor, room, count, values.cast()) };
    }
    let emulated_engine = {
        let mut descriptors = descriptors();
        let emulated_engine = descriptors.emulated_engine(descriptor);
        if let Some(emulated_engine) = emulated_engine
            && name == attribute::ENGINE_CONFIGURATION_ENGINE
            && room > 0
        {
            descriptors
                .emulated_engines
                .insert(unsafe { *values.cast::<Descriptor>() } as usize, emulated_engine);
        }
        emulated_engine
    };
    if let Some(emulated_engine) = emulated_engine {
        if name == attribute::EXECUTION_PLAN_WORKSPACE {
            autotuning::set_workspace(descriptor, emulated_engine.workspace);
        }
        return unsafe { emulated_engine.get(name, room, count, values) };
    }
    let status = unsafe { real::cudnnBackendGetAttribute(descriptor, name, kind, room, count, values) };
    if name == attribute::EXECUTION_PLAN_WORKSPACE && status == SUCCESS && room > 0 && !values.is_null() {
        unsafe { correct_workspace(descriptor, values.cast()) };
        autotuning::set_workspace(descriptor, unsafe { *values.cast() });
    }
    status
}

/// Replaces the workspace computed by the real library with the one that the plan needs on the card.
unsafe fn correct_workspace(plan: Descriptor, workspace: *mut i64) {
    let (convolution, kernel) = {
        let descriptors = descriptors();
        (descriptors.graphs.planned(plan).cloned(), descriptors.kernels.get(&(plan as usize)).copied())
    };
    if let (Some(convolution), Some(kernel)) = (convolution, kernel) {
        unsafe { *workspace = cluster::workspace(&convolution, kernel, *workspace) };
    }
}

/// Returns the configurations found by heuristics, with the emulator's own engines before and after. The
/// caller has put descriptors into the array; they become the configurations.
unsafe fn configurations(
    heuristics: Descriptor,
    room: i64,
    count: *mut i64,
    values: *mut Descriptor,
) -> StatusCode {
    autotuning::start_candidates();
    let (instead, (first, last)) = {
        let descriptors = descriptors();
        (descriptors.emulated_engine(heuristics), descriptors.engines_around(heuristics))
    };
    // Assigns the descriptor at an index to an emulated engine, if there is one and the array is long enough.
    let give = |place: i64, emulated_engine: Option<&EmulatedEngine>| {
        let Some(emulated_engine) = emulated_engine.copied().filter(|_| place < room) else { return 0 };
        let configuration = unsafe { *values.add(place as usize) };
        descriptors().emulated_engines.insert(configuration as usize, emulated_engine);
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
        give(0, instead.as_ref());
        (SUCCESS, 1)
    } else if room == 0 {
        // The caller only asks for the number of configurations.
        let (status, found) = theirs(0);
        (status, found + i64::from(first.is_some()) + last.len() as i64)
    } else {
        let before = give(0, first.as_ref());
        let (status, found) = if before < room { theirs(before) } else { (SUCCESS, 0) };
        let end = last.iter().fold(before + found, |place, engine| place + give(place, Some(engine)));
        (status, end)
    };
    unsafe { put(count, found) };
    for place in 0..found.min(room) {
        let configuration = unsafe { *values.add(place as usize) };
        descriptors().graphs.plan(heuristics, configuration);
    }
    status
}

#[unsafe(no_mangle)]
extern "C" fn cudnnBackendExecute(_handle: u64, plan: Descriptor, _variant_pack: Descriptor) -> StatusCode {
    autotuning::run(plan);
    SUCCESS
}
