//! What is known of one recorder: its last answer, its course so far, and what its steps say about growth.

use crate::bounded::shorten;
use crate::course::Course;
use crate::split::Split;
use crate::untrusted::read_file;
use crate::wire::{Device, Frame, Question, State, Step};
use analysis::{Pace, Trail, is_user_file};
use recording::{Exit, RunInfo};
use snapshot::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

/// Steps that are kept one by one.
const RECENT: usize = 128;
/// Looks at the live stacks that are kept.
const LOOKS: usize = 8;
/// Looks, each with more than the one before, that make a site one that grows.
const FEWEST_LOOKS: usize = 3;
/// Bytes of the longest summary of a recording; real ones have some thousand.
const MAX_SUMMARY: u64 = 1 << 20;
/// Bytes that are shown of an exception's first line.
const MAX_EXCEPTION: usize = 1024;

/// One recorder, as far as it has answered.
#[derive(Clone, Debug)]
pub struct Followed {
    /// Its last answer; the steps have gone into the rest.
    pub state: State,
    /// When it came.
    pub heard: Instant,
    /// How the process ended, once it has. One that wrote nothing was killed, or crashed.
    pub exit: Option<Exit>,
    /// First line of the exception that ended it.
    pub exception: Option<String>,
    /// From the beginning to now.
    pub course: Course,
    recent: VecDeque<Step>,
    trails: BTreeMap<u32, Trail>,
    sites: BTreeMap<Place, VecDeque<Look>>,
    looked_at_step: u64,
}

/// A line of code, on one device.
type Place = (u32, Option<(String, u32, String)>);

#[derive(Clone, Copy, Debug)]
struct Look {
    step: u64,
    bytes: u64,
    count: u64,
}

/// What one line of code holds.
#[derive(Clone, PartialEq, Debug)]
pub struct Site {
    /// File, line and function; nothing where no Python was on the stack, as inside `backward()`.
    pub place: Option<(String, u32, String)>,
    /// What it holds.
    pub bytes: Bytes,
    /// In so many blocks.
    pub count: u64,
    /// What each step has added, if every look found more than the one before.
    pub grows: Option<Bytes>,
}

impl Followed {
    pub(crate) fn new(state: State) -> Followed {
        let mut followed = Followed {
            state: State::default(),
            heard: Instant::now(),
            exit: None,
            exception: None,
            course: Course::default(),
            recent: VecDeque::new(),
            trails: BTreeMap::new(),
            sites: BTreeMap::new(),
            looked_at_step: 0,
        };
        followed.absorb(state);
        followed
    }

    /// A new answer; steps that are known already are passed over.
    pub(crate) fn absorb(&mut self, mut state: State) {
        if state.era != self.state.era {
            self.trails.clear();
            self.sites.clear();
            self.recent.clear();
            self.looked_at_step = 0;
        }
        // Another machine's exporter sends all that it knows each time.
        let last = self.last_step();
        let mut steps = std::mem::take(&mut state.steps);
        steps.retain(|step| step.step > last);
        self.course.add(state.time_us, &steps, &state.devices);
        for step in steps {
            for row in &step.devices {
                let trail = self.trails.entry(row.device).or_default();
                if step.step > trail.steps() {
                    trail.step(step.step, Bytes(row.allocated));
                }
            }
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(step);
        }
        self.look(&state);
        self.state = state;
        self.heard = Instant::now();
    }

    fn look(&mut self, state: &State) {
        let Some(stacks) = state.stacks.as_ref().filter(|_| state.stacks_step > self.looked_at_step) else {
            return;
        };
        self.looked_at_step = state.stacks_step;
        let mut found: BTreeMap<Place, Look> = BTreeMap::new();
        for stack in stacks {
            let look = Look { step: state.stacks_step, bytes: 0, count: 0 };
            let look = found.entry((stack.device, place(&stack.frames))).or_insert(look);
            look.bytes += stack.bytes;
            look.count += stack.count;
        }
        self.sites.retain(|place, _| found.contains_key(place));
        for (place, look) in found {
            let looks = self.sites.entry(place).or_default();
            if looks.len() == LOOKS {
                looks.pop_front();
            }
            looks.push_back(look);
        }
    }

    /// The step at whose end [`Followed::sites`] were read, once they have been.
    pub fn sites_step(&self) -> Option<u64> {
        (self.looked_at_step > 0).then_some(self.looked_at_step)
    }

    /// The lines that hold most of a device, largest first; nothing if that is not known.
    pub fn sites(&self, device: u32) -> Vec<Site> {
        let of_device = self.sites.iter().filter(|((of, _), _)| *of == device);
        let mut sites: Vec<Site> = of_device.filter_map(|((_, place), looks)| site(place, looks)).collect();
        sites.sort_by_key(|site| std::cmp::Reverse(site.bytes));
        sites
    }

    /// What the steps say about growth on a device.
    pub fn pace(&self, device: u32) -> Pace {
        self.trails.get(&device).map_or(Pace::NoSteps, Trail::pace)
    }

    /// In how many steps a device that fills up is full: what is left above the highest point so far.
    pub fn steps_left(&self, device: u32) -> Option<u64> {
        let Pace::Growing { bytes_per_step } = self.pace(device) else { return None };
        let found = self.device(device)?;
        let room = Split::new(&self.state, found).room(found.limit)?;
        Some(room.0.saturating_sub(found.peak.max(found.allocated)) / bytes_per_step.0.max(1))
    }

    /// The counters of a device now.
    pub fn device(&self, device: u32) -> Option<&Device> {
        self.state.devices.iter().find(|found| found.device == device)
    }

    /// How long a step takes, over the last ones.
    pub fn time_per_step(&self) -> Option<Duration> {
        let last = self.recent.back()?;
        let first = self.recent.iter().rev().take(16).next_back()?;
        let (steps, micros) = (last.step - first.step, last.time_us - first.time_us);
        (steps > 0).then(|| Duration::from_micros(u64::try_from(micros).unwrap_or(0) / steps))
    }

    /// The answer again, with the last steps: what another watcher needs to know as much.
    pub fn state_with_steps(&self) -> State {
        State { steps: self.recent.iter().cloned().collect(), ..self.state.clone() }
    }

    /// What to ask next: only what is new.
    pub(crate) fn question(&self) -> Question {
        let (since, era) = (self.last_step(), self.state.era);
        Question { since, era, stacks_since: self.looked_at_step, ..Question::default() }
    }

    /// The last step that has been heard of.
    pub(crate) fn last_step(&self) -> u64 {
        self.recent.back().map_or(0, |step| step.step)
    }
}

/// How a process of this user has ended, with the first line of its exception, by the summary that it has written. One that has
/// written none was killed, or crashed.
pub(crate) fn how_it_ended(state: &State, owner: u32) -> (Exit, Option<String>) {
    let own = |run: &RunInfo| run.pid == Some(state.pid) && run.host.as_ref() == Some(&state.host);
    let Some(run) = summary(state, owner).filter(own) else { return (Exit::Killed, None) };
    let exception = run.exception_line().map(|line| {
        let mut line = line.to_owned();
        shorten(&mut line, MAX_EXCEPTION);
        line
    });
    (run.state.exit().unwrap_or(Exit::Killed), exception)
}

/// The summary in the folder that the process has named, which may be any folder.
fn summary(state: &State, owner: u32) -> Option<RunInfo> {
    let name = state.name.as_ref().filter(|name| !name.contains('/'))?;
    let file = Path::new(&state.folder).join(format!("{name}.json"));
    RunInfo::parse(&read_file(&file, owner, MAX_SUMMARY).ok()?).ok()
}

/// The user's own line of a stack, or the innermost if none is.
fn place(frames: &[Frame]) -> Option<(String, u32, String)> {
    let own = frames.iter().find(|frame| is_user_file(&frame.filename));
    let frame = own.or_else(|| frames.first())?;
    Some((frame.filename.clone(), frame.line, frame.name.clone()))
}

fn site(place: &Option<(String, u32, String)>, looks: &VecDeque<Look>) -> Option<Site> {
    let (first, last) = (looks.front()?, looks.back()?);
    let rises = looks.iter().zip(looks.iter().skip(1)).all(|(before, after)| after.bytes > before.bytes);
    let grows = (looks.len() >= FEWEST_LOOKS && rises)
        .then(|| Bytes((last.bytes - first.bytes) / (last.step - first.step).max(1)));
    Some(Site { place: place.clone(), bytes: Bytes(last.bytes), count: last.count, grows })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Process, Stack, StepDevice};

    const MIB: u64 = 1 << 20;

    fn state(step: u64, allocated: u64) -> State {
        let devices = vec![StepDevice { device: 0, allocated, reserved: allocated + MIB }];
        State {
            version: 1,
            pid: 7,
            time_us: step as i64 * 1_000_000 + 1,
            count: step,
            steps: vec![Step { step, time_us: step as i64 * 1_000_000, devices }],
            devices: vec![Device {
                allocated,
                reserved: allocated + MIB,
                peak: allocated + 10 * MIB,
                used: Some(allocated + MIB),
                total: Some(1000 * MIB),
                processes: vec![Process { pid: 7, bytes: allocated + MIB, name: String::new() }],
                ..Device::default()
            }],
            ..State::default()
        }
    }

    fn followed(steps: u64, allocated: impl Fn(u64) -> u64) -> Followed {
        let mut followed = Followed::new(state(1, allocated(1)));
        (2..=steps).for_each(|step| followed.absorb(state(step, allocated(step))));
        followed
    }

    #[test]
    fn a_leak_is_called_and_says_when_the_device_is_full() {
        let leak = followed(10, |step| (100 + 8 * step) * MIB);
        assert_eq!(leak.pace(0), Pace::Growing { bytes_per_step: Bytes(8 * MIB) });
        assert_eq!(leak.steps_left(0), Some((1000 - 180 - 10) / 8));
        assert_eq!(leak.time_per_step(), Some(Duration::from_secs(1)));
        let flat = followed(10, |_| 100 * MIB);
        assert_eq!((flat.pace(0), flat.steps_left(0)), (Pace::Flat, None));
    }

    #[test]
    fn steps_that_were_none_are_forgotten() {
        let mut leak = followed(10, |step| (100 + 8 * step) * MIB);
        leak.absorb(State { era: 1, ..state(1, MIB) });
        assert_eq!(leak.pace(0), Pace::WarmingUp { steps: 7 });
        assert_eq!(leak.last_step(), 1);
    }

    #[test]
    fn another_watcher_comes_to_the_same_judgement() {
        let leak = followed(30, |step| (100 + 8 * step) * MIB);
        assert_eq!(Followed::new(leak.state_with_steps()).pace(0), leak.pace(0));
    }

    #[test]
    fn the_line_that_grows_is_named() {
        let frame =
            |filename: &str, line| Frame { filename: filename.to_owned(), line, name: "f".to_owned() };
        let mut leak = followed(3, |_| 100 * MIB);
        for look in 4..8 {
            let library = frame("/x/site-packages/torch/nn/functional.py", 9);
            let stacks = vec![
                Stack {
                    device: 0,
                    frames: vec![library, frame("/home/me/train.py", 20)],
                    bytes: look * MIB,
                    count: look,
                },
                Stack { device: 0, frames: vec![frame("/home/me/model.py", 5)], bytes: 90 * MIB, count: 3 },
                Stack { device: 0, frames: Vec::new(), bytes: 9, count: 1 },
            ];
            leak.absorb(State { stacks: Some(stacks), stacks_step: look, ..state(look, 100 * MIB) });
        }
        let sites = leak.sites(0);
        let told: Vec<_> =
            sites.iter().map(|site| (site.place.as_ref().map(|place| place.1), site.grows)).collect();
        assert_eq!(told, [(Some(5), None), (Some(20), Some(Bytes(MIB))), (None, None)]);
    }
}
