//! cuSOLVER: factorizations do nothing, and request the workspace that the real library would request
//! ([`workspace`]).
//!
//! A factorization reports its result in device memory, which reads as zero: success.

mod workspace;

use crate::macros::HANDLE;
use crate::memory::{self, Library};
use crate::{SUCCESS, StatusCode, notes, put};

returns_handle! { cusolverDnCreateParams cusolverDnCreateGesvdjInfo cusolverDnCreateSyevjInfo }

/// cuSOLVER creates a cuBLAS handle for itself.
#[unsafe(no_mangle)]
unsafe extern "C" fn cusolverDnCreate(to: *mut u64) -> StatusCode {
    const NOT_INITIALIZED: StatusCode = 1;
    if !memory::take_library_memory(Library::Cublas) {
        return NOT_INITIALIZED;
    }
    unsafe { put(to, HANDLE) };
    SUCCESS
}

does_work! { cusolverDnSetStream }

no_op! {
    cusolverDnDestroy cusolverDnDestroyParams cusolverDnDestroyGesvdjInfo cusolverDnDestroySyevjInfo
    cusolverDnXgesvdjSetMaxSweeps cusolverDnXgesvdjSetSortEig cusolverDnXgesvdjSetTolerance
    cusolverDnXsyevjSetSortEig

    // Factorizations and solutions.
    cusolverDnSpotrf cusolverDnDpotrf cusolverDnCpotrf cusolverDnZpotrf cusolverDnXpotrf
    cusolverDnSpotrfBatched cusolverDnDpotrfBatched cusolverDnCpotrfBatched cusolverDnZpotrfBatched
    cusolverDnSpotrs cusolverDnDpotrs cusolverDnCpotrs cusolverDnZpotrs cusolverDnXpotrs
    cusolverDnSpotrsBatched cusolverDnDpotrsBatched cusolverDnCpotrsBatched cusolverDnZpotrsBatched
    cusolverDnSgetrf cusolverDnDgetrf cusolverDnCgetrf cusolverDnZgetrf
    cusolverDnSgetrs cusolverDnDgetrs cusolverDnCgetrs cusolverDnZgetrs
    cusolverDnSsytrf cusolverDnDsytrf cusolverDnCsytrf cusolverDnZsytrf cusolverDnXsytrs
    cusolverDnSgeqrf cusolverDnDgeqrf cusolverDnCgeqrf cusolverDnZgeqrf cusolverDnXgeqrf
    cusolverDnSorgqr cusolverDnDorgqr cusolverDnCungqr cusolverDnZungqr
    cusolverDnSormqr cusolverDnDormqr cusolverDnCunmqr cusolverDnZunmqr

    // Eigenvalues and singular values.
    cusolverDnSsyevd cusolverDnDsyevd cusolverDnCheevd cusolverDnZheevd cusolverDnXsyevd
    cusolverDnXsyevBatched
    cusolverDnSsyevj cusolverDnDsyevj cusolverDnCheevj cusolverDnZheevj
    cusolverDnSsyevjBatched cusolverDnDsyevjBatched cusolverDnCheevjBatched cusolverDnZheevjBatched
    cusolverDnSgesvd cusolverDnDgesvd cusolverDnCgesvd cusolverDnZgesvd
    cusolverDnSgesvdj cusolverDnDgesvdj cusolverDnCgesvdj cusolverDnZgesvdj
    cusolverDnSgesvdjBatched cusolverDnDgesvdjBatched cusolverDnCgesvdjBatched cusolverDnZgesvdjBatched
    cusolverDnSgesvdaStridedBatched cusolverDnDgesvdaStridedBatched
    cusolverDnCgesvdaStridedBatched cusolverDnZgesvdaStridedBatched
    cusolverDnXgeev
}

const INVALID_VALUE: StatusCode = 3;

/// Writes a number of elements if it fits into the library's 32 bits.
unsafe fn put_elements(to: *mut i32, elements: u64) -> StatusCode {
    notes::modeled("cuSOLVER workspace");
    match i32::try_from(elements) {
        Ok(elements) => {
            unsafe { put(to, elements) };
            SUCCESS
        }
        Err(_) => INVALID_VALUE,
    }
}

/// Element type.
struct MatrixElement {
    bytes: u64,
    double: bool,
}

impl MatrixElement {
    /// Element type by the letter after `cusolverDn`.
    fn of(name: &str) -> MatrixElement {
        match name.as_bytes().get("cusolverDn".len()) {
            Some(b'S') => MatrixElement { bytes: 4, double: false },
            Some(b'C') => MatrixElement { bytes: 8, double: false },
            Some(b'D') => MatrixElement { bytes: 8, double: true },
            _ => MatrixElement { bytes: 16, double: true },
        }
    }
}

/// Size queries of one routine: the arguments before and after the answer, the answer by element type, and
/// the functions, one per type.
macro_rules! size_queries {
    (@one ($($before:ident: $type:ty),*) ($($after:ident: $after_type:ty),*) $answer:expr; $name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            _handle: u64,
            $($before: $type,)*
            to: *mut i32,
            $($after: $after_type,)*
        ) -> StatusCode {
            $(let $before = $before as u64;)*
            $(let $after = $after as u64;)*
            let answer: &dyn Fn(MatrixElement) -> u64 = &$answer;
            unsafe { put_elements(to, answer(MatrixElement::of(stringify!($name)))) }
        }
    };
    ($($before:tt $after:tt $answer:expr; $($name:ident)*;)*) => {$($(
        size_queries! { @one $before $after $answer; $name }
    )*)*};
}

size_queries! {
    (triangle: i32, n: i32, _a: u64, _rows: i32) ()
    |element| workspace::potrf_bytes(triangle == UPPER, n, element.bytes) / element.bytes;
    cusolverDnSpotrf_bufferSize cusolverDnDpotrf_bufferSize cusolverDnCpotrf_bufferSize
    cusolverDnZpotrf_bufferSize;

    (m: i32, n: i32, _a: u64, _rows: i32) ()
    |element| workspace::getrf_bytes(m, n, element.bytes) / element.bytes;
    cusolverDnSgetrf_bufferSize cusolverDnDgetrf_bufferSize cusolverDnCgetrf_bufferSize
    cusolverDnZgetrf_bufferSize;

    (n: i32, _a: u64, _rows: i32) ()
    |element| workspace::sytrf(n, element.bytes);
    cusolverDnSsytrf_bufferSize cusolverDnDsytrf_bufferSize cusolverDnCsytrf_bufferSize
    cusolverDnZsytrf_bufferSize;

    (_m: i32, n: i32, _a: u64, _rows: i32) ()
    |_| workspace::geqrf(n);
    cusolverDnSgeqrf_bufferSize cusolverDnDgeqrf_bufferSize cusolverDnCgeqrf_bufferSize
    cusolverDnZgeqrf_bufferSize;

    (m: i32, n: i32, k: i32, _a: u64, _rows: i32, _tau: u64) ()
    |_| workspace::orgqr(m, n, k);
    cusolverDnSorgqr_bufferSize cusolverDnDorgqr_bufferSize cusolverDnCungqr_bufferSize
    cusolverDnZungqr_bufferSize;

    (side: i32, _operation: i32, m: i32, n: i32, k: i32,
        _a: u64, _rows: i32, _tau: u64, _c: u64, _c_rows: i32) ()
    |_| workspace::ormqr(side == LEFT, m, n, k);
    cusolverDnSormqr_bufferSize cusolverDnDormqr_bufferSize cusolverDnCunmqr_bufferSize
    cusolverDnZunmqr_bufferSize;

    (_job: i32, _triangle: i32, n: i32, _a: u64, _rows: i32, _values: u64) ()
    |_| workspace::syevd(n);
    cusolverDnSsyevd_bufferSize cusolverDnDsyevd_bufferSize cusolverDnCheevd_bufferSize
    cusolverDnZheevd_bufferSize;

    (_job: i32, _triangle: i32, n: i32, _a: u64, _rows: i32, _values: u64) (_parameters: u64)
    |_| workspace::syevj(n);
    cusolverDnSsyevj_bufferSize cusolverDnDsyevj_bufferSize cusolverDnCheevj_bufferSize
    cusolverDnZheevj_bufferSize;

    (_job: i32, _triangle: i32, n: i32, _a: u64, _rows: i32, _values: u64) (_parameters: u64, batch: i32)
    |_| workspace::syevj_batched(n, batch);
    cusolverDnSsyevjBatched_bufferSize cusolverDnDsyevjBatched_bufferSize
    cusolverDnCheevjBatched_bufferSize cusolverDnZheevjBatched_bufferSize;

    (m: i32, n: i32) ()
    |_| workspace::gesvd(m, n);
    cusolverDnSgesvd_bufferSize cusolverDnDgesvd_bufferSize cusolverDnCgesvd_bufferSize
    cusolverDnZgesvd_bufferSize;

    (_job: i32, economy: i32, m: i32, n: i32, _a: u64, _rows: i32,
        _s: u64, _u: u64, _u_rows: i32, _v: u64, _v_rows: i32)
    (_parameters: u64)
    |_| workspace::gesvdj(economy != 0, m, n);
    cusolverDnSgesvdj_bufferSize cusolverDnDgesvdj_bufferSize
    cusolverDnCgesvdj_bufferSize cusolverDnZgesvdj_bufferSize;

    (_job: i32, _m: i32, _n: i32, _a: u64, _rows: i32, _s: u64, _u: u64, _u_rows: i32, _v: u64, _v_rows: i32)
    (_parameters: u64, _batch: i32)
    |_| workspace::GESVDJ_BATCHED_ELEMENTS;
    cusolverDnSgesvdjBatched_bufferSize cusolverDnDgesvdjBatched_bufferSize
    cusolverDnCgesvdjBatched_bufferSize cusolverDnZgesvdjBatched_bufferSize;

    (
        _job: i32, _rank: i32, m: i32, n: i32, _a: u64, _rows: i32, _a_step: i64, _s: u64, _s_step: i64,
        _u: u64, _u_rows: i32, _u_step: i64, _v: u64, _v_rows: i32, _v_step: i64
    ) (batch: i32)
    |element| workspace::gesvda_batched(m, n, batch, element.double);
    cusolverDnSgesvdaStridedBatched_bufferSize cusolverDnDgesvdaStridedBatched_bufferSize
    cusolverDnCgesvdaStridedBatched_bufferSize cusolverDnZgesvdaStridedBatched_bufferSize;
}

/// Values of `cublasFillMode_t` and `cublasSideMode_t`, as passed to the queries above.
const UPPER: u64 = 1;
const LEFT: u64 = 0;

/// Size queries with 64-bit sizes, which take the element type as an argument: the answer is in bytes, on the
/// device and on the host.
macro_rules! byte_size_queries {
    ($($name:ident($($before:ident: $type:ty),*) ($($after:ident: $after_type:ty),*) $answer:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            _handle: u64,
            $($before: $type,)*
            device: *mut u64,
            host: *mut u64,
            $($after: $after_type,)*
        ) -> StatusCode {
            notes::modeled("cuSOLVER workspace");
            let (on_device, on_host): (u64, u64) = $answer;
            unsafe {
                put(device, on_device);
                put(host, on_host);
            }
            SUCCESS
        }
    )*};
}

/// Size of an element in bytes, by `cudaDataType`.
fn bytes_of(datatype: i32) -> u64 {
    const SINGLE: i32 = 0;
    const DOUBLE_COMPLEX: i32 = 5;
    match datatype {
        SINGLE => 4,
        DOUBLE_COMPLEX => 16,
        _ => 8,
    }
}

byte_size_queries! {
    cusolverDnXpotrf_bufferSize(
        _parameters: u64, triangle: i32, n: u64, datatype: i32, _a: u64, _rows: i64, _compute: i32
    ) ()
    (workspace::potrf_bytes(triangle as u64 == UPPER, n, bytes_of(datatype)), 0);

    cusolverDnXgeqrf_bufferSize(
        _parameters: u64, _m: u64, n: u64, datatype: i32, _a: u64, _rows: i64,
        _tau_type: i32, _tau: u64, _compute: i32
    ) ()
    (workspace::geqrf(n) * bytes_of(datatype) + workspace::EXTRA_BYTES_64BIT, 0);

    cusolverDnXsytrs_bufferSize(
        _triangle: i32, _n: u64, _columns: u64, _datatype: i32, _a: u64, _rows: i64, _pivots: u64,
        _b_type: i32, _b: u64, _b_rows: i64
    ) ()
    (0, 0);

    cusolverDnXsyevd_bufferSize(
        _parameters: u64, _job: i32, _triangle: i32, n: u64, datatype: i32, _a: u64, _rows: i64,
        _value_type: i32, _values: u64, _compute: i32
    ) ()
    (workspace::syevd(n) * bytes_of(datatype) + workspace::EXTRA_BYTES_64BIT, 0);

    cusolverDnXsyevBatched_bufferSize(
        _parameters: u64, _job: i32, _triangle: i32, n: u64, datatype: i32, _a: u64, _rows: i64,
        _value_type: i32, _values: u64, _compute: i32
    ) (batch: u64)
    (workspace::syev_batched_bytes(n, bytes_of(datatype), batch), 0);

    cusolverDnXgeev_bufferSize(
        _parameters: u64, _left: i32, _right: i32, n: u64, datatype: i32, _a: u64, _rows: i64,
        _value_type: i32, _values: u64, _left_type: i32, _left_vectors: u64, _left_rows: i64,
        _right_type: i32, _right_vectors: u64, _right_rows: i64, _compute: i32
    ) ()
    workspace::geev_bytes(n, bytes_of(datatype));
}
