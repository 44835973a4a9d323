//! A Perfetto trace: the counters of every device over time, with annotations and failed allocations.
//!
//! The numbers of fields and enumerators are those of `perfetto/trace/trace_packet.proto` and the files
//! that it imports.

mod lanes;
mod protobuf;

use super::ExportSummary;
use analysis::Device;
use lanes::lanes;
use protobuf::ProtobufMessage;
use snapshot::{Action, Bytes, Counters, Snapshot};
use std::fs::File;
use std::io::{BufWriter, Write};

/// Writes the trace and returns its contents.
pub(super) fn write(
    snapshot: &Snapshot,
    devices: &[Device<'_>],
    file: &File,
) -> anyhow::Result<ExportSummary> {
    let mut trace = TraceWriter { out: BufWriter::with_capacity(1 << 20, file), has_begun: false };
    let last_us = (0..snapshot.events.len()).map(|row| snapshot.events.get(row).time_us).max().unwrap_or(0);
    let mut written = ExportSummary::default();
    if last_us == 0 && !snapshot.events.is_empty() {
        written
            .notes
            .push("the file has no times: one microsecond of the trace stands for one event".to_owned());
    }
    let (mut counters, mut ooms, mut annotations) = (0, 0, 0);
    for device in devices {
        let tracks = Tracks(device.history.device);
        tracks.describe(&device.name(), &mut trace)?;
        let (values, failures) = history(snapshot, device, last_us, &tracks, &mut trace)?;
        counters += values;
        ooms += failures;
        if last_us > 0 {
            annotations += slices(snapshot, &tracks, &mut trace, &mut written.notes)?;
        }
    }
    trace.out.flush()?;
    written.counts = vec![("counter values", counters), ("annotations", annotations), ("OOMs", ooms)];
    Ok(written)
}

/// Name of a counter, and how to read it.
type Counter = (&'static str, fn(&Counters) -> Bytes);

/// Counters, in the order of their tracks.
const COUNTERS: [Counter; 4] = [
    ("allocated", |counters| counters.allocated),
    ("reserved", |counters| counters.reserved),
    ("active", |counters| counters.active),
    ("requested", |counters| counters.requested),
];

/// Writes the counters wherever they change, and an instant for each failed allocation. Returns the numbers
/// of both.
fn history(
    snapshot: &Snapshot,
    device: &Device<'_>,
    last_us: i64,
    tracks: &Tracks,
    trace: &mut TraceWriter<'_>,
) -> anyhow::Result<(u64, u64)> {
    let history = &device.history;
    let (mut values, mut ooms) = (0, 0);
    let mut shown = [None; COUNTERS.len()];
    let mut show = |now_us: i64, counters: Counters, trace: &mut TraceWriter<'_>| {
        for (index, (_, of)) in COUNTERS.iter().enumerate() {
            let bytes = of(&counters);
            if shown[index].replace(bytes) != Some(bytes) {
                // The field is signed.
                let value = bytes.0.min(i64::MAX as u64);
                let event = ProtobufMessage::default().number(EVENT_COUNTER_VALUE, value);
                trace.event(now_us, tracks.counter(index), TYPE_COUNTER, event)?;
                values += 1;
            }
        }
        anyhow::Ok(())
    };
    let mut cursor = history.cursor(snapshot);
    let mut now_us = 0;
    for (index, row) in history.rows.clone().enumerate() {
        let event = snapshot.events.get(row);
        if last_us == 0 {
            now_us = index as i64;
        } else if event.time_us != 0 {
            now_us = event.time_us;
        }
        cursor.seek(index + 1);
        show(now_us, cursor.total(), trace)?;
        if event.action == Action::Oom {
            let name = format!("OOM: {} asked for, {} free", event.size, Bytes(event.addr));
            trace.event(
                now_us,
                tracks.ooms(),
                TYPE_INSTANT,
                ProtobufMessage::default().text(EVENT_NAME, &name),
            )?;
            ooms += 1;
        }
    }
    if history.is_empty() {
        // Only the final state is known.
        show(last_us, history.end, trace)?;
    }
    Ok((values, ooms))
}

/// Writes the annotations of a device as slices. Returns their number.
fn slices(
    snapshot: &Snapshot,
    tracks: &Tracks,
    trace: &mut TraceWriter<'_>,
    notes: &mut Vec<String>,
) -> anyhow::Result<u64> {
    let of_device = snapshot.annotations.iter().filter(|annotation| annotation.device == tracks.0);
    let (ends, left_out) = lanes(of_device.copied());
    if left_out > 0 {
        notes.push(format!("{left_out} annotations are left out: too many overlap without nesting"));
    }
    for lane in 0..ends.iter().map(|end| end.lane + 1).max().unwrap_or(0) {
        // Perfetto draws lanes with the same name and parent as one track.
        trace.describe(tracks.child(tracks.lane(lane), "annotations"))?;
    }
    for end in &ends {
        let (kind, event) = if end.start {
            (TYPE_SLICE_BEGIN, ProtobufMessage::default().text(EVENT_NAME, snapshot.strings.get(end.name)))
        } else {
            (TYPE_SLICE_END, ProtobufMessage::default())
        };
        trace.event(end.time_us, tracks.lane(end.lane), kind, event)?;
    }
    Ok(ends.len() as u64 / 2)
}

/// Identifiers of the tracks of one device.
struct Tracks(u32);

impl Tracks {
    /// Returns the parent of the other tracks. Zero is the trace's own track.
    fn group(&self) -> u64 {
        (u64::from(self.0) + 1) << 32
    }

    fn counter(&self, index: usize) -> u64 {
        self.group() + 1 + index as u64
    }

    fn ooms(&self) -> u64 {
        self.group() + 1 + COUNTERS.len() as u64
    }

    fn lane(&self, lane: usize) -> u64 {
        self.ooms() + 1 + lane as u64
    }

    fn child(&self, track: u64, name: &str) -> ProtobufMessage {
        ProtobufMessage::default()
            .number(TRACK_UUID, track)
            .number(TRACK_PARENT, self.group())
            .text(TRACK_NAME, name)
    }

    fn describe(&self, device: &str, trace: &mut TraceWriter<'_>) -> anyhow::Result<()> {
        let name = format!("{device} memory");
        trace
            .describe(ProtobufMessage::default().number(TRACK_UUID, self.group()).text(TRACK_NAME, &name))?;
        for (index, (name, _)) in COUNTERS.iter().enumerate() {
            let unit = ProtobufMessage::default().number(COUNTER_UNIT, UNIT_SIZE_BYTES);
            trace.describe(self.child(self.counter(index), name).message(TRACK_COUNTER, &unit))?;
        }
        trace.describe(self.child(self.ooms(), "out of memory"))
    }
}

const TRACE_PACKET: u32 = 1;

const PACKET_TIMESTAMP: u32 = 8;
const PACKET_SEQUENCE: u32 = 10;
const PACKET_EVENT: u32 = 11;
const PACKET_FLAGS: u32 = 13;
const PACKET_TRACK: u32 = 60;
const INCREMENTAL_STATE_CLEARED: u64 = 1;

const TRACK_UUID: u32 = 1;
const TRACK_NAME: u32 = 2;
const TRACK_PARENT: u32 = 5;
const TRACK_COUNTER: u32 = 8;
const COUNTER_UNIT: u32 = 3;
const UNIT_SIZE_BYTES: u64 = 3;

const EVENT_TYPE: u32 = 9;
const EVENT_TRACK: u32 = 11;
const EVENT_NAME: u32 = 23;
const EVENT_COUNTER_VALUE: u32 = 30;
const TYPE_SLICE_BEGIN: u64 = 1;
const TYPE_SLICE_END: u64 = 2;
const TYPE_INSTANT: u64 = 3;
const TYPE_COUNTER: u64 = 4;

/// Writer of a trace file: a sequence of packets, which Perfetto sorts by time.
struct TraceWriter<'a> {
    out: BufWriter<&'a File>,
    has_begun: bool,
}

impl TraceWriter<'_> {
    fn describe(&mut self, track: ProtobufMessage) -> anyhow::Result<()> {
        self.packet(ProtobufMessage::default().message(PACKET_TRACK, &track))
    }

    fn event(&mut self, time_us: i64, track: u64, kind: u64, event: ProtobufMessage) -> anyhow::Result<()> {
        let time_ns = u64::try_from(time_us).unwrap_or(0).saturating_mul(1000);
        let event = event.number(EVENT_TYPE, kind).number(EVENT_TRACK, track);
        self.packet(
            ProtobufMessage::default().number(PACKET_TIMESTAMP, time_ns).message(PACKET_EVENT, &event),
        )
    }

    fn packet(&mut self, mut packet: ProtobufMessage) -> anyhow::Result<()> {
        packet = packet.number(PACKET_SEQUENCE, 1);
        if !self.has_begun {
            packet = packet.number(PACKET_FLAGS, INCREMENTAL_STATE_CLEARED);
            self.has_begun = true;
        }
        Ok(self.out.write_all(ProtobufMessage::default().message(TRACE_PACKET, &packet).encoded())?)
    }
}
