//! Results of a reduction over ranks, for the element types of NCCL.

/// `ncclDataType_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NcclElement {
    Signed {
        bytes: usize,
    },
    Unsigned {
        bytes: usize,
    },
    Float {
        format: FloatFormat,
    },
    /// The 8-bit types are transferred, but not computed with.
    Float8,
}

/// Layout of a floating-point number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FloatFormat {
    Half,
    Bfloat,
    Single,
    Double,
}

/// `ncclRedOp_t`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Reduction {
    Sum,
    Product,
    Largest,
    Smallest,
    Average,
    /// `ncclRedOpCreatePreMulSum`: each rank's values times a factor.
    ScaledSum(f64),
}

impl NcclElement {
    pub(super) fn from_number(number: i32) -> Option<NcclElement> {
        Some(match number {
            0 => NcclElement::Signed { bytes: 1 },
            1 => NcclElement::Unsigned { bytes: 1 },
            2 => NcclElement::Signed { bytes: 4 },
            3 => NcclElement::Unsigned { bytes: 4 },
            4 => NcclElement::Signed { bytes: 8 },
            5 => NcclElement::Unsigned { bytes: 8 },
            6 => NcclElement::Float { format: FloatFormat::Half },
            7 => NcclElement::Float { format: FloatFormat::Single },
            8 => NcclElement::Float { format: FloatFormat::Double },
            9 => NcclElement::Float { format: FloatFormat::Bfloat },
            10 | 11 => NcclElement::Float8,
            _ => return None,
        })
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            NcclElement::Signed { bytes } | NcclElement::Unsigned { bytes } => bytes,
            NcclElement::Float { format: FloatFormat::Half | FloatFormat::Bfloat } => 2,
            NcclElement::Float { format: FloatFormat::Single } => 4,
            NcclElement::Float { format: FloatFormat::Double } => 8,
            NcclElement::Float8 => 1,
        }
    }

    /// An integer, extended to more bits than any type here has.
    fn integer(self, bytes: &[u8]) -> i128 {
        let negative =
            matches!(self, NcclElement::Signed { .. }) && bytes.last().is_some_and(|&top| top >= 0x80);
        let mut extended = if negative { [0xff; 16] } else { [0; 16] };
        extended[..bytes.len()].copy_from_slice(bytes);
        i128::from_le_bytes(extended)
    }

    /// Scalar of this type, as a factor.
    pub(super) fn scalar(self, bytes: &[u8]) -> Option<f64> {
        match self {
            NcclElement::Signed { .. } | NcclElement::Unsigned { .. } => Some(self.integer(bytes) as f64),
            NcclElement::Float { format } => Some(format.read(bytes)),
            NcclElement::Float8 => None,
        }
    }
}

impl FloatFormat {
    /// Bits of exponent and mantissa of the formats that Rust lacks.
    fn bits(self) -> (u32, u32) {
        match self {
            FloatFormat::Bfloat => (8, 7),
            _ => (5, 10),
        }
    }

    fn read(self, bytes: &[u8]) -> f64 {
        match (self, bytes) {
            (FloatFormat::Double, &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
            (FloatFormat::Single, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
            (_, &[a, b]) => {
                let (exponent_bits, mantissa_bits) = self.bits();
                let code = i32::from(u16::from_le_bytes([a, b]));
                let bias = (1 << (exponent_bits - 1)) - 1;
                let (exponent, fraction) =
                    ((code & 0x7fff) >> mantissa_bits, code & ((1 << mantissa_bits) - 1));
                let magnitude = match exponent {
                    0 => f64::from(fraction) * 2f64.powi(1 - bias - mantissa_bits as i32),
                    top if top == 2 * bias + 1 => [f64::NAN, f64::INFINITY][usize::from(fraction == 0)],
                    _ => {
                        f64::from(fraction + (1 << mantissa_bits))
                            * 2f64.powi(exponent - bias - mantissa_bits as i32)
                    }
                };
                if code >= 0x8000 { -magnitude } else { magnitude }
            }
            _ => f64::NAN,
        }
    }

    fn write(self, value: f64, to: &mut Vec<u8>) {
        match self {
            FloatFormat::Double => to.extend(value.to_le_bytes()),
            FloatFormat::Single => to.extend((value as f32).to_le_bytes()),
            FloatFormat::Half | FloatFormat::Bfloat => to.extend(self.round(value).to_le_bytes()),
        }
    }

    /// Rounds to the nearest 16-bit number, ties to even.
    fn round(self, value: f64) -> u16 {
        let (exponent_bits, mantissa_bits) = self.bits();
        let bias = (1 << (exponent_bits - 1)) - 1;
        let infinity: u32 = ((1 << exponent_bits) - 1) << mantissa_bits;
        let code = if value.is_nan() {
            infinity | (1 << (mantissa_bits - 1))
        } else if value.is_infinite() {
            infinity
        } else {
            let magnitude = value.abs();
            const DOUBLE_BIAS: i32 = 1023;
            const DOUBLE_MANTISSA: u32 = 52;
            let exponent = ((magnitude.to_bits() >> DOUBLE_MANTISSA) as i32 - DOUBLE_BIAS).max(1 - bias);
            // Units in the last place, including the implied leading one: it and a carry end up in the
            // exponent.
            let units = (magnitude * 2f64.powi(mantissa_bits as i32 - exponent))
                .round_ties_even()
                .min(f64::from(u16::MAX));
            ((((exponent + bias - 1) as u32).min(infinity >> mantissa_bits)) << mantissa_bits)
                .saturating_add(units as u32)
                .min(infinity)
        };
        code as u16 | (u16::from(value.is_sign_negative()) << 15)
    }
}

/// Combines the ranks' parts, which have the same length.
pub(super) fn reduce(element: NcclElement, reduction: Reduction, inputs: &[&[u8]]) -> Option<Vec<u8>> {
    let length = inputs.first()?.len();
    let mut result = Vec::with_capacity(length);
    for at in (0..length).step_by(element.bytes()) {
        let of_ranks = inputs.iter().map(|input| &input[at..at + element.bytes()]);
        match element {
            NcclElement::Signed { bytes } | NcclElement::Unsigned { bytes } => {
                let sum = integers(reduction, of_ranks.map(|bytes| element.integer(bytes)))?;
                result.extend(&sum.to_le_bytes()[..bytes]);
            }
            NcclElement::Float { format } => {
                format.write(floats(reduction, of_ranks.map(|bytes| format.read(bytes)))?, &mut result);
            }
            NcclElement::Float8 => return None,
        }
    }
    Some(result)
}

fn integers(reduction: Reduction, values: impl ExactSizeIterator<Item = i128>) -> Option<i128> {
    let ranks = values.len() as i128;
    match reduction {
        Reduction::Sum => values.reduce(i128::wrapping_add),
        Reduction::Product => values.reduce(i128::wrapping_mul),
        Reduction::Largest => values.max(),
        Reduction::Smallest => values.min(),
        Reduction::Average => values.reduce(i128::wrapping_add).map(|sum| sum / ranks),
        Reduction::ScaledSum(factor) => {
            values.map(|value| (value as f64 * factor) as i128).reduce(i128::wrapping_add)
        }
    }
}

fn floats(reduction: Reduction, values: impl ExactSizeIterator<Item = f64>) -> Option<f64> {
    let ranks = values.len() as f64;
    match reduction {
        Reduction::Sum => values.reduce(|a, b| a + b),
        Reduction::Product => values.reduce(|a, b| a * b),
        Reduction::Largest => values.reduce(f64::max),
        Reduction::Smallest => values.reduce(f64::min),
        Reduction::Average => values.reduce(|a, b| a + b).map(|sum| sum / ranks),
        Reduction::ScaledSum(factor) => values.map(|value| value * factor).reduce(|a, b| a + b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_number_round_trips() {
        for format in [FloatFormat::Half, FloatFormat::Bfloat] {
            for code in 0..=u16::MAX {
                let value = format.read(&code.to_le_bytes());
                assert!(value.is_nan() || format.round(value) == code, "{format:?} {code:#x} {value}");
            }
        }
    }

    #[test]
    fn rounding_goes_to_even_and_to_infinity() {
        assert_eq!(FloatFormat::Half.round(2049.0), FloatFormat::Half.round(2048.0));
        assert_eq!(FloatFormat::Half.round(2051.0), FloatFormat::Half.round(2052.0));
        assert_eq!(FloatFormat::Half.round(65519.0), 0x7bff);
        assert_eq!(FloatFormat::Half.round(65520.0), 0x7c00);
        assert_eq!(FloatFormat::Half.round(-1e300), 0xfc00);
        assert_eq!(FloatFormat::Bfloat.round(1.0 / 3.0), 0x3eab);
        assert_eq!(FloatFormat::Half.round(0.0), 0);
    }

    #[test]
    fn reductions_over_ranks() {
        let ints = NcclElement::Signed { bytes: 4 };
        let inputs = [(-3i32).to_le_bytes(), 5i32.to_le_bytes()];
        let inputs: Vec<&[u8]> = inputs.iter().map(<[u8; 4]>::as_slice).collect();
        let of = |reduction| {
            reduce(ints, reduction, &inputs)
                .map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap_or_default()))
        };
        assert_eq!(of(Reduction::Sum), Some(2));
        assert_eq!(of(Reduction::Product), Some(-15));
        assert_eq!(of(Reduction::Largest), Some(5));
        assert_eq!(of(Reduction::Smallest), Some(-3));
        assert_eq!(of(Reduction::Average), Some(1));
        assert_eq!(of(Reduction::ScaledSum(2.0)), Some(4));
    }
}
