//! Inputs with their devices and findings, which borrow from the snapshots that they are kept with.

use super::view::{DeviceView, Indexes};
use analysis::{Device, Diagnosis};
use recording::Recording;
use self_cell::self_cell;
use snapshot::Snapshot;
use std::sync::Arc;

/// A snapshot to be shown, with the sidecar files of its recording.
pub struct RunInput {
    /// Name, usually the path.
    pub name: String,
    /// The snapshot.
    pub snapshot: Snapshot,
    /// What the recorder wrote next to it.
    pub recording: Recording,
}

type DeviceList<'a> = Vec<Device<'a>>;

self_cell!(
    struct InputDevices {
        owner: RunInput,
        #[covariant]
        dependent: DeviceList,
    }
);

type DeviceDiagnoses<'a> = Vec<Diagnosis<'a>>;

self_cell!(
    struct ExplainedDevices {
        owner: InputDevices,
        #[covariant]
        dependent: DeviceDiagnoses,
    }
);

/// An input with the explanations of its devices.
pub(crate) struct LoadedInput {
    explained: ExplainedDevices,
    indexes: Vec<Indexes>,
    is_what_if: bool,
    numbers: RunNumbers,
}

/// Numbers of an input and its devices.
#[derive(Clone, Copy, Default)]
pub(crate) struct RunNumbers {
    first_device: usize,
    input: usize,
}

impl LoadedInput {
    pub(crate) fn new(input: RunInput, is_what_if: bool, numbers: RunNumbers) -> LoadedInput {
        let devices =
            InputDevices::new(input, |input| analysis::recorded_devices(&input.snapshot, &input.recording));
        let explained = ExplainedDevices::new(devices, |devices| {
            devices.borrow_dependent().iter().map(Diagnosis::new).collect()
        });
        let indexes = explained.borrow_dependent().iter().map(|_| Indexes::default()).collect();
        LoadedInput { explained, indexes, is_what_if, numbers }
    }

    pub(crate) fn input(&self) -> &RunInput {
        self.explained.borrow_owner().borrow_owner()
    }

    pub(crate) fn devices(&self) -> &[Device<'_>] {
        self.explained.borrow_owner().borrow_dependent()
    }

    pub(crate) fn views(&self) -> impl Iterator<Item = DeviceView<'_>> {
        let devices = self.explained.borrow_dependent().iter().zip(&self.indexes).enumerate();
        devices.map(|(device, (answer, indexes))| DeviceView {
            id: self.numbers.first_device + device,
            input: self.numbers.input,
            name: &self.input().name,
            is_what_if: self.is_what_if,
            model: &answer.model,
            findings: &answer.findings,
            indexes,
        })
    }

    pub(crate) fn view(&self, id: usize) -> Option<DeviceView<'_>> {
        self.views().find(|view| view.id == id)
    }
}

/// The inputs, then the what-ifs.
pub(crate) struct Runs {
    loaded: Vec<Arc<LoadedInput>>,
    next: RunNumbers,
    inputs: usize,
}

/// What-ifs that are kept; the oldest is dropped first.
const MAX_WHAT_IFS: usize = 4;

impl Runs {
    pub(crate) fn new(inputs: Vec<RunInput>) -> Runs {
        let mut runs = Runs { loaded: Vec::new(), next: RunNumbers::default(), inputs: inputs.len() };
        for input in inputs {
            let numbers = runs.number(&input);
            runs.loaded.push(Arc::new(LoadedInput::new(input, false, numbers)));
        }
        runs
    }

    /// Takes numbers for a new input and its devices.
    pub(crate) fn number(&mut self, input: &RunInput) -> RunNumbers {
        let numbers = self.next;
        let devices = input.snapshot.devices().len();
        self.next = RunNumbers { first_device: numbers.first_device + devices, input: numbers.input + 1 };
        numbers
    }

    /// Adds a what-if.
    pub(crate) fn add(&mut self, what_if: Arc<LoadedInput>) {
        if self.loaded.len() - self.inputs >= MAX_WHAT_IFS {
            self.loaded.remove(self.inputs);
        }
        self.loaded.push(what_if);
    }

    /// The inputs, without what-ifs.
    pub(crate) fn inputs(&self) -> Vec<Arc<LoadedInput>> {
        self.loaded[..self.inputs].to_vec()
    }

    /// Returns the input or what-if that a device belongs to.
    pub(crate) fn with(&self, id: usize) -> Option<Arc<LoadedInput>> {
        self.loaded.iter().find(|loaded| loaded.views().any(|view| view.id == id)).cloned()
    }
}
