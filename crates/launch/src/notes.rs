//! What the processes of a run report besides their recordings: notes, and problems of the recorder.

use crate::ranks::JobNotes;
use std::path::Path;

/// Notes of the processes of a run, by kind.
#[derive(Default, Debug)]
pub struct Notes {
    /// Whether a Python process has loaded the recorder.
    pub is_prepared: bool,
    /// Whether a process has imported torch.
    pub has_torch: bool,
    /// Whether a process has used CUDA.
    pub has_used_cuda: bool,
    /// Why no GPU is usable, when the recorder fell back to tensors on the CPU.
    pub no_gpu: Option<String>,
    /// Driver functions that the emulator does not implement.
    pub uncovered: Vec<String>,
    /// Quantities that the emulator models without having been compared with a real GPU.
    pub modeled: Vec<String>,
    /// Reasons why the program could not run on an emulated GPU.
    pub failures: Vec<String>,
    /// What is said about the ranks of a job.
    pub(crate) job: JobNotes,
}

/// Parses the file in which the processes of a run leave notes: a kind, a tab and a text per line.
pub(crate) fn read(path: &Path) -> Notes {
    let mut notes = Notes::default();
    let text = std::fs::read_to_string(path).unwrap_or_default();
    for (kind, text) in text.lines().filter_map(|line| line.split_once('\t')) {
        if notes.job.add(kind, text) {
            continue;
        }
        let list = match kind {
            "prepared" => {
                notes.is_prepared = true;
                continue;
            }
            "torch" => {
                notes.has_torch = true;
                continue;
            }
            "cuda" => {
                notes.has_used_cuda = true;
                continue;
            }
            "device" => {
                notes.no_gpu.get_or_insert_with(|| text.to_owned());
                continue;
            }
            "uncovered" => &mut notes.uncovered,
            "modeled" => &mut notes.modeled,
            _ => &mut notes.failures,
        };
        // Every rank writes the same notes.
        if !list.iter().any(|known| known == text) {
            list.push(text.to_owned());
        }
    }
    notes
}

/// Returns the distinct problems that the recorders of a run have written, one per line.
pub(crate) fn problems(path: &Path) -> Vec<String> {
    let mut problems: Vec<String> = Vec::new();
    for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
        let line = analysis::words::printable(line);
        if !line.is_empty() && !problems.iter().any(|known| *known == line) {
            problems.push(line.into_owned());
        }
    }
    problems
}
