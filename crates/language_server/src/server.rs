//! The main loop: messages in, diagnostics and responses out.

use crate::actions;
use crate::buffers::{OpenBuffers, path_of};
use crate::checking::CheckedBuffer;
use crate::client::{self, ClientFeatures};
use crate::hover;
use crate::transport::{ClientMessage, RequestError};
use gen_lsp_types::{
    CodeActionParams, DidChangeNotebookDocumentParams, DidChangeTextDocumentParams,
    DidChangeWatchedFilesParams, DidChangeWorkspaceFoldersParams, DidCloseNotebookDocumentParams,
    DidCloseTextDocumentParams, DidOpenNotebookDocumentParams, DidOpenTextDocumentParams,
    DidSaveTextDocumentParams, HoverParams,
};
use project::{EditorProject, FolderIndex};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// Pause in the typing after which a text is checked.
const TYPING_PAUSE: Duration = Duration::from_millis(100);

/// What the main loop waits for.
pub(crate) enum ServerEvent {
    Message(Result<ClientMessage, RequestError>),
    Indexed(Option<FolderIndex>),
    /// The client closed the input, or it cannot be read any further.
    End(Option<io::Error>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerPhase {
    BeforeInitialize,
    Running,
    ShutDown,
}

/// Server of one client.
pub(crate) struct LanguageServer {
    outgoing: Sender<Value>,
    /// Whether the client reads no more.
    is_cut_off: bool,
    events: Sender<ServerEvent>,
    received: Receiver<ServerEvent>,
    /// Events that were received and not handled yet.
    waiting: VecDeque<ServerEvent>,
    phase: ServerPhase,
    pub(crate) features: ClientFeatures,
    pub(crate) buffers: OpenBuffers,
    pub(crate) project: EditorProject,
    /// Buffers to check, and when.
    pub(crate) due: HashMap<String, Instant>,
    pub(crate) checked: HashMap<String, CheckedBuffer>,
    /// The last warning that the user was shown.
    pub(crate) warning: Option<String>,
    /// Number of requests to the client.
    requests: u32,
}

impl LanguageServer {
    pub(crate) fn new(
        outgoing: Sender<Value>,
        events: Sender<ServerEvent>,
        received: Receiver<ServerEvent>,
    ) -> LanguageServer {
        LanguageServer {
            outgoing,
            is_cut_off: false,
            events,
            received,
            waiting: VecDeque::new(),
            phase: ServerPhase::BeforeInitialize,
            features: ClientFeatures::default(),
            buffers: OpenBuffers::default(),
            project: EditorProject::default(),
            due: HashMap::new(),
            checked: HashMap::new(),
            warning: None,
            requests: 0,
        }
    }

    /// Handles messages until the client exits; returns the exit code.
    pub(crate) fn run(&mut self) -> u8 {
        let code = |server: &Self| u8::from(server.phase != ServerPhase::ShutDown);
        while !self.is_cut_off {
            match self.next_event() {
                Some(ServerEvent::Message(Ok(message))) if message.method == "exit" => break,
                Some(ServerEvent::Message(Ok(message))) => self.message(message),
                Some(ServerEvent::Message(Err(error))) => self.respond(Value::Null, Err(error)),
                Some(ServerEvent::Indexed(index)) => {
                    index.into_iter().for_each(|index| self.project.note_index(index));
                    self.recheck_all();
                }
                Some(ServerEvent::End(error)) => {
                    error.into_iter().for_each(|error| self.log(&error.to_string()));
                    break;
                }
                None => self.publish_due(),
            }
        }
        code(self)
    }

    /// Returns the next event; `None` if it is time to check something. Messages come first, so that only the
    /// newest version of a text is checked.
    fn next_event(&mut self) -> Option<ServerEvent> {
        self.waiting.extend(self.received.try_iter());
        if let Some(event) = self.waiting.pop_front() {
            return Some(event);
        }
        let Some(due) = self.due.values().min() else {
            return self.received.recv().ok().or(Some(ServerEvent::End(None)));
        };
        match self.received.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(ServerEvent::End(None)),
        }
    }

    fn message(&mut self, message: ClientMessage) {
        let ClientMessage { id, method, params } = message;
        let Some(id) = id else {
            if self.phase == ServerPhase::Running {
                let handled = catch_unwind(AssertUnwindSafe(|| self.notification(&method, params)));
                match handled {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => self.log(&format!("`{method}` of the client is not valid: {error}")),
                    Err(panic) => self.log_panic(&*panic),
                }
            }
            return;
        };
        // Responses to what the server asked have no method.
        if method.is_empty() {
            return;
        }
        let handled = catch_unwind(AssertUnwindSafe(|| self.request(&id, &method, params)));
        let answer = handled.unwrap_or_else(|panic| {
            self.log_panic(&*panic);
            Err(RequestError::Internal)
        });
        self.respond(id, answer);
    }

    fn request(&mut self, id: &Value, method: &str, params: Value) -> Result<Value, RequestError> {
        match (self.phase, method) {
            (ServerPhase::BeforeInitialize, "initialize") => {
                self.features = ClientFeatures::new(&params);
                client::folders(&params).into_iter().for_each(|folder| self.project.add(folder));
                self.phase = ServerPhase::Running;
                return Ok(client::initialized(&self.features));
            }
            (ServerPhase::BeforeInitialize, _) => return Err(RequestError::NotInitialized),
            (ServerPhase::ShutDown, _) | (_, "initialize") => return Err(RequestError::InvalidRequest),
            (ServerPhase::Running, _) => {}
        }
        if self.is_cancelled(id) {
            return Err(RequestError::Cancelled);
        }
        match method {
            "shutdown" => {
                self.phase = ServerPhase::ShutDown;
                self.due.clear();
                Ok(Value::Null)
            }
            "textDocument/codeAction" => {
                let params: CodeActionParams = parsed(params)?;
                let checked = self.current(&params.text_document.uri.0);
                let actions = checked.map(|(checked, features)| {
                    actions::actions(&checked.map, &checked.report, &params, features)
                });
                Ok(json!(actions.unwrap_or_default()))
            }
            "textDocument/hover" => {
                let at = parsed::<HoverParams>(params)?.text_document_position_params;
                let uri = at.text_document.uri.0;
                let checked = self.current(&uri);
                Ok(checked.map_or(Value::Null, |(checked, features)| {
                    hover::hover(&checked.map, &checked.report.found, &uri, at.position, features.markdown)
                }))
            }
            "textDocument/diagnostic" => Ok(self.pulled(&parsed(params)?)),
            _ => Err(RequestError::MethodNotFound),
        }
    }

    /// Returns whether the client does not want the answer any more.
    fn is_cancelled(&mut self, id: &Value) -> bool {
        self.waiting.extend(self.received.try_iter());
        self.waiting.iter().any(|event| {
            matches!(event, ServerEvent::Message(Ok(message))
                if message.method == "$/cancelRequest" && message.params.get("id") == Some(id))
        })
    }

    fn notification(&mut self, method: &str, params: Value) -> serde_json::Result<()> {
        match method {
            "initialized" => {
                if self.features.watches {
                    self.ask("client/registerCapability", &client::watchers());
                }
                self.index_all();
            }
            "textDocument/didOpen" => {
                let params: DidOpenTextDocumentParams = serde_json::from_value(params)?;
                let uri = params.text_document.uri.0.clone();
                self.buffers.open(params.text_document);
                self.changed(&uri, Duration::ZERO);
            }
            "textDocument/didChange" => {
                let DidChangeTextDocumentParams { text_document, content_changes } =
                    serde_json::from_value(params)?;
                let (uri, version) = (text_document.text_document_identifier.uri.0, text_document.version);
                self.buffers.change(&uri, version, content_changes, self.features.encoding);
                self.changed(&uri, TYPING_PAUSE);
            }
            "textDocument/didSave" => {
                let params: DidSaveTextDocumentParams = serde_json::from_value(params)?;
                self.saved(&params.text_document.uri.0);
            }
            "textDocument/didClose" => {
                let params: DidCloseTextDocumentParams = serde_json::from_value(params)?;
                let uri = params.text_document.uri.0;
                self.buffers.close(&uri);
                self.closed(&uri, std::slice::from_ref(&uri));
            }
            "notebookDocument/didOpen" => {
                let params: DidOpenNotebookDocumentParams = serde_json::from_value(params)?;
                let uri = params.notebook_document.uri.0.clone();
                self.buffers.open_notebook(params.notebook_document, params.cell_text_documents);
                self.changed(&uri, Duration::ZERO);
            }
            "notebookDocument/didChange" => {
                let params: DidChangeNotebookDocumentParams = serde_json::from_value(params)?;
                let uri = params.notebook_document.uri.0.clone();
                let cells = params.change.cells.as_ref().and_then(|cells| cells.structure.as_ref());
                let closed = cells.and_then(|structure| structure.did_close.clone()).unwrap_or_default();
                self.buffers.change_notebook(params, self.features.encoding);
                closed.iter().for_each(|cell| self.publish(&cell.uri.0, None, &[]));
                self.changed(&uri, TYPING_PAUSE);
            }
            "notebookDocument/didSave" => {
                let uri = params.pointer("/notebookDocument/uri").and_then(Value::as_str);
                uri.into_iter().for_each(|uri| self.saved(uri));
            }
            "notebookDocument/didClose" => {
                let params: DidCloseNotebookDocumentParams = serde_json::from_value(params)?;
                let uri = params.notebook_document.uri.0;
                let cells = self.buffers.close_notebook(&uri);
                self.closed(&uri, &cells);
            }
            "workspace/didChangeWatchedFiles" => self.files_changed(&serde_json::from_value(params)?),
            "workspace/didChangeWorkspaceFolders" => {
                let DidChangeWorkspaceFoldersParams { event } = serde_json::from_value(params)?;
                let removed = event.removed.iter().filter_map(|folder| path_of(&folder.uri.0));
                removed.for_each(|folder| self.project.remove(&folder));
                for folder in event.added.iter().filter_map(|folder| path_of(&folder.uri.0)) {
                    self.project.add(folder.clone());
                    self.index(folder);
                }
                self.recheck_all();
            }
            // What the protocol may have besides must not disturb, and `$/` may always be ignored.
            _ => {}
        }
        Ok(())
    }

    /// Reads the files of a folder in a thread of its own.
    fn index(&self, folder: PathBuf) {
        let events = self.events.clone();
        // Without a thread, imports are looked for on disk when a file is checked.
        let _ = thread::Builder::new().spawn(move || {
            let index = catch_unwind(|| FolderIndex::new(folder)).ok().flatten();
            // The server may have ended in the meantime.
            let _ = events.send(ServerEvent::Indexed(index));
        });
    }

    fn index_all(&self) {
        let folders: Vec<PathBuf> = self.project.folders().map(Path::to_owned).collect();
        folders.into_iter().for_each(|folder| self.index(folder));
    }

    fn files_changed(&mut self, params: &DidChangeWatchedFilesParams) {
        for path in params.changes.iter().filter_map(|change| path_of(&change.uri.0)) {
            if path.file_name().is_some_and(|name| name == "pyproject.toml") {
                self.index_all();
            } else {
                self.project.note_file(&path);
            }
        }
        self.recheck_all();
    }

    /// Has a buffer checked after a while.
    fn changed(&mut self, uri: &str, after: Duration) {
        let Some(buffer) = self.buffers.buffer_of(uri) else { return };
        if !self.is_pulled(&buffer) {
            self.due.insert(buffer, Instant::now() + after);
        }
    }

    /// Other files may use what has been saved; the settings may be what was saved.
    fn saved(&mut self, uri: &str) {
        let Some(buffer) = self.buffers.buffer_of(uri) else { return };
        self.recheck_all();
        self.changed(&buffer, Duration::ZERO);
    }

    fn closed(&mut self, buffer: &str, texts: &[String]) {
        self.due.remove(buffer);
        self.checked.remove(buffer);
        // What was not saved is gone.
        path_of(buffer).into_iter().for_each(|path| self.project.note_file(&path));
        texts.iter().for_each(|text| self.publish(text, None, &[]));
    }

    /// Has all buffers checked again: what other files or the settings say has changed.
    fn recheck_all(&mut self) {
        self.checked.clear();
        let all = self.buffers.all();
        let is_any_pulled = all.iter().any(|buffer| self.is_pulled(buffer));
        all.iter().for_each(|buffer| self.changed(buffer, TYPING_PAUSE));
        if is_any_pulled && self.features.refreshes {
            self.ask("workspace/diagnostic/refresh", &Value::Null);
        }
    }

    /// Whether the client asks for the diagnostics of a buffer. It would ask for each cell of a notebook.
    pub(crate) fn is_pulled(&self, buffer: &str) -> bool {
        self.features.pulls && !self.buffers.is_notebook(buffer)
    }

    fn respond(&mut self, id: Value, answer: Result<Value, RequestError>) {
        self.send(match answer {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(error) => {
                let error = json!({"code": error as i32, "message": format!("{error:?}")});
                json!({"jsonrpc": "2.0", "id": id, "error": error})
            }
        });
    }

    pub(crate) fn notify(&mut self, method: &str, params: &Value) {
        self.send(json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    fn ask(&mut self, method: &str, params: &Value) {
        self.requests += 1;
        let mut request = json!({"jsonrpc": "2.0", "id": self.requests, "method": method});
        if !params.is_null() {
            request["params"] = params.clone();
        }
        self.send(request);
    }

    fn send(&mut self, message: Value) {
        self.is_cut_off |= self.outgoing.send(message).is_err();
    }

    fn log(&mut self, what: &str) {
        self.notify("window/logMessage", &json!({"type": 2, "message": format!("oomph: {what}")}));
    }

    /// Reports a bug of ours; the editor keeps its server.
    pub(crate) fn log_panic(&mut self, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        self.log(&format!("a bug in oomph: {text}. Please report it, with the file"));
    }
}

fn parsed<T: DeserializeOwned>(params: Value) -> Result<T, RequestError> {
    serde_json::from_value(params).map_err(|_| RequestError::InvalidParams)
}
