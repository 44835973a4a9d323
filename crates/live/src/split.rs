//! What the memory of a device is in use for: the part of it that `nvidia-smi` cannot show.

use crate::wire::{Device, Process, State};
use recording::own_process;
use snapshot::Bytes;

/// A device's memory, by who has it. What the driver does not say is `None`, and is not guessed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Split {
    /// Tensors that are alive.
    pub tensors: Bytes,
    /// Reserved by PyTorch, and free for its tensors.
    pub cached: Bytes,
    /// This process outside PyTorch's allocator: the CUDA context, libraries, NCCL.
    pub outside: Option<Bytes>,
    /// Other processes.
    pub others: Option<Bytes>,
    /// In use, and by none of the processes that can be seen: the driver's own, or processes that are hidden from here.
    pub unseen: Option<Bytes>,
    /// Free on the device.
    pub free: Option<Bytes>,
    /// The whole device.
    pub total: Option<Bytes>,
}

impl Split {
    /// The split of one device of a recorder.
    pub fn new(state: &State, device: &Device) -> Split {
        let (tensors, cached) = (device.allocated, device.reserved.saturating_sub(device.allocated));
        let mut split = Split {
            tensors: Bytes(tensors),
            cached: Bytes(cached),
            total: device.total.map(Bytes),
            ..Split::default()
        };
        let Some(used) = device.used else { return split };
        // PyTorch's count is of now, the driver's of up to a second ago.
        let used = used.max(device.reserved);
        split.free = device.total.map(|total| Bytes(total.saturating_sub(used)));
        let (own, others) = own(&device.processes, state.pid, device.reserved);
        let others: u64 = others.map(|process| process.bytes).sum();
        let outside = own.map(|own| own.bytes.saturating_sub(device.reserved));
        split.outside = outside.map(Bytes);
        split.others = (!device.processes.is_empty()).then_some(Bytes(others));
        let known = device.reserved + outside.unwrap_or(0) + others;
        split.unseen = Some(Bytes(used.saturating_sub(known)));
        split
    }

    /// What tensors could have at most: all that is free, and what PyTorch keeps, within the process's own limit.
    pub fn room(&self, limit: Option<u64>) -> Option<Bytes> {
        let mine = self.tensors.0 + self.cached.0;
        let most = limit.map_or(u64::MAX, |limit| limit.saturating_sub(mine));
        self.free.map(|free| Bytes(self.tensors.0 + self.cached.0 + free.0.min(most)))
    }
}

/// The process itself, and the others.
fn own(processes: &[Process], pid: u32, reserved: u64) -> (Option<&Process>, impl Iterator<Item = &Process>) {
    let by_pid = processes.iter().position(|process| process.pid == pid);
    let held: Vec<u64> = processes.iter().map(|process| process.bytes).collect();
    let place = own_process(by_pid, &held, reserved);
    let others =
        processes.iter().enumerate().filter(move |&(at, _)| Some(at) != place).map(|(_, process)| process);
    (place.map(|place| &processes[place]), others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, bytes: u64) -> Process {
        Process { pid, bytes, name: String::new() }
    }

    fn device(processes: Vec<Process>) -> Device {
        Device {
            allocated: 30,
            reserved: 40,
            used: Some(75),
            total: Some(100),
            processes,
            ..Device::default()
        }
    }

    #[test]
    fn every_byte_of_a_device_is_somebodys() {
        let state = State { pid: 7, ..State::default() };
        for processes in [vec![process(7, 45), process(9, 20)], vec![process(1, 20), process(2, 45)]] {
            let split = Split::new(&state, &device(processes));
            assert_eq!((split.tensors, split.cached), (Bytes(30), Bytes(10)));
            let rest = [split.outside, split.others, split.unseen, split.free];
            assert_eq!(rest.map(|bytes| bytes.expect("known").0), [5, 20, 10, 25]);
        }
    }

    #[test]
    fn what_the_driver_hides_is_not_guessed() {
        let state = State { pid: 7, ..State::default() };
        let split = Split::new(&state, &device(Vec::new()));
        assert_eq!((split.outside, split.others), (None, None));
        assert_eq!((split.unseen, split.free), (Some(Bytes(35)), Some(Bytes(25))));
        let unknown = Split::new(&state, &Device { used: None, ..device(Vec::new()) });
        assert_eq!((unknown.free, unknown.unseen), (None, None));
    }

    #[test]
    fn room_is_what_is_free_within_the_limit() {
        let state = State { pid: 7, ..State::default() };
        let split = Split::new(&state, &device(vec![process(7, 45)]));
        assert_eq!(split.room(None), Some(Bytes(65)));
        assert_eq!(split.room(Some(50)), Some(Bytes(50)));
    }
}
