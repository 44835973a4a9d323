//! What the client can do, and what the server offers.

use crate::buffers::path_of;
use crate::positions::PositionEncoding;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Kind of the action that applies all safe fixes of a file.
pub(crate) const FIX_ALL: &str = "source.fixAll.oomph";

/// Capabilities of the client that make a difference.
#[derive(Default, Debug)]
pub(crate) struct ClientFeatures {
    pub(crate) encoding: PositionEncoding,
    /// Whether it asks for diagnostics of files itself.
    pub(crate) pulls: bool,
    /// Whether it asks for diagnostics again on request.
    pub(crate) refreshes: bool,
    pub(crate) related_information: bool,
    /// Whether edits may name the version that they are for.
    pub(crate) versioned_edits: bool,
    /// Whether it reports changes of files that are asked for.
    pub(crate) watches: bool,
    pub(crate) markdown: bool,
}

impl ClientFeatures {
    /// Reads the parameters of `initialize`. Fields of an unexpected type count as missing: clients and the
    /// protocol are ahead of what is known here.
    pub(crate) fn new(params: &Value) -> ClientFeatures {
        let capability = |path: &str| params.pointer(&format!("/capabilities/{path}"));
        let is_true = |path: &str| capability(path) == Some(&Value::Bool(true));
        let lists = |path: &str, item: &str| {
            capability(path).and_then(Value::as_array).is_some_and(|list| list.iter().any(|one| one == item))
        };
        let offered = [PositionEncoding::Utf8, PositionEncoding::Utf32];
        let offered = offered.into_iter().find(|one| lists("general/positionEncodings", one.name()));
        ClientFeatures {
            encoding: offered.unwrap_or_default(),
            pulls: capability("textDocument/diagnostic").is_some_and(Value::is_object),
            refreshes: is_true("workspace/diagnostics/refreshSupport"),
            related_information: is_true("textDocument/publishDiagnostics/relatedInformation")
                || is_true("textDocument/diagnostic/relatedInformation"),
            versioned_edits: is_true("workspace/workspaceEdit/documentChanges"),
            watches: is_true("workspace/didChangeWatchedFiles/dynamicRegistration"),
            markdown: lists("textDocument/hover/contentFormat", "markdown"),
        }
    }
}

/// Folders that are open at the start.
pub(crate) fn folders(params: &Value) -> Vec<PathBuf> {
    let uri = |value: &Value| path_of(value.as_str()?);
    match params.get("workspaceFolders").and_then(Value::as_array) {
        Some(folders) => folders.iter().filter_map(|folder| uri(folder.get("uri")?)).collect(),
        None => params.get("rootUri").and_then(uri).into_iter().collect(),
    }
}

/// Result of `initialize`.
pub(crate) fn initialized(features: &ClientFeatures) -> Value {
    let mut capabilities = json!({
        "positionEncoding": features.encoding.name(),
        "textDocumentSync": {"openClose": true, "change": 2, "save": {"includeText": false}},
        "notebookDocumentSync": {
            "notebookSelector": [{"notebook": "*", "cells": [{"language": "python"}]}],
            "save": true,
        },
        "codeActionProvider": {"codeActionKinds": ["quickfix", FIX_ALL]},
        "hoverProvider": true,
        "workspace": {"workspaceFolders": {"supported": true, "changeNotifications": true}},
    });
    if features.pulls {
        capabilities["diagnosticProvider"] =
            json!({"identifier": "oomph", "interFileDependencies": true, "workspaceDiagnostics": false});
    }
    json!({
        "capabilities": capabilities,
        "serverInfo": {"name": "oomph", "version": env!("CARGO_PKG_VERSION")},
    })
}

/// Parameters of `client/registerCapability`: files whose changes matter to the findings of others.
pub(crate) fn watchers() -> Value {
    let patterns = ["**/pyproject.toml", "**/*.py", "**/*.ipynb"].map(|glob| json!({"globPattern": glob}));
    json!({"registrations": [{
        "id": "files",
        "method": "workspace/didChangeWatchedFiles",
        "registerOptions": {"watchers": patterns},
    }]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_encoding_that_the_client_offers_is_used() {
        let encoding = |offered: Value| {
            ClientFeatures::new(&json!({"capabilities": {"general": {"positionEncodings": offered}}}))
                .encoding
        };
        assert_eq!(encoding(json!(["utf-16", "utf-8"])), PositionEncoding::Utf8);
        assert_eq!(encoding(json!(["utf-32", "utf-16"])), PositionEncoding::Utf32);
        for other in [json!(["utf-16"]), json!([]), json!("utf-8"), Value::Null] {
            assert_eq!(encoding(other), PositionEncoding::Utf16);
        }
    }

    #[test]
    fn folders_come_from_the_list_or_from_the_root() {
        let (a, b) = (PathBuf::from("/a b"), PathBuf::from("/b"));
        let listed = json!({"rootUri": "file:///x", "workspaceFolders": [
            {"uri": "file:///a%20b", "name": "a"}, {"uri": "untitled:x"}, 1, {"uri": "file:///b"},
        ]});
        assert_eq!(folders(&listed), [a, b.clone()]);
        assert_eq!(folders(&json!({"rootUri": "file:///b", "workspaceFolders": null})), [b]);
        assert!(folders(&json!({})).is_empty());
    }
}
