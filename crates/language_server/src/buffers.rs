//! Files and notebooks that are open in the editor.

use crate::positions::{DocumentText, PositionEncoding};
use crate::source_map::{OpenPart, SourceMap};
use gen_lsp_types::{
    DidChangeNotebookDocumentParams, NotebookCell, NotebookCellKind, NotebookDocument,
    TextDocumentContentChangeEvent, TextDocumentItem,
};
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use url::Url;

/// Open texts and notebooks, by URI. What is checked as one is a *buffer*: a file, or all cells of a
/// notebook.
#[derive(Default)]
pub(crate) struct OpenBuffers {
    texts: HashMap<String, OpenText>,
    notebooks: HashMap<String, OpenNotebook>,
    /// Number of changes so far.
    changes: u64,
}

struct OpenText {
    text: Rc<DocumentText>,
    version: i32,
    revision: u64,
}

struct OpenNotebook {
    /// URIs of the cells, and whether they are code.
    cells: Vec<(String, bool)>,
    revision: u64,
}

impl OpenBuffers {
    pub(crate) fn open(&mut self, item: TextDocumentItem) {
        self.changes += 1;
        let text = Rc::new(DocumentText::new(item.text));
        let open = OpenText { text, version: item.version, revision: self.changes };
        self.texts.insert(item.uri.0, open);
    }

    pub(crate) fn change(
        &mut self,
        uri: &str,
        version: i32,
        changes: Vec<TextDocumentContentChangeEvent>,
        encoding: PositionEncoding,
    ) {
        self.changes += 1;
        if let Some(open) = self.texts.get_mut(uri) {
            let text = Rc::new(open.text.changed(changes, encoding));
            *open = OpenText { text, version, revision: self.changes };
        }
    }

    pub(crate) fn close(&mut self, uri: &str) {
        self.texts.remove(uri);
    }

    pub(crate) fn open_notebook(&mut self, notebook: NotebookDocument, texts: Vec<TextDocumentItem>) {
        texts.into_iter().for_each(|text| self.open(text));
        let cells = notebook.cells.iter().map(cell).collect();
        self.notebooks.insert(notebook.uri.0, OpenNotebook { cells, revision: self.changes });
    }

    pub(crate) fn change_notebook(
        &mut self,
        params: DidChangeNotebookDocumentParams,
        encoding: PositionEncoding,
    ) {
        self.changes += 1;
        let Some(notebook) = self.notebooks.get_mut(&params.notebook_document.uri.0) else { return };
        notebook.revision = self.changes;
        let Some(change) = params.change.cells else { return };
        if let Some(structure) = change.structure {
            let start = (structure.array.start as usize).min(notebook.cells.len());
            let end = start.saturating_add(structure.array.delete_count as usize).min(notebook.cells.len());
            notebook.cells.splice(start..end, structure.array.cells.iter().flatten().map(cell));
            structure.did_open.into_iter().flatten().for_each(|text| self.open(text));
            structure.did_close.into_iter().flatten().for_each(|text| self.close(&text.uri.0));
        }
        // A cell that becomes Markdown is a change of its kind.
        for changed in change.data.iter().flatten().map(cell) {
            let notebook = self.notebooks.get_mut(&params.notebook_document.uri.0);
            let cells = notebook.into_iter().flat_map(|notebook| &mut notebook.cells);
            cells.filter(|known| known.0 == changed.0).for_each(|known| known.1 = changed.1);
        }
        for content in change.text_content.into_iter().flatten() {
            let uri = content.document.text_document_identifier.uri.0;
            self.change(&uri, content.document.version, content.changes, encoding);
        }
    }

    /// Closes a notebook, and returns the URIs of its cells.
    pub(crate) fn close_notebook(&mut self, uri: &str) -> Vec<String> {
        let cells = self.notebooks.remove(uri).map(|notebook| notebook.cells).unwrap_or_default();
        cells.into_iter().map(|(uri, _)| uri).inspect(|cell| self.close(cell)).collect()
    }

    /// Returns the URI of the buffer that a text or notebook belongs to.
    pub(crate) fn buffer_of(&self, uri: &str) -> Option<String> {
        let is_open = self.texts.contains_key(uri) || self.notebooks.contains_key(uri);
        self.notebook_of(uri).or(is_open.then_some(uri)).map(str::to_owned)
    }

    /// Returns the notebook of a cell.
    fn notebook_of(&self, uri: &str) -> Option<&str> {
        let contains = |notebook: &OpenNotebook| notebook.cells.iter().any(|(cell, _)| cell == uri);
        let around = self.notebooks.iter().find(|(_, notebook)| contains(notebook));
        around.map(|(notebook, _)| &**notebook)
    }

    pub(crate) fn is_notebook(&self, buffer: &str) -> bool {
        self.notebooks.contains_key(buffer)
    }

    /// Returns the URIs of all buffers.
    pub(crate) fn all(&self) -> Vec<String> {
        let files = self.texts.keys().filter(|uri| self.notebook_of(uri).is_none());
        files.chain(self.notebooks.keys()).cloned().collect()
    }

    /// Returns a number that is another one after each change of a buffer.
    pub(crate) fn revision(&self, buffer: &str) -> Option<u64> {
        match self.notebooks.get(buffer) {
            Some(notebook) => Some(notebook.revision),
            None => self.texts.get(buffer).map(|open| open.revision),
        }
    }

    /// Returns the text of a buffer as one source.
    pub(crate) fn source(&self, buffer: &str, encoding: PositionEncoding) -> Option<SourceMap> {
        let part = |uri: &String, open: &OpenText| OpenPart {
            uri: uri.clone(),
            version: open.version,
            text: open.text.clone(),
        };
        let Some(notebook) = self.notebooks.get(buffer) else {
            let (uri, open) = self.texts.get_key_value(buffer)?;
            return Some(SourceMap::of_file(part(uri, open), encoding));
        };
        let cells = notebook.cells.iter().enumerate().filter(|(_, (_, is_code))| *is_code);
        let parts = cells.filter_map(|(index, (uri, _))| Some((index + 1, part(uri, self.texts.get(uri)?))));
        Some(SourceMap::of_cells(parts.collect(), encoding))
    }
}

fn cell(cell: &NotebookCell) -> (String, bool) {
    (cell.document.0.clone(), cell.kind == NotebookCellKind::Code)
}

/// Path of a file on this machine; others (`untitled:`) have none.
pub(crate) fn path_of(uri: &str) -> Option<PathBuf> {
    Url::parse(uri).ok().filter(|url| url.scheme() == "file")?.to_file_path().ok()
}
