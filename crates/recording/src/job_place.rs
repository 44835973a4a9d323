//! The key `job` of `rankN.json`: the place of a process in a distributed job.

use serde::Deserialize;

/// Most dimensions of a mesh that are kept.
const MAX_DIMENSIONS: usize = 16;
/// Longest name that is kept, in characters.
const MAX_NAME_CHARACTERS: usize = 200;

/// Place of a process in a distributed job. What no launcher or program said is absent.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
#[serde(default)]
pub struct JobPlace {
    /// Name that the scheduler or launcher gave to the job.
    pub id: Option<String>,
    /// Name of the machine.
    pub node: Option<String>,
    /// Rank in the whole job.
    pub rank: Option<u32>,
    /// Rank on its machine.
    pub local_rank: Option<u32>,
    /// Number of ranks of the job.
    pub world_size: Option<u32>,
    /// Coordinates in the program's mesh of ranks, the outermost dimension first.
    pub dimensions: Vec<MeshCoordinate>,
}

/// Coordinate of a rank along one dimension of a mesh: `pp` 1 of 4.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[serde(default)]
pub struct MeshCoordinate {
    /// Name of the dimension, such as `pp` or `dp`.
    pub name: String,
    /// Index along it, from 0.
    pub index: u32,
    /// Number of indexes.
    pub size: u32,
}

impl JobPlace {
    /// Returns the place with names and numbers of dimensions within their limits.
    pub(crate) fn bounded(mut self) -> JobPlace {
        let shorten = |text: &mut String| *text = text.chars().take(MAX_NAME_CHARACTERS).collect();
        self.id.iter_mut().chain(&mut self.node).for_each(shorten);
        self.dimensions.retain(|dimension| !dimension.name.is_empty() && dimension.index < dimension.size);
        self.dimensions.truncate(MAX_DIMENSIONS);
        self.dimensions.iter_mut().for_each(|dimension| shorten(&mut dimension.name));
        self
    }
}

#[cfg(test)]
mod tests {
    use crate::RunInfo;

    #[test]
    fn a_place_is_read_with_and_without_its_parts() {
        let run = RunInfo::parse(
            br#"{"ended": "finished", "job": {"id": "77", "node": "n3", "rank": 9, "local_rank": 1,
                 "world_size": 16, "dimensions": [{"name": "pp", "index": 1, "size": 2},
                 {"name": "dp", "index": 9, "size": 8}], "later": true}}"#,
        );
        let job = run.expect("readable").job.expect("a place");
        assert_eq!((job.id.as_deref(), job.node.as_deref(), job.rank), (Some("77"), Some("n3"), Some(9)));
        assert_eq!((job.local_rank, job.world_size), (Some(1), Some(16)));
        assert_eq!(job.dimensions.len(), 1, "an index beyond the size of its dimension is left out");
        assert_eq!((job.dimensions[0].name.as_str(), job.dimensions[0].index), ("pp", 1));
        let bare = RunInfo::parse(br#"{"ended": "finished", "job": {"rank": null}}"#).expect("readable");
        assert_eq!(bare.job.expect("a place").rank, None);
        assert_eq!(RunInfo::parse(br#"{"ended": "finished"}"#).expect("readable").job, None);
    }
}
