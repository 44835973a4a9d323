//! `cudnnDataType_t`: the types that PyTorch uses.

pub(super) const FLOAT: i32 = 0;
pub(super) const HALF: i32 = 2;
pub(super) const BFLOAT16: i32 = 9;

/// Bytes of a value.
pub(super) fn bytes(data_type: i32) -> i64 {
    if data_type == FLOAT { 4 } else { 2 }
}
