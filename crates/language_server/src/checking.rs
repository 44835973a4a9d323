//! Texts that are checked, and their diagnostics on the way to the client.

use crate::buffers::path_of;
use crate::client::ClientFeatures;
use crate::diagnostics::diagnostic;
use crate::server::LanguageServer;
use crate::source_map::SourceMap;
use gen_lsp_types::{Diagnostic, DocumentDiagnosticParams};
use project::{BufferReport, NotChecked};
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Buffer with its findings.
pub(crate) struct CheckedBuffer {
    pub(crate) map: SourceMap,
    pub(crate) report: BufferReport,
    revision: u64,
}

impl LanguageServer {
    /// Checks a buffer unless that was done; `Err` if it cannot be checked now.
    pub(crate) fn check(&mut self, buffer: &str) -> Result<(), NotChecked> {
        let revision = self.buffers.revision(buffer).ok_or(NotChecked::NotPython)?;
        if self.checked.get(buffer).is_some_and(|checked| checked.revision == revision) {
            return Ok(());
        }
        let map = self.buffers.source(buffer, self.features.encoding).ok_or(NotChecked::NotPython)?;
        let report = self.project.check(path_of(buffer).as_deref(), &map.source);
        if let Err(NotChecked::Refused(why)) = &report
            && self.warning.as_ref() != Some(why)
        {
            self.warning = Some(why.clone());
            self.notify("window/showMessage", &json!({"type": 2, "message": format!("oomph: {why}")}));
        }
        self.checked.insert(buffer.to_owned(), CheckedBuffer { map, report: report?, revision });
        Ok(())
    }

    /// Returns the findings of the text that a URI means, as it is now.
    pub(crate) fn current(&mut self, uri: &str) -> Option<(&CheckedBuffer, &ClientFeatures)> {
        let buffer = self.buffers.buffer_of(uri)?;
        self.check(&buffer).ok()?;
        Some((self.checked.get(&buffer)?, &self.features))
    }

    pub(crate) fn publish_due(&mut self) {
        let now = Instant::now();
        let due: Vec<String> =
            self.due.iter().filter(|(_, at)| **at <= now).map(|(buffer, _)| buffer.clone()).collect();
        for buffer in due {
            self.due.remove(&buffer);
            match catch_unwind(AssertUnwindSafe(|| self.check(&buffer))) {
                Ok(Ok(())) => self.publish_buffer(&buffer),
                // The editor keeps what it shows, and moves it with the text, until this is Python again.
                Ok(Err(_)) => {}
                Err(panic) => self.log_panic(&*panic),
            }
        }
    }

    fn publish_buffer(&mut self, buffer: &str) {
        let Some(checked) = self.checked.get(buffer) else { return };
        let mut by_text: Vec<(String, i32, Vec<Diagnostic>)> =
            checked.map.parts().map(|part| (part.uri.clone(), part.version, Vec::new())).collect();
        for (uri, diagnostic) in self.diagnostics(checked) {
            let of_text = by_text.iter_mut().find(|(text, ..)| *text == uri);
            of_text.into_iter().for_each(|(_, _, list)| list.push(diagnostic.clone()));
        }
        for (uri, version, diagnostics) in by_text {
            self.publish(&uri, Some(version), &diagnostics);
        }
    }

    fn diagnostics(&self, checked: &CheckedBuffer) -> Vec<(String, Diagnostic)> {
        let found = checked.report.found.iter();
        found.filter_map(|found| diagnostic(found, &checked.map, self.features.related_information)).collect()
    }

    pub(crate) fn publish(&mut self, uri: &str, version: Option<i32>, diagnostics: &[Diagnostic]) {
        let mut params = json!({"uri": uri, "diagnostics": diagnostics});
        if let Some(version) = version {
            params["version"] = version.into();
        }
        self.notify("textDocument/publishDiagnostics", &params);
    }

    /// Answers a client that asks for the diagnostics of a text.
    pub(crate) fn pulled(&mut self, params: &DocumentDiagnosticParams) -> Value {
        let uri = &params.text_document.uri.0;
        let buffer = self.buffers.buffer_of(uri).filter(|buffer| self.is_pulled(buffer));
        let is_checked = buffer.as_ref().is_none_or(|buffer| self.check(buffer).is_ok());
        if let (false, Some(previous)) = (is_checked, &params.previous_result_id) {
            return json!({"kind": "unchanged", "resultId": previous});
        }
        let checked = buffer.filter(|_| is_checked).and_then(|buffer| self.checked.get(&buffer));
        let items = checked.map(|checked| self.diagnostics(checked)).unwrap_or_default();
        let items: Vec<Diagnostic> = items.into_iter().map(|(_, diagnostic)| diagnostic).collect();
        let revision = checked.map_or(0, |checked| checked.revision);
        json!({"kind": "full", "resultId": revision.to_string(), "items": items})
    }
}
