//! Traces written the way one would draw them.
//!
//! ```text
//! +w 4MiB train.py:3 <module>            allocate `w`; frames from the outermost, divided by `>`, or `-` for none
//! repeat 10                              a loop
//!   +x 1MiB train.py:9 <module>          frees the `x` of the iteration before, as Python does when a name is bound again
//!   +h* 64MiB train.py:10 <module>       `h*` is another block in every iteration
//!   -h*-2                                frees the one of two iterations ago, if there is one
//!   -x                                   frees `x`
//!   !x 9GiB train.py:12 <module>         the request fails, with no memory left on the device
//!   in forward Net.fc                    where the program is from here on; `in` alone is outside of everything
//!   wait 50                              milliseconds pass
//!   keep x                               what is called `x` now stays, whatever is called `x` later
//!   mark                                 a step ends here; `mark without stacks` if a recorder left them out of it,
//!                                        `mark of a call` if a module has run and nothing else says what a step is
//!   phase rollout 3                        the phase `rollout` runs from here on, the third of the program; `by time` if a
//!                                        recorder noted no counters
//!   see parameter fc.weight w            a recorder sees that block `w` is this tensor of the root module `Net`
//! end
//! ```
//! Files without a folder are the user's; `torch/…` is installed.

use recording::{AllocationCounts, Label, LabelMark, LabeledTensor, PhaseMark, Placed, Recording, StepMark};
use serde_json::{Value, json};
use snapshot::Snapshot;
use std::collections::BTreeMap;

/// Reads a trace.
#[allow(dead_code, reason = "not every test file reads plain traces")]
pub(crate) fn trace(text: &str) -> Snapshot {
    recorded(text).0
}

/// Reads a trace and the sidecar files of a recorder.
pub(crate) fn recorded(text: &str) -> (Snapshot, Recording) {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let mut writer = Writer::default();
    let mut rest = lines.as_slice();
    writer.run(&mut rest, 0);
    let mut recording = std::mem::take(&mut writer.recording);
    recording.allocations = writer.count();
    let document = writer.finish();
    let snapshot = snapshot::read(document.to_string().as_bytes()).expect("the trace is a snapshot");
    (snapshot, recording)
}

/// All memory lies in one segment; a block takes the first gap that is large enough.
const SEGMENT: u64 = 1 << 44;
const SEGMENT_SIZE: u64 = 16 << 30;

#[derive(Default)]
struct Writer {
    events: Vec<Value>,
    live: BTreeMap<String, (u64, u64)>,
    place: String,
    allocations: u64,
    waited_us: i64,
    recording: Recording,
}

impl Writer {
    fn now_us(&self) -> i64 {
        1_000_000 + 10 * self.events.len() as i64 + self.waited_us
    }

    fn count(&self) -> AllocationCounts {
        AllocationCounts(vec![(0, self.allocations)])
    }

    /// Notes what lies where; what is seen without an allocation in between is one set.
    fn see(&mut self, label: &str, name: &str, block: &str) {
        let label = Label::ALL.into_iter().find(|of| of.name() == label).expect("a label");
        let tensor = LabeledTensor { label, name: name.to_owned(), root: "Net".to_owned() };
        let &(addr, bytes) = self.live.get(block).unwrap_or_else(|| panic!("{block} is not there"));
        let allocations = self.count();
        let labels = &mut self.recording.labels;
        let place = labels.tensors.iter().position(|known| *known == tensor).unwrap_or_else(|| {
            labels.tensors.push(tensor);
            labels.tensors.len() - 1
        });
        if labels.marks.last().is_none_or(|mark| mark.allocations != allocations) {
            labels.marks.push(LabelMark { allocations, set: labels.sets.len() });
            labels.sets.push(Vec::new());
        }
        let set = labels.sets.last_mut().expect("there is one");
        set.push(Placed { tensor: place as u32, device: 0, addr, bytes });
    }

    fn phase(&self, about: &str) -> PhaseMark {
        let words: Vec<&str> = about.split_whitespace().collect();
        let allocated: u64 = self.live.values().map(|(_, size)| size).sum();
        let counters = json!({
            "device": 0, "allocations": self.allocations, "allocated": allocated, "reserved": SEGMENT_SIZE
        });
        let devices = if words.len() > 2 { json!([]) } else { json!([counters]) };
        let number: u64 = words[1].parse().expect("a number");
        let mark =
            json!({"time_us": self.now_us() - 5, "phase": words[0], "number": number, "devices": devices});
        PhaseMark::parse_all(mark.to_string().as_bytes()).expect("a phase").remove(0)
    }

    fn run(&mut self, rest: &mut &[&str], iteration: i64) {
        while let Some((line, after)) = rest.split_first() {
            *rest = after;
            if *line == "end" {
                return;
            }
            if let Some(times) = line.strip_prefix("repeat ") {
                let body = *rest;
                for iteration in 0..times.trim().parse().expect("a number of times") {
                    *rest = body;
                    self.run(rest, iteration);
                }
                continue;
            }
            self.event(line, iteration);
        }
    }

    fn event(&mut self, line: &str, iteration: i64) {
        let (name, about) = line.split_once(' ').unwrap_or((line, ""));
        match name {
            "wait" => return self.waited_us += 1000 * about.trim().parse::<i64>().expect("milliseconds"),
            "in" => return self.place = about.trim().to_owned(),
            "mark" => {
                let time_us = self.now_us() - 5;
                let allocations = self.count();
                let has_stacks = about.trim() != "without stacks";
                let is_module_call = about.trim() == "of a call";
                let mark = StepMark { time_us, allocations, has_stacks, is_module_call };
                return self.recording.marks.push(mark);
            }
            "phase" => {
                let mark = self.phase(about);
                return self.recording.phases.push(mark);
            }
            "keep" => {
                let block = self.live.remove(about.trim()).expect("a live block");
                self.live.insert(format!("{} {}", about.trim(), self.events.len()), block);
                return;
            }
            "see" => {
                let [label, name, block] = about.split_whitespace().collect::<Vec<_>>()[..] else {
                    panic!("{line}");
                };
                return self.see(label, name, block);
            }
            _ => {}
        }
        let (sign, name) = name.split_at(1);
        let name = match name.split_once('*') {
            Some((start, back)) => format!("{start}{}", iteration + back.parse::<i64>().unwrap_or(0)),
            None => name.to_owned(),
        };
        if sign == "-" {
            return self.free(&name);
        }
        assert!(matches!(sign, "+" | "!"), "{line}");
        let (size, stack) = about.trim().split_once(' ').expect("a size and a stack");
        let frames: Vec<Value> = stack
            .split(" > ")
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .filter(|frame| frame.trim() != "-")
            .map(frame)
            .collect();
        let size = bytes(size);
        if sign == "!" {
            let failed =
                json!({"action": "oom", "device_free": 0, "size": size, "stream": 0, "frames": frames});
            return self.push(failed);
        }
        let addr = self.gap(size);
        self.push(json!({"action": "alloc", "addr": addr, "size": size, "stream": 0, "frames": frames}));
        self.allocations += 1;
        let old = self.live.remove(&name);
        self.live.insert(name, (addr, size));
        if let Some(old) = old {
            self.gone(old);
        }
    }

    fn gap(&self, size: u64) -> u64 {
        let mut live: Vec<&(u64, u64)> = self.live.values().collect();
        live.sort_unstable();
        let mut at = SEGMENT;
        for &&(addr, taken) in &live {
            // A larger remainder than a block could be left with, so that PyTorch would have split it off.
            if addr >= at + size.div_ceil(512) * 512 + (2 << 20) {
                break;
            }
            at = addr + taken.div_ceil(512) * 512;
        }
        at
    }

    fn free(&mut self, name: &str) {
        if let Some(block) = self.live.remove(name) {
            self.gone(block);
        }
    }

    fn gone(&mut self, (addr, size): (u64, u64)) {
        for action in ["free_requested", "free_completed"] {
            self.push(json!({"action": action, "addr": addr, "size": size, "stream": 0, "frames": []}));
        }
    }

    fn push(&mut self, mut event: Value) {
        event["time_us"] = self.now_us().into();
        if !self.place.is_empty() {
            event["user_metadata"] = self.place.as_str().into();
        }
        self.events.push(event);
    }

    fn finish(self) -> Value {
        let mut events = vec![
            json!({"action": "segment_alloc", "addr": SEGMENT, "size": SEGMENT_SIZE, "stream": 0, "frames": [], "time_us": 1}),
        ];
        events.extend(self.events);
        let mut live: Vec<(u64, u64)> = self.live.into_values().collect();
        live.sort_unstable();
        let mut blocks = Vec::new();
        let mut at = SEGMENT;
        let inactive = |from: u64, to: u64| json!({"address": from, "size": to - from, "requested_size": 0, "state": "inactive", "frames": []});
        for (addr, size) in live {
            if addr > at {
                blocks.push(inactive(at, addr));
            }
            at = addr + size.div_ceil(512) * 512;
            blocks.push(json!({"address": addr, "size": at - addr, "requested_size": size, "state": "active_allocated", "frames": []}));
        }
        blocks.push(inactive(at, SEGMENT + SEGMENT_SIZE));
        let segment = json!({
            "device": 0, "address": SEGMENT, "total_size": SEGMENT_SIZE, "allocated_size": 0, "active_size": 0,
            "stream": 0, "segment_type": "large", "segment_pool_id": [0, 0], "is_expandable": false,
            "frames": [], "blocks": blocks,
        });
        json!({"segments": [segment], "device_traces": [events], "allocator_settings": {}, "external_annotations": []})
    }
}

/// `train.py:20 keep`
fn frame(text: &str) -> Value {
    let (place, function) = text.trim().split_once(' ').expect("a place and a function");
    let (file, line) = place.rsplit_once(':').expect("a file and a line");
    let folder = if file.contains('/') { "/venv/lib/python3.12/site-packages/" } else { "/home/user/" };
    json!({"filename": format!("{folder}{file}"), "line": line.parse::<u32>().expect("a line"), "name": function})
}

/// `64MiB`
fn bytes(text: &str) -> u64 {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let unit = match &text[digits.len()..] {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        unit => panic!("unknown unit {unit}"),
    };
    digits.parse::<u64>().expect("a number") * unit
}
