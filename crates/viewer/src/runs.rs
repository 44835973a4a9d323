//! The inputs with what was found in them, kept together with the tables that they refer to.

use crate::view::{Kept, View};
use analysis::{Answer, Device};
use recording::Recording;
use self_cell::self_cell;
use snapshot::Snapshot;
use std::sync::Arc;

/// What is to be shown: a snapshot, and what a recorder noted beside it.
pub struct Input {
    /// Its name.
    pub name: String,
    /// The snapshot.
    pub snapshot: Snapshot,
    /// The notes.
    pub recording: Recording,
}

type Devices<'a> = Vec<Device<'a>>;

self_cell!(
    struct Loaded {
        owner: Input,
        #[covariant]
        dependent: Devices,
    }
);

type Answers<'a> = Vec<Answer<'a>>;

self_cell!(
    struct Told {
        owner: Loaded,
        #[covariant]
        dependent: Answers,
    }
);

/// An input, read and explained.
pub(crate) struct Shown {
    told: Told,
    kept: Vec<Kept>,
    is_what_if: bool,
    place: Place,
}

/// Where an input stands among all that are shown.
#[derive(Clone, Copy, Default)]
pub(crate) struct Place {
    /// The number of its first device.
    first: usize,
    /// Its own number.
    number: usize,
}

impl Shown {
    pub(crate) fn new(input: Input, is_what_if: bool, place: Place) -> Shown {
        let loaded =
            Loaded::new(input, |input| analysis::recorded_devices(&input.snapshot, &input.recording));
        let told = Told::new(loaded, |loaded| loaded.borrow_dependent().iter().map(Answer::new).collect());
        let kept = told.borrow_dependent().iter().map(|_| Kept::default()).collect();
        Shown { told, kept, is_what_if, place }
    }

    pub(crate) fn input(&self) -> &Input {
        self.told.borrow_owner().borrow_owner()
    }

    pub(crate) fn devices(&self) -> &[Device<'_>] {
        self.told.borrow_owner().borrow_dependent()
    }

    pub(crate) fn views(&self) -> impl Iterator<Item = View<'_>> {
        self.told.borrow_dependent().iter().zip(&self.kept).enumerate().map(|(place, (answer, kept))| View {
            id: self.place.first + place,
            input: self.place.number,
            name: &self.input().name,
            is_what_if: self.is_what_if,
            outline: &answer.outline,
            findings: &answer.findings,
            kept,
        })
    }

    pub(crate) fn view(&self, id: usize) -> Option<View<'_>> {
        self.views().find(|view| view.id == id)
    }
}

/// All that is shown, in order.
pub(crate) struct Runs {
    shown: Vec<Arc<Shown>>,
    next: Place,
    inputs: usize,
}

/// What-ifs that are kept; the oldest goes first.
const WHAT_IFS: usize = 4;

impl Runs {
    pub(crate) fn new(inputs: Vec<Input>) -> Runs {
        let mut runs = Runs { shown: Vec::new(), next: Place::default(), inputs: inputs.len() };
        for input in inputs {
            let place = runs.place_for(&input);
            runs.shown.push(Arc::new(Shown::new(input, false, place)));
        }
        runs
    }

    /// Numbers for a new input and its devices.
    pub(crate) fn place_for(&mut self, input: &Input) -> Place {
        let place = self.next;
        self.next = Place { first: place.first + input.snapshot.devices().len(), number: place.number + 1 };
        place
    }

    /// Shows a what-if.
    pub(crate) fn add(&mut self, what_if: Arc<Shown>) {
        if self.shown.len() - self.inputs >= WHAT_IFS {
            self.shown.remove(self.inputs);
        }
        self.shown.push(what_if);
    }

    /// The inputs, without what-ifs.
    pub(crate) fn inputs(&self) -> Vec<Arc<Shown>> {
        self.shown[..self.inputs].to_vec()
    }

    /// The input or what-if that a device belongs to.
    pub(crate) fn with(&self, id: usize) -> Option<Arc<Shown>> {
        self.shown.iter().find(|shown| shown.views().any(|view| view.id == id)).cloned()
    }
}
