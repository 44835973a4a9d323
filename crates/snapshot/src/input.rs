//! Detects the format of a path or stream by its first bytes, and unpacks compression.

use crate::compression::{Compression, MAX_COMPRESSION_DEPTH, Stream, TOO_DEEP, take_head};
use crate::error::Error;
use crate::snapshot::Snapshot;
use crate::{json, pickle};
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;

/// Reads the snapshot in the file at `path`.
pub fn open(path: &Path) -> Result<Snapshot, Error> {
    let file = open_file(path)?;
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    read_sized(file, length)
}

/// Opens the file at `path` for [`read`], and reports failures as [`Error`].
pub fn open_file(path: &Path) -> Result<File, Error> {
    if path.is_dir() {
        return Err(Error::not_a_snapshot("it is a folder"));
    }
    File::open(path).map_err(Error::io)
}

/// Reads a snapshot from a stream: a pickle of any protocol, the zip of `torch.save`, JSON, or one of these
/// under gzip, xz or zstd.
pub fn read(stream: impl Read + Send) -> Result<Snapshot, Error> {
    layer(Box::new(stream), None, 0)
}

/// Reads a snapshot from a stream of known length, in bytes, which is faster. A wrong length is harmless.
pub fn read_sized(stream: impl Read + Send, length: u64) -> Result<Snapshot, Error> {
    layer(Box::new(stream), Some(length), 0)
}

/// Format of a stream, by its first bytes.
enum InputFormat {
    Compressed(Compression),
    Zip,
    Json,
    Pickle,
}

/// Reads one layer: either a snapshot, or a compressed stream with another layer inside.
fn layer(mut stream: Stream<'_>, length: Option<u64>, depth: u32) -> Result<Snapshot, Error> {
    let head = take_head(&mut stream).map_err(Error::io)?;
    let format = recognise(&head)?;
    if depth == MAX_COMPRESSION_DEPTH {
        return Err(Error::not_a_snapshot(TOO_DEEP));
    }
    let stream: Stream<'_> = Box::new(Cursor::new(head).chain(stream));
    match format {
        // The unpacked length is unknown, but rarely below the compressed length.
        InputFormat::Compressed(by) => layer(by.decoder(stream).map_err(Error::io)?, length, depth + 1),
        InputFormat::Zip => zip(stream, length),
        InputFormat::Json => json::read(BufReader::with_capacity(128 << 10, stream)),
        InputFormat::Pickle => pickle::read(stream, length),
    }
}

fn recognise(head: &[u8]) -> Result<InputFormat, Error> {
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    if let Some(by) = Compression::recognise(head)? {
        return Ok(InputFormat::Compressed(by));
    }
    Ok(match head {
        [] => return Err(Error::empty()),
        [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => InputFormat::Zip,
        [0x89, b'H', b'D', b'F', ..] => {
            return Err(Error::checkpoint("it is an HDF5 file, as model weights are"));
        }
        [b'G', b'G', b'U', b'F', ..] => return Err(Error::checkpoint("it is a GGUF file: model weights")),
        [0x7f, b'E', b'L', b'F', ..] => return Err(Error::not_a_snapshot("it is a program (ELF)")),
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => return Err(Error::not_a_snapshot("it is a NumPy array")),
        [_, _, _, _, _, 0, 0, 0, b'{', ..] => {
            return Err(Error::checkpoint("it is a safetensors file: model weights"));
        }
        [0x80, ..] => InputFormat::Pickle,
        _ => match text {
            [b'<', ..] => return Err(Error::html()),
            [b'{' | b'[', ..] => InputFormat::Json,
            _ if is_tar(head) => return Err(Error::unknown_compression("a tar archive", "tar xf FILE")),
            // Protocols 0 and 1 have no header: these are the opcodes that start a list or dictionary.
            [b'(' | b'}' | b']' | b'c', ..] => InputFormat::Pickle,
            _ => return Err(Error::not_a_snapshot(format!("it begins with {}", shown(head)))),
        },
    })
}

fn is_tar(head: &[u8]) -> bool {
    head.get(257..262) == Some(b"ustar")
}

/// Formats the first bytes for an error message.
fn shown(head: &[u8]) -> String {
    let start = &head[..head.len().min(24)];
    match std::str::from_utf8(start) {
        Ok(text) if text.chars().all(|c| !c.is_control() || c.is_whitespace()) => format!("{text:?}"),
        _ => {
            let hex: Vec<String> = start.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            format!("the bytes {}", hex.join(" "))
        }
    }
}

/// Reads the pickle inside the zip that `torch.save` writes. Entries are read in file order, without the
/// directory at the end, so that a zip inside a compressed stream works too. PyTorch leaves the sizes in
/// an entry's header at zero and writes them after the data: the pickle knows its own end, but later
/// entries cannot be found.
fn zip(mut stream: impl Read + Send, length: Option<u64>) -> Result<Snapshot, Error> {
    let mut names = Vec::new();
    while let Some(entry) = ZipEntry::read(&mut stream)? {
        if entry.name == "data.pkl" || entry.name.ends_with("/data.pkl") {
            return match entry.method {
                0 => pickle::read(stream, length),
                8 => pickle::read(flate2::read::DeflateDecoder::new(stream), length),
                other => {
                    Err(Error::not_a_snapshot(format!("its `data.pkl` is packed with zip method {other}")))
                }
            };
        }
        if names.len() < 5 {
            let name: String = entry.name.chars().take(60).collect();
            names.push(format!("`{}`", name.escape_debug()));
        }
        if entry.size == 0 && entry.has_descriptor {
            break;
        }
        io::copy(&mut stream.by_ref().take(entry.size), &mut io::sink()).map_err(Error::io)?;
    }
    let found = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
    Err(Error::not_a_snapshot(format!(
        "it is a zip without the `data.pkl` that `torch.save` writes first; it has {found}"
    )))
}

/// Header of a zip entry.
struct ZipEntry {
    name: String,
    method: u16,
    size: u64,
    /// Whether the sizes follow the data.
    has_descriptor: bool,
}

impl ZipEntry {
    /// Reads the next entry; `None` at the directory.
    fn read(stream: &mut impl Read) -> Result<Option<ZipEntry>, Error> {
        let mut header = [0; 30];
        let (signature, fields) = header.split_at_mut(4);
        stream.read_exact(signature).map_err(Error::io)?;
        if signature != b"PK\x03\x04" {
            return Ok(None);
        }
        stream.read_exact(fields).map_err(Error::io)?;
        let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let size = u32::from_le_bytes([header[18], header[19], header[20], header[21]]);
        let mut name = vec![0; usize::from(u16_at(26))];
        stream.read_exact(&mut name).map_err(Error::io)?;
        let mut extra = vec![0; usize::from(u16_at(28))];
        stream.read_exact(&mut extra).map_err(Error::io)?;
        Ok(Some(ZipEntry {
            name: String::from_utf8_lossy(&name).into_owned(),
            method: u16_at(8),
            size: u64::from(size),
            has_descriptor: u16_at(6) & 8 != 0,
        }))
    }
}
