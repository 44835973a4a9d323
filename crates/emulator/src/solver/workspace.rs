//! Workspace sizes of cuSOLVER, as returned by the library of CUDA 13.0 on an H200.
//!
//! Sizes are in elements of the matrix unless the name says bytes. Most formulas are exact to the byte over
//! all measured shapes; where one is not, its comment gives the error.

/// Rounds up to the alignment of the parts of a workspace, in elements.
fn aligned(elements: u64) -> u64 {
    elements.next_multiple_of(32)
}

/// Bytes that the functions with 64-bit sizes request in addition.
pub(super) const EXTRA_BYTES_64BIT: u64 = 128;

/// Cholesky, in bytes. Only the lower triangle needs a word for each pair of blocks.
pub(super) fn potrf_bytes(upper: bool, n: u64, element: u64) -> u64 {
    if upper {
        return match element {
            4 => 256,
            8 => 384,
            _ => 640,
        };
    }
    let blocks = n.div_ceil(32);
    (4 * blocks * blocks).next_multiple_of(32) + 128
}

/// LU, in bytes. Exact for most powers of two, otherwise off by at most 18 KiB.
pub(super) fn getrf_bytes(m: u64, n: u64, element: u64) -> u64 {
    /// From this many rows on, several thread blocks factorize a panel together.
    const MIN_TALL_ROWS: u64 = 1500;
    let rank = match m.min(n) {
        0..=32 => 32,
        33..=512 => m.min(n).next_multiple_of(64),
        larger => larger.next_multiple_of(128),
    };
    let longest = if rank <= 512 { m.max(n).max(2048) } else { m.max(n) };
    let panels = rank * longest / 256;
    let together = if m > MIN_TALL_ROWS { 8448 * element + 2048 } else { 0 };
    256 + 8 * rank + panels.max(together)
}

/// Symmetric indefinite factorization.
pub(super) fn sytrf(n: u64, element: u64) -> u64 {
    let least = match element {
        4 => 24_608,
        8 => 13_328,
        _ => 11_016,
    };
    let block = if n < 4096 { 64 } else { 128 };
    (block * n + 64).max(least)
}

/// QR. For more than 8192 rows the library takes less, by an amount that this formula does not model.
pub(super) fn geqrf(n: u64) -> u64 {
    1024 * n.max(256) + (512 << 10)
}

/// The matrix Q. Exact if it has as many columns as reflectors, otherwise up to two thirds too small.
pub(super) fn orgqr(m: u64, n: u64, k: u64) -> u64 {
    const BLOCK_COLUMNS: u64 = 128;
    let beyond = match k {
        0..=64 => 0,
        65..BLOCK_COLUMNS => k * (2 * n).saturating_sub(64 + k),
        _ => BLOCK_COLUMNS * (2 * n - BLOCK_COLUMNS),
    };
    33_024 + aligned(m * k.min(BLOCK_COLUMNS)) + aligned(beyond)
}

/// Product with Q, from the left or the right.
pub(super) fn ormqr(left: bool, m: u64, n: u64, k: u64) -> u64 {
    let (blocks, other) = if left { (256 * m + 512 * n, n) } else { (256 * m, m) };
    (64 << 10) + blocks + aligned(m.max(n) * k) + aligned(k * k) + 256 + aligned(other)
}

/// Eigenvalues of a symmetric matrix by divide and conquer: off by at most 48 elements.
pub(super) fn syevd(n: u64) -> u64 {
    (3 * n * n + 768 * n + 65_603).max(4 * n * n + 127 * n + 32_963)
}

/// Eigenvalues of a batch of symmetric matrices, in bytes: off by less than 1 KiB per matrix.
pub(super) fn syev_batched_bytes(n: u64, element: u64, batch: u64) -> u64 {
    const SHARED_ELEMENTS: u64 = 64;
    (batch * (syevd(n) - SHARED_ELEMENTS) + SHARED_ELEMENTS) * element + EXTRA_BYTES_64BIT
}

/// Eigenvalues of a symmetric matrix by Jacobi's method.
pub(super) fn syevj(n: u64) -> u64 {
    match n {
        0..=32 => n * n + n + 2053,
        33..4096 => {
            let blocks = n.div_ceil(32);
            n * n + n + 4 * blocks * blocks + 1025 * blocks + 1024
        }
        _ => {
            let blocks = 2 * n.div_ceil(2048);
            n * n + 4096 * n + (8 << 20) + blocks * blocks
        }
    }
}

/// Eigenvalues of a batch by Jacobi's method: exact up to 32 rows, above that off by less than 0.5%.
pub(super) fn syevj_batched(n: u64, batch: u64) -> u64 {
    let blocks = n.div_ceil(32);
    match n {
        0..=32 => batch * (n * n + 2 * n + 1025) + 1028,
        _ => batch * (n * n + 2 * n + 1024 * blocks + 4 * blocks * blocks) + 1025,
    }
}

/// Singular values of a square matrix by Jacobi's method: off by at most 32 elements.
fn gesvdj_square(n: u64) -> u64 {
    let blocks = n.div_ceil(32);
    let vectors = (n + 16) / 32 * 32;
    aligned(2 * n * n) + vectors + 2048 * blocks + 1024 + aligned(4 * blocks * blocks + blocks)
}

/// Singular values of any matrix by Jacobi's method: a tall matrix is reduced to a square one by QR, a wide
/// one is transposed first.
pub(super) fn gesvdj(economy: bool, m: u64, n: u64) -> u64 {
    if m == n {
        return gesvdj_square(n);
    }
    if m < n {
        return gesvdj(economy, n, m) + aligned(m * n);
    }
    let columns = if economy { n } else { m };
    let by_qr = (geqrf(n) + 32).max(ormqr(true, m, columns, n)) + aligned(n);
    by_qr.max(gesvdj_square(n) + n * n)
}

/// Singular values of many small matrices, which are computed in shared memory.
pub(super) const GESVDJ_BATCHED_ELEMENTS: u64 = 992;

/// Singular values of many tall matrices, from the eigenvalues of their squares in double precision: off by
/// less than 0.5%.
pub(super) fn gesvda_batched(m: u64, n: u64, batch: u64, double: bool) -> u64 {
    let eigenvalues = if n <= 32 { syevj_batched(n, batch) } else { batch * syevd(n) };
    let in_double = batch * (m * n + n * n + 3 * n) + eigenvalues;
    if double { in_double } else { (2 * in_double).max(batch * (4 * m * n + 2 * n * n + 6 * n)) }
}

/// Singular values by bidiagonalization: off by at most 3 KiB for square matrices, otherwise by up to a
/// quarter.
pub(super) fn gesvd(m: u64, n: u64) -> u64 {
    let direct = 3 * n * n + 260 * m + 65_792;
    match m == n {
        true => direct,
        false => (direct + 3 * m * n).max(geqrf(n) + 33_024 + 4 * m * n),
    }
}

/// Eigenvalues of any matrix, in bytes on the device and on the host: off by up to 7% below 512 rows.
pub(super) fn geev_bytes(n: u64, element: u64) -> (u64, u64) {
    let small = if n < 112 { 32_768 + n * n + 4 * n + 384 } else { 15_112 + 392 * n };
    let device = if n < 500 { small.max(n * n + 4 * n + 128) } else { n * n + 4 * n + 128 };
    (device * element, (2 * n * n + 256 * n) * element)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some of the sizes returned by the H200.
    #[test]
    fn measured_sizes() {
        assert_eq!(potrf_bytes(false, 10_000, 4), 98_008 * 4);
        assert_eq!(potrf_bytes(false, 65, 16), 12 * 16);
        assert_eq!(getrf_bytes(512, 512, 4), 8448);
        assert_eq!(getrf_bytes(1024, 16_384, 4), 73_984);
        assert_eq!(getrf_bytes(2048, 1, 4), 36_352);
        assert_eq!(getrf_bytes(16_384, 16_384, 16), 1_179_904);
        assert_eq!(sytrf(4096, 4), 524_352);
        assert_eq!(geqrf(1000), 1_548_288);
        assert_eq!(orgqr(1000, 500, 500), 272_640);
        assert_eq!(orgqr(128, 100, 100), 49_440);
        assert_eq!(ormqr(true, 4096, 500, 500), 3_668_896);
        assert_eq!(ormqr(false, 2048, 2048, 128), 870_656);
        assert_eq!(syevd(1024), 4_357_315);
        assert_eq!(syevj(1000), 1_038_920);
        assert_eq!(syevj(20_000), 490_309_008);
        assert_eq!(syevj_batched(32, 33), 70_757);
        assert_eq!(gesvdj(true, 512, 512), 559_648);
        assert_eq!(gesvdj(true, 1024, 100), 786_592);
        assert_eq!(gesvdj(false, 4096, 2048), 15_800_576);
        assert_eq!(gesvda_batched(4096, 512, 32, false), 8_915_968 * 32);
        assert_eq!(gesvd(2048, 2048), 13_181_184);
    }
}
