//! What there is to see at one moment: a row for each device of each recorder, and for each GPU that no recorder uses.

use live::{DeviceCounters, Gpu, MemorySplit, WatchedRecorder, Watcher};
use std::rc::Rc;

/// Everything at one moment.
pub struct Look {
    pub rows: Vec<Row>,
    /// Why the driver could not be asked.
    pub no_driver: Option<String>,
    /// What is left out, in words.
    pub notes: Vec<String>,
}

/// One device as one process sees it, or one GPU as the driver does.
pub enum Row {
    Recorded {
        /// What its recorder is called here.
        name: String,
        followed: Rc<WatchedRecorder>,
        device: Box<DeviceCounters>,
        split: MemorySplit,
    },
    Bare(Gpu),
}

impl Look {
    pub fn new(followers: &Watcher) -> Look {
        let (gpus, no_driver) = match followers.gpus() {
            Ok(gpus) => (gpus, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let mut rows: Vec<Row> = Vec::new();
        let mut followed = followers.recorders();
        followed.sort_by_key(|(_, one)| {
            (one.exit.is_some(), one.state.folder.clone(), one.state.rank, one.state.pid)
        });
        for (name, followed) in followed {
            let followed = Rc::new(followed);
            for device in &followed.state.devices {
                let split = MemorySplit::new(&followed.state, device);
                let (name, device) = (name.clone(), Box::new(device.clone()));
                rows.push(Row::Recorded { name, followed: followed.clone(), device, split });
            }
        }
        let is_recorded = |gpu: &Gpu| rows.iter().any(|row| row.uses(&gpu.uuid));
        let bare: Vec<Gpu> = gpus.into_iter().filter(|gpu| !is_recorded(gpu)).collect();
        rows.extend(bare.into_iter().map(Row::Bare));
        Look { rows, no_driver, notes: followers.notes() }
    }

    pub fn all_have_ended(&self) -> bool {
        self.rows.iter().all(|row| match row {
            Row::Recorded { followed, .. } => followed.exit.is_some(),
            Row::Bare(_) => true,
        })
    }
}

impl Row {
    /// Whether it is about this GPU, by the driver's name. PyTorch leaves the prefix out.
    fn uses(&self, uuid: &str) -> bool {
        let plain = |uuid: &str| uuid.trim_start_matches("GPU-").to_owned();
        match self {
            Row::Recorded { device, followed, .. } => {
                followed.exit.is_none() && plain(&device.uuid) == plain(uuid)
            }
            Row::Bare(gpu) => gpu.uuid == uuid,
        }
    }

    /// What stays the same from look to look.
    pub fn key(&self) -> String {
        match self {
            Row::Recorded { name, device, .. } => format!("{name} {}", device.device),
            Row::Bare(gpu) => gpu.uuid.clone(),
        }
    }

    /// Whose memory it is, in a few words.
    pub fn title(&self) -> String {
        match self {
            Row::Recorded { followed, device, .. } => {
                let state = &followed.state;
                let rank = state.rank.map(|rank| format!(" rank {rank}")).unwrap_or_default();
                let place = if state.is_cpu() { "CPU".to_owned() } else { format!("GPU {}", device.device) };
                format!("{}{rank} {place}", analysis::words::printable(&state.job()))
            }
            Row::Bare(gpu) => format!("GPU {} (no recorder)", gpu.index),
        }
    }
}
