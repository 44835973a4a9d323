//! Recordings, snapshots and logs below the roots, the newest first.

use crate::roots::{AllowedPath, AllowedRoots};
use inputs::Bundle;
use recording::{Sidecars, snapshot_stem};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::VecDeque;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Most files and folders that a search looks at.
const MAX_ENTRIES: usize = 50_000;
/// Folders that contain programs, not what they leave.
const SKIPPED_FOLDERS: [&str; 4] = ["node_modules", "site-packages", "__pycache__", "venv"];

/// Files that the other tools take.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RecordingsDocument {
    /// Files, the newest first.
    pub(crate) recordings: Vec<FoundRecording>,
    /// Whether the folders have more files than a search looks at.
    pub(crate) incomplete: bool,
}

/// A file that other tools take.
#[derive(Serialize, JsonSchema)]
pub(crate) struct FoundRecording {
    /// Path, as the other tools take it.
    pub(crate) path: String,
    /// What it is.
    pub(crate) kind: RecordingKind,
    /// Whether `holders` can say what keeps its tensors alive.
    pub(crate) has_holders: bool,
    /// Size in bytes.
    bytes: u64,
    /// Time of the last change, in microseconds since the Unix epoch.
    modified_us: u64,
}

/// What a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecordingKind {
    /// A snapshot with what the recorder of oomph wrote next to it.
    Recording,
    /// A snapshot of PyTorch.
    Snapshot,
    /// Recordings packed by `oomph bundle`.
    Bundle,
    /// A text file that may contain an out-of-memory message, for `explain_message`.
    Log,
}

/// Searches a folder, or all roots. Links are not followed.
pub(crate) fn search(roots: &AllowedRoots, folder: Option<&AllowedPath>) -> RecordingsDocument {
    let all = roots.folders().iter();
    let all = all.map(|root| AllowedPath { root: root.clone(), inner: Path::new(".").to_owned() });
    let mut open: VecDeque<AllowedPath> =
        folder.map_or_else(|| all.collect(), |folder| [folder.clone()].into());
    let mut found = RecordingsDocument { recordings: Vec::new(), incomplete: false };
    let mut seen = 0;
    // Folders near the root come first.
    while let Some(folder) = open.pop_front() {
        let Ok(entries) = std::fs::read_dir(folder.whole()) else { continue };
        for entry in entries.filter_map(Result::ok) {
            seen += 1;
            if seen > MAX_ENTRIES {
                found.incomplete = true;
                open.clear();
                break;
            }
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let Ok(kind) = entry.file_type() else { continue };
            let inner =
                if folder.inner == Path::new(".") { name.as_ref().into() } else { folder.inner.join(&*name) };
            let path = AllowedPath { root: folder.root.clone(), inner };
            let is_skipped = name.starts_with('.') || SKIPPED_FOLDERS.contains(&&*name);
            if kind.is_dir() && !is_skipped {
                open.push_back(path);
            } else if kind.is_file()
                && let Some(file) = described(roots, &path)
            {
                found.recordings.push(file);
            }
        }
    }
    found.recordings.sort_by(|a, b| b.modified_us.cmp(&a.modified_us).then_with(|| a.path.cmp(&b.path)));
    found
}

fn described(roots: &AllowedRoots, path: &AllowedPath) -> Option<FoundRecording> {
    let file = path.whole();
    let ending = file.extension()?.to_str()?.to_ascii_lowercase();
    let mut has_holders = false;
    let kind = match &*ending {
        "log" | "out" | "err" => RecordingKind::Log,
        "zip" => Bundle::open(&file).map(|_| RecordingKind::Bundle)?,
        _ if snapshot_stem(file.file_name()?.to_str()?).is_some() => {
            let sidecars = Sidecars::files(&file);
            has_holders = sidecars.iter().any(|file| file.extension().is_some_and(|ending| ending == "heap"));
            if sidecars.is_empty() { RecordingKind::Snapshot } else { RecordingKind::Recording }
        }
        _ => return None,
    };
    let metadata = file.metadata().ok()?;
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let modified_us = modified.map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    Some(FoundRecording { path: roots.shown(path), kind, has_holders, bytes: metadata.len(), modified_us })
}
