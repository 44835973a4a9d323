//! Files that have another name in the second of two runs, and runs that are not of one program.

use crate::compare::{DeviceSummary, SiteName, SiteUsage, changes};
use rustc_hash::FxHashSet;
use snapshot::Bytes;

/// Share by which the memory of a line may differ between two runs and still count as the same.
const SAME_MEMORY: f64 = 0.1;

/// A file that has another name in the second run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RenamedFile {
    /// Name in the first run, without its folder.
    pub before: String,
    /// Name in the second run.
    pub after: String,
}

/// One device in two runs.
pub struct DevicePair<'a> {
    /// Device of the first run, with the file names of the second.
    pub before: DeviceSummary,
    /// Device of the second run.
    pub after: &'a DeviceSummary,
    /// Files that have another name in the second run.
    pub renamed: Vec<RenamedFile>,
    /// What makes the comparison doubtful, as sentences.
    pub doubts: Vec<String>,
}

impl<'a> DevicePair<'a> {
    /// Pairs the devices of two runs.
    pub fn new(before: &DeviceSummary, after: &'a DeviceSummary) -> DevicePair<'a> {
        let (before, renamed) = follow_renames(before, after);
        let doubts = comparison_doubts(&before, after);
        DevicePair { before, after, renamed, doubts }
    }
}

/// Returns the first summary with the file names of the second, and what was renamed. A file that only the
/// first has is one that only the second has if at least half of its lines hold as much memory there.
fn follow_renames(before: &DeviceSummary, after: &DeviceSummary) -> (DeviceSummary, Vec<RenamedFile>) {
    let mut followed = before.clone();
    let mut renamed = Vec::new();
    let (old, new) = (files(&before.sites), files(&after.sites));
    let mut free: Vec<&str> = new.difference(&old).copied().collect();
    free.sort_unstable();
    let mut gone: Vec<&str> = old.difference(&new).copied().collect();
    gone.sort_unstable();
    for name in gone {
        let left: Vec<SiteUsage> = of_file(&before.sites, name);
        let likeness = |other: &&str| same_lines(&left, &of_file(&after.sites, other), name, other);
        let Some(place) = (0..free.len()).max_by_key(|&place| likeness(&free[place])) else { break };
        let other = free[place];
        if 2 * likeness(&other) < left.len().min(of_file(&after.sites, other).len()).max(1) {
            continue;
        }
        free.remove(place);
        let sites = followed.sites.iter_mut().filter_map(|usage| usage.site.as_mut());
        let findings = followed.findings.iter_mut().filter_map(|finding| finding.site.as_mut());
        sites.chain(findings).filter(|site| site.file_name() == name).for_each(|site| rename(site, other));
        renamed.push(RenamedFile { before: name.to_owned(), after: other.to_owned() });
    }
    (followed, renamed)
}

/// Returns why two runs may not be comparable, as sentences.
fn comparison_doubts(before: &DeviceSummary, after: &DeviceSummary) -> Vec<String> {
    let mut doubts = Vec::new();
    if before.kind != after.kind {
        let text = format!("{} memory is compared with {} memory", before.device_name, after.device_name);
        doubts.push(text);
    }
    let lines = |side: &DeviceSummary| side.sites.iter().any(|usage| usage.site.is_some());
    let is_shared = |usage: &SiteUsage| {
        let function = |site: &SiteName| (site.file_name().to_owned(), site.function.clone());
        let own = usage.site.as_ref().map(function);
        own.is_some() && after.sites.iter().any(|other| other.site.as_ref().map(function) == own)
    };
    if lines(before) && lines(after) && !before.sites.iter().any(is_shared) {
        doubts.push("the two runs have no function in common: are they of one program?".to_owned());
    }
    doubts
}

fn files(sites: &[SiteUsage]) -> FxHashSet<&str> {
    sites.iter().filter_map(|usage| Some(usage.site.as_ref()?.file_name())).collect()
}

fn of_file(sites: &[SiteUsage], name: &str) -> Vec<SiteUsage> {
    sites
        .iter()
        .filter(|usage| usage.site.as_ref().is_some_and(|site| site.file_name() == name))
        .cloned()
        .collect()
}

/// How many lines hold about the same in two files.
fn same_lines(left: &[SiteUsage], right: &[SiteUsage], name: &str, other: &str) -> usize {
    let mut left = left.to_vec();
    let sites = left.iter_mut().filter_map(|usage| usage.site.as_mut());
    sites.filter(|site| site.file_name() == name).for_each(|site| rename(site, other));
    let differing = changes(&left, right);
    // Lines that hold exactly the same are not among the changes.
    let unchanged = left.len() - differing.iter().filter(|change| change.before > Bytes::ZERO).count();
    let about = differing.iter().filter(|change| {
        let larger = change.before.max(change.after).0.max(1) as f64;
        change.by().unsigned_abs() as f64 / larger <= SAME_MEMORY
    });
    unchanged + about.count()
}

fn rename(site: &mut SiteName, name: &str) {
    let folder = site.file.len() - site.file_name().len();
    site.file = format!("{}{name}", &site.file[..folder]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(lines: &[(&str, u32, &str, u64)]) -> DeviceSummary {
        let sites = lines.iter().map(|&(file, line, function, mib)| SiteUsage {
            site: Some(SiteName { file: format!("/src/{file}"), line, function: function.to_owned() }),
            in_backward: false,
            bytes: Bytes(mib << 20),
            requested: Bytes(mib << 20),
            count: 1,
        });
        DeviceSummary { sites: sites.collect(), ..DeviceSummary::empty("a") }
    }

    #[test]
    fn a_renamed_file_is_followed_and_another_program_is_not() {
        let before =
            run(&[("train.py", 5, "<module>", 40), ("train.py", 9, "step", 700), ("data.py", 3, "load", 8)]);
        let renamed = run(&[
            ("train_v2.py", 7, "<module>", 40),
            ("train_v2.py", 11, "step", 200),
            ("data.py", 3, "load", 8),
        ]);
        let (followed, names) = follow_renames(&before, &renamed);
        assert_eq!(names, [RenamedFile { before: "train.py".to_owned(), after: "train_v2.py".to_owned() }]);
        assert_eq!(followed.sites[1].site.as_ref().map(|site| site.file.as_str()), Some("/src/train_v2.py"));
        let changes = changes(&followed.sites, &renamed.sites);
        assert_eq!((changes.len(), changes[0].by()), (1, -500 << 20));
        assert!(comparison_doubts(&followed, &renamed).is_empty());

        let other = run(&[("serve.py", 5, "<module>", 300), ("serve.py", 9, "answer", 12)]);
        let (followed, names) = follow_renames(&before, &other);
        assert!(names.is_empty() && followed == before);
        assert_eq!(comparison_doubts(&before, &other).len(), 1);
    }

    #[test]
    fn memory_of_another_kind_is_doubted() {
        let gpu = run(&[("train.py", 5, "<module>", 40)]);
        let cpu = DeviceSummary { kind: snapshot::DeviceKind::Cpu, ..gpu.clone() };
        assert_eq!(comparison_doubts(&gpu, &cpu).len(), 1);
        assert!(comparison_doubts(&gpu, &gpu).is_empty());
    }
}
