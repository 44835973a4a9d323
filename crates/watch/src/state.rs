//! What there is to see at one moment: a row for each device of each recorder, and for each GPU that no recorder uses.

use live::{DeviceCounters, Gpu, MemorySplit, WatchedRecorder, Watcher};
use std::rc::Rc;

/// Everything at one moment.
pub struct WatchState {
    pub rows: Vec<WatchRow>,
    /// Why the driver could not be asked.
    pub no_driver: Option<String>,
    /// What is left out, in words.
    pub notes: Vec<String>,
}

/// One device as one process sees it, or one GPU as the driver does.
pub enum WatchRow {
    Recorded {
        /// What its recorder is called here.
        name: String,
        recorder: Rc<WatchedRecorder>,
        device: Box<DeviceCounters>,
        split: MemorySplit,
    },
    DriverOnly(Gpu),
}

impl WatchState {
    pub fn new(watcher: &Watcher) -> WatchState {
        let (gpus, no_driver) = match watcher.gpus() {
            Ok(gpus) => (gpus, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let mut rows: Vec<WatchRow> = Vec::new();
        let mut recorder = watcher.recorders();
        recorder.sort_by_key(|(_, one)| {
            (one.exit.is_some(), one.state.folder.clone(), one.state.rank, one.state.pid)
        });
        for (name, recorder) in recorder {
            let recorder = Rc::new(recorder);
            for device in &recorder.state.devices {
                let split = MemorySplit::new(&recorder.state, device);
                let (name, device) = (name.clone(), Box::new(device.clone()));
                rows.push(WatchRow::Recorded { name, recorder: recorder.clone(), device, split });
            }
        }
        let is_recorded = |gpu: &Gpu| rows.iter().any(|row| row.uses(&gpu.uuid));
        let bare: Vec<Gpu> = gpus.into_iter().filter(|gpu| !is_recorded(gpu)).collect();
        rows.extend(bare.into_iter().map(WatchRow::DriverOnly));
        WatchState { rows, no_driver, notes: watcher.notes() }
    }

    pub fn all_have_exited(&self) -> bool {
        self.rows.iter().all(|row| match row {
            WatchRow::Recorded { recorder, .. } => recorder.exit.is_some(),
            WatchRow::DriverOnly(_) => true,
        })
    }
}

impl WatchRow {
    /// Whether it is about this GPU, by the driver's name. PyTorch leaves the prefix out.
    fn uses(&self, uuid: &str) -> bool {
        let plain = |uuid: &str| uuid.trim_start_matches("GPU-").to_owned();
        match self {
            WatchRow::Recorded { device, recorder, .. } => {
                recorder.exit.is_none() && plain(&device.uuid) == plain(uuid)
            }
            WatchRow::DriverOnly(gpu) => gpu.uuid == uuid,
        }
    }

    /// What stays the same from look to look.
    pub fn key(&self) -> String {
        match self {
            WatchRow::Recorded { name, device, .. } => format!("{name} {}", device.device),
            WatchRow::DriverOnly(gpu) => gpu.uuid.clone(),
        }
    }

    /// Whose memory it is, in a few words.
    pub fn title(&self) -> String {
        match self {
            WatchRow::Recorded { recorder, device, .. } => {
                let state = &recorder.state;
                let rank = state.rank.map(|rank| format!(" rank {rank}")).unwrap_or_default();
                let place = if state.is_cpu() { "CPU".to_owned() } else { format!("GPU {}", device.device) };
                format!("{}{rank} {place}", analysis::words::printable(&state.job()))
            }
            WatchRow::DriverOnly(gpu) => format!("GPU {} (no recorder)", gpu.index),
        }
    }
}
