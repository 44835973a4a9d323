//! What a recording has beside `rank0.pickle`: steps, labels and how the run went (`docs/recording.md`). Each part may be
//! missing; one that cannot be read is named on stderr and left out.

use crate::heap_file;
use crate::terminal::{say, shown_path};
use analysis::words::{counted, printable};
use analysis::{
    Card, Counts, Label, LabelMark, Labels, Outside, Placed, Process, Recording, Shortage, StepMark, Tensor,
    own_process,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use snapshot::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Larger files are not read: a year of steps takes less.
const LARGEST: u64 = 1 << 30;

/// How a recorded run went.
#[derive(Clone, Default, Debug)]
pub(crate) struct Run {
    pub(crate) torch: Option<String>,
    pub(crate) ended: Option<String>,
    pub(crate) dumped: Option<String>,
    pub(crate) exception: Option<String>,
    pub(crate) steps: Option<u64>,
    pub(crate) command: Vec<String>,
}

impl Run {
    /// What is to be known about a snapshot that was not written at the end of its program.
    pub(crate) fn remark(&self) -> Option<String> {
        let steps = self
            .steps
            .filter(|&steps| steps > 0)
            .map(|steps| format!(" after {}", counted(steps, "step")))
            .unwrap_or_default();
        let exception = self.exception.as_deref().and_then(|text| text.lines().next());
        // A failed allocation is a finding of its own, in better words.
        let exception = exception.filter(|text| !text.contains("out of memory"));
        match (self.dumped.as_deref(), self.ended.as_deref()) {
            (_, Some("killed")) => Some(format!("the program was killed{steps}; this was written before")),
            (Some("signal"), Some("running")) => {
                Some(format!("written on a signal{steps}, while the program ran"))
            }
            (Some("alarm"), Some("running")) => {
                Some(format!("written on an alarm{steps}, while the program ran"))
            }
            (Some("oom"), Some("running")) => {
                Some(format!("written when an allocation failed{steps}; the program went on"))
            }
            (_, Some("running")) => Some(format!("written{steps}, while the program ran")),
            (_, Some("failed")) => {
                let why =
                    exception.map(|text| format!(": {}", printable(&text[..text.floor_char_boundary(200)])));
                let why = why.unwrap_or_default();
                Some(format!("the program failed{steps}{why}"))
            }
            _ => None,
        }
    }
}

/// Reads what lies beside a snapshot.
pub(crate) fn beside(snapshot: &Path) -> (Recording, Option<Run>) {
    let mut recording = Recording::default();
    let Some(rank) = rank(snapshot) else { return (recording, None) };
    let mut run = None;
    let without_steps = "; steps are inferred";
    if let Some(text) = text(&rank.with_ending("steps.jsonl"), without_steps) {
        match marks(&text) {
            Some(lines) => {
                recording.outside = outside(&lines);
                recording.marks = lines.into_iter().map(StepMark::from).collect();
            }
            None => unreadable(
                &rank.with_ending("steps.jsonl"),
                "expected step marks, one object a line",
                without_steps,
            ),
        }
    }
    let without_labels = "; what each block is for is inferred";
    if let Some(mut file) = json::<LabelsFile>(&rank.with_ending("labels"), without_labels) {
        if file.version == 1 {
            recording.modules = std::mem::take(&mut file.modules);
            recording.labels = file.labels();
        } else {
            let why = format!("version {} is unknown", file.version);
            unreadable(&rank.with_ending("labels"), &why, without_labels);
        }
    }
    if let Some(file) = own_json::<RunFile>(&rank.with_ending("json"), "ended") {
        recording.allocations = counts(&file.allocations);
        recording.ends_with_stacks = file.stacks;
        recording.shortage = file.oom.map(Shortage::from);
        run = Some(Run {
            torch: file.torch,
            ended: file.ended,
            dumped: file.dumped,
            exception: file.exception,
            steps: file.steps.and_then(|steps| steps.count),
            command: Vec::new(),
        });
    }
    if let Some(file) = own_json::<MetaFile>(&rank.folder().join("meta.json"), "started_us") {
        let run = run.get_or_insert_with(Run::default);
        run.command = file.command;
        run.torch = run.torch.take().or(file.torch);
        recording.cards = file.devices.into_iter().map(Card::from).collect();
    }
    // At the end of a program the variables of its functions are gone: what was written while memory grew may say more.
    for ending in ["heap", "growing.heap"] {
        let path = rank.with_ending(ending);
        let without_heap = "; who holds memory is not known";
        let Some(text) = text(&path, without_heap) else { continue };
        match heap_file::read(&text) {
            Ok(dump) => recording.heaps.push(Arc::new(dump)),
            Err(why) => unreadable(&path, &why, without_heap),
        }
    }
    if let Some(shortage) = &mut recording.shortage {
        let card = recording.cards.iter().find(|card| card.device == shortage.device);
        settle_limit(shortage, card.and_then(|card| card.total));
    }
    (recording, run)
}

/// `folder/rank0`, the part of the names that all files of a rank share.
struct Rank(PathBuf);

/// `rank0` of `rank0.pickle`, also of a compressed one.
fn rank(snapshot: &Path) -> Option<Rank> {
    let name = snapshot.file_name()?.to_str()?;
    let packed = ["gz", "xz", "zst"].iter().find_map(|ending| without(name, ending));
    let stem = without(packed.unwrap_or(name), "pickle")?;
    Some(Rank(snapshot.with_file_name(stem)))
}

/// A name without its ending, large or small.
fn without<'a>(name: &'a str, ending: &str) -> Option<&'a str> {
    let (stem, found) = name.rsplit_once('.')?;
    found.eq_ignore_ascii_case(ending).then_some(stem)
}

impl Rank {
    fn with_ending(&self, ending: &str) -> PathBuf {
        let mut path = self.0.clone().into_os_string();
        path.push(".");
        path.push(ending);
        path.into()
    }

    fn folder(&self) -> &Path {
        self.0.parent().unwrap_or(Path::new(""))
    }
}

fn unreadable(path: &Path, why: &str, so: &str) {
    say(&format!("note: `{}` cannot be read ({why}){so}", shown_path(path)));
}

/// The text of a file; nothing where there is none.
fn text(path: &Path, so: &str) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    let why = match () {
        () if !metadata.is_file() => "it is no file".to_owned(),
        () if metadata.len() > LARGEST => format!("it has {}", Bytes(metadata.len())),
        () => match std::fs::read_to_string(path) {
            Ok(text) => return Some(text),
            Err(error) => error.to_string(),
        },
    };
    unreadable(path, &why, so);
    None
}

fn json<T: DeserializeOwned>(path: &Path, so: &str) -> Option<T> {
    serde_json::from_str(&text(path, so)?).map_err(|error| unreadable(path, &error.to_string(), so)).ok()
}

/// The same for names that other tools use as well: ours has this key.
fn own_json<T: DeserializeOwned>(path: &Path, key: &str) -> Option<T> {
    let value: Value = json(path, "")?;
    value.get(key)?;
    serde_json::from_value(value).map_err(|error| unreadable(path, &error.to_string(), "")).ok()
}

/// `{"0": 1234}`
pub(crate) fn counts(by_device: &BTreeMap<String, u64>) -> Counts {
    Counts(by_device.iter().filter_map(|(device, count)| Some((device.parse().ok()?, *count))).collect())
}

#[derive(Deserialize)]
struct StepLine {
    time_us: i64,
    #[serde(default)]
    devices: Vec<StepDevice>,
    #[serde(default = "yes")]
    stacks: bool,
}

/// What recorders did before they left out stacks.
fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct StepDevice {
    device: u32,
    allocations: Option<u64>,
    reserved: Option<u64>,
    used: Option<u64>,
    others: Option<u64>,
}

impl From<StepLine> for StepMark {
    fn from(StepLine { time_us, devices, stacks }: StepLine) -> StepMark {
        let counts = devices.iter().filter_map(|of| Some((of.device, of.allocations?)));
        StepMark { time_us, allocations: Counts(counts.collect()), has_stacks: stacks }
    }
}

/// What the driver showed beside PyTorch's memory, at most.
fn outside(lines: &[StepLine]) -> Vec<Outside> {
    let mut most: BTreeMap<u32, Outside> = BTreeMap::new();
    for of in lines.iter().flat_map(|line| &line.devices) {
        let (Some(used), Some(reserved)) = (of.used, of.reserved) else { continue };
        let others = of.others.unwrap_or(0);
        let process = used.saturating_sub(reserved).saturating_sub(others);
        let outside = most.entry(of.device).or_insert(Outside { device: of.device, ..Outside::default() });
        outside.process = outside.process.max(Bytes(process));
        outside.others = outside.others.max(Bytes(others));
    }
    most.into_values().collect()
}

/// One mark a line. They are added as the program runs: one that was killed may have left half of the last.
fn marks(text: &str) -> Option<Vec<StepLine>> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let Some((last, whole)) = lines.split_last() else { return Some(Vec::new()) };
    let last = serde_json::from_str(last);
    let is_cut = last.is_err() && !text.ends_with('\n');
    let whole = whole.iter().map(|line| serde_json::from_str(line));
    whole.chain((!is_cut).then_some(last)).collect::<Result<_, _>>().ok()
}

#[derive(Deserialize)]
struct LabelsFile {
    version: u64,
    /// What it is, its name, the class of the root module.
    #[serde(default)]
    tensors: Vec<(String, String, String)>,
    /// Tensor, device, address, bytes.
    #[serde(default)]
    sets: Vec<Vec<(u32, i64, u64, u64)>>,
    #[serde(default)]
    marks: Vec<(BTreeMap<String, u64>, usize)>,
    /// The paths for which numbers stand in the metadata of events.
    #[serde(default)]
    modules: Vec<String>,
}

impl LabelsFile {
    /// Tensors that are something unknown to this version are left out.
    fn labels(self) -> Labels {
        let mut tensors = Vec::new();
        let places: Vec<Option<u32>> = self
            .tensors
            .into_iter()
            .map(|(kind, name, root)| {
                let label = Label::ALL.into_iter().find(|label| label.name() == kind)?;
                tensors.push(Tensor { label, name, root });
                Some(tensors.len() as u32 - 1)
            })
            .collect();
        let placed = |(tensor, device, addr, bytes): (u32, i64, u64, u64)| {
            let tensor = (*places.get(tensor as usize)?)?;
            Some(Placed { tensor, device: u32::try_from(device).ok()?, addr, bytes })
        };
        let sets = self.sets.into_iter().map(|set| set.into_iter().filter_map(placed).collect()).collect();
        let marks = self.marks.into_iter();
        let marks =
            marks.map(|(by_device, set)| LabelMark { allocations: counts(&by_device), set }).collect();
        Labels { tensors, sets, marks }
    }
}

#[derive(Deserialize)]
struct RunFile {
    torch: Option<String>,
    ended: Option<String>,
    dumped: Option<String>,
    exception: Option<String>,
    #[serde(default)]
    allocations: BTreeMap<String, u64>,
    steps: Option<RunSteps>,
    #[serde(default = "yes")]
    stacks: bool,
    oom: Option<OomFile>,
}

#[derive(Deserialize)]
struct RunSteps {
    count: Option<u64>,
}

#[derive(Deserialize)]
struct OomFile {
    #[serde(default)]
    device: u32,
    total: Option<u64>,
    free: Option<u64>,
    limit: Option<u64>,
    reserved: Option<u64>,
    #[serde(default)]
    processes: Vec<ProcessFile>,
}

#[derive(Deserialize)]
struct ProcessFile {
    #[serde(default)]
    pid: u64,
    bytes: Option<u64>,
    name: Option<String>,
}

/// Under a limit PyTorch says the limit where it would say all memory of the device.
fn settle_limit(shortage: &mut Shortage, device_total: Option<Bytes>) {
    if let (Some(said), Some(total)) = (shortage.total, device_total)
        && said < total
    {
        shortage.limit = Some(said);
        shortage.total = Some(total);
    }
}

/// The processes without the recorded one.
fn others(mut processes: Vec<ProcessFile>, reserved: u64) -> Vec<ProcessFile> {
    let is_own = |process: &ProcessFile| process.name.as_deref() == Some("this process");
    let held: Vec<u64> = processes.iter().map(|process| process.bytes.unwrap_or(0)).collect();
    if let Some(own) = own_process(processes.iter().position(is_own), &held, reserved) {
        processes.remove(own);
    }
    processes
}

impl From<OomFile> for Shortage {
    fn from(file: OomFile) -> Shortage {
        let process = |process: ProcessFile| Process {
            pid: process.pid,
            bytes: Bytes(process.bytes.unwrap_or(0)),
            name: process.name.unwrap_or_default(),
        };
        Shortage {
            device: file.device,
            total: file.total.map(Bytes),
            free: file.free.map(Bytes),
            limit: file.limit.map(Bytes),
            others: others(file.processes, file.reserved.unwrap_or(0)).into_iter().map(process).collect(),
        }
    }
}

#[derive(Deserialize)]
struct MetaFile {
    torch: Option<String>,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    devices: Vec<CardFile>,
}

#[derive(Deserialize)]
struct CardFile {
    #[serde(default)]
    index: u32,
    name: Option<String>,
    total: Option<u64>,
    limit: Option<u64>,
}

impl From<CardFile> for Card {
    fn from(file: CardFile) -> Card {
        Card {
            device: file.index,
            name: file.name.unwrap_or_default(),
            total: file.total.map(Bytes),
            limit: file.limit.map(Bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_rank_share_its_name() {
        for (snapshot, expected) in [
            ("r/rank0.pickle", Some("r/rank0.labels")),
            ("r/Rank10.PICKLE.XZ", Some("r/Rank10.labels")),
            ("rank0.pickle.zst", Some("rank0.labels")),
            ("a.pkl", None),
            ("pickle", None),
        ] {
            let labels = rank(Path::new(snapshot)).map(|rank| rank.with_ending("labels"));
            assert_eq!(labels.as_deref(), expected.map(Path::new), "{snapshot}");
        }
    }

    #[test]
    fn labels_that_point_nowhere_are_left_out() {
        let file: LabelsFile = serde_json::from_str(
            r#"{"version": 1, "tensors": [["mystery", "x", ""], ["parameter", "weight", "Net"]],
                "sets": [[[0, 0, 512, 4], [1, 0, 1024, 8], [7, 0, 2048, 8], [1, -1, 4096, 8]]],
                "marks": [[{"0": 3, "x": 4}, 0]], "more": {}}"#,
        )
        .expect("readable");
        let labels = file.labels();
        assert_eq!(labels.sets, [[Placed { tensor: 0, device: 0, addr: 1024, bytes: 8 }]]);
        assert_eq!(labels.marks, [LabelMark { allocations: Counts(vec![(0, 3)]), set: 0 }]);
    }

    #[test]
    fn the_recorded_process_is_not_among_the_others() {
        for (own, expected) in [("this process", vec![77]), ("", vec![77])] {
            let processes = vec![
                ProcessFile { pid: 77, bytes: Some(12 << 30), name: Some("python".to_owned()) },
                ProcessFile { pid: 5, bytes: Some(9 << 30), name: Some(own.to_owned()) },
            ];
            let pids: Vec<u64> = others(processes, 8 << 30).iter().map(|process| process.pid).collect();
            assert_eq!(pids, expected);
        }
    }

    #[test]
    fn a_total_below_the_cards_is_the_limit() {
        for (said, limit, expected) in
            [(40, None, (Some(80), Some(40))), (80, Some(60), (Some(80), Some(60)))]
        {
            let mut shortage =
                Shortage { total: Some(Bytes(said)), limit: limit.map(Bytes), ..Shortage::default() };
            settle_limit(&mut shortage, Some(Bytes(80)));
            assert_eq!((shortage.total, shortage.limit), (expected.0.map(Bytes), expected.1.map(Bytes)));
        }
    }

    #[test]
    fn a_step_is_known_by_its_time_even_without_counts() {
        let lines = marks(
            "{\"time_us\": 5, \"allocated\": 9}\n\n{\"time_us\": 7, \"devices\": [{\"device\": 1, \"allocations\": 3, \"reserved\": 10, \"used\": 60, \"others\": 20}]}\n",
        )
        .expect("marks");
        assert_eq!(outside(&lines), [Outside { device: 1, process: Bytes(30), others: Bytes(20) }]);
        let marks: Vec<StepMark> = lines.into_iter().map(StepMark::from).collect();
        let expected = [
            StepMark { time_us: 5, ..StepMark::default() },
            StepMark { time_us: 7, allocations: Counts(vec![(1, 3)]), ..StepMark::default() },
        ];
        assert_eq!(marks, expected);
        assert!(super::marks("{\"time_us\": 5}\nnothing\n").is_none());
        let cut = super::marks("{\"time_us\": 5}\n{\"time_u").expect("all but the last line");
        assert_eq!(cut.len(), 1, "a program that was killed has left half a line");
    }
}
