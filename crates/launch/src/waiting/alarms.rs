//! Reads the steps of a run along, says that memory grows, and asks the recorder for what there is so far.

use super::on_leak::OnLeak;
use super::written::written;
use crate::output::{self, own_rank};
use analysis::{Alarm, Growth};
use recording::StepLine;
use serde::Serialize;
use snapshot::Bytes;
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Whether memory grows, for each rank that writes its steps to a folder.
pub(super) struct Alarms {
    folder: PathBuf,
    ranks: BTreeMap<u32, Rank>,
    on_leak: Option<OnLeak>,
    say: fn(&str),
}

/// A rank and device whose memory grows. The recorder reads it as well (`alarm.py`).
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
    fn new(growth: &Growth, device: u32, rank: u32) -> Leak {
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

#[derive(Default)]
struct Rank {
    read: u64,
    /// By device.
    alarms: BTreeMap<u32, Alarm>,
    ended_us: i64,
    /// How long its last step took.
    step: Duration,
    /// What its recorder has not been told yet.
    untold: Vec<Leak>,
}

impl Alarms {
    pub(super) fn new(folder: &Path, on_leak: Option<OnLeak>, say: fn(&str)) -> Alarms {
        Alarms { folder: folder.to_owned(), ranks: BTreeMap::new(), on_leak, say }
    }

    /// While the program runs.
    pub(super) fn look(&mut self) {
        for leak in self.heard() {
            let rank = self.ranks.entry(leak.rank).or_default();
            let last = written(&self.folder, leak.rank);
            // Of a launcher's processes one may have ended while the others go on.
            if last.as_ref().is_some_and(|last| last.is_last) {
                (self.say)(&leak.message);
            } else {
                (self.say)(&format!(
                    "{}; a recording so far goes to {}",
                    leak.message,
                    output::shown(&self.folder)
                ));
                rank.untold.push(leak.clone());
            }
            if let Some(on_leak) = &mut self.on_leak {
                on_leak.call_when_written(leak, last.map(|last| last.stamp), rank.step);
            }
        }
        for (&number, rank) in &mut self.ranks {
            rank.tell(&self.folder, number);
        }
        if let Some(on_leak) = &mut self.on_leak {
            on_leak.look(&self.folder);
        }
    }

    /// When it has ended: what it did in its last moments has not been looked at, and its recording is there.
    pub(super) fn finish(mut self) {
        for leak in self.heard() {
            (self.say)(&leak.message);
            if let Some(on_leak) = &mut self.on_leak {
                on_leak.call(leak, &self.folder);
            }
        }
        // What nobody has read any more.
        for &number in self.ranks.keys() {
            let _ = std::fs::remove_file(asking(&self.folder, number));
        }
        if let Some(on_leak) = self.on_leak {
            on_leak.finish(&self.folder);
        }
    }

    /// Whose memory grows, by the steps that have come since.
    fn heard(&mut self) -> Vec<Leak> {
        let mut leaks = Vec::new();
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            // A rank that has an `oomph run` of its own is called there.
            let number = name.to_str().filter(|name| name.ends_with(".steps.jsonl")).and_then(own_rank);
            let Some(number) = number else { continue };
            // Whatever keeps us from reading along does not matter to the program or its recording.
            let Ok(found) = self.ranks.entry(number).or_default().read(&entry.path()) else { continue };
            leaks.extend(found.iter().map(|(device, growth)| Leak::new(growth, *device, number)));
        }
        leaks
    }
}

fn asking(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("rank{number}.ask"))
}

impl Rank {
    /// Those devices whose memory grows, by the steps that have been added to the file.
    fn read(&mut self, path: &Path) -> io::Result<Vec<(u32, Growth)>> {
        let mut file = std::fs::File::open(path)?;
        if file.metadata()?.len() < self.read {
            // The recorder has begun anew: what it had counted were no steps.
            *self = Rank { untold: std::mem::take(&mut self.untold), ..Rank::default() };
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
                found.extend(growth.map(|growth| (counters.device, Growth { step, ..growth })));
            }
        }
        Ok(found)
    }

    /// Leaves word for the recorder, which looks for it at the end of a step: a signal might meet a process that does not
    /// expect it. One word at a time: a second would replace what has not been read.
    fn tell(&mut self, folder: &Path, number: u32) {
        let path = asking(folder, number);
        if self.untold.is_empty() || path.exists() {
            return;
        }
        let leaks = self.untold.drain(..).filter_map(|leak| serde_json::to_string(&leak).ok());
        let text = std::iter::once("alarm".to_owned()).chain(leaks).collect::<Vec<_>>().join("\n");
        // Renamed, so that it is read whole.
        let part = path.with_extension("ask.part");
        let _ = crate::scratch::write(&part, text.as_bytes()).and_then(|()| std::fs::rename(&part, &path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    /// So many steps in which each device allocates so many MiB more.
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
    fn every_device_that_grows_is_heard_once() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("rank3.steps.jsonl"), steps(30, &[8, 0, 2])).expect("a file");
        std::fs::write(folder.path().join("rank4.steps.jsonl"), steps(30, &[0, 0, 0])).expect("a file");
        let mut alarms = Alarms::new(folder.path(), None, |_| ());
        let heard: Vec<_> = alarms
            .heard()
            .iter()
            .map(|leak| (leak.rank, leak.device, leak.step, leak.bytes_per_step >> 20))
            .collect();
        assert_eq!(heard, [(3, 0, 9, 8), (3, 2, 9, 2)]);
        assert_eq!(alarms.heard(), []);
        assert_eq!(alarms.ranks[&3].step, Duration::from_millis(1));
    }

    #[test]
    fn the_recorder_is_told_of_one_thing_after_the_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rank0.ask");
        let growth = Growth { step: 9, bytes_per_step: Bytes(8 << 20), allocated: Bytes(1 << 30) };
        let mut rank = Rank::default();
        rank.untold.push(Leak::new(&growth, 0, 0));
        rank.tell(folder.path(), 0);
        rank.untold.push(Leak::new(&growth, 1, 0));
        rank.tell(folder.path(), 0);
        let told = std::fs::read_to_string(&path).expect("a file");
        let (reason, leak) = told.split_once('\n').expect("two lines");
        assert_eq!(reason, "alarm");
        assert_eq!(
            leak,
            r#"{"message":"memory grows 8.00 MiB a step: 1.00 GiB allocated at step 9 on device 0 of rank 0","step":9,"bytes_per_step":8388608,"allocated":1073741824,"device":0,"rank":0}"#
        );
        std::fs::remove_file(&path).expect("a file");
        rank.tell(folder.path(), 0);
        assert!(std::fs::read_to_string(&path).expect("a file").contains("on device 1"));
        assert_eq!(std::fs::read_dir(folder.path()).expect("a file").count(), 1, "no part is left behind");
    }
}
