//! Convolutions of images, as seen by the engines that the emulator provides.
//!
//! These engines run a grouped convolution group by group, up to eight at a time, so the numbers here are
//! those of one group.

use super::data_type;
use super::graph::Convolution;

/// Bytes of a value in a workspace, whatever the type of the tensors.
pub(super) const FLOAT_BYTES: i64 = 4;

/// Groups that are computed at the same time, each with a workspace of its own.
pub(super) const MAX_GROUPS_AT_ONCE: i64 = 8;

/// Workspaces are rounded up to this many bytes; copies of tensors take as many more.
const ALIGNMENT: i64 = 16;

/// One group of a convolution of images, without dilation unless the filter has one position.
pub(super) struct Images {
    pub(super) data_type: i32,
    pub(super) is_channels_last: bool,
    /// Number of images.
    pub(super) count: i64,
    pub(super) groups: i64,
    /// Channels of a group in the input.
    pub(super) inputs: i64,
    /// Channels of a group in the output.
    pub(super) outputs: i64,
    /// Height and width of an input.
    pub(super) input: [i64; 2],
    /// Height and width of a filter.
    pub(super) filter: [i64; 2],
    /// Height and width of an output.
    pub(super) output: [i64; 2],
    pub(super) padding: [i64; 2],
    /// Same in both directions.
    pub(super) stride: i64,
}

impl Images {
    /// `None` if the convolution is of volumes, is dilated, has strides other than 1 and 2, or is larger than
    /// any card.
    pub(super) fn of(convolution: &Convolution) -> Option<Images> {
        let Convolution { x, y, w, .. } = convolution;
        if !convolution.fits_a_card() {
            return None;
        }
        let stride = [1, 2].into_iter().find(|stride| convolution.has_stride(*stride))?;
        let sides = |sizes: &[i64]| <[i64; 2]>::try_from(sizes.get(2..)?).ok();
        let groups = convolution.groups();
        Some(Images {
            data_type: x.data_type,
            is_channels_last: x.is_channels_last(),
            count: x.size(0),
            groups,
            inputs: w.size(1),
            outputs: y.size(1) / groups,
            input: sides(&x.sizes)?,
            filter: sides(&w.sizes)?,
            output: sides(&y.sizes)?,
            padding: convolution.padding()?,
            stride,
        })
    }

    /// Whether inputs, filters and padding are the same in height and width.
    pub(super) fn is_square(&self) -> bool {
        [self.input, self.filter, self.padding].iter().all(|sides| sides[0] == sides[1])
    }

    pub(super) fn is_grouped(&self) -> bool {
        self.groups > 1
    }

    /// Planes of the input, of the output, and of the filters.
    pub(super) fn planes(&self) -> (i64, i64, i64) {
        (self.count * self.inputs, self.count * self.outputs, self.inputs * self.outputs)
    }

    /// Longer side of an input, including padding.
    pub(super) fn padded_side(&self) -> i64 {
        longer([0, 1].map(|side| self.input[side] + 2 * self.padding[side]))
    }

    /// Bytes for copies of the tensors with the channels first. In this layout, a tensor with one channel or
    /// one position is the same.
    pub(super) fn channels_first_copies(&self) -> i64 {
        let (inputs, outputs, filters) = self.planes();
        let bytes = |planes: i64, sides: [i64; 2], is_same: bool| match is_same || area(sides) == 1 {
            true => 0,
            false => planes * area(sides) * self.value_bytes(),
        };
        bytes(inputs, self.input, self.inputs * self.groups == 1)
            + bytes(outputs, self.output, self.outputs * self.groups == 1)
            + bytes(filters, self.filter, false)
            + ALIGNMENT
    }

    /// Bytes for copies of input and output in which the channels of a group follow each other.
    pub(super) fn group_copies(&self) -> i64 {
        let (inputs, outputs, _) = self.planes();
        (inputs * area(self.input) + outputs * area(self.output)) * self.value_bytes() + ALIGNMENT
    }

    /// Workspace of all groups, given that of one.
    pub(super) fn of_all_groups(&self, bytes: i64) -> i64 {
        bytes * self.groups.min(MAX_GROUPS_AT_ONCE)
    }

    pub(super) fn value_bytes(&self) -> i64 {
        data_type::bytes(self.data_type)
    }
}

pub(super) fn aligned(bytes: i64) -> i64 {
    (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT
}

pub(super) fn area([height, width]: [i64; 2]) -> i64 {
    height * width
}

pub(super) fn longer([height, width]: [i64; 2]) -> i64 {
    height.max(width)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::graph::Pass;
    use super::*;

    pub(in super::super) const FIRST: bool = false;
    pub(in super::super) const LAST: bool = true;

    /// Convolution of `count` images of `side` × `side` in groups, with `filters` filters of `size` × `size`.
    pub(in super::super) fn square(
        pass: Pass,
        data_type: i32,
        is_channels_last: bool,
        (count, side): (i64, i64),
        (channels, filters, groups): (i64, i64, i64),
        (size, stride, padding): (i64, i64, i64),
    ) -> Convolution {
        let result = (side + 2 * padding - size) / stride + 1;
        let sizes = [
            [count, channels, side, side],
            [filters, channels / groups, size, size],
            [count, filters, result, result],
        ];
        Convolution::example(pass, data_type, is_channels_last, sizes, stride).padded(padding)
    }
}
