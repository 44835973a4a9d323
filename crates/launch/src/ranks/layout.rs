//! How a job lays out its ranks: dimensions such as data parallel, tensor parallel and pipeline stages.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Most processes that ranks beyond the first of each stage are worth.
const MAX_PROCESSES: usize = 16;

/// What the processes of a run say about the ranks of the job.
#[derive(Default, Debug)]
pub(crate) struct JobNotes {
    pub(crate) nodes: u32,
    pub(crate) gpus: u32,
    groups: Vec<GroupNote>,
    meshes: Vec<MeshNote>,
    /// Ranks of each communicator, by its name.
    communicators: BTreeMap<String, Vec<u32>>,
    /// Positions in a communicator with which messages were exchanged.
    peers: BTreeMap<String, BTreeSet<u32>>,
    /// Dimensions that were made instead of the program's.
    pub(crate) layout: Option<String>,
    pub(crate) other_meshes: Vec<String>,
    /// Whether the program starts its ranks itself.
    pub(crate) spawns: bool,
}

#[derive(Deserialize, Debug)]
struct GroupNote {
    name: Option<String>,
    ranks: Vec<u32>,
}

#[derive(Deserialize, Debug)]
struct MeshNote {
    names: Vec<String>,
    shape: Vec<u32>,
    ranks: Vec<u32>,
}

impl JobNotes {
    /// Adds a note; returns whether it is one about the job.
    pub(crate) fn add(&mut self, kind: &str, text: &str) -> bool {
        let mut words = text.split(' ');
        match kind {
            "job" => {
                let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
                (self.nodes, self.gpus) = (number(), number());
            }
            "group" => self.groups.extend(serde_json::from_str::<GroupNote>(text)),
            "mesh" => self.meshes.extend(serde_json::from_str::<MeshNote>(text)),
            "communicator" => {
                let name = words.next().unwrap_or_default().to_owned();
                self.communicators.insert(name, words.filter_map(|word| word.parse().ok()).collect());
            }
            "peer" => {
                let name = words.next().unwrap_or_default().to_owned();
                self.peers.entry(name).or_default().extend(words.filter_map(|word| word.parse::<u32>().ok()));
            }
            "spawns" => self.spawns = true,
            "layout" => self.layout = Some(text.to_owned()),
            "other_mesh" => self.other_meshes.push(text.to_owned()),
            _ => return false,
        }
        true
    }
}

/// A dimension of the layout of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankDimension {
    /// Name in the program, such as `tp`.
    pub name: String,
    /// Positions.
    pub size: u32,
    /// Whether its positions do different work: the stages of a pipeline.
    pub is_pipeline: bool,
    /// Position of each rank.
    positions: Vec<u32>,
}

/// How a job lays out its ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobLayout {
    /// Machines.
    pub nodes: u32,
    /// Ranks on each machine.
    pub gpus: u32,
    /// Dimensions with more than one position.
    pub dimensions: Vec<RankDimension>,
}

impl JobLayout {
    /// Derives the layout from the device meshes and process groups of the program; `None` if no launcher
    /// has said how many ranks there are.
    pub(crate) fn new(notes: &JobNotes) -> Option<JobLayout> {
        let world = notes.nodes * notes.gpus;
        if world == 0 {
            return None;
        }
        let mut dimensions = Vec::new();
        for mesh in &notes.meshes {
            add_mesh(mesh, world, &mut dimensions);
        }
        for family in families(&notes.groups, world) {
            add_unless_known(family, &mut dimensions);
        }
        add_rest(world, &mut dimensions);
        for dimension in &mut dimensions {
            dimension.is_pipeline = is_pipeline(dimension, notes);
        }
        Some(JobLayout { nodes: notes.nodes, gpus: notes.gpus, dimensions })
    }

    /// Number of ranks.
    pub fn world(&self) -> u32 {
        self.nodes * self.gpus
    }

    /// Returns the position of a rank in each dimension.
    pub fn positions(&self, rank: u32) -> Vec<u32> {
        self.dimensions.iter().map(|of| of.positions.get(rank as usize).copied().unwrap_or(0)).collect()
    }

    /// Returns the ranks that run: of each pipeline stage the first, and the last of all ranks of the stage.
    pub(super) fn representatives(&self) -> Vec<u32> {
        let mut stages: BTreeMap<Vec<u32>, (u32, u32)> = BTreeMap::new();
        for rank in 0..self.world() {
            let (first, last) = stages.entry(self.stage(rank)).or_insert((rank, rank));
            (*first, *last) = ((*first).min(rank), (*last).max(rank));
        }
        let first: BTreeSet<u32> = stages.values().map(|(first, _)| *first).collect();
        let both: BTreeSet<u32> = stages.values().flat_map(|(first, last)| [*first, *last]).collect();
        if both.len() <= MAX_PROCESSES { both } else { first }.into_iter().collect()
    }

    /// Position in the dimensions whose positions do different work.
    fn stage(&self, rank: u32) -> Vec<u32> {
        let positions = self.positions(rank);
        self.dimensions.iter().zip(positions).filter(|(of, _)| of.is_pipeline).map(|(_, at)| at).collect()
    }

    /// Returns the number of ranks that a rank stands for, of those that run.
    pub fn stands_for(&self, rank: u32, running: &[u32]) -> u32 {
        let in_stage = |other: &u32| self.stage(*other) == self.stage(rank);
        let alike: Vec<u32> = running.iter().copied().filter(in_stage).collect();
        let all = (0..self.world()).filter(in_stage).count() as u32;
        // The first of a stage stands for those in between as well.
        let is_first = alike.first() == Some(&rank);
        if is_first { all - (alike.len() as u32 - 1) } else { 1 }
    }

    /// Returns the position of a rank in words, `pp 3, dp 1`, counted from 0.
    pub fn words(&self, rank: u32) -> String {
        self.position_words(rank, |_| true)
    }

    /// Returns the stage of a rank in words, or all of its position if there are no stages.
    pub fn stage_words(&self, rank: u32) -> String {
        let has_stages = self.dimensions.iter().any(|of| of.is_pipeline);
        self.position_words(rank, |of| of.is_pipeline || !has_stages)
    }

    fn position_words(&self, rank: u32, is_shown: impl Fn(&RankDimension) -> bool) -> String {
        let positions = self.dimensions.iter().zip(self.positions(rank)).filter(|(of, _)| is_shown(of));
        positions.map(|(of, at)| format!("{} {at}", of.name)).collect::<Vec<_>>().join(", ")
    }
}

/// Adds the dimensions of a mesh that spans all ranks.
fn add_mesh(mesh: &MeshNote, world: u32, dimensions: &mut Vec<RankDimension>) {
    let is_whole = mesh.ranks.len() == world as usize && mesh.ranks.iter().all(|&rank| rank < world);
    if !is_whole || mesh.shape.iter().map(|&size| u64::from(size)).product::<u64>() != u64::from(world) {
        return;
    }
    for (index, &size) in mesh.shape.iter().enumerate() {
        let stride: u32 = mesh.shape[index + 1..].iter().product();
        let mut positions = vec![0; world as usize];
        for (at, &rank) in mesh.ranks.iter().enumerate() {
            positions[rank as usize] = at as u32 / stride % size;
        }
        let name = mesh.names.get(index).cloned().unwrap_or_else(|| format!("dimension {index}"));
        add_unless_known(RankDimension { name, size, is_pipeline: false, positions }, dimensions);
    }
}

/// Position of each rank in the groups of a kind that are known so far.
type PartialPositions = Vec<Option<u32>>;

/// Process groups of one kind, which together contain every rank once: a dimension.
fn families(groups: &[GroupNote], world: u32) -> Vec<RankDimension> {
    let mut found: BTreeMap<(Option<&str>, usize), Vec<PartialPositions>> = BTreeMap::new();
    for group in groups.iter().filter(|group| group.ranks.len() > 1 && group.ranks.len() < world as usize) {
        let families = found.entry((group.name.as_deref(), group.ranks.len())).or_default();
        let is_free = |family: &PartialPositions| {
            group.ranks.iter().all(|&rank| family.get(rank as usize).is_some_and(Option::is_none))
        };
        let at = families.iter().position(is_free).unwrap_or_else(|| {
            families.push(vec![None; world as usize]);
            families.len() - 1
        });
        for (position, &rank) in group.ranks.iter().enumerate() {
            if let Some(place) = families[at].get_mut(rank as usize) {
                *place = Some(position as u32);
            }
        }
    }
    let mut dimensions: Vec<RankDimension> = found
        .into_iter()
        .flat_map(|((name, size), families)| families.into_iter().map(move |family| (name, size, family)))
        .filter_map(|(name, size, family)| {
            let positions: Vec<u32> = family.into_iter().collect::<Option<_>>()?;
            let name = name
                .filter(|name| *name != "undefined")
                .map_or_else(|| format!("groups of {size}"), short_name);
            Some(RankDimension { name, size: size as u32, is_pipeline: false, positions })
        })
        .collect();
    // Groups over several dimensions are larger than those of one.
    dimensions.sort_by_key(|of| of.size);
    dimensions
}

/// Short names for the groups of Megatron and others.
fn short_name(description: &str) -> String {
    const SHORT: [(&str, &str); 5] =
        [("pipeline", "pp"), ("tensor", "tp"), ("context", "cp"), ("expert", "ep"), ("data", "dp")];
    let lower = description.to_ascii_lowercase();
    let is_group = lower.contains("parallel") || lower.contains("group");
    let short = SHORT.iter().find(|(word, _)| is_group && lower.contains(word));
    short.map_or_else(|| description.to_owned(), |(_, short)| (*short).to_owned())
}

/// Adds a dimension whose positions do not follow from those of the others.
fn add_unless_known(dimension: RankDimension, dimensions: &mut Vec<RankDimension>) {
    if dimension.size < 2 {
        return;
    }
    let mut by_others: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
    let follows = dimension.positions.iter().enumerate().all(|(rank, &position)| {
        let others: Vec<u32> = dimensions.iter().map(|of| of.positions[rank]).collect();
        *by_others.entry(others).or_insert(position) == position
    });
    if !follows {
        let mut name = dimension.name.clone();
        for number in 2.. {
            if dimensions.iter().all(|of| of.name != name) {
                break;
            }
            name = format!("{} ({number})", dimension.name);
        }
        dimensions.push(RankDimension { name, ..dimension });
    }
}

/// Adds a data-parallel dimension for ranks with the same position in all others.
fn add_rest(world: u32, dimensions: &mut Vec<RankDimension>) {
    let mut count: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
    let positions: Vec<u32> = (0..world as usize)
        .map(|rank| {
            let before = count.entry(dimensions.iter().map(|of| of.positions[rank]).collect()).or_default();
            *before += 1;
            *before - 1
        })
        .collect();
    let size = count.values().copied().max().unwrap_or(1);
    add_unless_known(
        RankDimension { name: "dp".to_owned(), size, is_pipeline: false, positions },
        dimensions,
    );
}

/// Whether the positions of a dimension do different work: by its name, or because neighbors send each other
/// messages.
fn is_pipeline(dimension: &RankDimension, notes: &JobNotes) -> bool {
    let name = dimension.name.to_ascii_lowercase();
    if ["pp", "pipe", "pipeline", "pipeline_parallel", "stage", "stages"].contains(&name.as_str()) {
        return true;
    }
    if ["cp", "context", "ep", "expert", "sp", "ring"].iter().any(|word| name.contains(word)) {
        return false;
    }
    notes.peers.iter().any(|(communicator, peers)| {
        let Some(members) = notes.communicators.get(communicator) else { return false };
        let mut positions: Vec<u32> =
            members.iter().filter_map(|&rank| dimension.positions.get(rank as usize).copied()).collect();
        positions.sort_unstable();
        positions.dedup();
        // Whoever sends to everybody takes part in an all-to-all.
        let is_all_to_all = members.len() > 2 && peers.len() + 1 >= members.len();
        positions.len() == members.len() && !is_all_to_all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(nodes: u32, gpus: u32, lines: &[(&str, &str)]) -> JobNotes {
        let mut notes = JobNotes { nodes, gpus, ..JobNotes::default() };
        for (kind, text) in lines {
            assert!(notes.add(kind, text), "{kind}");
        }
        notes
    }

    fn names(layout: &JobLayout) -> Vec<(&str, u32, bool)> {
        layout.dimensions.iter().map(|of| (of.name.as_str(), of.size, of.is_pipeline)).collect()
    }

    #[test]
    fn without_groups_all_ranks_are_data_parallel() {
        let layout = JobLayout::new(&notes(512, 8, &[])).expect("a job");
        assert_eq!(names(&layout), [("dp", 4096, false)]);
        assert_eq!(layout.representatives(), [0, 4095]);
        assert_eq!((layout.stands_for(0, &[0, 4095]), layout.stands_for(4095, &[0, 4095])), (4095, 1));
    }

    #[test]
    fn a_mesh_with_stages_runs_the_first_and_last_rank_of_each_stage() {
        let mesh = r#"{"names": ["pp", "dp", "tp"], "shape": [2, 2, 2], "ranks": [0, 1, 2, 3, 4, 5, 6, 7]}"#;
        let groups = [("mesh", mesh), ("group", r#"{"name": "mesh_tp", "ranks": [0, 1]}"#)];
        let layout = JobLayout::new(&notes(1, 8, &groups)).expect("a job");
        assert_eq!(names(&layout), [("pp", 2, true), ("dp", 2, false), ("tp", 2, false)]);
        assert_eq!(layout.representatives(), [0, 3, 4, 7]);
        assert_eq!(layout.words(6), "pp 1, dp 1, tp 0");
    }

    #[test]
    fn groups_that_partition_the_ranks_are_dimensions() {
        let group = |name: &str, ranks: &[u32]| format!("{{\"name\": \"{name}\", \"ranks\": {ranks:?}}}");
        let texts = [
            group("TENSOR_MODEL_PARALLEL_GROUP", &[0, 1]),
            group("TENSOR_MODEL_PARALLEL_GROUP", &[2, 3]),
            group("PIPELINE_MODEL_PARALLEL_GROUP", &[0, 2]),
            group("PIPELINE_MODEL_PARALLEL_GROUP", &[1, 3]),
            group("EMBEDDING_GROUP", &[0, 2]),
        ];
        let lines: Vec<(&str, &str)> = texts.iter().map(|text| ("group", text.as_str())).collect();
        let layout = JobLayout::new(&notes(1, 4, &lines)).expect("a job");
        assert_eq!(names(&layout), [("pp", 2, true), ("tp", 2, false)]);
    }

    #[test]
    fn neighbors_that_send_messages_are_stages_and_an_all_to_all_is_not() {
        let all = [("communicator", "a 0 1 2 3"), ("peer", "a 1")];
        let layout = JobLayout::new(&notes(1, 4, &all)).expect("a job");
        assert_eq!(names(&layout), [("dp", 4, true)]);
        let all = [("communicator", "a 0 1 2 3"), ("peer", "a 1"), ("peer", "a 2"), ("peer", "a 3")];
        let layout = JobLayout::new(&notes(1, 4, &all)).expect("a job");
        assert_eq!(names(&layout), [("dp", 4, false)]);
    }
}
