//! The type for sizes and its one text form, shared by every report, page and table.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// Number of bytes of device memory. Prints in binary units, as PyTorch's own reports do.
#[derive(serde::Deserialize, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Zero bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// Returns `self - other`, or zero if a truncated history would make it negative.
    #[must_use]
    pub fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl fmt::Display for Bytes {
    /// Prints three significant digits: `2.59 GiB`, `45.0 MiB`, `512 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The unit is chosen by the rounded figure, so that 1023.999 MiB prints as 1.00 GiB, not 1024
        // MiB.
        let (unit, scale) = UNITS
            .iter()
            .copied()
            .find(|(_, scale)| self.0 as f64 / *scale as f64 >= 0.9995)
            .unwrap_or(("B", 1));
        let figure = self.0 as f64 / scale as f64;
        let text = match figure {
            _ if scale == 1 => format!("{} B", self.0),
            x if x < 9.995 => format!("{x:.2} {unit}"),
            x if x < 99.95 => format!("{x:.1} {unit}"),
            x => format!("{x:.0} {unit}"),
        };
        f.pad(&text)
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        self.saturating_sub(other)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Bytes) {
        *self = *self - other;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(iter: I) -> Bytes {
        iter.fold(Bytes::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_print_three_significant_digits_in_the_largest_fitting_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (45 << 20, "45.0 MiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (171 << 20, "171 MiB"),
            (2_781_030_000, "2.59 GiB"),
            (3 << 40, "3.00 TiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text, "{bytes}");
        }
    }
}
