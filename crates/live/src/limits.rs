//! Limits on an answer. A recorder stays within them; anything else that answers on a live socket is cut down
//! to them, so that what is kept, drawn or exported does not grow with what it sends.

use crate::driver::Gpu;
use crate::wire::{DeviceCounters, GpuProcess, LiveStepCounters, RecorderState};
use recording::DriverCount;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

/// Maximum number of devices of a process; also one more than the highest device ordinal.
pub(crate) const MAX_DEVICES: usize = 64;
/// Maximum number of steps of an answer; a recorder keeps 512.
pub(crate) const MAX_STEPS: usize = 1024;
/// Maximum number of stacks of an answer; a recorder sends 64.
pub(crate) const MAX_STACKS: usize = 256;
/// Maximum number of frames of a stack.
pub(crate) const MAX_FRAMES: usize = 1024;
/// Maximum number of processes of a device.
pub(crate) const MAX_PROCESSES: usize = 1024;
/// Maximum number of words of a command line.
pub(crate) const MAX_WORDS: usize = 1024;
/// Longest text, in bytes: that of the longest path.
const MAX_TEXT_BYTES: usize = 4096;
/// Largest amount of memory, in bytes (1 PiB): sums of all that is kept cannot overflow.
const MAX_MEMORY: u64 = 1 << 50;
/// Largest step number and time in microseconds: exact as a floating-point number.
const MAX_NUMBER: u64 = 1 << 53;

/// Deserializes the first entries of a list; the rest is skipped and takes no memory.
pub(crate) fn first<'de, D: Deserializer<'de>, T: Deserialize<'de>, const LIMIT: usize>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct First<T, const LIMIT: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const LIMIT: usize> Visitor<'de> for First<T, LIMIT> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
            let mut kept = Vec::new();
            while kept.len() < LIMIT {
                let Some(entry) = entries.next_element()? else { return Ok(kept) };
                kept.push(entry);
            }
            while entries.next_element::<IgnoredAny>()?.is_some() {}
            Ok(kept)
        }
    }

    deserializer.deserialize_seq(First::<T, LIMIT>(PhantomData))
}

/// Deserializes the first entries of a list that may be null.
pub(crate) fn first_if_any<'de, D: Deserializer<'de>, T: Deserialize<'de>, const LIMIT: usize>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(bound = "T: Deserialize<'de>")]
    struct Kept<T, const LIMIT: usize>(#[serde(deserialize_with = "first::<_, T, LIMIT>")] Vec<T>);

    Ok(Option::<Kept<T, LIMIT>>::deserialize(deserializer)?.map(|kept| kept.0))
}

/// Truncates a text to at most `limit` bytes, between two characters.
pub(crate) fn shorten(text: &mut String, limit: usize) {
    text.truncate(text.floor_char_boundary(limit));
}

impl RecorderState {
    /// Limits numbers and texts to plausible sizes, and lists each device once.
    pub(crate) fn bounded(mut self) -> RecorderState {
        let texts = [&mut self.host, &mut self.folder, &mut self.torch, &mut self.kind];
        texts.into_iter().chain(&mut self.name).chain(&mut self.command).for_each(|text| {
            shorten(text, MAX_TEXT_BYTES);
        });
        once_each(&mut self.devices, |device| device.device);
        self.devices.iter_mut().for_each(bound_device);
        let mut last = 0;
        self.steps.retain(|step| {
            let is_next = step.step > last && step.step <= MAX_NUMBER;
            last = if is_next { step.step } else { last };
            is_next
        });
        for step in &mut self.steps {
            step.time_us = bounded_time(step.time_us);
            once_each(&mut step.devices, |row| row.device);
            for LiveStepCounters { allocated, reserved, .. } in &mut step.devices {
                bound_bytes([allocated, reserved]);
            }
        }
        for stack in self.stacks.iter_mut().flatten() {
            bound_bytes([&mut stack.bytes, &mut stack.count]);
            for frame in &mut stack.frames {
                shorten(&mut frame.filename, MAX_TEXT_BYTES);
                shorten(&mut frame.name, MAX_TEXT_BYTES);
            }
        }
        bound_bytes(&mut self.pinned);
        (self.started_us, self.time_us) = (bounded_time(self.started_us), bounded_time(self.time_us));
        self.count = self.count.min(MAX_NUMBER);
        self.stacks_step = self.stacks_step.min(MAX_NUMBER);
        self
    }
}

impl Gpu {
    /// Limits numbers and texts of a GPU of another machine.
    pub(crate) fn bounded(mut self) -> Gpu {
        shorten(&mut self.name, MAX_TEXT_BYTES);
        shorten(&mut self.uuid, MAX_TEXT_BYTES);
        bound_bytes([&mut self.total, &mut self.used]);
        bound_processes(&mut self.processes);
        self
    }
}

fn bound_device(device: &mut DeviceCounters) {
    shorten(&mut device.card, MAX_TEXT_BYTES);
    shorten(&mut device.uuid, MAX_TEXT_BYTES);
    bound_processes(&mut device.processes);
    for DriverCount { bytes, library, .. } in &mut device.driver {
        shorten(library, MAX_TEXT_BYTES);
        *bytes = (*bytes).clamp(-(MAX_MEMORY as i64), MAX_MEMORY as i64);
    }
    bound_bytes([&mut device.allocated, &mut device.reserved, &mut device.requested, &mut device.active]);
    bound_bytes([&mut device.inactive_split, &mut device.peak]);
    bound_bytes(device.used.iter_mut().chain(&mut device.total).chain(&mut device.limit));
}

fn bound_processes(processes: &mut Vec<GpuProcess>) {
    processes.truncate(MAX_PROCESSES);
    for process in processes {
        shorten(&mut process.name, MAX_TEXT_BYTES);
        bound_bytes([&mut process.bytes]);
    }
}

fn bound_bytes<'a>(amounts: impl IntoIterator<Item = &'a mut u64>) {
    amounts.into_iter().for_each(|amount| *amount = MAX_MEMORY.min(*amount));
}

fn bounded_time(micros: i64) -> i64 {
    micros.clamp(0, MAX_NUMBER as i64)
}

/// Keeps the first row of each device whose ordinal is within the limit.
fn once_each<T>(rows: &mut Vec<T>, device: impl Fn(&T) -> u32) {
    let mut seen = 0u64;
    rows.retain(|row| {
        let bit = 1u64.checked_shl(device(row)).filter(|bit| seen & bit == 0);
        seen |= bit.unwrap_or(0);
        bit.is_some()
    });
}

const _: () = assert!(MAX_DEVICES == u64::BITS as usize, "`once_each` has a bit for each device");

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(more: serde_json::Value) -> RecorderState {
        let mut answer = json!({"version": 1, "pid": 1, "host": "h", "rank": null, "folder": "/f",
            "name": null, "kind": "cuda", "started_us": 1, "time_us": 2});
        let (fields, more) =
            (answer.as_object_mut().expect("fields"), more.as_object().expect("fields").clone());
        fields.extend(more);
        serde_json::from_value::<RecorderState>(answer).expect("readable").bounded()
    }

    #[test]
    fn lists_are_cut_to_what_a_recorder_can_have() {
        let device = |number: u64| json!({"device": number, "allocated": u64::MAX, "reserved": u64::MAX});
        let frame = json!({"filename": "f", "line": 1, "name": "n"});
        let stack =
            json!({"device": 0, "frames": vec![frame; MAX_FRAMES + 9], "bytes": u64::MAX, "count": 1});
        let bare = json!({"device": 0, "frames": [], "bytes": 1, "count": 1});
        let process = json!({"pid": 1, "bytes": u64::MAX, "name": "x".repeat(2 * MAX_TEXT_BYTES)});
        let processes = vec![process; MAX_PROCESSES + 9];
        let crowded = json!({"device": 5, "allocated": 0, "reserved": 0, "processes": processes});
        let steps: Vec<_> = (1..1100u64)
            .map(|step| json!({"step": step, "time_us": i64::MIN, "devices": vec![device(0); 2]}))
            .collect();
        let stacks = [vec![stack], vec![bare; MAX_STACKS + 9]].concat();
        let state = answer(json!({
            "command": vec!["x".repeat(2 * MAX_TEXT_BYTES); MAX_WORDS + 9],
            "devices": std::iter::once(crowded).chain((0..20_000).map(device)).collect::<Vec<_>>(),
            "steps": steps,
            "stacks": stacks,
            "time_us": i64::MAX,
        }));
        assert_eq!((state.command.len(), state.command[0].len()), (MAX_WORDS, MAX_TEXT_BYTES));
        assert!(state.devices.len() <= MAX_DEVICES && state.devices[0].processes.len() == MAX_PROCESSES);
        assert_eq!((state.steps.len(), state.steps[0].devices.len()), (MAX_STEPS, 1));
        let stacks = state.stacks.as_ref().expect("stacks");
        assert_eq!((stacks.len(), stacks[0].frames.len()), (MAX_STACKS, MAX_FRAMES));
        assert!(state.devices.iter().all(|device| device.allocated <= MAX_MEMORY && device.device < 64));
        assert_eq!((state.time_us, state.steps[0].time_us), (MAX_NUMBER as i64, 0));
    }

    #[test]
    fn devices_are_listed_once_and_steps_in_order() {
        let row = |device: u32, bytes: u64| json!({"device": device, "allocated": bytes, "reserved": bytes});
        let step =
            |step: u64| json!({"step": step, "time_us": 1, "devices": [row(0, 5), row(0, 6), row(64, 7)]});
        let state = answer(json!({
            "devices": [row(3, 1), row(3, 2), row(64, 3), row(u32::MAX, 4), row(63, 5)],
            "steps": [step(7), step(7), step(6), step(u64::MAX), step(9)],
        }));
        let devices: Vec<_> = state.devices.iter().map(|row| (row.device, row.allocated)).collect();
        assert_eq!(devices, [(3, 1), (63, 5)]);
        let steps: Vec<_> = state.steps.iter().map(|step| (step.step, step.devices.len())).collect();
        assert_eq!(steps, [(7, 1), (9, 1)]);
    }

    #[test]
    fn what_a_recorder_sends_is_kept_as_it_is() {
        let device = json!({"device": 0, "allocated": 5, "reserved": 9, "used": 10, "total": 80_u64 << 30});
        let state = answer(json!({"devices": [device], "stacks": null, "command": ["python", "é"]}));
        assert_eq!((state.devices[0].allocated, state.devices[0].total), (5, Some(80 << 30)));
        assert_eq!((state.stacks, state.command[1].as_str()), (None, "é"));
        let mut text = "aé".to_owned();
        shorten(&mut text, 2);
        assert_eq!(text, "a", "never within a character");
    }
}
