//! Unpacks gzip, xz and zstd, and names other compressions.

use crate::error::Error;
use std::io::{self, Cursor, Read};

/// Input stream that can move between threads.
pub(crate) type Stream<'a> = Box<dyn Read + Send + 'a>;

/// Maximum depth of nested compression; only hostile files exceed it.
pub(crate) const MAX_COMPRESSION_DEPTH: u32 = 4;
/// Error text for files that exceed it.
pub(crate) const TOO_DEEP: &str = "it has too many layers of compression";

/// Number of bytes by which a format is known; a tar archive needs most.
const HEAD_BYTES: usize = 512;
/// Decoder memory in bytes; `xz -9` needs a little less.
const XZ_MEMORY_BYTES: u64 = 80 << 20;
/// Largest zstd window as a power of two: 64 MiB. `zstd --ultra -22` and `--long` need more.
const ZSTD_WINDOW_LOG: u32 = 26;

/// Supported compression format.
#[derive(Clone, Copy)]
pub(crate) enum Compression {
    Gzip,
    Xz,
    Zstd,
}

impl Compression {
    /// Returns the compression of a stream by its first bytes; an error for one that is not unpacked.
    pub(crate) fn recognise(head: &[u8]) -> Result<Option<Compression>, Error> {
        let (name, unpack) = match head {
            [0x1f, 0x8b, ..] => return Ok(Some(Compression::Gzip)),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => return Ok(Some(Compression::Xz)),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => return Ok(Some(Compression::Zstd)),
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => ("bzip2", "bunzip2 FILE"),
            [0x04, 0x22, 0x4d, 0x18, ..] => ("lz4", "lz4 -d FILE"),
            [b'7', b'z', 0xbc, 0xaf, ..] => ("7-Zip", "7z x FILE"),
            [0x1f, 0x9d, ..] => ("compress (.Z)", "gunzip FILE"),
            [0x5d, 0, 0, ..] => ("raw LZMA", "unlzma FILE"),
            [0xff, 6, 0, 0, b's', b'N', b'a', b'P', ..] => ("snappy", "snzip -d FILE"),
            [b'R', b'a', b'r', b'!', ..] => ("RAR", "unrar x FILE"),
            _ => return Ok(None),
        };
        Err(Error::unknown_compression(name, unpack))
    }

    /// Returns the stream unpacked. Decoders take little memory, whatever the file asks for.
    pub(crate) fn decoder<'a>(self, stream: Stream<'a>) -> io::Result<Stream<'a>> {
        Ok(match self {
            Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(stream)),
            Compression::Xz => {
                let concatenated = liblzma::stream::CONCATENATED;
                let decoder = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY_BYTES, concatenated)?;
                Box::new(liblzma::read::XzDecoder::new_stream(stream, decoder))
            }
            Compression::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::new(stream)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                Box::new(decoder)
            }
        })
    }
}

/// Takes the first bytes of a stream, by which its format is known.
pub(crate) fn take_head(stream: &mut Stream<'_>) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    stream.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Returns a stream without its compression (gzip, xz or zstd); others as they are.
pub fn unpacked<'a>(stream: impl Read + Send + 'a) -> Result<Box<dyn Read + Send + 'a>, Error> {
    let mut stream: Stream<'a> = Box::new(stream);
    for _ in 0..MAX_COMPRESSION_DEPTH {
        let head = take_head(&mut stream).map_err(Error::io)?;
        let compression = Compression::recognise(&head)?;
        // The input has ended. Reading a terminal again would wait for a second Ctrl-D.
        stream = match head.len() < HEAD_BYTES {
            true => Box::new(Cursor::new(head)),
            false => Box::new(Cursor::new(head).chain(stream)),
        };
        match compression {
            Some(by) => stream = by.decoder(stream).map_err(Error::io)?,
            None => return Ok(stream),
        }
    }
    Err(Error::not_a_snapshot(TOO_DEEP))
}
