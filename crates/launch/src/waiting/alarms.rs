//! Follows the steps of a run as they are written, warns when memory grows, and asks the recorder for a
//! recording.

use super::last_recording::last_recording;
use super::on_leak::OnLeak;
use crate::output::{self, own_rank};
use analysis::{GrowthAlarm, GrowthAlert};
use recording::StepLine;
use serde::Serialize;
use snapshot::Bytes;
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Detects growth of memory in every rank that writes its steps to a folder.
pub(super) struct Alarms {
    folder: PathBuf,
    ranks: BTreeMap<u32, RankSteps>,
    on_leak: Option<OnLeak>,
    say: fn(&str),
}

/// A device of a rank whose memory grows. The recorder reads it as well (`alarm.py`).
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub(super) struct Leak {
    pub(super) message: String,
    pub(super) step: usize,
    pub(super) bytes_per_step: u64,
    pub(super) allocated: u64,
    pub(super) device: u32,
    pub(super) rank: u32,
}

impl Leak {
    fn new(growth: &GrowthAlert, device: u32, rank: u32) -> Leak {
        Leak {
            message: format!("{} on device {device} of rank {rank}", growth.words()),
            step: growth.step,
            bytes_per_step: growth.bytes_per_step.0,
            allocated: growth.allocated.0,
            device,
            rank,
        }
    }
}

/// Steps of one rank, read so far.
#[derive(Default)]
struct RankSteps {
    /// Bytes of the file that have been read.
    read: u64,
    /// Growth detectors, by device.
    alarms: BTreeMap<u32, GrowthAlarm>,
    /// End of the last step, in microseconds since the Unix epoch; 0 before the first.
    ended_us: i64,
    /// Duration of the last step.
    step: Duration,
    /// Leaks that the recorder has not been notified of.
    pending: Vec<Leak>,
}

impl Alarms {
    pub(super) fn new(folder: &Path, on_leak: Option<OnLeak>, say: fn(&str)) -> Alarms {
        Alarms { folder: folder.to_owned(), ranks: BTreeMap::new(), on_leak, say }
    }

    /// Reads new steps and acts on leaks, while the program runs.
    pub(super) fn update(&mut self) {
        for leak in self.new_leaks() {
            let rank = self.ranks.entry(leak.rank).or_default();
            let last = last_recording(&self.folder, leak.rank);
            // Of a launcher's processes one may have ended while the others go on.
            if last.as_ref().is_some_and(|last| last.is_last) {
                (self.say)(&leak.message);
            } else {
                (self.say)(&format!(
                    "{}; writing a recording of the run so far to {}",
                    leak.message,
                    output::shown(&self.folder)
                ));
                rank.pending.push(leak.clone());
            }
            if let Some(on_leak) = &mut self.on_leak {
                on_leak.call_when_written(leak, last.map(|last| last.stamp), rank.step);
            }
        }
        for (&number, rank) in &mut self.ranks {
            rank.notify(&self.folder, number);
        }
        if let Some(on_leak) = &mut self.on_leak {
            on_leak.update(&self.folder);
        }
    }

    /// Reads the remaining steps, once the program has ended and its recording is written.
    pub(super) fn finish(mut self) {
        for leak in self.new_leaks() {
            (self.say)(&leak.message);
            if let Some(on_leak) = &mut self.on_leak {
                on_leak.call(leak, &self.folder);
            }
        }
        // Notifications that no recorder has read.
        for &number in self.ranks.keys() {
            let _ = std::fs::remove_file(request_path(&self.folder, number));
        }
        if let Some(on_leak) = self.on_leak {
            on_leak.finish(&self.folder);
        }
    }

    /// Returns leaks found in the steps written since the last call.
    fn new_leaks(&mut self) -> Vec<Leak> {
        let mut leaks = Vec::new();
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            // A rank that has an `oomph run` of its own is watched there.
            let number = name.to_str().filter(|name| name.ends_with(".steps.jsonl")).and_then(own_rank);
            let Some(number) = number else { continue };
            // Errors here do not matter to the program or its recording.
            let Ok(found) = self.ranks.entry(number).or_default().read(&entry.path()) else { continue };
            leaks.extend(found.iter().map(|(device, growth)| Leak::new(growth, *device, number)));
        }
        leaks
    }
}

fn request_path(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("rank{number}.ask"))
}

impl RankSteps {
    /// Reads the steps added to the file, and returns the devices whose memory grows.
    fn read(&mut self, path: &Path) -> io::Result<Vec<(u32, GrowthAlert)>> {
        let mut file = std::fs::File::open(path)?;
        if file.metadata()?.len() < self.read {
            // The recorder started over: what it had counted were not steps.
            *self = RankSteps { pending: std::mem::take(&mut self.pending), ..RankSteps::default() };
        }
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = String::new();
        file.take(1 << 24).read_to_string(&mut text)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += whole as u64;
        let mut found = Vec::new();
        for line in text[..whole].lines() {
            let Ok(StepLine { step: Some(number), time_us, devices, .. }) = StepLine::parse(line) else {
                continue;
            };
            if self.ended_us > 0 {
                let micros = u64::try_from(time_us.saturating_sub(self.ended_us)).unwrap_or(0);
                self.step = Duration::from_micros(micros);
            }
            self.ended_us = time_us;
            for counters in devices {
                let Some(allocated) = counters.allocated else { continue };
                let growth = self.alarms.entry(counters.device).or_default().step(Bytes(allocated));
                // Numbered by the recorder: it may have started over, and we have not read each of its files.
                let step = usize::try_from(number).unwrap_or(usize::MAX);
                found.extend(growth.map(|growth| (counters.device, GrowthAlert { step, ..growth })));
            }
        }
        Ok(found)
    }

    /// Leaves a notification for the recorder, which looks for it at the end of a step; a signal might reach
    /// a process that does not expect it. One at a time: a second would replace what has not been read.
    fn notify(&mut self, folder: &Path, number: u32) {
        let path = request_path(folder, number);
        if self.pending.is_empty() || path.exists() {
            return;
        }
        let leaks = self.pending.drain(..).filter_map(|leak| serde_json::to_string(&leak).ok());
        let text = std::iter::once("alarm".to_owned()).chain(leaks).collect::<Vec<_>>().join("\n");
        // Renamed, so that it is never read half written.
        let part = path.with_extension("ask.part");
        let _ = crate::scratch::write(&part, text.as_bytes()).and_then(|()| std::fs::rename(&part, &path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    /// Lines of `count` steps; each device allocates `growth` MiB more per step.
    fn steps(count: u64, growth: &[u64]) -> String {
        (1..=count).fold(String::new(), |mut text, step| {
            let device = |(device, mib): (usize, &u64)| {
                format!(r#"{{"device":{device},"allocated":{}}}"#, (100 + mib * step) << 20)
            };
            let devices = growth.iter().enumerate().map(device).collect::<Vec<_>>().join(",");
            let _ = writeln!(text, r#"{{"step":{step},"time_us":{},"devices":[{devices}]}}"#, step * 1000);
            text
        })
    }

    #[test]
    fn every_growing_device_is_reported_once() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("rank3.steps.jsonl"), steps(30, &[8, 0, 2])).expect("a file");
        std::fs::write(folder.path().join("rank4.steps.jsonl"), steps(30, &[0, 0, 0])).expect("a file");
        let mut alarms = Alarms::new(folder.path(), None, |_| ());
        let found: Vec<_> = alarms
            .new_leaks()
            .iter()
            .map(|leak| (leak.rank, leak.device, leak.step, leak.bytes_per_step >> 20))
            .collect();
        assert_eq!(found, [(3, 0, 9, 8), (3, 2, 9, 2)]);
        assert_eq!(alarms.new_leaks(), []);
        assert_eq!(alarms.ranks[&3].step, Duration::from_millis(1));
    }

    #[test]
    fn the_recorder_gets_one_notification_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rank0.ask");
        let growth = GrowthAlert { step: 9, bytes_per_step: Bytes(8 << 20), allocated: Bytes(1 << 30) };
        let mut rank = RankSteps::default();
        rank.pending.push(Leak::new(&growth, 0, 0));
        rank.notify(folder.path(), 0);
        rank.pending.push(Leak::new(&growth, 1, 0));
        rank.notify(folder.path(), 0);
        let text = std::fs::read_to_string(&path).expect("a file");
        let (reason, leak) = text.split_once('\n').expect("two lines");
        assert_eq!(reason, "alarm");
        let message =
            "memory has grown 8.00 MiB per step: 1.00 GiB allocated at step 9 on device 0 of rank 0";
        let rest = r#""step":9,"bytes_per_step":8388608,"allocated":1073741824,"device":0,"rank":0"#;
        assert_eq!(leak, format!(r#"{{"message":"{message}",{rest}}}"#));
        std::fs::remove_file(&path).expect("a file");
        rank.notify(folder.path(), 0);
        assert!(std::fs::read_to_string(&path).expect("a file").contains("on device 1"));
        assert_eq!(std::fs::read_dir(folder.path()).expect("a file").count(), 1, "no part is left behind");
    }
}
