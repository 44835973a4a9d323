//! `list_recordings`: what there is to ask about.

use super::{AgentTool, ToolPlan};
use crate::answers::{CallAnswer, CallError, NextCall, PageRequest};
use crate::arguments;
use crate::recordings::{self, FoundRecording, RecordingKind, RecordingsDocument};
use crate::roots::AllowedRoots;
use analysis::words::counted;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

/// Arguments of `list_recordings`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListRecordingsCall {
    /// Folder to search, with those below it; default: every root.
    folder: Option<String>,
    /// Number of files to skip, for the next page.
    #[serde(default)]
    offset: usize,
    /// Number of files to list.
    #[serde(default = "default_limit")]
    limit: usize,
}

fn default_limit() -> usize {
    20
}

impl AgentTool for ListRecordingsCall {
    const NAME: &str = "list_recordings";
    const TITLE: &str = "List recordings";
    const DESCRIPTION: &str = "Lists recordings, PyTorch memory snapshots, bundles and logs that the other \
        tools can read, the newest first. Call it first, to learn the paths.";

    fn output_schema() -> JsonObject {
        arguments::schema_of::<RecordingsDocument>()
    }

    fn plan(self, roots: &AllowedRoots) -> Result<ToolPlan, CallError> {
        let folder = self.folder.as_deref().map(|folder| roots.find(folder)).transpose()?;
        let found = recordings::search(roots, folder.as_ref());
        let next = next_calls(&found.recordings);
        let mut document = serde_json::to_value(&found).unwrap_or_default();
        let page = PageRequest { list: "recordings", offset: self.offset, limit: self.limit };
        let page = page.cut(&mut document);
        let of = folder.map_or_else(|| "list_recordings".to_owned(), |folder| roots.shown(&folder));
        let text = text(&document, found.recordings.len());
        Ok(ToolPlan::Answered(CallAnswer { of, text, document, page, next }))
    }
}

fn text(document: &Value, total: usize) -> String {
    let mut text = format!("{}, the newest first", counted(total as u64, "file"));
    if document["incomplete"] == true {
        text.push_str("; there are more than a search looks at: name a `folder`");
    }
    for file in document["recordings"].as_array().into_iter().flatten() {
        let holders = if file["has_holders"] == true { ", with holders" } else { "" };
        let (path, kind) =
            (file["path"].as_str().unwrap_or_default(), file["kind"].as_str().unwrap_or_default());
        text.push_str(&format!("\n{path}  {kind}{holders}"));
    }
    text
}

/// What to ask about the newest recording and the newest log.
fn next_calls(found: &[FoundRecording]) -> Vec<NextCall> {
    let log = found.iter().find(|file| file.kind == RecordingKind::Log);
    let recording = found.iter().find(|file| file.kind != RecordingKind::Log);
    let report = recording.map(|file| {
        NextCall::new("report", json!({"path": file.path}), "says what is wrong and which line to change")
    });
    let explain = log.map(|file| {
        let why = "explains the out-of-memory messages in it";
        NextCall::new("explain_message", json!({"path": file.path}), why)
    });
    report.into_iter().chain(explain).collect()
}
