//! The GPUs of this machine as the driver (NVML) describes them; without a recorder nothing else is known.

use crate::wire::GpuProcess;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use serde::{Deserialize, Serialize};

/// One GPU as the driver describes it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Gpu {
    /// Index by the driver's count.
    pub index: u32,
    /// UUID, as `nvidia-smi -L` prints it.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Memory in bytes.
    pub total: u64,
    /// Bytes in use by all processes and by the driver itself.
    pub used: u64,
    /// Processes that use memory of the GPU.
    pub processes: Vec<GpuProcess>,
}

/// A connection to the driver.
pub struct Driver {
    nvml: Nvml,
}

impl Driver {
    /// Connects. The error says why that is impossible: no driver, or none that answers.
    pub fn new() -> Result<Driver, String> {
        match Nvml::init() {
            Ok(nvml) => Ok(Driver { nvml }),
            Err(NvmlError::LibloadingError(_)) => Err("this machine has no NVIDIA driver".to_owned()),
            Err(error) => Err(no_answer(&error)),
        }
    }

    /// Returns every GPU that answers. The error says why the driver itself no longer does.
    pub fn gpus(&self) -> Result<Vec<Gpu>, String> {
        let count = self.nvml.device_count().map_err(|error| no_answer(&error))?;
        Ok((0..count).filter_map(|index| self.gpu(index).ok()).collect())
    }

    fn gpu(&self, index: u32) -> Result<Gpu, NvmlError> {
        let device = self.nvml.device_by_index(index)?;
        let memory = device.memory_info()?;
        // Some containers see the device and may not list its processes.
        let mut running = device.running_compute_processes().unwrap_or_default();
        running.extend(device.running_graphics_processes().unwrap_or_default());
        running.sort_by_key(|process| process.pid);
        running.dedup_by_key(|process| process.pid);
        let processes = running.into_iter().filter_map(|process| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => {
                Some(GpuProcess { pid: process.pid, bytes, name: process_name(process.pid) })
            }
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

fn no_answer(error: &NvmlError) -> String {
    format!("the NVIDIA driver does not answer: {error}")
}

fn process_name(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}
