//! Memory of a device by use: what `nvidia-smi` cannot show.

use crate::wire::{DeviceCounters, GpuProcess, RecorderState};
use recording::own_process;
use snapshot::Bytes;

/// Memory of a device by use. What the driver does not report is `None`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct MemorySplit {
    /// Allocated to tensors.
    pub tensors: Bytes,
    /// Reserved by PyTorch and not allocated.
    pub cached: Bytes,
    /// Non-PyTorch memory of this process: the CUDA context, libraries, NCCL.
    pub non_pytorch: Option<Bytes>,
    /// In use by other processes.
    pub others: Option<Bytes>,
    /// In use with an unknown owner: the driver itself, or processes that are hidden from here.
    pub unknown_owner: Option<Bytes>,
    /// Free on the device.
    pub free: Option<Bytes>,
    /// Total memory of the device.
    pub total: Option<Bytes>,
}

impl MemorySplit {
    /// Splits the memory of one device of a recorder.
    pub fn new(state: &RecorderState, device: &DeviceCounters) -> MemorySplit {
        let (tensors, cached) = (device.allocated, device.reserved.saturating_sub(device.allocated));
        let mut split = MemorySplit {
            tensors: Bytes(tensors),
            cached: Bytes(cached),
            total: device.total.map(Bytes),
            ..MemorySplit::default()
        };
        let Some(used) = device.used else { return split };
        // PyTorch's counters are current, the driver's up to a second old.
        let used = used.max(device.reserved);
        split.free = device.total.map(|total| Bytes(total.saturating_sub(used)));
        let (own, others) = own(&device.processes, state.pid, device.reserved);
        let others: u64 = others.map(|process| process.bytes).sum();
        let non_pytorch = own.map(|own| own.bytes.saturating_sub(device.reserved));
        split.non_pytorch = non_pytorch.map(Bytes);
        split.others = (!device.processes.is_empty()).then_some(Bytes(others));
        let known = device.reserved + non_pytorch.unwrap_or(0) + others;
        split.unknown_owner = Some(Bytes(used.saturating_sub(known)));
        split
    }

    /// Returns the most that tensors could use: what PyTorch has reserved and what is free, within the limit
    /// of the process.
    pub fn room(&self, limit: Option<u64>) -> Option<Bytes> {
        let mine = self.tensors.0 + self.cached.0;
        let most = limit.map_or(u64::MAX, |limit| limit.saturating_sub(mine));
        self.free.map(|free| Bytes(self.tensors.0 + self.cached.0 + free.0.min(most)))
    }
}

/// Splits a list into the process itself and the others.
fn own(
    processes: &[GpuProcess],
    pid: u32,
    reserved: u64,
) -> (Option<&GpuProcess>, impl Iterator<Item = &GpuProcess>) {
    let by_pid = processes.iter().position(|process| process.pid == pid);
    let held: Vec<u64> = processes.iter().map(|process| process.bytes).collect();
    let own = own_process(by_pid, &held, reserved);
    let others =
        processes.iter().enumerate().filter(move |&(at, _)| Some(at) != own).map(|(_, process)| process);
    (own.map(|own| &processes[own]), others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, bytes: u64) -> GpuProcess {
        GpuProcess { pid, bytes, name: String::new() }
    }

    fn device(processes: Vec<GpuProcess>) -> DeviceCounters {
        DeviceCounters {
            allocated: 30,
            reserved: 40,
            used: Some(75),
            total: Some(100),
            processes,
            ..DeviceCounters::default()
        }
    }

    #[test]
    fn the_parts_add_up_to_the_device() {
        let state = RecorderState { pid: 7, ..RecorderState::default() };
        for processes in [vec![process(7, 45), process(9, 20)], vec![process(1, 20), process(2, 45)]] {
            let split = MemorySplit::new(&state, &device(processes));
            assert_eq!((split.tensors, split.cached), (Bytes(30), Bytes(10)));
            let rest = [split.non_pytorch, split.others, split.unknown_owner, split.free];
            assert_eq!(rest.map(|bytes| bytes.expect("known").0), [5, 20, 10, 25]);
        }
    }

    #[test]
    fn what_the_driver_hides_is_not_guessed() {
        let state = RecorderState { pid: 7, ..RecorderState::default() };
        let split = MemorySplit::new(&state, &device(Vec::new()));
        assert_eq!((split.non_pytorch, split.others), (None, None));
        assert_eq!((split.unknown_owner, split.free), (Some(Bytes(35)), Some(Bytes(25))));
        let unknown = MemorySplit::new(&state, &DeviceCounters { used: None, ..device(Vec::new()) });
        assert_eq!((unknown.free, unknown.unknown_owner), (None, None));
    }

    #[test]
    fn room_is_what_is_free_within_the_limit() {
        let state = RecorderState { pid: 7, ..RecorderState::default() };
        let split = MemorySplit::new(&state, &device(vec![process(7, 45)]));
        assert_eq!(split.room(None), Some(Bytes(65)));
        assert_eq!(split.room(Some(50)), Some(Bytes(50)));
    }
}
