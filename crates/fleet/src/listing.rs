//! Which of the files in a fleet's folders are its ranks.

use crate::storage::{self, StoredFile};
use failure::Failure;
use recording::{COMPRESSED_SUFFIXES, SUMMARY_SUFFIX};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Ending of a file that says why a rank could not be read, which a distributed reader leaves in place of a
/// summary.
const FAILED_SUFFIX: &str = "failed.json";

/// The files of one rank.
#[derive(Clone, Debug)]
pub struct RankSource {
    /// The snapshot, a summary without one, or the note on a failure.
    pub file: StoredFile,
    /// What `file` is.
    pub(crate) content: RankContent,
}

/// What the file of a rank is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RankContent {
    /// A snapshot; a summary may be next to it.
    Snapshot {
        /// Whether the listing shows a summary, or cannot tell.
        may_have_summary: bool,
    },
    /// A summary whose snapshot is elsewhere.
    Summary,
    /// The reason why there is no summary.
    Failed,
}

impl RankSource {
    /// Returns the number in the file's name, such as 3 of `rank3.pickle`.
    pub fn rank_in_name(&self) -> Option<u32> {
        rank_in_name(self.file.file_name())
    }

    /// Returns the name of the summary next to it.
    pub fn summary_name(&self) -> String {
        let name = self.file.file_name();
        format!("{}.{SUMMARY_SUFFIX}", summary_stem(name).unwrap_or_else(|| snapshot_stem(name)))
    }
}

/// Returns the files of all ranks that the arguments name, in the order of their names.
pub fn list(arguments: &[String]) -> anyhow::Result<Vec<RankSource>> {
    let files = storage::find(arguments)?;
    let count = files.len();
    let ranks = ranks(files);
    if ranks.is_empty() {
        let shown: Vec<String> = arguments
            .iter()
            .take(3)
            .map(|name| format!("`{}`", storage::without_credentials(name)))
            .collect();
        return Err(Failure::new(
            format!("{} has no snapshots", shown.join(", ")),
            Some(format!(
                "looked for *.pickle, *.pkl, *.pt and *.json, also with .gz, .xz or .zst, and for \
                 *.{SUMMARY_SUFFIX}; found {count} other files"
            )),
            Some("name the folder that has the recordings"),
        )
        .refused(io::ErrorKind::NotFound)
        .into());
    }
    Ok(ranks)
}

fn ranks(files: Vec<StoredFile>) -> Vec<RankSource> {
    let mut folders: BTreeMap<String, FolderNames> = BTreeMap::new();
    for file in &files {
        let names = folders.entry(file.folder().to_owned()).or_default();
        let path = Path::new(file.file_name());
        if let Some(stem) = summary_stem(file.file_name()) {
            names.summaries.push(stem.to_owned());
        } else if inputs::looks_like_a_snapshot(path) && !inputs::is_json(path) {
            names.snapshots.push(snapshot_stem(file.file_name()).to_owned());
        }
    }
    for names in folders.values_mut() {
        names.summaries.sort_unstable();
        names.snapshots.sort_unstable();
    }
    let is_alone = files.len() == 1;
    let content = |file: &StoredFile| -> Option<RankContent> {
        let name = file.file_name();
        let names = folders.get(file.folder())?;
        if let Some(stem) = summary_stem(name) {
            let is_beside = names.snapshots.binary_search_by(|other| other.as_str().cmp(stem)).is_ok();
            return (!is_beside).then_some(RankContent::Summary);
        }
        let is_numbered = name.strip_suffix(FAILED_SUFFIX).and_then(|stem| stem.strip_suffix('.'));
        if is_numbered.is_some_and(|stem| stem.bytes().all(|byte| byte.is_ascii_digit())) {
            return Some(RankContent::Failed);
        }
        // Next to pickles and summaries, JSON is something about them.
        let is_sidecar = !names.snapshots.is_empty() || !names.summaries.is_empty();
        if !inputs::looks_like_a_snapshot(Path::new(name)) || inputs::is_json(Path::new(name)) && is_sidecar {
            return None;
        }
        let stem = snapshot_stem(name);
        let is_listed = names.summaries.binary_search_by(|other| other.as_str().cmp(stem)).is_ok();
        Some(RankContent::Snapshot { may_have_summary: is_listed || is_alone })
    };
    let contents: Vec<Option<RankContent>> = files.iter().map(content).collect();
    let ranks = files.into_iter().zip(contents);
    ranks.filter_map(|(file, content)| Some(RankSource { file, content: content? })).collect()
}

#[derive(Default)]
struct FolderNames {
    snapshots: Vec<String>,
    summaries: Vec<String>,
}

fn summary_stem(name: &str) -> Option<&str> {
    name.strip_suffix(SUMMARY_SUFFIX)?.strip_suffix('.')
}

/// Returns a snapshot's name without its endings: `rank0` of `rank0.pickle.xz`.
pub(crate) fn snapshot_stem(name: &str) -> &str {
    let strip = |name: &'_ str, ending: &str| -> Option<usize> {
        let (stem, found) = name.rsplit_once('.')?;
        found.eq_ignore_ascii_case(ending).then_some(stem.len())
    };
    let end = COMPRESSED_SUFFIXES.iter().find_map(|ending| strip(name, ending)).unwrap_or(name.len());
    let plain = &name[..end];
    plain.rsplit_once('.').map_or(plain, |(stem, _)| stem)
}

/// Returns the last number in a file's name before its endings.
pub(crate) fn rank_in_name(name: &str) -> Option<u32> {
    let stem = summary_stem(name).unwrap_or_else(|| snapshot_stem(name));
    let end = stem.rfind(|letter: char| letter.is_ascii_digit())? + 1;
    let begin = stem[..end].rfind(|letter: char| !letter.is_ascii_digit()).map_or(0, |at| at + 1);
    stem[begin..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_found_by_the_names_of_files() {
        let folder = std::env::temp_dir().join(format!("oomph-fleet-listing-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("node1")).expect("a folder");
        for name in [
            "rank10.pickle",
            "rank2.pickle",
            "rank2.json",
            "rank2.summary.arrow",
            "rank2.labels",
            "rank3.summary.arrow",
            "meta.json",
            "000007.failed.json",
            "node1/rank4.pickle.xz",
            "notes.txt",
        ] {
            std::fs::write(folder.join(name), "x").expect("written");
        }
        let ranks = list(&[folder.to_string_lossy().into_owned()]).expect("ranks");
        let found: Vec<(&str, RankContent)> =
            ranks.iter().map(|rank| (rank.file.file_name(), rank.content)).collect();
        std::fs::remove_dir_all(&folder).expect("removed");
        let snapshot = |may_have_summary| RankContent::Snapshot { may_have_summary };
        assert_eq!(
            found,
            [
                ("000007.failed.json", RankContent::Failed),
                ("rank4.pickle.xz", snapshot(false)),
                ("rank2.pickle", snapshot(true)),
                ("rank3.summary.arrow", RankContent::Summary),
                ("rank10.pickle", snapshot(false)),
            ]
        );
    }

    #[test]
    fn the_last_number_of_a_name_is_the_rank() {
        for (name, rank) in [
            ("rank3.pickle", Some(3)),
            ("job77_rank12.pickle.xz", Some(12)),
            ("000004.summary.arrow", Some(4)),
            ("snapshot.pickle", None),
        ] {
            assert_eq!(rank_in_name(name), rank, "{name}");
        }
    }
}
