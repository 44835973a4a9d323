//! cuSPARSE: matrices are their shapes, products do nothing.
//!
//! Workspaces are as the library of CUDA 13.0 gave them on an H200; most are a few bytes, of which PyTorch's allocator
//! makes 512. What depends on values, such as how many elements a sum or a product of sparse matrices has, fails with
//! its name ([`crate::uncovered`]).
//!
//! `cusparseGetErrorString` stays the real library's: it needs no driver.

mod structured;

use crate::{SUCCESS, Status, notes, put};

gives_handle! {
    cusparseCreate cusparseCreateMatDescr cusparseSpSV_createDescr cusparseSpSM_createDescr
}

does_nothing! {
    cusparseDestroy cusparseDestroyMatDescr cusparseSpSV_destroyDescr cusparseSpSM_destroyDescr
    cusparseSetStream cusparseSetPointerMode
    cusparseSetMatType cusparseSetMatFillMode cusparseSetMatDiagType cusparseSetMatIndexBase
    cusparseSpMatSetAttribute cusparseCsrSetStridedBatch cusparseCsrSetPointers cusparseDnMatSetStridedBatch

    cusparseSpMV cusparseSpMM
    cusparseSDDMM cusparseSDDMM_preprocess
    cusparseSpSV_analysis cusparseSpSV_solve cusparseSpSM_analysis cusparseSpSM_solve
    cusparseSbsrmv cusparseDbsrmv cusparseCbsrmv cusparseZbsrmv
    cusparseSbsrmm cusparseDbsrmm cusparseCbsrmm cusparseZbsrmm

    cusparseXcoo2csr cusparseCreateIdentityPermutation cusparseXcoosortByRow cusparseXcsrsort
}

/// A matrix or a vector, sparse or dense.
struct Matrix {
    rows: u64,
    columns: u64,
    /// Elements that a sparse one holds.
    filled: u64,
    datatype: i32,
    /// Bytes of an index of a sparse one.
    index: u64,
}

/// `cudaDataType`.
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

/// Bytes of a `cusparseIndexType_t`.
fn index_bytes(kind: i32) -> u64 {
    const BITS_64: i32 = 3;
    if kind == BITS_64 { 8 } else { 4 }
}

unsafe fn give(to: *mut *mut Matrix, matrix: Matrix) -> Status {
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
) -> Status {
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
) -> Status {
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
) -> Status {
    unsafe { give(to, Matrix { rows, columns, filled: rows * columns, datatype, index: 0 }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseCreateDnVec(
    to: *mut *mut Matrix,
    size: u64,
    _values: u64,
    datatype: i32,
) -> Status {
    unsafe { give(to, Matrix { rows: size, columns: 1, filled: size, datatype, index: 0 }) }
}

/// Functions that take back a matrix.
macro_rules! destroys {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(matrix: *mut Matrix) -> Status {
            if !matrix.is_null() {
                drop(unsafe { Box::from_raw(matrix) });
            }
            SUCCESS
        }
    )*};
}

destroys! { cusparseDestroySpMat cusparseDestroyDnMat cusparseDestroyDnVec }

const INVALID_VALUE: Status = 3;

#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseSpMatGetSize(
    matrix: *const Matrix,
    rows: *mut u64,
    columns: *mut u64,
    filled: *mut u64,
) -> Status {
    let Some(matrix) = (unsafe { matrix.as_ref() }) else { return INVALID_VALUE };
    unsafe {
        put(rows, matrix.rows);
        put(columns, matrix.columns);
        put(filled, matrix.filled);
    }
    SUCCESS
}

unsafe fn put_size(to: *mut u64, size: u64) -> Status {
    notes::modelled("cuSPARSE workspace");
    unsafe { put(to, size) };
    SUCCESS
}

/// A sparse matrix times a vector. Sums of half precision go through a vector of single precision.
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
) -> Status {
    let (Some(sparse), Some(y)) = (unsafe { (sparse.as_ref(), y.as_ref()) }) else { return INVALID_VALUE };
    const FIXED: u64 = 31;
    const FIXED_OF_HALF: u64 = 190;
    let size = match sparse.datatype {
        HALF | BFLOAT => 4 * y.rows + FIXED_OF_HALF,
        _ => FIXED,
    };
    unsafe { put_size(to, size) }
}

/// A sparse matrix times a dense one. The ways to do it that PyTorch chooses for rows cut the elements into parts and keep
/// where each begins: exact but for dense matrices of one column, which need less.
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
) -> Status {
    let Some(sparse) = (unsafe { sparse.as_ref() }) else { return INVALID_VALUE };
    unsafe { put_size(to, sparse.product(algorithm)) }
}

/// A product of dense matrices where a sparse one has elements.
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
) -> Status {
    unsafe { put_size(to, 1) }
}

impl Matrix {
    /// The workspace of a product with a dense matrix.
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

    /// The workspace to solve a triangular system with this matrix, for one right side or several. Exact but for
    /// matrices of less than 150 rows, which need up to 1 KiB more.
    fn triangular(&self, right_sides: u64) -> u64 {
        const RIGHT_SIDES_OF_A_BLOCK: u64 = 32;
        let (for_each_row, fixed) = if self.index == 8 { (60, 258) } else { (44, 242) };
        let more = right_sides.saturating_sub(1);
        let of_right_sides = more * self.element() + 8 * (more / RIGHT_SIDES_OF_A_BLOCK);
        (for_each_row + 2 * self.element() + of_right_sides) * self.rows
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
) -> Status {
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
) -> Status {
    let (Some(sparse), Some(c)) = (unsafe { (sparse.as_ref(), c.as_ref()) }) else { return INVALID_VALUE };
    unsafe { put_size(to, sparse.triangular(c.columns)) }
}

/// Sorts of indices need a copy of some arrays, and counts for each block of a radix sort: off by at most 512 bytes.
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
        ) -> Status {
            const COUNTS: u64 = 1024;
            const ELEMENTS_OF_A_COUNT: u64 = 128;
            let filled = u64::from(filled.unsigned_abs());
            unsafe {
                put_size(to, $bytes * filled.next_multiple_of(32) + COUNTS + filled / ELEMENTS_OF_A_COUNT)
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

    /// Workspaces as an H200 gave them.
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
