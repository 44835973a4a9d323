"""`%%oomph` and `%oomph run`: a cell or a line under the recorder.

IPython runs the code itself: our line in front of it becomes a call that starts the recorder, and what follows keeps its place.
So tracebacks, `await`, other magics, interrupts, `Out` and the namespace are IPython's own. The recording ends with the cell.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
import tempfile
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import html
from .cell_names import with_cell_names

if TYPE_CHECKING:
    from ..answers import Report
    from ..recording.api import Recording

CELL_MAGIC = "%%oomph"
_LINE_MAGIC = "get_ipython().run_line_magic('oomph', "
_FUTURE = re.compile(r"from __future__ import [\w, ]+$")
_SCRIPT = re.compile(r"\S+\.(py|ipynb)(\s|$)")


@dataclass(frozen=True)
class Options:
    """Options in front of the code."""

    output: str | None = None
    """Folder that keeps the recording."""
    top: int | None = None
    """Rows of what fills memory."""


def parse(line: str) -> tuple[Options, str]:
    """Options, and what follows them. Raises ValueError."""
    found: dict[str, Any] = {}
    rest = line.strip()
    while match := re.match(r"(?:-o|--output|--top)(?:=|\s+|$)", rest):
        name = "top" if match[0].startswith("--top") else "output"
        value = re.match(r"\"([^\"]*)\"|'([^']*)'|(\S+)", rest[match.end() :])
        if value is None:
            raise ValueError(f"expected a value after `{match[0].strip(' =')}`")
        text = next(group for group in value.groups() if group is not None)
        if name == "top" and not (text.isdigit() and int(text)):
            raise ValueError(f"expected a positive number for `--top`, found `{text}`")
        found[name] = int(text) if name == "top" else text
        rest = rest[match.end() + value.end() :].strip()
    if rest.startswith("-") and not rest[1:2].isdigit():
        raise ValueError(f"unknown option `{rest.split()[0]}`; expected --output DIR or --top N")
    return Options(**found), rest


def start_of_cell(lines: list[str]) -> list[str]:
    """Transforms a cell that begins with `%%oomph`, before IPython's own transformations."""
    if not lines or not re.match(rf"{CELL_MAGIC}(\s|$)", lines[0]) or not "".join(lines[1:]).strip():
        return lines
    from IPython.core.inputtransformer2 import cell_magic

    start = _call(f"record {lines[0].removeprefix(CELL_MAGIC).strip()}")
    code = lines[1:]
    first = next(at for at, line in enumerate(code) if line.strip())
    if code[first].startswith("%%"):
        return [f"{start}\n", *cell_magic(code[first:])]  # type: ignore[no-untyped-call]
    # These have to come first.
    future = [at for at, line in enumerate(code) if _FUTURE.match(line.rstrip())]
    if future:
        code[future[-1]] = f"{code[future[-1]].rstrip()}; {start}\n"
        return ["\n", *code]
    return [f"{start}\n", *code]


def recorded_lines(lines: list[str], transform: Any) -> list[str]:
    """Transforms lines that were `%oomph run …`, after IPython's transformations. `transform`: those, for one statement."""
    last = max((at for at, line in enumerate(lines) if line.strip()), default=-1)
    return [_recorded_line(line, at == last, transform) if _LINE_MAGIC in line else line for at, line in enumerate(lines)]


def _recorded_line(line: str, is_last: bool, transform: Any) -> str:
    text = line.strip()
    argument = _argument(text) if text.startswith(_LINE_MAGIC) else None
    if argument is None or not argument.startswith("run "):
        return line
    try:
        _, code = parse(argument.removeprefix("run "))
    except ValueError:
        return line  # the magic says what is wrong with it
    options = argument.removeprefix("run ").strip().removesuffix(code).strip()
    indent = line[: len(line) - len(line.lstrip())]
    statement = f"get_ipython().run_line_magic('run', {code!r})" if _SCRIPT.match(code) else transform(code).strip()
    # What a cell ends with ends with the cell, so that its value is shown.
    end = "" if is_last and not indent else f"; {_call('stop')}"
    for together in (f"{_call(f'record {options}')}; {statement}{end}", f"{_call(f'record {options}')}\n{indent}{statement}"):
        if code and _parses(together.replace(f"\n{indent}", "\n")):
            return f"{indent}{together}\n"
    return line


def _call(argument: str) -> str:
    return f"{_LINE_MAGIC}{argument.strip()!r})"


def _argument(call: str) -> str | None:
    """The second argument of the call, if that is all there is."""
    try:
        body = ast.parse(call).body
    except SyntaxError:
        return None
    match body:
        case [ast.Expr(value=ast.Call(args=[_, ast.Constant(value=str(argument))]))]:
            return argument
    return None


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


class RecordedCell:
    """The recording of a cell, from its start to the end of the cell. A later one replaces it, unless its folder was given."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._recording: Recording | None = None
        self._options = Options()
        self._depth = 0
        """Cells that are running: one may run another."""
        self._started_at = 0
        self._remove: weakref.finalize[Any, Any] | None = None

    def begin(self) -> None:
        self._depth += 1

    def start(self, options: Options) -> None:
        """Raises ValueError if this process is recorded already."""
        from ..recording import api

        if self._recording is not None:
            return
        try:
            # Under `oomph run` its recorder starts with this import.
            import torch  # noqa: F401
        except ImportError as error:
            print(f"oomph: nothing is recorded: {error}", file=sys.stderr)
            return
        host = api.running()
        if host is not None:
            raise ValueError(f"this process is already being recorded to {host.files.folder}")
        self._options = options
        self._started_at = self._depth
        self._recording = api.record(options.output or self._new_folder()).start()

    def stop(self, error: BaseException | None = None) -> ShownReport | None:
        """Ends the recording."""
        recording, self._recording = self._recording, None
        if recording is None:
            return None
        recording.stop(error)
        error = None
        return self._report(recording.path)

    def end(self, error: BaseException | None) -> ShownReport | None:
        """Of a cell, with the exception that it raised."""
        self._depth = max(self._depth - 1, 0)
        return self.stop(error) if self._depth < max(self._started_at, 1) else None

    def _report(self, path: str) -> ShownReport | None:
        from ..snapshot import load

        try:
            report = load(path).report(top=self._options.top)
        except (OSError, ValueError) as error:
            print(f"oomph: {error}", file=sys.stderr)
            return None
        return ShownReport(report, self._shell, is_kept=self._options.output is not None)

    def _new_folder(self) -> str:
        if self._remove is not None:
            self._remove()
        folder = tempfile.mkdtemp(prefix="oomph-")
        self._remove = weakref.finalize(self, _remove, folder, os.getpid())
        return folder


def _remove(folder: str, process: int) -> None:
    # A process that this one has forked ends as well.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


class ShownReport:
    """A report as a cell shows it: as in a terminal, or as HTML."""

    def __init__(self, report: Report, shell: Any, *, is_kept: bool) -> None:
        self._report = report
        self._shell = shell
        self._cell = None if is_kept else f"In [{shell.execution_count - 1}]"

    def __repr__(self) -> str:
        return self._in_notebook(str(self._report)) if self._has_events else self._nothing

    def _repr_html_(self) -> str:
        return self._in_notebook(self._report._repr_html_()) if self._has_events else html.page(html.title(self._nothing))

    @property
    def _has_events(self) -> bool:
        return any(device.events for device in self._report.devices)

    @property
    def _nothing(self) -> str:
        return f"{self._cell or 'the cell'}: no memory of tensors was allocated or freed"

    def _in_notebook(self, text: str) -> str:
        for device in self._report.devices if self._cell else ():
            # A heading. What comes next still needs the file.
            text = text.replace(f"{device.file} · ", f"{self._cell} · ")
        return with_cell_names(text, self._shell)
