//! What the recorder wrote about a snapshot, without names.

use crate::Names;
use serde_json::{Map, Value, json};

/// Returns a sidecar file without names; `None` if it is left out, because it is nothing but names.
pub(crate) fn without_names(file: &str, bytes: &[u8], names: &mut Names) -> Option<Vec<u8>> {
    if file.ends_with(".steps.jsonl") {
        return Some(bytes.to_vec());
    }
    if file.ends_with(".phases.jsonl") {
        return phases(std::str::from_utf8(bytes).ok()?, names);
    }
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let value = match value {
        Value::Object(object) if file == recording::META_FILE => meta(&object),
        Value::Object(object) if file.ends_with(".labels") => labels(object, names)?,
        Value::Object(object) if file.ends_with(".json") => run(&object),
        _ => return None,
    };
    serde_json::to_vec(&value).ok()
}

/// Versions and devices.
fn meta(object: &Map<String, Value>) -> Value {
    picked(object, &["version", "torch", "cuda", "python", "started_us", "world_size", "settings", "devices"])
}

/// How the run ended. Of an exception only the type is kept, unless PyTorch wrote its text.
fn run(object: &Map<String, Value>) -> Value {
    let kept =
        ["ended", "dumped", "rank", "torch", "device", "allocations", "steps", "stacks", "oom", "values"];
    let mut run = picked(object, &kept);
    if let Some(exception) = object.get("exception").and_then(Value::as_str) {
        let is_of_pytorch = recording::is_out_of_memory(exception);
        let kind = exception.split(':').next().unwrap_or_default();
        run["exception"] = json!(if is_of_pytorch { exception } else { kind });
    }
    run
}

fn picked(object: &Map<String, Value>, keys: &[&str]) -> Value {
    keys.iter().filter_map(|&key| Some((key.to_owned(), object.get(key)?.clone()))).collect()
}

/// Phases with their counters. Names that the recorder gave are the same in all programs.
fn phases(lines: &str, names: &mut Names) -> Option<Vec<u8>> {
    let mut kept = Vec::new();
    for line in lines.lines() {
        let mark: Map<String, Value> = serde_json::from_str(line).ok()?;
        let mut shown = picked(&mark, &["time_us", "phase", "number", "named"]);
        if mark.get("named") == Some(&Value::Bool(true)) {
            shown["phase"] = json!(names.text_of(mark.get("phase")?.as_str()?));
        }
        let devices = mark.get("devices").and_then(Value::as_array).into_iter().flatten();
        let counters = ["device", "allocations", "allocated", "reserved", "used"];
        shown["devices"] = devices.filter_map(|of| Some(picked(of.as_object()?, &counters))).collect();
        serde_json::to_writer(&mut kept, &shown).ok()?;
        kept.push(b'\n');
    }
    Some(kept)
}

/// Labels of tensors, `[category, name, class of the root]`, and the paths of modules.
fn labels(mut object: Map<String, Value>, names: &mut Names) -> Option<Value> {
    for tensor in object.get_mut("tensors")?.as_array_mut()? {
        for text in tensor.as_array_mut()?.iter_mut().skip(1) {
            *text = json!(names.text_of(text.as_str()?));
        }
    }
    if let Some(modules) = object.get_mut("modules").and_then(Value::as_array_mut) {
        for module in modules {
            *module = json!(names.text_of(module.as_str()?));
        }
    }
    Some(Value::Object(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_a_person_or_a_project_is_gone() {
        let mut names = Names::default();
        let mut shown = |file: &str, text: &str| {
            without_names(file, text.as_bytes(), &mut names)
                .map(|bytes| String::from_utf8(bytes).expect("text"))
        };
        let meta = shown("meta.json", r#"{"version":1,"torch":"2.11.0","command":["python","oracle.py"]}"#);
        assert_eq!(meta.as_deref(), Some(r#"{"torch":"2.11.0","version":1}"#));
        let run = shown("rank0.json", r#"{"ended":"failed","host":"ann","exception":"KeyError: 'oracle'"}"#);
        assert_eq!(run.as_deref(), Some(r#"{"ended":"failed","exception":"KeyError"}"#));
        let labels = shown(
            "rank0.labels",
            r#"{"tensors":[["parameter","gate.0.weight","Oracle"]],"sets":[],"modules":["Oracle.gate"]}"#,
        );
        let labels = labels.expect("labels");
        assert!(
            labels.contains(r#"["parameter","name1.0.weight","name2"]"#) && labels.contains("name2.name1"),
            "{labels}"
        );
        let phases = shown(
            "rank0.phases.jsonl",
            concat!(
                r#"{"time_us":1,"phase":"train","number":1,"named":false}"#,
                "\n",
                r#"{"time_us":2,"phase":"Oracle","number":2,"named":true,"#,
                r#""devices":[{"device":0,"processes":[{"name":"x"}]}]}"#,
            ),
        );
        let phases = phases.expect("phases");
        assert!(phases.contains(r#""phase":"train""#) && phases.contains(r#""phase":"name2""#), "{phases}");
        assert!(!phases.contains("processes"), "{phases}");
        assert_eq!(shown("rank0.heap", "{}"), None);
        assert_eq!(shown("rank0.json", "[]"), None);
    }
}
