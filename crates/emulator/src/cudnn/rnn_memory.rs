//! Recurrent networks: the scratch memory of a pass, and what is kept for the backward pass.
//!
//! The formulas were derived from 46,810 networks queried on an H200 (cuDNN 9.19: all cells and algorithms,
//! one and two directions, up to six layers, packed and padded sequences, with and without dropout, in all
//! four types). They reproduce all of those sizes to the byte. The purposes of the buffers are our
//! interpretation of the terms.

use super::rnn::{Network, RnnAlgorithm, RnnCell, Sequences};

/// Every cell gets its own buffer for cuBLAS.
const CUBLAS_BUFFER_BYTES: usize = 8 << 20;

/// Alignment of every buffer, and additional room to align the whole.
const ALIGNMENT_BYTES: usize = 32;
const SLACK_BYTES: usize = 256;

/// An inference pass multiplies the inputs of this many time steps at once.
const STEPS_PER_PRODUCT: usize = 256;

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT_BYTES)
}

/// Sizes from which all others are computed.
struct RnnSizes<'a> {
    network: &'a Network,
    sequences: &'a Sequences,
    /// Bytes of the hidden state of one cell: at one time step, and at all.
    state: usize,
    states: usize,
}

impl<'a> RnnSizes<'a> {
    fn new(network: &'a Network, sequences: &'a Sequences) -> RnnSizes<'a> {
        let state_of_one = network.hidden * network.value();
        RnnSizes {
            network,
            sequences,
            state: sequences.batch * state_of_one,
            states: sequences.steps * state_of_one,
        }
    }

    /// Bytes that both passes need.
    fn common(&self) -> usize {
        SLACK_BYTES + self.network.cells() * CUBLAS_BUFFER_BYTES + aligned(self.network.all_matrices())
    }

    fn inputs(&self) -> usize {
        self.sequences.steps * self.network.input * self.network.value()
    }

    /// Bytes of unpadded copies of `tensors` tensors of the input's and of the output's shape, and of the
    /// states before and after, if sequences are padded.
    fn unpadded(&self, tensors: usize) -> usize {
        if self.sequences.is_packed {
            return 0;
        }
        let Network { directions, output, .. } = *self.network;
        let value = self.network.value();
        let outputs = aligned(directions * self.sequences.steps * output * value);
        let hidden = aligned(self.network.cells() * self.sequences.batch * output * value);
        let cell = match self.network.cell {
            RnnCell::Lstm => aligned(self.network.cells() * self.state),
            RnnCell::Plain | RnnCell::Gru => 0,
        };
        let offsets = aligned(8 * self.sequences.batch);
        offsets + tensors * (aligned(self.inputs()) + outputs + 2 * (hidden + cell))
    }

    fn is_persistent(&self) -> bool {
        self.network.algorithm() != RnnAlgorithm::Standard
    }

    /// Bytes for `for_each_cell` states per cell. An LSTM has two more, for its other state, and two
    /// directions have some more to be joined.
    fn scratch(&self, for_each_cell: usize, for_both_directions: usize) -> usize {
        let states = |count| aligned(self.network.cells() * count * self.state);
        let of_lstm = if self.network.cell == RnnCell::Lstm { 2 } else { 0 };
        let of_both = if self.network.directions == 2 { for_both_directions } else { 0 };
        states(for_each_cell) + states(of_lstm) + states(of_both)
    }

    fn forward(&self) -> usize {
        let network = self.network;
        let both_directions = network.directions == 2;
        let gates = network.cell.gates();
        let (scratch, steps) = if self.is_persistent() {
            (self.scratch(2, 1), self.sequences.steps)
        } else if both_directions {
            (self.scratch(gates, 2), self.sequences.steps)
        } else {
            let at_once = STEPS_PER_PRODUCT * self.sequences.batch;
            (self.scratch(gates, 0), self.sequences.steps.min(at_once))
        };
        let inputs_of_gates = network.directions * gates * steps * network.hidden * network.value();
        // Outputs of the previous layer, to be joined or thinned out by dropout.
        let between = match (both_directions, network.has_dropout) {
            (true, _) => 4 * self.states,
            (false, true) => self.states,
            (false, false) => 0,
        };
        let unprojected = if network.is_projected() { network.directions * self.states } else { 0 };
        // Kernels that process all time steps keep the output of every gate at each step.
        let kept = if self.is_persistent() { 4 * gates * self.states } else { 0 };
        self.common()
            + scratch
            + aligned(inputs_of_gates)
            + aligned(between)
            + aligned(unprojected)
            + aligned(kept)
            + self.unpadded(1)
    }

    fn backward(&self) -> usize {
        let network = self.network;
        let both_directions = network.directions == 2;
        let widest = self.sequences.steps * network.input.max(network.hidden) * network.value();
        let widest = aligned(if both_directions { 4 * widest } else { widest });
        let all_steps = network.directions * if network.layers > 1 { 2 } else { 1 } * self.states;
        let own = if self.is_persistent() {
            self.scratch(2, 1) + aligned(all_steps) + self.persistent_gradients()
        } else if both_directions {
            self.scratch(1, 0) + aligned(all_steps) + aligned(4 * network.layers * self.state)
        } else {
            let steps = self.sequences.steps.min(self.steps_in_flight() * self.sequences.batch);
            self.scratch(1, 0) + aligned(steps * network.hidden * network.value())
        };
        self.common() + widest + own + self.unpadded(2)
    }

    /// Bytes of the gradients that persistent kernels keep for all time steps.
    fn persistent_gradients(&self) -> usize {
        const PARTIAL_SUMS: usize = 8;
        // Half-precision sums of the larger kernels have at least this many rows in addition to the batch.
        const MIN_ROWS: usize = 2432;
        const HALF_BYTES: usize = 2;
        let of_gates = match self.network.cell {
            RnnCell::Plain => 1,
            RnnCell::Lstm => 4,
            RnnCell::Gru => 6,
        };
        let least = match self.network.algorithm() {
            RnnAlgorithm::Persistent => HALF_BYTES * (MIN_ROWS + self.sequences.batch) * self.network.hidden,
            RnnAlgorithm::Standard | RnnAlgorithm::PersistentSmall => 0,
        };
        aligned(of_gates * self.states) + aligned((PARTIAL_SUMS * self.states).max(least))
    }

    /// Time steps whose gradients exist at the same time: layers work on neighboring parts of the sequences.
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
}

/// Workspace of an inference pass, in bytes.
pub(super) fn inference(network: &Network, sequences: &Sequences) -> usize {
    RnnSizes::new(network, sequences).forward()
}

/// Workspace of a training step, in bytes: one for both passes.
pub(super) fn training(network: &Network, sequences: &Sequences) -> usize {
    let sizes = RnnSizes::new(network, sequences);
    sizes.forward().max(sizes.backward())
}

/// Bytes that a forward pass keeps for the backward pass.
pub(super) fn reserve(network: &Network, sequences: &Sequences) -> usize {
    let sizes = RnnSizes::new(network, sequences);
    let all = network.cells() * sizes.states;
    let of_cells = match network.cell {
        RnnCell::Plain => aligned(all),
        RnnCell::Lstm => aligned(4 * all) + aligned(all),
        RnnCell::Gru => aligned(6 * all),
    };
    let projected = if network.is_projected() {
        let width = network.hidden + network.output;
        aligned(network.cells() * sequences.steps * width * network.value())
    } else {
        0
    };
    let gaps = (network.layers - 1) * network.directions;
    let between = aligned(gaps * sizes.states);
    // One bit per value that a cell of the next layer reads.
    let mask = if network.has_dropout {
        aligned((sequences.longest * sequences.batch * network.hidden * network.directions).div_ceil(8))
    } else {
        0
    };
    SLACK_BYTES + of_cells + projected + between + gaps * mask
}

#[cfg(test)]
mod tests {
    use super::super::data_type::{BFLOAT16, HALF};
    use super::*;
    use RnnAlgorithm::{Persistent, PersistentSmall};

    fn ours(network: &Network, sequences: &Sequences) -> [usize; 3] {
        [inference(network, sequences), training(network, sequences), reserve(network, sequences)]
    }

    /// Networks with their workspace in inference and in training, and their reserve space, as returned by an
    /// H200.
    #[test]
    fn agrees_with_an_h200() {
        let small = Sequences { batch: 16, longest: 32, is_packed: false, steps: 512 };
        let long = Sequences { batch: 16, longest: 1000, is_packed: false, steps: 16_000 };
        let packed = Sequences { batch: 16, longest: 32, is_packed: true, steps: 334 };
        let lstm = Network::float(RnnCell::Lstm, 128, 128);
        let deep = Network { layers: 3, ..lstm.clone() };
        let both = Network { directions: 2, ..lstm.clone() };
        let projected = Network { output: 32, ..lstm.clone() };
        let gru = Network::float(RnnCell::Gru, 128, 128);
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
            assert_eq!(ours(network, sequences), sizes, "{network:?} {sequences:?}");
        }
    }

    #[test]
    fn agrees_with_an_h200_on_persistent_kernels() {
        let one = Sequences { batch: 1, longest: 10, is_packed: false, steps: 10 };
        let four = Sequences { batch: 4, longest: 50, is_packed: false, steps: 200 };
        let small = Sequences { batch: 16, longest: 32, is_packed: false, steps: 512 };
        let long = Sequences { batch: 64, longest: 300, is_packed: false, steps: 19_200 };
        let with = |algorithm, network| Network { algorithm, ..network };
        let persistent = |cell, input, hidden| with(PersistentSmall, Network::float(cell, input, hidden));
        let lstm = persistent(RnnCell::Lstm, 128, 128);
        let deep = Network { layers: 3, has_dropout: true, ..lstm.clone() };
        let both = Network { directions: 2, layers: 2, ..lstm.clone() };
        let narrow = Network { layers: 2, ..persistent(RnnCell::Lstm, 64, 64) };
        let gru = persistent(RnnCell::Gru, 128, 128);
        let plain = persistent(RnnCell::Plain, 128, 384);
        let half = Network { data_type: HALF, ..persistent(RnnCell::Lstm, 300, 50) };
        let half_both = Network { data_type: HALF, directions: 2, ..persistent(RnnCell::Gru, 16, 50) };
        let not_persistent = Network { data_type: BFLOAT16, ..lstm.clone() };
        let large = with(Persistent, Network::float(RnnCell::Lstm, 128, 256));
        let half_large = Network { data_type: HALF, cell: RnnCell::Gru, ..large.clone() };
        let measured = [
            (&lstm, &small, [14_745_984, 14_745_984, 1_310_976]),
            (&deep, &small, [32_964_992, 32_964_992, 4_473_088]),
            (&both, &small, [44_597_632, 44_597_632, 5_767_424]),
            (&narrow, &long, [125_436_672, 125_436_672, 54_067_456]),
            (&gru, &small, [13_271_424, 14_074_240, 1_573_120]),
            (&plain, &small, [14_254_464, 20_070_784, 786_688]),
            (&half, &one, [8_556_896, 8_563_488, 5_280]),
            (&half_both, &one, [16_842_560, 16_843_360, 12_256]),
            (&not_persistent, &small, [9_478_528, 9_482_624, 655_616]),
            (&large, &one, [10_190_112, 11_311_904, 51_456]),
            (&half_large, &four, [10_676_512, 11_364_640, 614_656]),
        ];
        for (network, sequences, sizes) in measured {
            assert_eq!(ours(network, sequences), sizes, "{network:?} {sequences:?}");
        }
    }
}
