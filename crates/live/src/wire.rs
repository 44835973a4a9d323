//! The lines of the channel; `python/oomph/recording/live.py` writes them.

use crate::bounded::{
    MAX_DEVICES, MAX_FRAMES, MAX_PROCESSES, MAX_STACKS, MAX_STEPS, MAX_WORDS, first, first_if_any, shorten,
};
use serde::{Deserialize, Serialize};

/// Bytes of the longest name of a job: as long as the name of a file can be.
const MAX_JOB: usize = 255;

/// What may be asked of a recorder.
#[derive(Serialize, Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Question {
    /// Only steps after this one.
    pub since: u64,
    /// As long as the steps are those that it had seen.
    pub era: u64,
    /// Whether the stacks of live blocks are wanted.
    pub stacks: bool,
    /// As long as they are of a later step than this.
    pub stacks_since: u64,
    /// Whether to write a recording.
    pub dump: bool,
}

/// What a recorder answers. A field that it does not know is one that a later version has added.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Debug)]
pub struct State {
    pub version: u32,
    pub pid: u32,
    pub host: String,
    /// The rank that a launcher gave it.
    pub rank: Option<u32>,
    #[serde(default)]
    pub world_size: u32,
    /// The command line.
    #[serde(default, deserialize_with = "first::<_, _, MAX_WORDS>")]
    pub command: Vec<String>,
    /// Where it records to.
    pub folder: String,
    /// What its files there begin with, once it has written some.
    pub name: Option<String>,
    #[serde(default)]
    pub torch: String,
    /// `cuda` or `cpu`.
    pub kind: String,
    pub started_us: i64,
    pub time_us: i64,
    /// Changes when what was counted as steps before were none.
    #[serde(default)]
    pub era: u64,
    /// Steps so far.
    #[serde(default)]
    pub count: u64,
    /// The last of them.
    #[serde(default, deserialize_with = "first::<_, _, MAX_STEPS>")]
    pub steps: Vec<Step>,
    #[serde(default, deserialize_with = "first::<_, _, MAX_DEVICES>")]
    pub devices: Vec<Device>,
    /// Pinned host memory.
    pub pinned: Option<u64>,
    /// Whether live blocks can be told by their stacks.
    #[serde(default)]
    pub has_stacks: bool,
    /// Those that hold most; nothing if they were not asked for, or are not new.
    #[serde(default, deserialize_with = "first_if_any::<_, _, MAX_STACKS>")]
    pub stacks: Option<Vec<Stack>>,
    /// The step in which they were read.
    #[serde(default)]
    pub stacks_step: u64,
    /// Recordings that were written because somebody asked here.
    #[serde(default)]
    pub dumps: u64,
    #[serde(default)]
    pub is_dumping: bool,
}

impl State {
    /// Whether it records the host's memory, not a GPU's.
    pub fn is_cpu(&self) -> bool {
        self.kind == "cpu"
    }
}

/// The end of a step.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Step {
    pub step: u64,
    pub time_us: i64,
    #[serde(deserialize_with = "first::<_, _, MAX_DEVICES>")]
    pub devices: Vec<StepDevice>,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
pub struct StepDevice {
    pub device: u32,
    pub allocated: u64,
    pub reserved: u64,
}

/// PyTorch's counters of one device, and what the driver says of it.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Debug)]
pub struct Device {
    pub device: u32,
    pub allocated: u64,
    pub reserved: u64,
    #[serde(default)]
    pub requested: u64,
    #[serde(default)]
    pub active: u64,
    #[serde(default)]
    pub inactive_split: u64,
    /// The most that was allocated at once, since the program began or last set it back.
    #[serde(default)]
    pub peak: u64,
    /// Allocations so far.
    #[serde(default)]
    pub allocations: u64,
    #[serde(default)]
    pub retries: u64,
    #[serde(default)]
    pub ooms: u64,
    /// Calls of `cudaMalloc` and its like so far.
    #[serde(default)]
    pub device_allocs: u64,
    /// In use by everybody, as the driver sees it.
    pub used: Option<u64>,
    #[serde(default, deserialize_with = "first::<_, _, MAX_PROCESSES>")]
    pub processes: Vec<Process>,
    /// What the card is called.
    #[serde(default)]
    pub card: String,
    #[serde(default)]
    pub uuid: String,
    pub total: Option<u64>,
    /// What the process may have, if not all.
    pub limit: Option<u64>,
}

/// A process that holds memory of a device.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct Process {
    pub pid: u32,
    pub bytes: u64,
    #[serde(default)]
    pub name: String,
}

/// What one stack has allocated and is still there.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Stack {
    pub device: u32,
    /// Innermost first.
    #[serde(deserialize_with = "first::<_, _, MAX_FRAMES>")]
    pub frames: Vec<Frame>,
    pub bytes: u64,
    pub count: u64,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Frame {
    pub filename: String,
    pub line: u32,
    pub name: String,
}

impl State {
    /// What the program is called: its script or module.
    pub fn job(&self) -> String {
        let mut job = self.whole_job();
        shorten(&mut job, MAX_JOB);
        job
    }

    fn whole_job(&self) -> String {
        let mut words = self.command.iter().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "-m" => return words.next().cloned().unwrap_or_default(),
                "-c" => return "-c".to_owned(),
                "-X" | "-W" => {
                    words.next();
                }
                option if option.starts_with('-') && option.len() > 1 => {}
                script => return script.rsplit('/').next().unwrap_or(script).to_owned(),
            }
        }
        self.command.first().map_or_else(
            || format!("process {}", self.pid),
            |program| program.rsplit('/').next().unwrap_or(program).to_owned(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_called_by_its_script_or_module() {
        for (command, expected) in [
            ("python train.py --lr 3", "train.py"),
            ("/usr/bin/python3 -u -X dev runs/train.py", "train.py"),
            ("python -m torch.distributed.run train.py", "torch.distributed.run"),
            ("python -c pass", "-c"),
            ("/usr/bin/python", "python"),
            ("", "process 7"),
        ] {
            let command = command.split_whitespace().map(str::to_owned).collect();
            assert_eq!(State { command, pid: 7, ..State::default() }.job(), expected);
        }
    }

    #[test]
    fn what_a_later_version_adds_is_passed_over() {
        let text = r#"{"version": 1, "pid": 1, "host": "h", "rank": null, "folder": "/f", "name": null, "kind": "cuda",
            "started_us": 1, "time_us": 2, "more": [], "devices": [{"device": 0, "allocated": 5, "reserved": 9, "new": {}}]}"#;
        let state: State = serde_json::from_str(text).expect("readable");
        assert_eq!((state.devices[0].allocated, state.devices[0].total), (5, None));
    }
}
