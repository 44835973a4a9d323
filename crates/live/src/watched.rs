//! State of one watched recorder: its last answer, its memory timeline, and the growth of its steps.

use crate::limits::shorten;
use crate::split::MemorySplit;
use crate::system::read_file;
use crate::timeline::MemoryTimeline;
use crate::wire::{DeviceCounters, LiveFrame, LiveStep, RecorderRequest, RecorderState};
use analysis::{Pace, Trail, is_user_file};
use recording::{Exit, RunInfo};
use snapshot::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of steps that are kept one by one.
const MAX_RECENT_STEPS: usize = 128;
/// Number of samples of a site that are kept.
const MAX_SITE_SAMPLES: usize = 8;
/// Number of samples, each larger than the one before, that make a site a growing site.
const MIN_SAMPLES_FOR_GROWTH: usize = 3;
/// Longest `rankN.json`, in bytes; real ones have some thousand.
const MAX_RUN_FILE_BYTES: u64 = 1 << 20;
/// Longest first line of an exception, in bytes.
const MAX_EXCEPTION_BYTES: usize = 1024;

/// A recorder with everything learned from its answers so far.
#[derive(Clone, Debug)]
pub struct WatchedRecorder {
    /// Its last answer. Its steps have moved into the other fields.
    pub state: RecorderState,
    /// When the last answer came.
    pub answered_at: Instant,
    /// How the process ended, once it has. One that wrote nothing was killed, or crashed.
    pub exit: Option<Exit>,
    /// First line of the exception that ended it.
    pub exception: Option<String>,
    /// Memory from the start until now.
    pub timeline: MemoryTimeline,
    recent: VecDeque<LiveStep>,
    trails: BTreeMap<u32, Trail>,
    sites: BTreeMap<SiteKey, VecDeque<SiteSample>>,
    /// Step of the last sample of sites; 0 if there is none.
    sampled_step: u64,
}

/// A device and a line of code.
type SiteKey = (u32, Option<SourceLine>);
/// File, line and function.
type SourceLine = (String, u32, String);

#[derive(Clone, Copy, Debug)]
struct SiteSample {
    step: u64,
    bytes: u64,
    count: u64,
}

/// Live blocks allocated by one line of code.
#[derive(Clone, PartialEq, Debug)]
pub struct LiveSite {
    /// File, line and function; `None` where no Python was on the stack, as in backward.
    pub line: Option<(String, u32, String)>,
    /// Bytes of the blocks.
    pub bytes: Bytes,
    /// Number of the blocks.
    pub count: u64,
    /// Bytes that each step adds, if every sample was larger than the one before.
    pub bytes_per_step: Option<Bytes>,
}

impl WatchedRecorder {
    pub(crate) fn new(state: RecorderState) -> WatchedRecorder {
        let mut recorder = WatchedRecorder {
            state: RecorderState::default(),
            answered_at: Instant::now(),
            exit: None,
            exception: None,
            timeline: MemoryTimeline::default(),
            recent: VecDeque::new(),
            trails: BTreeMap::new(),
            sites: BTreeMap::new(),
            sampled_step: 0,
        };
        recorder.update(state);
        recorder
    }

    /// Takes in a new answer; steps that are known already are skipped.
    pub(crate) fn update(&mut self, mut state: RecorderState) {
        if state.era != self.state.era {
            self.trails.clear();
            self.sites.clear();
            self.recent.clear();
            self.sampled_step = 0;
        }
        // An exporter sends all steps that it has each time.
        let last = self.last_step();
        let mut steps = std::mem::take(&mut state.steps);
        steps.retain(|step| step.step > last);
        self.timeline.add(state.time_us, &steps, &state.devices);
        for step in steps {
            for row in &step.devices {
                let trail = self.trails.entry(row.device).or_default();
                if step.step > trail.steps() {
                    trail.step(step.step, Bytes(row.allocated));
                }
            }
            if self.recent.len() == MAX_RECENT_STEPS {
                self.recent.pop_front();
            }
            self.recent.push_back(step);
        }
        self.sample_sites(&state);
        self.state = state;
        self.answered_at = Instant::now();
    }

    fn sample_sites(&mut self, state: &RecorderState) {
        let Some(stacks) = state.stacks.as_ref().filter(|_| state.stacks_step > self.sampled_step) else {
            return;
        };
        self.sampled_step = state.stacks_step;
        let mut found: BTreeMap<SiteKey, SiteSample> = BTreeMap::new();
        for stack in stacks {
            let empty = SiteSample { step: state.stacks_step, bytes: 0, count: 0 };
            let sample = found.entry((stack.device, code_line(&stack.frames))).or_insert(empty);
            sample.bytes += stack.bytes;
            sample.count += stack.count;
        }
        self.sites.retain(|key, _| found.contains_key(key));
        for (key, sample) in found {
            let samples = self.sites.entry(key).or_default();
            if samples.len() == MAX_SITE_SAMPLES {
                samples.pop_front();
            }
            samples.push_back(sample);
        }
    }

    /// Returns the step at whose end [`WatchedRecorder::sites`] were read; `None` if they have not been read.
    pub fn sites_step(&self) -> Option<u64> {
        (self.sampled_step > 0).then_some(self.sampled_step)
    }

    /// Returns the lines that hold memory of a device, largest first; empty if unknown.
    pub fn sites(&self, device: u32) -> Vec<LiveSite> {
        let of_device = self.sites.iter().filter(|((of, _), _)| *of == device);
        let mut sites: Vec<LiveSite> =
            of_device.filter_map(|((_, line), samples)| site(line, samples)).collect();
        sites.sort_by_key(|site| std::cmp::Reverse(site.bytes));
        sites
    }

    /// Returns what the steps say about growth on a device.
    pub fn pace(&self, device: u32) -> Pace {
        self.trails.get(&device).map_or(Pace::NoSteps, Trail::pace)
    }

    /// Returns the number of steps until a growing device is full: its room above the highest peak so far,
    /// divided by the growth.
    pub fn steps_left(&self, device: u32) -> Option<u64> {
        let Pace::Growing { bytes_per_step } = self.pace(device) else { return None };
        let found = self.device(device)?;
        let room = MemorySplit::new(&self.state, found).room(found.limit)?;
        Some(room.0.saturating_sub(found.peak.max(found.allocated)) / bytes_per_step.0.max(1))
    }

    /// Returns the current counters of a device.
    pub fn device(&self, device: u32) -> Option<&DeviceCounters> {
        self.state.devices.iter().find(|found| found.device == device)
    }

    /// Returns the average duration of the last steps.
    pub fn time_per_step(&self) -> Option<Duration> {
        let last = self.recent.back()?;
        let first = self.recent.iter().rev().take(16).next_back()?;
        let (steps, micros) = (last.step - first.step, last.time_us - first.time_us);
        (steps > 0).then(|| Duration::from_micros(u64::try_from(micros).unwrap_or(0) / steps))
    }

    /// Returns the last answer with recent steps, from which another watcher can draw the same conclusions.
    pub fn state_with_steps(&self) -> RecorderState {
        RecorderState { steps: self.recent.iter().cloned().collect(), ..self.state.clone() }
    }

    /// Returns the next request, which asks only for what is new.
    pub(crate) fn next_request(&self) -> RecorderRequest {
        let (since, era) = (self.last_step(), self.state.era);
        RecorderRequest { since, era, stacks_since: self.sampled_step, ..RecorderRequest::default() }
    }

    /// Returns the last known step; 0 if there is none.
    pub(crate) fn last_step(&self) -> u64 {
        self.recent.back().map_or(0, |step| step.step)
    }
}

/// Returns how a process of this user ended, with the first line of its exception, by the `rankN.json` that
/// it wrote. A process that wrote none was killed, or crashed.
pub(crate) fn exit_of(state: &RecorderState, owner: u32) -> (Exit, Option<String>) {
    let own = |run: &RunInfo| run.pid == Some(state.pid) && run.host.as_ref() == Some(&state.host);
    let Some(run) = run_info(state, owner).filter(own) else { return (Exit::Killed, None) };
    let exception = run.exception_line().map(|line| {
        let mut line = line.to_owned();
        shorten(&mut line, MAX_EXCEPTION_BYTES);
        line
    });
    (run.state.exit().unwrap_or(Exit::Killed), exception)
}

/// Reads `rankN.json` in the folder that the process named, which may be any folder.
fn run_info(state: &RecorderState, owner: u32) -> Option<RunInfo> {
    let name = state.name.as_ref().filter(|name| !name.contains('/'))?;
    let file = Path::new(&state.folder).join(format!("{name}.json"));
    RunInfo::parse(&read_file(&file, owner, MAX_RUN_FILE_BYTES).ok()?).ok()
}

/// Returns the innermost line of a stack that is in a user's file, or the innermost of all.
fn code_line(frames: &[LiveFrame]) -> Option<SourceLine> {
    let own = frames.iter().find(|frame| is_user_file(&frame.filename));
    let frame = own.or_else(|| frames.first())?;
    Some((frame.filename.clone(), frame.line, frame.name.clone()))
}

fn site(line: &Option<SourceLine>, samples: &VecDeque<SiteSample>) -> Option<LiveSite> {
    let (first, last) = (samples.front()?, samples.back()?);
    let rises = samples.iter().zip(samples.iter().skip(1)).all(|(before, after)| after.bytes > before.bytes);
    let bytes_per_step = (samples.len() >= MIN_SAMPLES_FOR_GROWTH && rises)
        .then(|| Bytes((last.bytes - first.bytes) / (last.step - first.step).max(1)));
    Some(LiveSite { line: line.clone(), bytes: Bytes(last.bytes), count: last.count, bytes_per_step })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{GpuProcess, LiveStack, LiveStepCounters};

    const MIB: u64 = 1 << 20;

    fn state(step: u64, allocated: u64) -> RecorderState {
        let devices = vec![LiveStepCounters { device: 0, allocated, reserved: allocated + MIB }];
        RecorderState {
            version: 1,
            pid: 7,
            time_us: step as i64 * 1_000_000 + 1,
            count: step,
            steps: vec![LiveStep { step, time_us: step as i64 * 1_000_000, devices }],
            devices: vec![DeviceCounters {
                allocated,
                reserved: allocated + MIB,
                peak: allocated + 10 * MIB,
                used: Some(allocated + MIB),
                total: Some(1000 * MIB),
                processes: vec![GpuProcess { pid: 7, bytes: allocated + MIB, name: String::new() }],
                ..DeviceCounters::default()
            }],
            ..RecorderState::default()
        }
    }

    fn watched(steps: u64, allocated: impl Fn(u64) -> u64) -> WatchedRecorder {
        let mut recorder = WatchedRecorder::new(state(1, allocated(1)));
        (2..=steps).for_each(|step| recorder.update(state(step, allocated(step))));
        recorder
    }

    #[test]
    fn a_leak_is_reported_with_the_steps_until_the_device_is_full() {
        let leak = watched(10, |step| (100 + 8 * step) * MIB);
        assert_eq!(leak.pace(0), Pace::Growing { bytes_per_step: Bytes(8 * MIB) });
        assert_eq!(leak.steps_left(0), Some((1000 - 180 - 10) / 8));
        assert_eq!(leak.time_per_step(), Some(Duration::from_secs(1)));
        let flat = watched(10, |_| 100 * MIB);
        assert_eq!((flat.pace(0), flat.steps_left(0)), (Pace::Flat, None));
    }

    #[test]
    fn a_new_era_forgets_the_steps_before() {
        let mut leak = watched(10, |step| (100 + 8 * step) * MIB);
        leak.update(RecorderState { era: 1, ..state(1, MIB) });
        assert_eq!(leak.pace(0), Pace::WarmingUp { steps: 7 });
        assert_eq!(leak.last_step(), 1);
    }

    #[test]
    fn another_watcher_comes_to_the_same_conclusion() {
        let leak = watched(30, |step| (100 + 8 * step) * MIB);
        assert_eq!(WatchedRecorder::new(leak.state_with_steps()).pace(0), leak.pace(0));
    }

    #[test]
    fn a_growing_site_is_named() {
        let frame =
            |filename: &str, line| LiveFrame { filename: filename.to_owned(), line, name: "f".to_owned() };
        let mut leak = watched(3, |_| 100 * MIB);
        for sample in 4..8 {
            let library = frame("/x/site-packages/torch/nn/functional.py", 9);
            let stacks = vec![
                LiveStack {
                    device: 0,
                    frames: vec![library, frame("/home/me/train.py", 20)],
                    bytes: sample * MIB,
                    count: sample,
                },
                LiveStack {
                    device: 0,
                    frames: vec![frame("/home/me/model.py", 5)],
                    bytes: 90 * MIB,
                    count: 3,
                },
                LiveStack { device: 0, frames: Vec::new(), bytes: 9, count: 1 },
            ];
            leak.update(RecorderState {
                stacks: Some(stacks),
                stacks_step: sample,
                ..state(sample, 100 * MIB)
            });
        }
        let sites = leak.sites(0);
        let growth: Vec<_> =
            sites.iter().map(|site| (site.line.as_ref().map(|line| line.1), site.bytes_per_step)).collect();
        assert_eq!(growth, [(Some(5), None), (Some(20), Some(Bytes(MIB))), (None, None)]);
    }
}
