//! The first byte chooses a container for the rest, the second one a place in it to damage.
#![no_main]

use std::io::{Cursor, Write};
use zip::CompressionMethod;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let [container, damage, rest @ ..] = bytes else { return };
    let Some(mut file) = pack(container % 6, rest) else { return };
    // Zero leaves the container whole; otherwise a bit flips somewhere in its first half kilobyte.
    if *damage != 0
        && let Some(byte) = file.get_mut(usize::from(*damage) * 2)
    {
        *byte ^= 1 << (damage % 8);
    }
    oomph_fuzz::check(&file);
});

fn pack(container: u8, bytes: &[u8]) -> Option<Vec<u8>> {
    match container {
        0 => Some(bytes.to_vec()),
        1 => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(bytes).ok()?;
            gzip.finish().ok()
        }
        2 => {
            let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 0);
            xz.write_all(bytes).ok()?;
            xz.finish().ok()
        }
        3 => zstd::encode_all(bytes, 1).ok(),
        method => {
            let method = if method == 4 { CompressionMethod::Stored } else { CompressionMethod::Deflated };
            let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
            let options = zip::write::SimpleFileOptions::default().compression_method(method);
            zip.start_file("archive/data.pkl", options).ok()?;
            zip.write_all(bytes).ok()?;
            Some(zip.finish().ok()?.into_inner())
        }
    }
}
