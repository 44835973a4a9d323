//! Errors for inputs that cannot be read: what is wrong, where, and what to do about it.

use std::io;

/// Reason that a file is not a [`Snapshot`](crate::Snapshot).
///
/// `what` completes a sentence that starts with the file's name; `cause` and `hint` are printed on
/// separate lines. The three are separate so that the terminal, JSON and Python can each format them.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {cause}")]
pub struct Error {
    /// Machine-readable case.
    pub kind: ErrorKind,
    /// What is wrong, for example `is not a CUDA memory snapshot`.
    pub what: &'static str,
    /// What was found, and where.
    pub cause: String,
    /// What the user can do about it.
    pub hint: String,
    #[source]
    source: Option<io::Error>,
}

/// Cases of unreadable input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// The operating system reported an error: no such file, no permission, a failing disk.
    Io,
    /// The file has zero bytes.
    Empty,
    /// The data ends in the middle of a value.
    Truncated,
    /// The pickle imports or calls something.
    Forbidden,
    /// The file is a model checkpoint: weights, not a memory history.
    Checkpoint,
    /// The file is of some other kind.
    NotASnapshot,
    /// The file uses a compression that is not supported.
    UnknownCompression,
    /// The bytes were not produced by a pickler, JSON writer or compressor.
    Malformed,
    /// Decoding would take far more memory than the size of the file justifies.
    TooLarge,
}

const DUMP_HINT: &str = "write one with `torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")`";

impl Error {
    /// Returns the kind of the operating system's error, if there was one.
    pub fn refusal(&self) -> Option<io::ErrorKind> {
        self.source.as_ref().filter(|_| self.kind == ErrorKind::Io).map(io::Error::kind)
    }

    fn new(kind: ErrorKind, what: &'static str, cause: impl Into<String>, hint: impl Into<String>) -> Self {
        Error { kind, what, cause: cause.into(), hint: hint.into(), source: None }
    }

    pub(crate) fn io(error: io::Error) -> Self {
        let (what, hint) = match error.kind() {
            io::ErrorKind::NotFound => ("does not exist", "check the path; a folder or a glob works too"),
            io::ErrorKind::PermissionDenied => {
                ("cannot be read", "ask its owner for read permission, or copy it to where you can read it")
            }
            io::ErrorKind::UnexpectedEof => return Error::truncated_container(&error),
            // Decompressors report corrupt data with these kinds.
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::Other => {
                let mut broken = Error::damaged_container(&error);
                broken.source = Some(error);
                return broken;
            }
            _ => ("cannot be read", "check the disk or the mount that holds it"),
        };
        let mut result = Error::new(ErrorKind::Io, what, error.to_string(), hint);
        result.source = Some(error);
        result
    }

    fn truncated_container(error: &io::Error) -> Self {
        Error::new(
            ErrorKind::Truncated,
            "is cut short",
            format!("the compressed data ends early ({error})"),
            "copy the file again, or dump it again: the writer was probably interrupted",
        )
    }

    fn damaged_container(error: &io::Error) -> Self {
        Error::new(
            ErrorKind::Malformed,
            "is damaged",
            format!("the compressed data cannot be unpacked ({error})"),
            "copy the file again; if it was written over a network share, compare checksums",
        )
    }

    pub(crate) fn empty() -> Self {
        Error::new(
            ErrorKind::Empty,
            "is empty",
            "the file has 0 bytes: the process that wrote it probably died or ran out of disk",
            format!("{DUMP_HINT}, and check the free space"),
        )
    }

    pub(crate) fn truncated(offset: u64) -> Self {
        Error::new(
            ErrorKind::Truncated,
            "is cut short",
            format!("the data ends at byte {offset}, in the middle of a value"),
            "copy the file again, or dump it again: the writer was probably interrupted",
        )
    }

    pub(crate) fn forbidden(global: &str, opcode: &str, offset: u64) -> Self {
        let global = &global[..global.floor_char_boundary(100)];
        let checkpoint = ["torch.", "torch ", "collections.", "numpy.", "_codecs."]
            .iter()
            .any(|prefix| global.starts_with(prefix));
        if checkpoint {
            return Error::new(
                ErrorKind::Checkpoint,
                "is not a CUDA memory snapshot",
                format!("it holds objects of `{global}` (byte {offset}), as a model checkpoint does"),
                DUMP_HINT,
            );
        }
        Error::new(
            ErrorKind::Forbidden,
            "was refused: it would run code",
            format!(
                "the pickle asks for `{global}` at byte {offset} ({opcode}); a memory snapshot is plain data"
            ),
            "nothing was executed. Do not open this file with `pickle.load`; ask where it came from",
        )
    }

    pub(crate) fn not_a_snapshot(cause: impl Into<String>) -> Self {
        Error::new(ErrorKind::NotASnapshot, "is not a CUDA memory snapshot", cause, DUMP_HINT)
    }

    pub(crate) fn checkpoint(cause: impl Into<String>) -> Self {
        Error::new(ErrorKind::Checkpoint, "is not a CUDA memory snapshot", cause, DUMP_HINT)
    }

    pub(crate) fn html() -> Self {
        Error::new(
            ErrorKind::NotASnapshot,
            "is not a CUDA memory snapshot",
            "it is an HTML page, perhaps a login or error page saved under the snapshot's name",
            "download the file itself (the raw link), not the page that shows it",
        )
    }

    pub(crate) fn unknown_compression(name: &str, unpack: &str) -> Self {
        Error::new(
            ErrorKind::UnknownCompression,
            "is compressed in a way that oomph does not read",
            format!("it is {name}; gzip, xz, zstd and the zip of `torch.save` are read directly"),
            format!("unpack it first: `{unpack}`"),
        )
    }

    pub(crate) fn malformed(offset: u64, cause: impl Into<String>) -> Self {
        Error::new(
            ErrorKind::Malformed,
            "is damaged, or not a snapshot",
            format!("{} at byte {offset}", cause.into()),
            "copy the file again, or dump it again",
        )
    }

    pub(crate) fn too_large(offset: u64) -> Self {
        Error::new(
            ErrorKind::TooLarge,
            "was refused: it would need far more memory than it has bytes",
            format!(
                "by byte {offset} the data had grown beyond three times its own size; no real snapshot does"
            ),
            "if PyTorch wrote this file, please report it with the torch version",
        )
    }
}
