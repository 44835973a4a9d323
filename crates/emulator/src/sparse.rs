//! cuSPARSE: matrices consist of their shapes, products do nothing.
//!
//! Workspaces are those returned by the library of CUDA 13.0 on an H200; most are a few bytes, which
//! PyTorch's allocator rounds to 512. Functions that depend on values, such as the number of elements of a
//! sum or a product of sparse matrices, fail with their name ([`crate::uncovered`]).
//!
//! `cusparseGetErrorString` is the real library's; it needs no driver.

mod structured;

use crate::{SUCCESS, StatusCode, notes, put};

returns_handle! {
    cusparseCreate cusparseCreateMatDescr cusparseSpSV_createDescr cusparseSpSM_createDescr
}

does_work! { cusparseSetStream }

no_op! {
    cusparseDestroy cusparseDestroyMatDescr cusparseSpSV_destroyDescr cusparseSpSM_destroyDescr
    cusparseSetPointerMode
    cusparseSetMatType cusparseSetMatFillMode cusparseSetMatDiagType cusparseSetMatIndexBase
    cusparseSpMatSetAttribute cusparseCsrSetStridedBatch cusparseCsrSetPointers cusparseDnMatSetStridedBatch

    cusparseSpMV cusparseSpMM
    cusparseSDDMM cusparseSDDMM_preprocess
    cusparseSpSV_analysis cusparseSpSV_solve cusparseSpSM_analysis cusparseSpSM_solve
    cusparseSbsrmv cusparseDbsrmv cusparseCbsrmv cusparseZbsrmv
    cusparseSbsrmm cusparseDbsrmm cusparseCbsrmm cusparseZbsrmm

    cusparseXcoo2csr cusparseCreateIdentityPermutation cusparseXcoosortByRow cusparseXcsrsort
}

/// Matrix or vector, sparse or dense.
struct Matrix {
    rows: u64,
    columns: u64,
    /// Number of elements that a sparse matrix stores.
    filled: u64,
    datatype: i32,
    /// Bytes of an index of a sparse matrix.
    index: u64,
}

/// Values of `cudaDataType`.
const HALF: i32 = 2;
const BFLOAT: i32 = 14;

impl Matrix {
    fn element(&self) -> u64 {
        const SINGLE: i32 = 0;
        const DOUBLE_COMPLEX: i32 = 5;
        match self.datatype {
            HALF | BFLOAT => 2,
            SINGLE => 4,
            DOUBLE_COMPLEX => 16,
            _ => 8,
        }
    }
}

/// Size in bytes of a `cusparseIndexType_t`.
fn index_bytes(kind: i32) -> u64 {
    const BITS_64: i32 = 3;
    if kind == BITS_64 { 8 } else { 4 }
}

unsafe fn give(to: *mut *mut Matrix, matrix: Matrix) -> StatusCode {
    unsafe { put(to, Box::into_raw(Box::new(matrix))) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseCreateCsr(
    to: *mut *mut Matrix,
    rows: u64,
    columns: u64,
    filled: u64,
    _row_starts: u64,
    _column_indices: u64,
    _values: u64,
    _row_type: i32,
    column_type: i32,
    _first_index: i32,
    datatype: i32,
) -> StatusCode {
    unsafe { give(to, Matrix { rows, columns, filled, datatype, index: index_bytes(column_type) }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseCreateCoo(
    to: *mut *mut Matrix,
    rows: u64,
    columns: u64,
    filled: u64,
    _row_indices: u64,
    _column_indices: u64,
    _values: u64,
    index_type: i32,
    _first_index: i32,
    datatype: i32,
) -> StatusCode {
    unsafe { give(to, Matrix { rows, columns, filled, datatype, index: index_bytes(index_type) }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseCreateDnMat(
    to: *mut *mut Matrix,
    rows: u64,
    columns: u64,
    _leading: i64,
    _values: u64,
    datatype: i32,
    _order: i32,
) -> StatusCode {
    unsafe { give(to, Matrix { rows, columns, filled: rows * columns, datatype, index: 0 }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseCreateDnVec(
    to: *mut *mut Matrix,
    size: u64,
    _values: u64,
    datatype: i32,
) -> StatusCode {
    unsafe { give(to, Matrix { rows: size, columns: 1, filled: size, datatype, index: 0 }) }
}

/// Functions that destroy a matrix.
macro_rules! destroys {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(matrix: *mut Matrix) -> StatusCode {
            if !matrix.is_null() {
                drop(unsafe { Box::from_raw(matrix) });
            }
            SUCCESS
        }
    )*};
}

destroys! { cusparseDestroySpMat cusparseDestroyDnMat cusparseDestroyDnVec }

const INVALID_VALUE: StatusCode = 3;

#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseSpMatGetSize(
    matrix: *const Matrix,
    rows: *mut u64,
    columns: *mut u64,
    filled: *mut u64,
) -> StatusCode {
    let Some(matrix) = (unsafe { matrix.as_ref() }) else { return INVALID_VALUE };
    unsafe {
        put(rows, matrix.rows);
        put(columns, matrix.columns);
        put(filled, matrix.filled);
    }
    SUCCESS
}

unsafe fn put_size(to: *mut u64, size: u64) -> StatusCode {
    notes::modeled("cuSPARSE workspace");
    unsafe { put(to, size) };
    SUCCESS
}

/// Sparse matrix times a vector. Half-precision sums use a vector of single precision.
#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseSpMV_bufferSize(
    _handle: u64,
    _operation: i32,
    _alpha: u64,
    sparse: *const Matrix,
    _x: u64,
    _beta: u64,
    y: *const Matrix,
    _compute: i32,
    _algorithm: i32,
    to: *mut u64,
) -> StatusCode {
    let (Some(sparse), Some(y)) = (unsafe { (sparse.as_ref(), y.as_ref()) }) else { return INVALID_VALUE };
    const FIXED_BYTES: u64 = 31;
    const FIXED_HALF_BYTES: u64 = 190;
    let size = match sparse.datatype {
        HALF | BFLOAT => 4 * y.rows + FIXED_HALF_BYTES,
        _ => FIXED_BYTES,
    };
    unsafe { put_size(to, size) }
}

/// Sparse matrix times a dense one. The algorithms that PyTorch chooses for rows split the elements into
/// parts and store where each begins. Exact except for dense matrices of one column, which need less.
#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseSpMM_bufferSize(
    _handle: u64,
    _operation: i32,
    _dense_operation: i32,
    _alpha: u64,
    sparse: *const Matrix,
    _b: u64,
    _beta: u64,
    _c: u64,
    _compute: i32,
    algorithm: i32,
    to: *mut u64,
) -> StatusCode {
    let Some(sparse) = (unsafe { sparse.as_ref() }) else { return INVALID_VALUE };
    unsafe { put_size(to, sparse.product(algorithm)) }
}

/// Product of dense matrices at the positions of a sparse one.
#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseSDDMM_bufferSize(
    _handle: u64,
    _a_operation: i32,
    _b_operation: i32,
    _alpha: u64,
    _a: u64,
    _b: u64,
    _beta: u64,
    _c: u64,
    _compute: i32,
    _algorithm: i32,
    to: *mut u64,
) -> StatusCode {
    unsafe { put_size(to, 1) }
}

impl Matrix {
    /// Workspace of a product with a dense matrix, in bytes.
    fn product(&self, algorithm: i32) -> u64 {
        const CSR_BY_LARGE_PARTS: i32 = 4;
        const CSR_BY_PARTS: i32 = 6;
        let places = match algorithm {
            CSR_BY_LARGE_PARTS => self.filled / 256 + 3,
            CSR_BY_PARTS => self.filled / 24 + 2,
            _ => return 0,
        };
        places * self.index - 1
    }

    /// Workspace in bytes to solve a triangular system with this matrix, for one or more right-hand sides.
    /// Exact except for matrices of less than 150 rows, which need up to 1 KiB more.
    fn triangular(&self, right_hand_sides: u64) -> u64 {
        const RIGHT_HAND_SIDES_PER_BLOCK: u64 = 32;
        let (for_each_row, fixed) = if self.index == 8 { (60, 258) } else { (44, 242) };
        let more = right_hand_sides.saturating_sub(1);
        let for_right_hand_sides = more * self.element() + 8 * (more / RIGHT_HAND_SIDES_PER_BLOCK);
        (for_each_row + 2 * self.element() + for_right_hand_sides) * self.rows
            + (self.index + self.element()) * self.filled
            + fixed
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseSpSV_bufferSize(
    _handle: u64,
    _operation: i32,
    _alpha: u64,
    sparse: *const Matrix,
    _x: u64,
    _y: u64,
    _compute: i32,
    _algorithm: i32,
    _description: u64,
    to: *mut u64,
) -> StatusCode {
    let Some(sparse) = (unsafe { sparse.as_ref() }) else { return INVALID_VALUE };
    unsafe { put_size(to, sparse.triangular(1)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseSpSM_bufferSize(
    _handle: u64,
    _operation: i32,
    _b_operation: i32,
    _alpha: u64,
    sparse: *const Matrix,
    _b: u64,
    c: *const Matrix,
    _compute: i32,
    _algorithm: i32,
    _description: u64,
    to: *mut u64,
) -> StatusCode {
    let (Some(sparse), Some(c)) = (unsafe { (sparse.as_ref(), c.as_ref()) }) else { return INVALID_VALUE };
    unsafe { put_size(to, sparse.triangular(c.columns)) }
}

/// Index sorts need a copy of some arrays, and counts for each block of a radix sort: off by at most 512
/// bytes.
macro_rules! sorts {
    ($($name:ident: $bytes:literal;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            _handle: u64,
            _rows: i32,
            _columns: i32,
            filled: i32,
            _row_indices: u64,
            _column_indices: u64,
            to: *mut u64,
        ) -> StatusCode {
            const FIXED_COUNT_BYTES: u64 = 1024;
            const ELEMENTS_PER_COUNT_BYTE: u64 = 128;
            let filled = u64::from(filled.unsigned_abs());
            unsafe {
                let counts = FIXED_COUNT_BYTES + filled / ELEMENTS_PER_COUNT_BYTE;
                put_size(to, $bytes * filled.next_multiple_of(32) + counts)
            }
        }
    )*};
}

sorts! {
    cusparseXcoosort_bufferSizeExt: 16;
    cusparseXcsrsort_bufferSizeExt: 20;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workspaces returned by an H200.
    #[test]
    fn agrees_with_an_h200() {
        const SINGLE: i32 = 0;
        const DOUBLE: i32 = 1;
        let single = Matrix { rows: 4096, columns: 1000, filled: 5001, datatype: SINGLE, index: 4 };
        let double = Matrix { rows: 4096, columns: 1000, filled: 5001, datatype: DOUBLE, index: 8 };
        assert_eq!([4, 6].map(|algorithm| double.product(algorithm)), [175, 1679]);
        assert_eq!(double.triangular(1), 391_570);
        assert_eq!(double.triangular(64), 2_488_722);
        assert_eq!(single.triangular(64), 1_318_202);
    }
}
