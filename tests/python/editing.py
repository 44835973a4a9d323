"""An editor in place of a person: pygls' client of the Language Server Protocol, which applies edits as editors do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient
from pygls.workspace import PositionCodec, TextDocument

from conftest import OOMPH

TIMEOUT = 10.0


class Editor:
    """One running `oomph server`, and the texts that are open in it."""

    def __init__(self, *folders: Path, encoding: str = "utf-16", pulls: bool = False) -> None:
        self._folders, self._encoding, self._pulls = folders, encoding, pulls
        self._loop = asyncio.new_event_loop()
        self.client = LanguageClient("editor", "1")
        self.documents: dict[str, TextDocument] = {}
        self.published: dict[str, lsp.PublishDiagnosticsParams] = {}
        self.messages: list[str] = []
        self.versions: list[int | None] = []
        self.refreshes = 0
        self.watchers: list[str] = []
        self._news = asyncio.Event()
        self._listen()

    def _listen(self) -> None:
        client = self.client

        @client.feature("textDocument/publishDiagnostics")
        def publish(params: lsp.PublishDiagnosticsParams) -> None:
            self.published[params.uri] = params
            self.versions.append(params.version)
            self._news.set()

        @client.feature("window/showMessage")
        @client.feature("window/logMessage")
        def message(params: lsp.ShowMessageParams | lsp.LogMessageParams) -> None:
            self.messages.append(params.message)
            self._news.set()

        @client.feature("client/registerCapability")
        def register(params: lsp.RegistrationParams) -> None:
            for registration in params.registrations:
                options = client.protocol._converter.unstructure(registration.register_options)
                self.watchers += [watcher["globPattern"] for watcher in options["watchers"]]
            self._news.set()

        @client.feature("workspace/diagnostic/refresh")
        def refresh(*_: Any) -> None:
            self.refreshes += 1
            self._news.set()

    def wait(self, work: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, TIMEOUT))

    def start(self) -> lsp.InitializeResult:
        self.wait(self.client.start_io(str(OOMPH), "server", "--stdio"))
        publish = lsp.PublishDiagnosticsClientCapabilities(related_information=True)
        text = lsp.TextDocumentClientCapabilities(
            publish_diagnostics=publish,
            hover=lsp.HoverClientCapabilities(content_format=[lsp.MarkupKind.Markdown]),
            diagnostic=lsp.DiagnosticClientCapabilities() if self._pulls else None,
        )
        workspace = lsp.WorkspaceClientCapabilities(
            workspace_edit=lsp.WorkspaceEditClientCapabilities(document_changes=True),
            did_change_watched_files=lsp.DidChangeWatchedFilesClientCapabilities(dynamic_registration=True),
            diagnostics=lsp.DiagnosticWorkspaceClientCapabilities(refresh_support=True),
        )
        general = lsp.GeneralClientCapabilities(position_encodings=[self._encoding])
        folders = [lsp.WorkspaceFolder(uri=folder.as_uri(), name=folder.name) for folder in self._folders]
        params = lsp.InitializeParams(
            capabilities=lsp.ClientCapabilities(workspace=workspace, text_document=text, general=general),
            process_id=os.getpid(),
            workspace_folders=folders,
        )
        result: lsp.InitializeResult = self.wait(self.client.initialize_async(params))
        assert result.capabilities.position_encoding == self._encoding
        self.client.initialized(lsp.InitializedParams())
        return result

    def stop(self) -> int:
        """Ends the server as editors do, and returns its exit code."""
        self.wait(self.client.shutdown_async(None))
        self.client.exit(None)
        self.wait(self.client.stop())
        self._loop.close()
        server = self.client._server
        assert server is not None and server.returncode is not None
        return server.returncode

    def document(self, uri: str, text: str, version: int = 1) -> TextDocument:
        codec = PositionCodec(lsp.PositionEncodingKind(self._encoding))
        return TextDocument(uri, text, version, "python", position_codec=codec)

    def open(self, file: Path | str, text: str | None = None) -> str:
        uri = file if isinstance(file, str) else file.as_uri()
        text = Path(file).read_text() if text is None else text
        self.documents[uri] = self.document(uri, text)
        item = lsp.TextDocumentItem(uri=uri, language_id="python", version=1, text=text)
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(text_document=item))
        return uri

    def type(self, uri: str, new: str, at: tuple[int, int], until: tuple[int, int] | None = None) -> None:
        """Replaces what is between two positions, as a key or a paste does."""
        change = lsp.TextDocumentContentChangePartial(range=span(at, until or at), text=new)
        document = self.documents[uri]
        document.apply_change(change)
        document.version += 1
        identifier = lsp.VersionedTextDocumentIdentifier(uri=uri, version=document.version)
        self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(text_document=identifier, content_changes=[change]))

    def replace(self, uri: str, text: str) -> None:
        """Sends the whole text, as simple clients do."""
        document = self.documents[uri] = self.document(uri, text, self.documents[uri].version + 1)
        identifier = lsp.VersionedTextDocumentIdentifier(uri=uri, version=document.version)
        change = lsp.TextDocumentContentChangeWholeDocument(text=text)
        self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(text_document=identifier, content_changes=[change]))

    def save(self, uri: str) -> None:
        self.client.text_document_did_save(lsp.DidSaveTextDocumentParams(text_document=lsp.TextDocumentIdentifier(uri=uri)))

    def close(self, uri: str) -> None:
        self.client.text_document_did_close(lsp.DidCloseTextDocumentParams(text_document=lsp.TextDocumentIdentifier(uri=uri)))
        del self.documents[uri]

    def changed_on_disk(self, *files: Path) -> None:
        changes = [lsp.FileEvent(uri=file.as_uri(), type=lsp.FileChangeType.Changed) for file in files]
        self.client.workspace_did_change_watched_files(lsp.DidChangeWatchedFilesParams(changes=changes))

    def wait_for(self, condition: Any) -> None:
        """Waits until a condition is true; it is asked after each message of the server."""

        async def until() -> None:
            while not condition():
                self._news.clear()
                await self._news.wait()

        self.wait(until())

    def diagnostics(self, uri: str) -> list[lsp.Diagnostic]:
        """Waits for the diagnostics of the newest version of a text."""
        version = self.documents[uri].version
        self.wait_for(lambda: uri in self.published and self.published[uri].version == version)
        return list(self.published[uri].diagnostics)

    def pull(self, uri: str, previous: str | None = None) -> Any:
        params = lsp.DocumentDiagnosticParams(text_document=lsp.TextDocumentIdentifier(uri=uri), previous_result_id=previous)
        return self.wait(self.client.text_document_diagnostic_async(params))

    def actions(self, uri: str, range: lsp.Range, only: list[str] | None = None) -> list[lsp.CodeAction]:
        context = lsp.CodeActionContext(diagnostics=[], only=only)
        params = lsp.CodeActionParams(text_document=lsp.TextDocumentIdentifier(uri=uri), range=range, context=context)
        return list(self.wait(self.client.text_document_code_action_async(params)) or [])

    def hover(self, uri: str, at: tuple[int, int]) -> str | None:
        params = lsp.HoverParams(text_document=lsp.TextDocumentIdentifier(uri=uri), position=lsp.Position(*at))
        answer = self.wait(self.client.text_document_hover_async(params))
        return answer and answer.contents.value

    def apply(self, action: lsp.CodeAction) -> None:
        """Applies the edit of an action to the open texts, and sends the changes to the server."""
        assert action.edit is not None and action.edit.document_changes
        for change in action.edit.document_changes:
            assert isinstance(change, lsp.TextDocumentEdit)
            uri = change.text_document.uri
            assert change.text_document.version == self.documents[uri].version, "an edit for another version"
            # From the end, so that no edit moves another.
            for edit in sorted(change.edits, key=lambda edit: place(edit.range.start), reverse=True):
                assert isinstance(edit, lsp.TextEdit)
                self.type(uri, edit.new_text, place(edit.range.start), place(edit.range.end))

    def underlined(self, diagnostic: lsp.Diagnostic, uri: str) -> str:
        """The text that an editor underlines."""
        document = self.documents[uri]
        start, end = (document.offset_at_position(at) for at in (diagnostic.range.start, diagnostic.range.end))
        return document.source[start:end]


def place(position: lsp.Position) -> tuple[int, int]:
    return position.line, position.character


def span(start: tuple[int, int], end: tuple[int, int]) -> lsp.Range:
    return lsp.Range(start=lsp.Position(*start), end=lsp.Position(*end))


@contextmanager
def editor(*folders: Path, encoding: str = "utf-16", pulls: bool = False) -> Iterator[Editor]:
    session = Editor(*folders, encoding=encoding, pulls=pulls)
    session.start()
    yield session
    assert session.stop() == 0
