"""`oomph server`: what a person sees in an editor, with pygls' client in place of the editor."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from lsprotocol import types as lsp

from conftest import OOMPH
from editing import Editor, editor, span

LEAK = """\
import torch
import torch.nn.functional as F


def train(model, loader, optimizer):
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses
"""
# `len` only: the fix is safe.
SAFE = LEAK.replace("return losses", "print(len(losses))")
EVALUATION = """\
import torch
import torch.nn.functional as F


def evaluate(model, loader):
    losses = []
    for x, y in loader:
        losses.append(F.cross_entropy(model(x), y))
    return losses
"""
KEPT = (11, 22)
"""`loss` in `losses.append(loss)`."""


def codes(found: list[lsp.Diagnostic]) -> list[str]:
    return [str(one.code) for one in found]


def test_a_finding_appears_while_typing_and_goes_when_it_is_fixed(tmp_path: Path) -> None:
    with editor(tmp_path) as session:
        uri = session.open(tmp_path / "train.py", LEAK.replace("        losses.append(loss)\n", "        \n"))
        assert session.diagnostics(uri) == []
        for count, letter in enumerate("losses.append(loss)"):
            session.type(uri, letter, (11, 8 + count))
        [found] = session.diagnostics(uri)
        assert (found.code, found.source, found.severity) == ("OOM101", "oomph", lsp.DiagnosticSeverity.Information)
        assert session.underlined(found, uri) == "loss"
        assert found.code_description.href.endswith("/reference/rules/#oom101-loss-kept-in-list")
        what, advice = found.message.split("\n")
        assert what.startswith("`losses` keeps each loss") and advice.startswith("fix: keep `.detach()`")
        assert {(one.location.uri, one.location.range.start.line) for one in found.related_information} == {(uri, 8)}
        session.type(uri, ".item()", (11, 26))
        assert session.diagnostics(uri) == []


def test_only_the_newest_version_is_checked(tmp_path: Path) -> None:
    with editor(tmp_path) as session:
        uri = session.open(tmp_path / "train.py", LEAK)
        session.diagnostics(uri)
        for count in range(200):
            session.type(uri, "#", (13 + count, 0))
            session.type(uri, "\n", (13 + count, 1))
        session.diagnostics(uri)
        assert len(session.versions) <= 6 and session.versions[-1] == session.documents[uri].version


def test_while_a_text_is_not_python_its_diagnostics_stay(tmp_path: Path) -> None:
    with editor(tmp_path) as session:
        uri = session.open(tmp_path / "train.py", LEAK)
        session.diagnostics(uri)
        version = session.published[uri].version
        session.type(uri, "def f(:\n", (0, 0))
        # It answers: the change was seen. There are no actions for positions that may be elsewhere.
        assert session.actions(uri, span(KEPT, KEPT)) == []
        time.sleep(0.4)
        assert session.hover(uri, (12, 23)) is None
        assert session.published[uri].version == version and codes(session.published[uri].diagnostics) == ["OOM101"]
        session.type(uri, "", (0, 0), (1, 0))
        assert codes(session.diagnostics(uri)) == ["OOM101"]


def test_quick_fixes_leave_nothing_to_find(tmp_path: Path) -> None:
    text = LEAK + LEAK.split("\n\n\n")[1].replace("def train", "def repeat")
    with editor(tmp_path) as session:
        uri = session.open(tmp_path / "train.py", text)
        for _ in range(5):
            if not (found := session.diagnostics(uri)):
                break
            [first, *_] = session.actions(uri, found[0].range, only=["quickfix"])
            assert list(first.diagnostics) == [found[0]] and codes(first.diagnostics)[0] in first.title
            session.apply(first)
        assert session.diagnostics(uri) == []
        assert "losses.append(loss.detach())" in session.documents[uri].source


def test_unsafe_fixes_are_marked_and_safe_ones_preferred(tmp_path: Path) -> None:
    with editor(tmp_path) as session:
        titles = {}
        for name, text in {"unsafe.py": LEAK, "safe.py": SAFE}.items():
            uri = session.open(tmp_path / name, text)
            session.diagnostics(uri)
            actions = session.actions(uri, span(KEPT, KEPT))
            titles[name] = [(action.title, action.is_preferred) for action in actions]
        ignore = ("Ignore loss-kept-in-list on this line", None)
        everything = ("Apply all safe fixes of oomph", None)
        assert titles["unsafe.py"] == [("Detach it (OOM101, may change behavior)", False), ignore]
        assert titles["safe.py"] == [("Detach it (OOM101)", True), ignore, everything]


def test_fix_all_applies_safe_fixes_only(tmp_path: Path) -> None:
    other = LEAK.split("\n\n\n")[1].replace("def train", "def repeat")
    with editor(tmp_path) as session:
        uri = session.open(tmp_path / "train.py", SAFE + "\n\n" + other)
        assert codes(session.diagnostics(uri)) == ["OOM101", "OOM101"]
        top = span((0, 0), (0, 0))
        [action] = session.actions(uri, top, only=["source"])
        assert action.kind == "source.fixAll.oomph"
        [edit] = action.edit.document_changes[0].edits
        assert (edit.new_text, edit.range) == (".detach()", span((11, 26), (11, 26)))
        session.apply(action)
        assert codes(session.diagnostics(uri)) == ["OOM101"]
        assert session.actions(uri, top, only=["source.fixAll.oomph"]) == []
        assert session.actions(uri, top, only=["source.organizeImports"]) == []


def test_ignore_adds_a_comment_and_completes_one(tmp_path: Path) -> None:
    with editor(tmp_path) as session:
        uri = session.open(tmp_path / "train.py", LEAK.replace("(loss)", "(loss)  # oomph: ignore[OOM4]"))
        session.diagnostics(uri)
        action = next(one for one in session.actions(uri, span(KEPT, KEPT)) if one.title.startswith("Ignore"))
        session.apply(action)
        assert session.diagnostics(uri) == []
        assert "(loss)  # oomph: ignore[OOM4, loss-kept-in-list]\n" in session.documents[uri].source


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_columns_are_counted_as_the_client_counts(tmp_path: Path, encoding: str) -> None:
    line = '        tag = "😀日本é"; losses.append(loss)\n'
    with editor(tmp_path, encoding=encoding) as session:
        text = SAFE.replace("        losses.append(loss)\n", line).replace("\n", "\r\n")
        uri = session.open(tmp_path / "train.py", text)
        [found] = session.diagnostics(uri)
        assert session.underlined(found, uri) == "loss"
        column = found.range.start.character
        session.type(uri, "😀", (11, 15))
        [found] = session.diagnostics(uri)
        assert found.range.start.character - column == {"utf-8": 4, "utf-16": 2, "utf-32": 1}[encoding]
        [fix, *_] = session.actions(uri, found.range, only=["quickfix"])
        session.apply(fix)
        assert session.diagnostics(uri) == []
        assert 'tag = "😀😀日本é"; losses.append(loss.detach())\r\n' in session.documents[uri].source


def test_a_byte_order_mark_moves_nothing(tmp_path: Path) -> None:
    with editor(tmp_path) as session:
        uri = session.open(tmp_path / "train.py", "\ufeff" + SAFE.removeprefix("import torch\n"))
        [found] = session.diagnostics(uri)
        assert session.underlined(found, uri) == "loss"
        session.apply(session.actions(uri, found.range)[0])
        assert session.documents[uri].source.startswith("\ufeffimport torch.nn")
        assert session.diagnostics(uri) == []


def test_hover_explains_a_finding_and_a_name_in_a_comment(tmp_path: Path) -> None:
    with editor(tmp_path) as session:
        uri = session.open(tmp_path / "train.py", LEAK + "x = 1  # oomph: ignore[retain-graph-in-loop]\n")
        session.diagnostics(uri)
        finding, comment = session.hover(uri, (11, 23)), session.hover(uri, (13, 30))
        assert finding is not None and "OOM101 loss-kept-in-list](https://" in finding and "What it costs" in finding
        assert comment is not None and "OOM201 retain-graph-in-loop" in comment
        assert session.hover(uri, (0, 0)) is None


def test_settings_are_those_of_the_nearest_project(tmp_path: Path) -> None:
    settings = tmp_path / "pyproject.toml"
    settings.write_text('[tool.oomph.lint]\nexclude = ["gen"]\n')
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "pyproject.toml").write_text('[tool.oomph.lint]\nignore = ["OOM101"]\n')
    with editor(tmp_path) as session:
        uris = {name: session.open(tmp_path / name, LEAK) for name in ("a.py", "gen/a.py", "inner/a.py", ".venv/a.py")}
        found = {name: codes(session.diagnostics(uri)) for name, uri in uris.items()}
        assert found == {"a.py": ["OOM101"], "gen/a.py": [], "inner/a.py": [], ".venv/a.py": []}
        assert "**/pyproject.toml" in session.watchers
        settings.write_text('[tool.oomph.lint]\nselect = ["OOM4"]\n')
        session.changed_on_disk(settings)
        session.wait_for(lambda: session.published[uris["a.py"]].diagnostics == ())
        settings.write_text('[tool.oomph.lint]\nselct = ["OOM4"]\n')
        session.changed_on_disk(settings)
        session.wait_for(lambda: session.messages)
        assert "invalid settings" in session.messages[0] and "selct" in session.messages[0]


def test_findings_are_those_of_the_folder(tmp_path: Path) -> None:
    """`evaluate` is called without gradients, in a file that is not open."""
    (tmp_path / "evaluation.py").write_text(EVALUATION)
    (tmp_path / "train.py").write_text(
        "import torch\nfrom evaluation import evaluate\n\nwith torch.no_grad():\n    evaluate(model, loader)\n"
    )
    command = subprocess.run([OOMPH, "lint", "--json", "."], cwd=tmp_path, capture_output=True, text=True)
    with editor(tmp_path) as session:
        uri = session.open(tmp_path / "evaluation.py")
        session.diagnostics(uri)
        assert json.loads(command.stdout) == []
        session.wait_for(lambda: session.published[uri].diagnostics == ())
        # The caller changes, first unsaved, then back on disk.
        train = session.open(tmp_path / "train.py")
        session.replace(train, session.documents[train].source.replace("with torch.no_grad()", "if True"))
        session.diagnostics(train)
        session.save(train)
        session.wait_for(lambda: "OOM301" in codes(session.published[uri].diagnostics))
        session.close(train)
        session.save(uri)
        session.wait_for(lambda: session.published[uri].diagnostics == ())


def test_a_helper_in_an_open_file_counts_before_it_is_saved(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("import torch\n\n\ndef keep(log, value):\n    log.append(value)\n")
    text = LEAK.replace("losses.append(loss)", "keep(losses, loss)").replace(
        "import torch\n", "import torch\nfrom helpers import keep\n", 1
    )
    with editor(tmp_path) as session:
        uri = session.open(tmp_path / "train.py", text)
        session.wait_for(lambda: uri in session.published and codes(session.published[uri].diagnostics) == ["OOM101"])
        helpers = session.open(tmp_path / "helpers.py")
        session.replace(helpers, session.documents[helpers].source.replace("append(value)", "append(value.item())"))
        session.diagnostics(helpers)
        session.save(uri)
        session.wait_for(lambda: session.published[uri].diagnostics == ())


def test_files_without_a_name_and_outside_of_all_folders_are_checked(tmp_path: Path) -> None:
    installed = tmp_path / "venv/lib/site-packages/x/a.py"
    with editor() as session:
        for file in ("untitled:Untitled-1", tmp_path / "a b [1].py"):
            assert codes(session.diagnostics(session.open(file, LEAK))) == ["OOM101"]
        assert session.diagnostics(session.open(installed, LEAK)) == []
        uri = session.open("file:///not/escaped [1]/é.py", LEAK)
        assert codes(session.diagnostics(uri)) == ["OOM101"]
        session.close(uri)
        session.wait_for(lambda: session.published[uri].diagnostics == ())


def test_several_folders_do_not_mix(tmp_path: Path) -> None:
    texts = {"a": "ignore", "b": "select"}
    for name, key in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyproject.toml").write_text(f'[tool.oomph.lint]\n{key} = ["OOM101"]\n')
    with editor(tmp_path / "a") as session:
        added = lsp.WorkspaceFolder(uri=(tmp_path / "b").as_uri(), name="b")
        event = lsp.WorkspaceFoldersChangeEvent(added=[added], removed=[])
        session.client.workspace_did_change_workspace_folders(lsp.DidChangeWorkspaceFoldersParams(event=event))
        found = [codes(session.diagnostics(session.open(tmp_path / name / "x.py", LEAK))) for name in texts]
        assert found == [[], ["OOM101"]]


def test_a_client_that_asks_gets_diagnostics_in_the_answer(tmp_path: Path) -> None:
    with editor(tmp_path, pulls=True) as session:
        uri = session.open(tmp_path / "train.py", LEAK)
        report = session.pull(uri)
        assert (report.kind, codes(report.items)) == ("full", ["OOM101"])
        session.type(uri, "def f(:\n", (0, 0))
        assert session.pull(uri, report.result_id).kind == "unchanged"
        session.type(uri, "", (0, 0), (1, 0))
        session.type(uri, ".item()", (11, 26))
        assert not session.pull(uri, report.result_id).items
        refreshes = session.refreshes
        session.save(uri)
        session.wait_for(lambda: session.refreshes > refreshes)
        assert session.published == {}


class Notebook:
    """Cells of a notebook that is open in an editor."""

    def __init__(self, session: Editor, file: Path, cells: list[str]) -> None:
        self.session, self.uri = session, file.as_uri()
        self.cells = [f"vscode-notebook-cell:{file}#{index}" for index in range(len(cells))]
        document = lsp.NotebookDocument(
            uri=self.uri, notebook_type="jupyter-notebook", version=1, cells=[cell_of(cell) for cell in self.cells]
        )
        texts = [self._text(uri, text) for uri, text in zip(self.cells, cells, strict=True)]
        session.client.notebook_document_did_open(
            lsp.DidOpenNotebookDocumentParams(notebook_document=document, cell_text_documents=texts)
        )

    def _text(self, uri: str, text: str) -> lsp.TextDocumentItem:
        self.session.documents[uri] = self.session.document(uri, text)
        return lsp.TextDocumentItem(uri=uri, language_id="python", version=1, text=text)

    def found(self) -> dict[int, list[str]]:
        return {
            index: codes(self.session.published[uri].diagnostics)
            for index, uri in enumerate(self.cells)
            if uri in self.session.published and self.session.published[uri].diagnostics
        }

    def change(self, cells: lsp.NotebookDocumentCellChanges) -> None:
        self.session.client.notebook_document_did_change(
            lsp.DidChangeNotebookDocumentParams(
                notebook_document=lsp.VersionedNotebookDocumentIdentifier(uri=self.uri, version=2),
                change=lsp.NotebookDocumentChangeEvent(cells=cells),
            )
        )

    def insert(self, index: int, text: str) -> None:
        uri = f"{self.cells[0]}-new"
        self.cells.insert(index, uri)
        array = lsp.NotebookCellArrayChange(start=index, delete_count=0, cells=[cell_of(uri)])
        structure = lsp.NotebookDocumentCellChangeStructure(array=array, did_open=[self._text(uri, text)])
        self.change(lsp.NotebookDocumentCellChanges(structure=structure))

    def remove(self, index: int) -> None:
        uri = self.cells.pop(index)
        array = lsp.NotebookCellArrayChange(start=index, delete_count=1)
        closed = [lsp.TextDocumentIdentifier(uri=uri)]
        structure = lsp.NotebookDocumentCellChangeStructure(array=array, did_close=closed)
        self.change(lsp.NotebookDocumentCellChanges(structure=structure))

    def replace(self, index: int, text: str) -> None:
        uri = self.cells[index]
        document = self.session.documents[uri] = self.session.document(uri, text, self.session.documents[uri].version + 1)
        content = lsp.NotebookDocumentCellContentChanges(
            document=lsp.VersionedTextDocumentIdentifier(uri=uri, version=document.version),
            changes=[lsp.TextDocumentContentChangeWholeDocument(text=text)],
        )
        self.change(lsp.NotebookDocumentCellChanges(text_content=[content]))


def cell_of(uri: str) -> lsp.NotebookCell:
    return lsp.NotebookCell(kind=lsp.NotebookCellKind.Code, document=uri)


def test_the_cells_of_a_notebook_are_one_program(tmp_path: Path) -> None:
    imports, function = LEAK.split("\n\n\n")
    with editor(tmp_path, pulls=True) as session:
        notebook = Notebook(session, tmp_path / "a.ipynb", [imports, "%%bash\nls", "what is (this\n", "%time\n" + function])
        session.wait_for(lambda: notebook.found() == {3: ["OOM101"]})
        uri = notebook.cells[3]
        [found] = session.published[uri].diagnostics
        assert (found.range.start.line, session.underlined(found, uri)) == (8, "loss")
        # A client that asks for files would show the same twice.
        assert not session.pull(uri).items
        notebook.insert(1, "import torch\n" + function.replace("def train", "def repeat"))
        session.wait_for(lambda: notebook.found() == {1: ["OOM101"], 4: ["OOM101"]})
        [fix, ignore] = session.actions(uri, found.range)
        assert [change.text_document.uri for change in fix.edit.document_changes] == [uri]
        [edit] = ignore.edit.document_changes[0].edits
        assert (edit.range.start.line, edit.new_text) == (8, "  # oomph: ignore[loss-kept-in-list]")
        notebook.replace(1, "seed = 1\n")
        session.wait_for(lambda: notebook.found() == {4: ["OOM101"]})
        notebook.remove(4)
        session.wait_for(lambda: session.published[uri].diagnostics == ())


def exchange(*messages: object, raw: bytes = b"") -> tuple[list[dict], int]:
    """Sends messages and closes the input; returns the answers and the exit code."""

    def frame(text: bytes) -> bytes:
        return b"Content-Length: %d\r\n\r\n%b" % (len(text), text)

    data = b"".join(frame(json.dumps(message).encode()) for message in messages)
    done = subprocess.run([OOMPH, "server"], input=data + raw, capture_output=True, timeout=30)
    answers, left = [], done.stdout
    while left:
        header, _, left = left.partition(b"\r\n\r\n")
        length = int(header.removeprefix(b"Content-Length: "))
        answers.append(json.loads(left[:length]))
        left = left[length:]
    return answers, done.returncode


def request(id: int | str, method: str, **params: object) -> dict:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def notification(method: str, **params: object) -> dict:
    return {"jsonrpc": "2.0", "method": method, "params": params}


START = [request(0, "initialize", capabilities={}), notification("initialized")]
END = [request("end", "shutdown"), notification("exit")]


def test_the_life_of_a_server_is_that_of_the_protocol() -> None:
    def errors(*messages: object) -> tuple[list[int | None], int]:
        answers, code = exchange(*messages)
        return [answer.get("error", {}).get("code") for answer in answers], code

    assert errors(request(1, "textDocument/hover"), *START, *END) == ([-32002, None, None], 0)
    assert errors(*START, request(1, "initialize"), *END) == ([None, -32600, None], 0)
    assert errors(*START, END[0], request(1, "textDocument/hover"), END[1]) == ([None, None, -32600], 0)
    assert errors(*START, notification("exit")) == ([None], 1)
    assert errors(notification("exit")) == ([], 1)
    assert errors(*START) == ([None], 1), "the client closed the input"


def test_what_is_malformed_or_unknown_ends_nothing() -> None:
    strange = [
        request(1, "textDocument/definition"),
        request(2, "textDocument/hover", textDocument=3),
        request(3, "textDocument/hover", textDocument={"uri": "file:///none.py"}, position={"line": 9, "character": 0}),
        notification("$/setTrace", value="off"),
        notification("textDocument/didChange", textDocument={}),
        notification("textDocument/didChange", textDocument={"uri": "file:///none.py", "version": 1}, contentChanges=[]),
        {"jsonrpc": "2.0", "id": 1, "result": None},
        [],
    ]
    answers, code = exchange(*START, *strange, *END)
    errors = {str(answer.get("id")): answer["error"]["code"] for answer in answers if "error" in answer}
    assert (errors, code) == ({"1": -32601, "2": -32602, "None": -32600}, 0)
    logged = [answer["params"]["message"] for answer in answers if answer.get("method") == "window/logMessage"]
    assert len(logged) == 1 and "textDocument/didChange" in logged[0]

    answers, code = exchange(*START, raw=b"Content-Length: 3\r\n\r\n{{{" + b"Content-Length: nine\r\n\r\n")
    assert [answer.get("error", {}).get("code") for answer in answers[:2]] == [None, -32700] and code == 1
    assert "Content-Length" in answers[2]["params"]["message"]


def test_a_cancelled_request_is_answered_as_such() -> None:
    text = {"uri": "file:///a.py", "languageId": "python", "version": 1, "text": LEAK * 40}
    hover = {"textDocument": {"uri": text["uri"]}, "position": {"line": 11, "character": 23}}
    # The first takes a while, so that the others wait.
    messages = [request(1, "textDocument/hover", **hover), request(2, "textDocument/hover", **hover)]
    opened, cancelled = notification("textDocument/didOpen", textDocument=text), notification("$/cancelRequest", id=2)
    answers, _ = exchange(*START, opened, *messages, cancelled, *END)
    by_id = {answer.get("id"): answer for answer in answers}
    assert by_id[1]["result"] is not None and by_id[2]["error"]["code"] == -32800


def test_files_that_are_too_large_are_refused_with_a_message(tmp_path: Path) -> None:
    with editor(tmp_path) as session:
        uri = session.open(tmp_path / "train.py", LEAK + "x = 1\n" * (3 << 19))
        session.wait_for(lambda: session.messages)
        assert session.messages == ["oomph: files larger than 8 MiB are not checked"]
        session.replace(uri, LEAK)
        assert codes(session.diagnostics(uri)) == ["OOM101"]


def test_deeply_nested_code_is_survived(tmp_path: Path) -> None:
    with editor(tmp_path) as session:
        uri = session.open(tmp_path / "train.py", LEAK + f"x = {'(' * 3000}1{')' * 3000}\ny = {'-' * 20000}1\n")
        session.diagnostics(uri)
