//! Tensor descriptors, read back from the real library and written to it.

use super::{Descriptor, SUCCESS, StatusCode, real};

/// `CUDNN_DIM_MAX`.
const MAX_DIMENSIONS: usize = 8;

/// A tensor according to its descriptor: batch, channels and spatial dimensions.
pub(super) struct TensorDescriptor {
    pub(super) data_type: i32,
    sizes: Vec<usize>,
    strides: Vec<usize>,
}

impl TensorDescriptor {
    pub(super) unsafe fn read(descriptor: Descriptor) -> Option<TensorDescriptor> {
        let (mut data_type, mut dimensions) = (0, 0);
        let (mut sizes, mut strides) = ([0; MAX_DIMENSIONS], [0; MAX_DIMENSIONS]);
        let status = unsafe {
            real::cudnnGetTensorNdDescriptor(
                descriptor,
                MAX_DIMENSIONS as i32,
                &mut data_type,
                &mut dimensions,
                sizes.as_mut_ptr(),
                strides.as_mut_ptr(),
            )
        };
        let numbers = |values: &[i32]| -> Vec<usize> {
            values.iter().take(dimensions as usize).map(|value| *value as usize).collect()
        };
        (status == SUCCESS && dimensions >= 2).then(|| TensorDescriptor {
            data_type,
            sizes: numbers(&sizes),
            strides: numbers(&strides),
        })
    }

    pub(super) fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    pub(super) fn channels(&self) -> usize {
        self.sizes.get(1).copied().unwrap_or(1)
    }

    /// Values of one channel.
    pub(super) fn positions(&self) -> usize {
        self.sizes.iter().product::<usize>() / self.channels().max(1)
    }

    /// Whether neighbors in memory are channels. With one channel or one position, any order qualifies.
    pub(super) fn is_channels_last(&self) -> bool {
        let one_position = self.sizes.iter().skip(2).all(|size| *size == 1);
        self.channels() == 1 || one_position || self.strides.get(1) == Some(&1)
    }

    #[cfg(test)]
    pub(super) fn channels_last(data_type: i32, sizes: &[usize]) -> TensorDescriptor {
        let mut strides = vec![0; sizes.len()];
        strides[1] = 1;
        TensorDescriptor { data_type, sizes: sizes.to_vec(), strides }
    }
}

/// Describes a matrix of `rows` and `columns`, as cuDNN describes weights: in three dimensions.
pub(super) unsafe fn set_matrix(
    descriptor: Descriptor,
    data_type: i32,
    rows: usize,
    columns: usize,
) -> StatusCode {
    let (rows, columns) = (rows as i32, columns as i32);
    let (sizes, strides) = ([1, rows, columns], [rows * columns, columns, 1]);
    unsafe { real::cudnnSetTensorNdDescriptor(descriptor, data_type, 3, sizes.as_ptr(), strides.as_ptr()) }
}
