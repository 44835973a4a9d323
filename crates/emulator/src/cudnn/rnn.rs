//! Recurrent networks: their descriptors and their weights.
//!
//! Nothing in this interface works without a handle, but descriptors can be read back from the real library.
//! The position of a weight in the buffer of all weights is undocumented except through a query; the order
//! here matches all 13,068 weights queried on an H200 (cuDNN 9.19).

use super::data_type::{FLOAT, HALF};
use super::rnn_memory;
use super::tensor::set_matrix;
use super::{BAD_PARAMETER, Descriptor, SUCCESS, StatusCode, dropout, real};
use crate::{notes, put};

/// `cudnnRNNMode_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RnnCell {
    /// With either activation.
    Plain,
    Lstm,
    Gru,
}

impl RnnCell {
    pub(super) fn gates(self) -> usize {
        match self {
            RnnCell::Plain => 1,
            RnnCell::Lstm => 4,
            RnnCell::Gru => 3,
        }
    }
}

/// `cudnnRNNAlgo_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RnnAlgorithm {
    Standard,
    /// One kernel for all time steps, which keeps the weights in registers.
    Persistent,
    /// The same for hidden states small enough for a few multiprocessors.
    PersistentSmall,
}

/// Arguments of `cudnnSetRNNDescriptor_v8`.
#[derive(Clone, Debug)]
pub(super) struct Network {
    pub(super) algorithm: RnnAlgorithm,
    pub(super) cell: RnnCell,
    pub(super) has_bias: bool,
    pub(super) data_type: i32,
    pub(super) directions: usize,
    pub(super) input: usize,
    pub(super) hidden: usize,
    /// Size of a cell's output: its hidden state, or the projection of it.
    pub(super) output: usize,
    pub(super) layers: usize,
    pub(super) has_dropout: bool,
}

impl Network {
    unsafe fn read(descriptor: Descriptor) -> Option<Network> {
        const LSTM: i32 = 2;
        const GRU: i32 = 3;
        const NO_BIAS: i32 = 0;
        const BIDIRECTIONAL: i32 = 1;
        const PERSISTENT: i32 = 1;
        const PERSISTENT_SMALL: i32 = 3;
        let [mut algorithm, mut cell, mut bias, mut direction, mut input_mode, mut data_type] = [0; 6];
        let [mut math_type, mut math_mode, mut input, mut hidden, mut output, mut layers] = [0; 6];
        let mut dropout: Descriptor = std::ptr::null_mut();
        let mut flags = 0;
        let status = unsafe {
            real::cudnnGetRNNDescriptor_v8(
                descriptor,
                &mut algorithm,
                &mut cell,
                &mut bias,
                &mut direction,
                &mut input_mode,
                &mut data_type,
                &mut math_type,
                &mut math_mode,
                &mut input,
                &mut hidden,
                &mut output,
                &mut layers,
                &mut dropout,
                &mut flags,
            )
        };
        (status == SUCCESS).then(|| Network {
            algorithm: match algorithm {
                PERSISTENT => RnnAlgorithm::Persistent,
                PERSISTENT_SMALL => RnnAlgorithm::PersistentSmall,
                _ => RnnAlgorithm::Standard,
            },
            cell: match cell {
                LSTM => RnnCell::Lstm,
                GRU => RnnCell::Gru,
                _ => RnnCell::Plain,
            },
            has_bias: bias != NO_BIAS,
            data_type,
            directions: if direction == BIDIRECTIONAL { 2 } else { 1 },
            input: input as usize,
            hidden: hidden as usize,
            output: output as usize,
            layers: layers as usize,
            has_dropout: dropout::has_dropout(dropout),
        })
    }

    /// One layer and one direction, with biases.
    #[cfg(test)]
    pub(super) fn float(cell: RnnCell, input: usize, hidden: usize) -> Network {
        Network {
            algorithm: RnnAlgorithm::Standard,
            cell,
            has_bias: true,
            data_type: FLOAT,
            directions: 1,
            input,
            hidden,
            output: hidden,
            layers: 1,
            has_dropout: false,
        }
    }

    /// Algorithm that does the work. Persistent kernels exist for float and half. Of the other types,
    /// bfloat16 was measured to use the standard algorithm, and double is assumed to.
    pub(super) fn algorithm(&self) -> RnnAlgorithm {
        match self.data_type {
            FLOAT | HALF => self.algorithm,
            _ => RnnAlgorithm::Standard,
        }
    }

    /// Bytes of one value.
    pub(super) fn value(&self) -> usize {
        const DOUBLE: i32 = 1;
        match self.data_type {
            FLOAT => 4,
            DOUBLE => 8,
            _ => 2,
        }
    }

    /// Number of cells: one per direction and layer.
    pub(super) fn cells(&self) -> usize {
        self.layers * self.directions
    }

    pub(super) fn is_projected(&self) -> bool {
        self.output != self.hidden
    }

    /// Rows and columns of a cell's matrices: for each gate one for the input, then for each gate one for the
    /// state, then the projection.
    fn matrices(&self, cell: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let input = if cell < self.directions { self.input } else { self.output * self.directions };
        let gates = self.cell.gates();
        let projection = self.is_projected().then_some((self.output, self.hidden));
        std::iter::repeat_n((self.hidden, input), gates)
            .chain(std::iter::repeat_n((self.hidden, self.output), gates))
            .chain(projection)
    }

    /// Bytes of the matrices of the cells before this one.
    fn matrices_before(&self, cell: usize) -> usize {
        let values = (0..cell).flat_map(|cell| self.matrices(cell)).map(|(rows, columns)| rows * columns);
        values.sum::<usize>() * self.value()
    }

    pub(super) fn all_matrices(&self) -> usize {
        self.matrices_before(self.cells())
    }

    /// Bytes of a cell's biases: two per gate.
    fn biases(&self) -> usize {
        if self.has_bias { 2 * self.cell.gates() * self.hidden * self.value() } else { 0 }
    }
}

/// Batch of sequences, from the arguments of `cudnnSetRNNDataDescriptor`.
#[derive(Clone, Debug)]
pub(super) struct Sequences {
    pub(super) batch: usize,
    pub(super) longest: usize,
    /// Whether padding is left out.
    pub(super) is_packed: bool,
    /// Time steps of all sequences together.
    pub(super) steps: usize,
}

impl Sequences {
    unsafe fn read(descriptor: Descriptor) -> Option<Sequences> {
        // The number of sequences is known only after a query.
        let batch = unsafe { Sequences::read_with(descriptor, &mut []) }?.batch;
        unsafe { Sequences::read_with(descriptor, &mut vec![0; batch]) }
    }

    /// Reads a descriptor, and as many of the sequences' lengths as fit.
    unsafe fn read_with(descriptor: Descriptor, lengths: &mut [i32]) -> Option<Sequences> {
        const SEQUENCE_MAJOR_PACKED: i32 = 1;
        let [mut data_type, mut layout, mut longest, mut batch, mut vector] = [0; 5];
        let mut padding = 0.0_f64; // large enough for any type
        let status = unsafe {
            real::cudnnGetRNNDataDescriptor(
                descriptor,
                &mut data_type,
                &mut layout,
                &mut longest,
                &mut batch,
                &mut vector,
                lengths.len() as i32,
                lengths.as_mut_ptr(),
                (&raw mut padding).cast(),
            )
        };
        (status == SUCCESS).then(|| Sequences {
            batch: batch as usize,
            longest: longest as usize,
            is_packed: layout == SEQUENCE_MAJOR_PACKED,
            steps: lengths.iter().map(|length| *length as usize).sum(),
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetRNNWeightSpaceSize(
    _handle: u64,
    network: Descriptor,
    to: *mut usize,
) -> StatusCode {
    let Some(network) = (unsafe { Network::read(network) }) else { return BAD_PARAMETER };
    unsafe { put(to, network.all_matrices() + network.cells() * network.biases()) };
    SUCCESS
}

/// Address of a matrix and a bias. Biases come after all matrices.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetRNNWeightParams(
    _handle: u64,
    network: Descriptor,
    cell: i32,
    _size: usize,
    weights: u64,
    linear: i32,
    matrix: Descriptor,
    matrix_at: *mut u64,
    bias: Descriptor,
    bias_at: *mut u64,
) -> StatusCode {
    let Some(network) = (unsafe { Network::read(network) }) else { return BAD_PARAMETER };
    let (cell, linear) = (cell as usize, linear as usize);
    let mut matrices = network.matrices(cell);
    let before: usize = matrices.by_ref().take(linear).map(|(rows, columns)| rows * columns).sum();
    let Some((rows, columns)) = matrices.next() else { return BAD_PARAMETER };
    if !matrix.is_null() {
        let offset = network.matrices_before(cell) + before * network.value();
        let status = unsafe { set_matrix(matrix, network.data_type, rows, columns) };
        if status != SUCCESS {
            return status;
        }
        unsafe { put(matrix_at, weights + offset as u64) };
    }
    if !bias.is_null() && network.has_bias && linear < 2 * network.cell.gates() {
        let offset =
            network.all_matrices() + cell * network.biases() + linear * network.hidden * network.value();
        let status = unsafe { set_matrix(bias, network.data_type, network.hidden, 1) };
        if status != SUCCESS {
            return status;
        }
        unsafe { put(bias_at, weights + offset as u64) };
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetRNNTempSpaceSizes(
    _handle: u64,
    network: Descriptor,
    mode: i32,
    sequences: Descriptor,
    workspace: *mut usize,
    reserve: *mut usize,
) -> StatusCode {
    const TRAINING: i32 = 1;
    let Some(network) = (unsafe { Network::read(network) }) else { return BAD_PARAMETER };
    let Some(sequences) = (unsafe { Sequences::read(sequences) }) else { return BAD_PARAMETER };
    notes::modeled("cuDNN recurrent network workspace");
    unsafe {
        if mode == TRAINING {
            put(workspace, rnn_memory::training(&network, &sequences));
            put(reserve, rnn_memory::reserve(&network, &sequences));
        } else {
            put(workspace, rnn_memory::inference(&network, &sequences));
            put(reserve, 0);
        }
    }
    SUCCESS
}
