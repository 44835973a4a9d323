//! Connectionist temporal classification: the scratch memory of the loss.
//!
//! The formulas reproduce all 5,592 sizes returned by an H200 (cuDNN 9.19). The deterministic and the
//! non-deterministic algorithm need the same memory.

use super::tensor::TensorDescriptor;
use super::{BAD_PARAMETER, Descriptor, SUCCESS, StatusCode, real};
use crate::{notes, put};

/// Workspace in bytes. `probabilities` is time × batch × alphabet; a label's states alternate with blanks, so
/// there are twice as many.
fn bytes(probabilities: &TensorDescriptor, longest_label: usize, per_sequence: usize) -> Option<usize> {
    let &[time, batch, alphabet] = probabilities.sizes() else { return None };
    Some(batch * per_sequence + time * batch * (8 + 16 * longest_label + 4 * alphabet))
}

unsafe fn answer(
    probabilities: Descriptor,
    longest_label: usize,
    per_sequence: usize,
    to: *mut usize,
) -> StatusCode {
    let Some(probabilities) = (unsafe { TensorDescriptor::read(probabilities) }) else {
        return BAD_PARAMETER;
    };
    let Some(bytes) = bytes(&probabilities, longest_label, per_sequence) else { return BAD_PARAMETER };
    notes::modeled("cuDNN CTC loss workspace");
    unsafe { put(to, bytes) };
    SUCCESS
}

/// Labels and their lengths are in host memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetCTCLossWorkspaceSize(
    _handle: u64,
    probabilities: Descriptor,
    _gradients: Descriptor,
    _labels: *const i32,
    label_lengths: *const i32,
    _input_lengths: *const i32,
    _algorithm: i32,
    _descriptor: Descriptor,
    to: *mut usize,
) -> StatusCode {
    let Some(tensor) = (unsafe { TensorDescriptor::read(probabilities) }) else { return BAD_PARAMETER };
    let batch = tensor.channels();
    let lengths = unsafe { std::slice::from_raw_parts(label_lengths, batch) };
    let longest = lengths.iter().copied().max().unwrap_or_default().max(0) as usize;
    unsafe { answer(probabilities, longest, 20 + 12 * longest, to) }
}

/// Labels are on the device; the descriptor bounds their length.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetCTCLossWorkspaceSize_v8(
    _handle: u64,
    _algorithm: i32,
    descriptor: Descriptor,
    probabilities: Descriptor,
    _gradients: Descriptor,
    to: *mut usize,
) -> StatusCode {
    let (mut data_type, mut normalization, mut gradient_mode, mut longest) = (0, 0, 0, 0);
    let status = unsafe {
        real::cudnnGetCTCLossDescriptor_v9(
            descriptor,
            &mut data_type,
            &mut normalization,
            &mut gradient_mode,
            &mut longest,
        )
    };
    if status != SUCCESS {
        return status;
    }
    let longest = longest as usize;
    unsafe { answer(probabilities, longest, 12 + 8 * longest, to) }
}
