//! Search for the objects of the process that lead to tensors.
//!
//! Every object is asked for its references by `tp_traverse`, as the garbage collector does: that runs no
//! Python code, creates no object and changes no reference count. The result is a few thousand of hundreds of
//! thousands of objects; Python names their references.

#![allow(unsafe_code)] // The interpreter's C API: each use says why it holds.

mod array;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;
use rustc_hash::{FxHashMap, FxHashSet};
use std::ffi::{c_int, c_void};

/// Returns those of `objects`, and of what they refer to, whose class is one of `kinds` or that lead to one
/// of these, each with the number of references to it from outside of all these objects. `arrays` are NumPy's
/// array classes, which the garbage collector does not see. References of `roots` are not followed.
#[pyfunction]
pub(crate) fn holding<'py>(
    objects: &Bound<'py, PyList>,
    kinds: &Bound<'py, PyList>,
    arrays: &Bound<'py, PyList>,
    roots: FxHashSet<usize>,
) -> PyResult<Vec<(Bound<'py, PyAny>, isize)>> {
    let py = objects.py();
    let kinds = addresses(kinds);
    let graph = ObjectGraph::new(objects, addresses(arrays), roots);
    let mut found = Vec::new();
    for place in graph.leading_to(|object| kinds.contains(&type_of(object))) {
        let unexplained = graph.unexplained(place);
        // SAFETY: `objects` or another object refers to it, and no Python code has run since it was found.
        let object = unsafe { Bound::from_borrowed_ptr(py, graph.objects[place as usize]) };
        found.push((object, unexplained));
    }
    Ok(found)
}

fn addresses(list: &Bound<'_, PyList>) -> FxHashSet<usize> {
    list.iter().map(|each| each.as_ptr() as usize).collect()
}

/// References between objects, by their numbers.
struct ObjectGraph {
    objects: Vec<*mut ffi::PyObject>,
    numbers: FxHashMap<usize, u32>,
    arrays: FxHashSet<usize>,
    roots: FxHashSet<usize>,
    traverses: FxHashMap<usize, Option<ffi::traverseproc>>,
    /// References of all objects, one after the other.
    targets: Vec<u32>,
    /// End of the references of each object.
    ends: Vec<usize>,
    /// Number of objects that the caller's list refers to as well.
    listed: usize,
    /// Number of references to each object.
    counts: Vec<u32>,
}

impl ObjectGraph {
    fn new(objects: &Bound<'_, PyList>, arrays: FxHashSet<usize>, roots: FxHashSet<usize>) -> ObjectGraph {
        let mut graph = ObjectGraph {
            objects: Vec::with_capacity(objects.len()),
            numbers: FxHashMap::with_capacity_and_hasher(objects.len(), Default::default()),
            arrays,
            roots,
            traverses: FxHashMap::default(),
            targets: Vec::with_capacity(4 * objects.len()),
            ends: Vec::with_capacity(objects.len()),
            listed: 0,
            counts: Vec::new(),
        };
        for object in objects.iter() {
            graph.number(object.as_ptr());
        }
        graph.listed = graph.objects.len();
        // Grows meanwhile by objects that the garbage collector does not track.
        let mut at = 0;
        while let Some(&object) = graph.objects.get(at) {
            graph.traverse(object);
            at += 1;
        }
        graph.counts = vec![0; graph.objects.len()];
        for &target in &graph.targets {
            graph.counts[target as usize] += 1;
        }
        graph
    }

    fn number(&mut self, object: *mut ffi::PyObject) -> u32 {
        *self.numbers.entry(object as usize).or_insert_with(|| {
            self.objects.push(object);
            (self.objects.len() - 1) as u32
        })
    }

    fn traverse(&mut self, object: *mut ffi::PyObject) {
        let kind = type_of(object);
        let traverse = *self.traverses.entry(kind).or_insert_with(|| {
            // SAFETY: `kind` is the class of a live object; the slot is used as the function that it is.
            let slot = unsafe { ffi::PyType_GetSlot(kind as *mut ffi::PyTypeObject, ffi::Py_tp_traverse) };
            (!slot.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, ffi::traverseproc>(slot) })
        });
        if let Some(traverse) = traverse {
            // SAFETY: a live object and the function of its own class, with the lock held; `visit` only
            // records its arguments.
            unsafe { traverse(object, visit, std::ptr::from_mut(self).cast()) };
        }
        if self.arrays.contains(&kind) {
            // SAFETY: a live array, by its class.
            unsafe { array::visit(object, |target| self.note(target)) };
        }
        self.ends.push(self.targets.len());
    }

    fn note(&mut self, target: *mut ffi::PyObject) {
        if self.roots.contains(&(target as usize)) {
            return;
        }
        if let Some(&number) = self.numbers.get(&(target as usize)) {
            self.targets.push(number);
        } else if self.can_lead_on(target) {
            let number = self.number(target);
            self.targets.push(number);
        }
    }

    /// Returns whether an object that the garbage collector does not track may have references.
    fn can_lead_on(&self, object: *mut ffi::PyObject) -> bool {
        // SAFETY: a live object; this is valid for any object.
        if unsafe { ffi::PyObject_GC_IsTracked(object) } == 1 {
            return true;
        }
        // A dictionary or tuple that contains only such arrays is not tracked either.
        // SAFETY: as above.
        let is_plain = unsafe { ffi::PyDict_CheckExact(object) == 1 || ffi::PyTuple_CheckExact(object) == 1 };
        !self.arrays.is_empty() && (is_plain || self.arrays.contains(&type_of(object)))
    }

    /// Returns objects with this property, and those that lead to one, in order.
    fn leading_to(&self, has: impl Fn(*mut ffi::PyObject) -> bool) -> Vec<u32> {
        let (sources, starts) = self.reversed();
        let mut is_found: Vec<bool> = self.objects.iter().map(|&object| has(object)).collect();
        let mut waiting: Vec<u32> =
            (0..self.objects.len() as u32).filter(|&at| is_found[at as usize]).collect();
        while let Some(at) = waiting.pop() {
            for &source in &sources[starts[at as usize]..starts[at as usize + 1]] {
                if !std::mem::replace(&mut is_found[source as usize], true) {
                    waiting.push(source);
                }
            }
        }
        (0..self.objects.len() as u32).filter(|&at| is_found[at as usize]).collect()
    }

    /// Returns the referrers of all objects, one after the other, and the start of those of each object.
    fn reversed(&self) -> (Vec<u32>, Vec<usize>) {
        let mut starts = vec![0; self.objects.len() + 1];
        for (at, &count) in self.counts.iter().enumerate() {
            starts[at + 1] = starts[at] + count as usize;
        }
        let mut next = starts.clone();
        let mut sources = vec![0; self.targets.len()];
        let mut begin = 0;
        for (source, &end) in self.ends.iter().enumerate() {
            for &target in &self.targets[begin..end] {
                sources[next[target as usize]] = source as u32;
                next[target as usize] += 1;
            }
            begin = end;
        }
        (sources, starts)
    }

    /// Returns the number of references to an object from elsewhere: C code, the interpreter's stack, the
    /// caller.
    fn unexplained(&self, place: u32) -> isize {
        // SAFETY: a live object, as above.
        let count = unsafe { ffi::Py_REFCNT(self.objects[place as usize]) };
        let ours = isize::from((place as usize) < self.listed);
        count as isize - self.counts[place as usize] as isize - ours
    }
}

fn type_of(object: *mut ffi::PyObject) -> usize {
    // SAFETY: a live object has a class.
    unsafe { ffi::Py_TYPE(object) as usize }
}

/// Callback for each reference of an object.
unsafe extern "C" fn visit(target: *mut ffi::PyObject, graph: *mut c_void) -> c_int {
    // SAFETY: `traverse` above passes its own graph, which nothing else accesses meanwhile.
    unsafe { &mut *graph.cast::<ObjectGraph>() }.note(target);
    0
}
