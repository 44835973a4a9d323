//! What the driver says of the machine's GPUs: without a recorder, all that there is to know.

use crate::wire::Process;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use serde::{Deserialize, Serialize};

/// One GPU, as the driver sees it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Gpu {
    /// The driver's number of it.
    pub index: u32,
    pub uuid: String,
    pub name: String,
    pub total: u64,
    /// In use by everybody, and by the driver itself.
    pub used: u64,
    pub processes: Vec<Process>,
}

/// The connection to the driver.
pub struct Driver {
    nvml: Nvml,
}

impl Driver {
    /// Fails with the reason in words: no driver, or none that answers.
    pub fn new() -> Result<Driver, String> {
        match Nvml::init() {
            Ok(nvml) => Ok(Driver { nvml }),
            Err(NvmlError::LibloadingError(_)) => Err("this machine has no NVIDIA driver".to_owned()),
            Err(error) => Err(silence(&error)),
        }
    }

    /// Every GPU that answers; the reason in words if the driver itself does not any more.
    pub fn gpus(&self) -> Result<Vec<Gpu>, String> {
        let count = self.nvml.device_count().map_err(|error| silence(&error))?;
        Ok((0..count).filter_map(|index| self.gpu(index).ok()).collect())
    }

    fn gpu(&self, index: u32) -> Result<Gpu, NvmlError> {
        let device = self.nvml.device_by_index(index)?;
        let memory = device.memory_info()?;
        // Some containers may not ask, and still see the device.
        let mut running = device.running_compute_processes().unwrap_or_default();
        running.extend(device.running_graphics_processes().unwrap_or_default());
        running.sort_by_key(|process| process.pid);
        running.dedup_by_key(|process| process.pid);
        let processes = running.into_iter().filter_map(|process| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(Process { pid: process.pid, bytes, name: name(process.pid) }),
            UsedGpuMemory::Unavailable => None,
        });
        Ok(Gpu {
            index,
            uuid: device.uuid()?,
            name: device.name()?,
            total: memory.total,
            used: memory.total.saturating_sub(memory.free),
            processes: processes.collect(),
        })
    }
}

fn silence(error: &NvmlError) -> String {
    format!("the NVIDIA driver does not answer: {error}")
}

fn name(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}
