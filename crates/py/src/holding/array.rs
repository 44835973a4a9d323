//! References of NumPy's arrays, by the layout that is part of NumPy's C API.

use pyo3::ffi;
use std::ffi::c_int;

/// Flag of arrays that own their data.
const OWNS_DATA: c_int = 4;
/// Maximum number of dimensions of an array.
const MAX_DIMENSIONS: usize = 64;

#[repr(C)]
/// Layout of an array object.
struct Array {
    head: ffi::PyObject,
    data: *const u8,
    dimensions: c_int,
    lengths: *const isize,
    strides: *const isize,
    base: *mut ffi::PyObject,
    kind: *const ElementType,
    flags: c_int,
}

/// Layout of an array's element type.
#[repr(C)]
struct ElementType {
    head: ffi::PyObject,
    class: *mut ffi::PyObject,
    letter: u8,
}

/// Visits the array that an array is a view of, and its elements if they are objects.
///
/// # Safety
/// `object` is an instance of `numpy.ndarray`.
pub(super) unsafe fn visit(object: *mut ffi::PyObject, mut note: impl FnMut(*mut ffi::PyObject)) {
    // SAFETY: by the contract of this function the object has this layout; its element type belongs to it.
    let (array, letter) = unsafe {
        let array = &*object.cast::<Array>();
        (array, (*array.kind).letter)
    };
    if !array.base.is_null() {
        note(array.base);
    }
    let dimensions = array.dimensions as usize;
    if letter != b'O' || array.flags & OWNS_DATA == 0 || dimensions > MAX_DIMENSIONS {
        return;
    }
    let (lengths, strides): (&[isize], &[isize]) = if dimensions == 0 {
        (&[], &[])
    } else {
        // SAFETY: an array has one length and one stride for each dimension.
        unsafe {
            (
                std::slice::from_raw_parts(array.lengths, dimensions),
                std::slice::from_raw_parts(array.strides, dimensions),
            )
        }
    };
    if lengths.contains(&0) {
        return;
    }
    let mut index = [0; MAX_DIMENSIONS];
    let mut offset = 0;
    'elements: loop {
        // SAFETY: inside the array, whose elements are objects or null; a structure may leave them unaligned.
        let element = unsafe { array.data.offset(offset).cast::<*mut ffi::PyObject>().read_unaligned() };
        if !element.is_null() {
            note(element);
        }
        for axis in (0..dimensions).rev() {
            index[axis] += 1;
            offset += strides[axis];
            if index[axis] < lengths[axis] {
                continue 'elements;
            }
            offset -= index[axis] * strides[axis];
            index[axis] = 0;
        }
        return;
    }
}
