//! State of the machine at one moment: a row for each device of each recorder, and for each GPU without a
//! recorder.

use live::{DeviceCounters, Gpu, MemorySplit, WatchedRecorder, Watcher};
use std::rc::Rc;

/// State of the machine at one moment.
pub struct WatchState {
    /// Devices of recorders, then GPUs without a recorder.
    pub rows: Vec<WatchRow>,
    /// Why the driver could not be queried.
    pub no_driver: Option<String>,
    /// Notes on recorders that are left out.
    pub notes: Vec<String>,
}

/// One device of a recorder, or one GPU as the driver describes it.
pub enum WatchRow {
    /// A device of a recorder.
    Recorded {
        /// Name of the recorder in the watcher.
        name: String,
        /// The recorder.
        recorder: Rc<WatchedRecorder>,
        /// Counters of the device.
        device: Box<DeviceCounters>,
        /// Memory of the device by use.
        split: MemorySplit,
    },
    /// A GPU without a recorder.
    DriverOnly(Gpu),
}

impl WatchState {
    /// Queries the recorders and the driver.
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
        let unrecorded: Vec<Gpu> = gpus.into_iter().filter(|gpu| !is_recorded(gpu)).collect();
        rows.extend(unrecorded.into_iter().map(WatchRow::DriverOnly));
        WatchState { rows, no_driver, notes: watcher.notes() }
    }

    /// Returns whether all recorded processes have exited.
    pub fn all_have_exited(&self) -> bool {
        self.rows.iter().all(|row| match row {
            WatchRow::Recorded { recorder, .. } => recorder.exit.is_some(),
            WatchRow::DriverOnly(_) => true,
        })
    }
}

impl WatchRow {
    /// Returns whether the row is about the GPU with this UUID. PyTorch omits the prefix `GPU-`.
    fn uses(&self, uuid: &str) -> bool {
        let plain = |uuid: &str| uuid.trim_start_matches("GPU-").to_owned();
        match self {
            WatchRow::Recorded { device, recorder, .. } => {
                recorder.exit.is_none() && plain(&device.uuid) == plain(uuid)
            }
            WatchRow::DriverOnly(gpu) => gpu.uuid == uuid,
        }
    }

    /// Returns a key that identifies the row over time.
    pub fn key(&self) -> String {
        match self {
            WatchRow::Recorded { name, device, .. } => format!("{name} {}", device.device),
            WatchRow::DriverOnly(gpu) => gpu.uuid.clone(),
        }
    }

    /// Returns a short title: job, rank and device.
    pub fn title(&self) -> String {
        match self {
            WatchRow::Recorded { recorder, device, .. } => {
                let state = &recorder.state;
                let rank = state.rank.map(|rank| format!(" rank {rank}")).unwrap_or_default();
                let device = if state.is_cpu() { "CPU".to_owned() } else { format!("GPU {}", device.device) };
                format!("{}{rank} {device}", analysis::words::printable(&state.job()))
            }
            WatchRow::DriverOnly(gpu) => format!("GPU {} (no recorder)", gpu.index),
        }
    }
}
