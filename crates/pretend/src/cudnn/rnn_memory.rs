//! Recurrent networks: the scratch memory of a pass, and what is kept for the backward pass.
//!
//! The formulas were found from 14,650 networks that an H200 was asked about (cuDNN 9.19: all cells, one and two
//! directions, up to six layers, packed and padded sequences, with and without dropout, in all four types). After
//! PyTorch's rounding to 512 bytes they give all of those sizes. What the buffers are for is our reading of the terms.

use super::rnn::{Cell, Network, Sequences};

/// Every cell gets a buffer of its own for cuBLAS.
const MATRIX_PRODUCTS: usize = 8 << 20;

/// Every buffer begins at a multiple of this, and the whole has room to be aligned itself.
const ALIGNMENT: usize = 32;
const SLACK: usize = 256;

/// A forward pass in inference multiplies the inputs of so many time steps at once.
const STEPS_AT_ONCE: usize = 256;

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// The numbers that all sizes are made of.
struct Sizes<'a> {
    network: &'a Network,
    sequences: &'a Sequences,
    /// Bytes of the hidden state of one cell: at one time step, and at all.
    state: usize,
    states: usize,
}

impl<'a> Sizes<'a> {
    fn new(network: &'a Network, sequences: &'a Sequences) -> Sizes<'a> {
        let state_of_one = network.hidden * network.value();
        Sizes {
            network,
            sequences,
            state: sequences.batch * state_of_one,
            states: sequences.steps * state_of_one,
        }
    }

    /// What both passes need.
    fn common(&self) -> usize {
        SLACK + self.network.cells() * MATRIX_PRODUCTS + aligned(self.network.all_matrices())
    }

    fn inputs(&self) -> usize {
        self.sequences.steps * self.network.input * self.network.value()
    }

    /// Copies without padding of `tensors` tensors of the input's shape and of the output's, and of the states before
    /// and after, where sequences came with padding.
    fn unpadded(&self, tensors: usize) -> usize {
        if self.sequences.is_packed {
            return 0;
        }
        let Network { directions, output, .. } = *self.network;
        let value = self.network.value();
        let outputs = aligned(directions * self.sequences.steps * output * value);
        let hidden = aligned(self.network.cells() * self.sequences.batch * output * value);
        let cell = match self.network.cell {
            Cell::Lstm => aligned(self.network.cells() * self.state),
            Cell::Plain | Cell::Gru => 0,
        };
        let offsets = aligned(8 * self.sequences.batch);
        offsets + tensors * (aligned(self.inputs()) + outputs + 2 * (hidden + cell))
    }

    fn forward(&self) -> usize {
        let network = self.network;
        let scratch = match network.cell {
            Cell::Plain => 1,
            Cell::Lstm => 6,
            Cell::Gru => 3,
        };
        let both_directions = network.directions == 2;
        let scratch = network.cells() * (scratch + if both_directions { 2 } else { 0 });
        let steps = if both_directions {
            self.sequences.steps
        } else {
            self.sequences.steps.min(STEPS_AT_ONCE * self.sequences.batch)
        };
        let gates = network.directions * network.cell.gates() * steps * network.hidden * network.value();
        // Outputs of the layer before, to be joined or thinned out.
        let between = match (both_directions, network.drops) {
            (true, _) => 4 * self.states,
            (false, true) => self.states,
            (false, false) => 0,
        };
        let unprojected = if network.is_projected() { network.directions * self.states } else { 0 };
        self.common()
            + aligned(scratch * self.state)
            + aligned(gates)
            + aligned(between)
            + aligned(unprojected)
            + self.unpadded(1)
    }

    fn backward(&self) -> usize {
        let network = self.network;
        let scratch = match network.cell {
            Cell::Lstm => 3,
            Cell::Plain | Cell::Gru => 1,
        };
        let widest = self.sequences.steps * network.input.max(network.hidden) * network.value();
        let gradients = if network.directions == 2 {
            let layers = if network.layers > 1 { 4 } else { 2 };
            aligned(4 * widest) + aligned(layers * self.states) + aligned(4 * network.layers * self.state)
        } else {
            let steps = self.sequences.steps.min(self.steps_in_flight() * self.sequences.batch);
            aligned(widest) + aligned(steps * network.hidden * network.value())
        };
        self.common() + aligned(network.cells() * scratch * self.state) + gradients + self.unpadded(2)
    }

    /// Time steps whose gradients exist at the same time: layers work on neighbouring pieces of the sequences.
    fn steps_in_flight(&self) -> usize {
        let Sequences { batch, longest, .. } = *self.sequences;
        if self.network.layers == 1 {
            return longest;
        }
        let last_piece = match batch {
            1 => 32,
            2..=8 => 16,
            _ => 8,
        };
        let piece = match batch {
            17..=96 if longest < 128 => 4,
            97.. if longest < 128 => 2,
            _ => last_piece,
        };
        longest.min(self.network.layers * piece + last_piece)
    }

    /// What the persistent kernels add, in half precision, to the forward and to the backward pass. It was measured with
    /// one layer, one direction and inputs of 256 values.
    fn persistent(&self) -> (usize, usize) {
        if !self.network.is_persistent || !self.network.is_half() {
            return (0, 0);
        }
        let hidden = self.network.hidden;
        let (values, batch) = (self.sequences.steps * hidden, self.sequences.batch * hidden);
        let gates = 8 * self.network.cell.gates() * values;
        let (forward, small, large) = match self.network.cell {
            Cell::Plain => (gates + 2 * batch, 2, 18),
            Cell::Lstm => (gates - 4 * batch, 8, 24),
            Cell::Gru => (gates - 2 * batch, 12, 28),
        };
        (forward, (small * values + 4 * batch + 4864 * hidden).max(large * values + 2 * batch))
    }
}

/// The workspace of an inference pass.
pub(super) fn inference(network: &Network, sequences: &Sequences) -> usize {
    let sizes = Sizes::new(network, sequences);
    sizes.forward() + sizes.persistent().0
}

/// The workspace of a training step: one for both passes.
pub(super) fn training(network: &Network, sequences: &Sequences) -> usize {
    let sizes = Sizes::new(network, sequences);
    let (forward, backward) = sizes.persistent();
    (sizes.forward() + forward).max(sizes.backward() + backward)
}

/// What a forward pass keeps for the backward pass.
pub(super) fn reserve(network: &Network, sequences: &Sequences) -> usize {
    let sizes = Sizes::new(network, sequences);
    let all = network.cells() * sizes.states;
    let of_cells = match network.cell {
        Cell::Plain => aligned(all),
        Cell::Lstm => aligned(4 * all) + aligned(all),
        Cell::Gru => aligned(6 * all),
    };
    let projected = if network.is_projected() {
        let width = network.hidden + network.output;
        aligned(network.cells() * sequences.steps * width * network.value())
    } else {
        0
    };
    let gaps = (network.layers - 1) * network.directions;
    let between = aligned(gaps * sizes.states);
    // A bit for each value that a cell of the next layer reads.
    let mask = if network.drops {
        aligned((sequences.longest * sequences.batch * network.hidden * network.directions).div_ceil(8))
    } else {
        0
    };
    SLACK + of_cells + projected + between + gaps * mask
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Networks with their workspace in inference and in training, and their reserve, as an H200 gave them.
    #[test]
    fn agrees_with_an_h200() {
        let small = Sequences { batch: 16, longest: 32, is_packed: false, steps: 512 };
        let long = Sequences { batch: 16, longest: 1000, is_packed: false, steps: 16_000 };
        let packed = Sequences { batch: 16, longest: 32, is_packed: true, steps: 334 };
        let lstm = Network::float(Cell::Lstm, 128, 128);
        let deep = Network { layers: 3, ..lstm.clone() };
        let both = Network { directions: 2, ..lstm.clone() };
        let projected = Network { output: 32, ..lstm.clone() };
        let gru = Network::float(Cell::Gru, 128, 128);
        let measured = [
            (&lstm, &small, [10_568_064, 10_576_256, 1_310_976]),
            (&lstm, &long, [33_767_808, 58_155_392, 40_960_256]),
            (&lstm, &packed, [9_646_336, 9_646_336, 855_296]),
            (&deep, &small, [28_557_696, 28_582_272, 4_456_704]),
            (&both, &small, [21_954_944, 21_954_944, 2_621_696]),
            (&projected, &small, [10_441_088, 10_441_088, 1_638_656]),
            (&gru, &small, [10_133_888, 10_396_032, 1_573_120]),
        ];
        for (network, sequences, sizes) in measured {
            let ours =
                [inference(network, sequences), training(network, sequences), reserve(network, sequences)];
            assert_eq!(ours, sizes, "{network:?} {sequences:?}");
        }
    }
}
