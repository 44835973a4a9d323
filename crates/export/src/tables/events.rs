//! The table `events`: one row per recorded event, with the counters just after it.

use super::dictionary::Dictionary;
use super::{ExportTable, pool_name};
use analysis::Device;
use arrow_array::types::{Int64Type, UInt32Type, UInt64Type};
use snapshot::{Action, Context, Counters, Event, Snapshot, StrId};

struct EventTableRow {
    index: usize,
    device: u32,
    event: Event,
    block: Option<usize>,
    after: Counters,
}

pub(super) fn events<'a>(
    snapshot: &'a Snapshot,
    devices: &'a [Device<'a>],
) -> anyhow::Result<ExportTable<'a>> {
    let events = &snapshot.events;
    let label = |of: fn(&Context) -> StrId| {
        Dictionary::new(events.contexts().iter().map(|context| non_empty(snapshot, of(context))))
    };
    let compile_contexts = label(|context| context.compile_context)?;
    let user_metadata = label(|context| context.user_metadata)?;
    let forward_frames = label(|context| context.forward_frames)?;
    let pools = Dictionary::new(events.contexts().iter().map(|context| context.pool.map(pool_name)))?;
    let actions = actions(snapshot);
    let names = actions.iter().map(|&action| Some(snapshot.strings.get(events.action_name(action))));
    let action_names = Dictionary::new(names)?;
    let index_of = move |action| actions.iter().position(|&other| other == action);

    ExportTable::new("events", rows(snapshot, devices), move |columns| {
        let context = |row: &EventTableRow| row.event.context as usize;
        let is_oom = |row: &EventTableRow| row.event.action == Action::Oom;
        columns
            .number::<UInt32Type>("event", |row| row.index as u32)
            .number::<UInt32Type>("device", |row| row.device)
            .dictionary("action", &action_names, |row| index_of(row.event.action).unwrap_or(0))?
            .optional_number::<UInt64Type>("addr", |row| (!is_oom(row)).then_some(row.event.addr))
            .number::<UInt64Type>("size", |row| row.event.size.0)
            .optional_number::<UInt64Type>("device_free", |row| is_oom(row).then_some(row.event.addr))
            .number::<UInt64Type>("stream", |row| events.context(row.event.context).stream)
            .optional_number::<Int64Type>("time_us", |row| Some(row.event.time_us).filter(|&time| time != 0))
            .number::<UInt32Type>("stack_id", |row| row.event.stack.0)
            .optional_number::<UInt32Type>("block_id", |row| row.block.map(|block| block as u32))
            .optional_dictionary("compile_context", &compile_contexts, |row| Some(context(row)))?
            .optional_dictionary("user_metadata", &user_metadata, |row| Some(context(row)))?
            .optional_dictionary("pool", &pools, |row| Some(context(row)))?
            .number::<UInt64Type>("allocated", |row| row.after.allocated.0)
            .number::<UInt64Type>("reserved", |row| row.after.reserved.0)
            .number::<UInt64Type>("active", |row| row.after.active.0)
            .optional_dictionary("forward_frames", &forward_frames, |row| Some(context(row)))?
            .optional_text("extra", |row| non_empty(snapshot, events.context(row.event.context).extra))
    })
}

fn rows<'a>(snapshot: &'a Snapshot, devices: &'a [Device<'a>]) -> impl Iterator<Item = EventTableRow> + 'a {
    super::blocks::first_blocks(devices).flat_map(move |(device, first_block)| {
        let history = &device.history;
        let mut cursor = history.cursor(snapshot);
        history.rows.clone().enumerate().map(move |(index, row)| {
            cursor.seek(index + 1);
            let event = snapshot.events.get(row);
            let block = history.allocation_of(index, event.action).map(|allocation| first_block + allocation);
            EventTableRow { index, device: history.device, event, block, after: cursor.total() }
        })
    })
}

/// Returns the actions that occur.
fn actions(snapshot: &Snapshot) -> Vec<Action> {
    let mut actions = Vec::new();
    for row in 0..snapshot.events.len() {
        let action = snapshot.events.get(row).action;
        if !actions.contains(&action) {
            actions.push(action);
        }
    }
    actions
}

/// Returns a text, or `None` for the empty string, which means "not given".
pub(super) fn non_empty(snapshot: &Snapshot, text: StrId) -> Option<&str> {
    (text != StrId::EMPTY).then(|| snapshot.strings.get(text))
}
