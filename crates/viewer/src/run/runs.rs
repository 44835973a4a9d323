//! An input with its devices and findings, which borrow from the snapshot that they are kept with; what-ifs.

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
    ids: RunIds,
}

/// Devices of one input that can have a number.
const MAX_DEVICES: usize = 4096;

/// Numbers of an input and its devices. Those of an input's devices depend on nothing but its own number: the
/// others may not be read yet.
#[derive(Clone, Copy)]
pub(crate) struct RunIds {
    input: usize,
    first_device: usize,
    /// Distance between the numbers of two devices.
    stride: usize,
}

impl RunIds {
    /// Numbers of one of several inputs: its first device has the number of the input.
    pub(crate) fn of_input(input: usize, inputs: usize) -> RunIds {
        RunIds { input, first_device: input, stride: inputs }
    }

    /// Number of the input that has a device; `None` for a what-if's.
    pub(crate) fn input_with(id: usize, inputs: usize) -> Option<usize> {
        (id < inputs * MAX_DEVICES).then(|| id % inputs)
    }

    /// Number of one of the devices.
    pub(super) fn device(self, device: usize) -> usize {
        self.first_device + device * self.stride
    }
}

impl LoadedInput {
    pub(crate) fn new(input: RunInput, is_what_if: bool, ids: RunIds) -> LoadedInput {
        let devices =
            InputDevices::new(input, |input| analysis::recorded_devices(&input.snapshot, &input.recording));
        let explained = ExplainedDevices::new(devices, |devices| {
            devices.borrow_dependent().iter().map(Diagnosis::new).collect()
        });
        let indexes = explained.borrow_dependent().iter().map(|_| Indexes::default()).collect();
        LoadedInput { explained, indexes, is_what_if, ids }
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
            id: self.ids.device(device),
            input: self.ids.input,
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

/// Replayed runs; the oldest is dropped first.
pub(crate) struct WhatIfs {
    loaded: Vec<Arc<LoadedInput>>,
    next: RunIds,
}

/// What-ifs that are kept.
const MAX_WHAT_IFS: usize = 4;

impl WhatIfs {
    /// No what-ifs yet, after this many inputs.
    pub(crate) fn after(inputs: usize) -> WhatIfs {
        let next = RunIds { input: inputs, first_device: inputs * MAX_DEVICES, stride: 1 };
        WhatIfs { loaded: Vec::new(), next }
    }

    /// Takes numbers for a new what-if and its devices.
    pub(crate) fn number(&mut self, input: &RunInput) -> RunIds {
        let ids = self.next;
        self.next.input += 1;
        self.next.first_device += input.snapshot.devices().len();
        ids
    }

    /// Adds a what-if.
    pub(crate) fn add(&mut self, what_if: Arc<LoadedInput>) {
        if self.loaded.len() >= MAX_WHAT_IFS {
            self.loaded.remove(0);
        }
        self.loaded.push(what_if);
    }

    /// Returns the what-if that a device belongs to.
    pub(crate) fn with(&self, id: usize) -> Option<Arc<LoadedInput>> {
        self.loaded.iter().find(|loaded| loaded.view(id).is_some()).cloned()
    }
}
