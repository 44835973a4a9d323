use snapshot::Bytes;
use std::io;

/// Why a file of a recording cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The path names a folder, a pipe or another special file.
    #[error("not a regular file")]
    NotRegular,
    /// The file is larger than any recorder writes.
    #[error("it has {0}")]
    TooLarge(Bytes),
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The content is not the JSON that the format describes.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A newer recorder wrote the file.
    #[error("version {0} is unknown")]
    UnknownVersion(u64),
    /// A line of the step marks cannot be parsed.
    #[error("expected step marks, one object per line")]
    BadStepMarks,
    /// A line of the phases cannot be parsed.
    #[error("expected phases, one object per line")]
    BadPhaseMarks,
    /// A line about host memory cannot be parsed.
    #[error("expected samples of host memory, one object per line")]
    BadHostMemory,
    /// A JSON file that has one of our names but was written by another tool.
    #[error("not written by oomph's recorder")]
    Foreign,
}
