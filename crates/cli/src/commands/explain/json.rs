//! The JSON of `oomph explain --json`: public and versioned. Fields may be added, none renamed. Numbers
//! that the message does not give are absent.

use super::ExplainedLog;
use crate::terminal::Terminal;
use analysis::messages::{Message, NextCommand, Numbers};
use serde_json::{Map, Value, json};
use snapshot::Bytes;
use std::io::Write;

pub(super) fn print(explained: &ExplainedLog, terminal: &mut Terminal) -> anyhow::Result<()> {
    let messages: Vec<Value> = explained.messages.iter().map(message).collect();
    let mut report = json!({ "version": 1, "messages": messages });
    if explained.more > 0 {
        report["more"] = json!(explained.more);
    }
    serde_json::to_writer_pretty(terminal.out(), &report)?;
    Ok(writeln!(terminal.out())?)
}

fn message(message: &Message) -> Value {
    let verdict = message.explain();
    let command = |step: &NextCommand| json!({ "command": step.command, "why": step.why });
    let commands: Vec<Value> = verdict.steps.iter().map(command).collect();
    let mut report = json!({
        "generation": message.kind.name(),
        "backend": message.backend.name(),
        "cause": verdict.cause.name(),
        "summary": verdict.summary,
        "details": verdict.details,
        "unknowns": verdict.unknowns,
        "fix": verdict.fix,
        "numbers": numbers(&message.numbers),
        "line": message.line(),
        "lines": message.lines,
        "count": message.count,
        "next": verdict.steps.first().map(|step| &step.command),
        "commands": commands,
    });
    let parts: Vec<Value> = message
        .parts()
        .iter()
        .map(|share| json!({ "name": share.part.name(), "bytes": share.bytes.0 }))
        .collect();
    let site = message.site.as_ref().map(
        |site| json!({ "file": site.file, "line": site.line, "function": site.function, "code": site.code }),
    );
    let optional = [
        ("device", message.device.map(Value::from)),
        ("rank", message.rank.map(Value::from)),
        ("also", verdict.also.map(|cause| Value::from(cause.name()))),
        ("parts", (!parts.is_empty()).then(|| Value::from(parts))),
        ("site", site),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            report[name] = value;
        }
    }
    report
}

fn numbers(numbers: &Numbers) -> Map<String, Value> {
    let sizes: [(&str, Option<Bytes>); 12] = [
        ("requested", numbers.requested),
        ("total", numbers.total),
        ("free", numbers.free),
        ("allocated", numbers.allocated),
        ("reserved", numbers.reserved),
        ("reserved_unallocated", numbers.reserved_unallocated),
        ("private_pools", numbers.private_pools),
        ("limit", numbers.limit),
        ("this_process", numbers.this_process),
        ("other_allocations", numbers.other_allocations),
        ("resident", numbers.resident),
        ("used", numbers.used),
    ];
    let mut given: Map<String, Value> =
        sizes.into_iter().filter_map(|(name, size)| Some((name.to_owned(), size?.0.into()))).collect();
    given.extend(numbers.more.iter().map(|&(name, number)| (name.to_owned(), number.into())));
    if !numbers.others.is_empty() {
        let process = |other: &analysis::messages::OtherProcess| match other.bytes {
            Some(bytes) => json!({ "pid": other.pid, "bytes": bytes.0 }),
            None => json!({ "pid": other.pid }),
        };
        given.insert("others".to_owned(), numbers.others.iter().map(process).collect());
    }
    given
}
