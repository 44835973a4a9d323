"""`%load_ext oomph`: the magics `%oomph` and `%%oomph`."""

from __future__ import annotations

from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.display import display

from . import free, recorded_cell, who
from .cells import Cells
from .recorded_cell import RecordedCell

_DEFAULT_TOP = 12
_COMMANDS = ("who", "free", "run")
_USAGE = "expected `%oomph who`, `%oomph free`, `%oomph run CODE`, or `%%oomph` as the first line of a cell"


@magics_class
class OomphMagics(Magics):
    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._transform = shell.transform_cell
        self.cells = Cells(shell)
        self.recorded_cell = RecordedCell(shell)

    @line_cell_magic
    def oomph(self, line: str, cell: str | None = None) -> Any:
        """What fills GPU memory, what holds it, and what can be freed.

        %%oomph [--output DIR] [--top N]
            Records the cell and shows its report below. Everything else is as without it. --output keeps the recording in a
            folder; otherwise it is removed with the next one. --top limits the table of what fills memory.
        %oomph run [--output DIR] [--top N] STATEMENT
        %oomph run [--output DIR] [--top N] SCRIPT.py ARGUMENTS
            Records one line, or a script as `%run` runs it. To keep the result: `%oomph run x = f()`.
        %oomph who [--top N]
            What holds memory now, by variable: also outputs, the last error, other modules and garbage.
        %oomph free [--dry-run]
            Lets go of what no variable of yours holds: tensors in outputs, the last error, garbage, and PyTorch's cache. It says
            what that freed and what holds the rest. --dry-run only says what it would free.

        Without a GPU, the same of tensors on the CPU.
        """
        if cell is not None:
            raise UsageError(
                f"{recorded_cell.CELL_MAGIC} has to be the first line of a cell, and the cell with `%load_ext oomph` before it"
            )
        command, _, rest = line.strip().partition(" ")
        try:
            return self._command(command, rest.strip())
        except (ValueError, OSError) as error:
            raise UsageError(str(error)) from None

    def _command(self, command: str, rest: str) -> Any:
        if command == "who":
            options, more = recorded_cell.parse(rest)
            if more or options.output:
                raise ValueError(f"`%oomph who` takes only --top N, found `{rest}`")
            return who.who(self.shell, self.cells.of, options.top or _DEFAULT_TOP)
        if command == "free":
            if rest not in ("", "--dry-run"):
                raise ValueError(f"`%oomph free` takes only --dry-run, found `{rest}`")
            return free.free(self.shell, self.cells.of, is_trial=bool(rest))
        # Code has become calls of these two before it runs.
        if command == "record":
            options, more = recorded_cell.parse(rest)
            if more:
                raise ValueError(f"unexpected `{more}`; {_USAGE}")
            return self.recorded_cell.start(options)
        if command == "stop":
            return self._show(self.recorded_cell.stop())
        if command == "run":
            recorded_cell.parse(rest)
            raise ValueError(
                "`%oomph run` takes one statement or script, at the beginning of a line: `%oomph run x = f()`. "
                "The cell with `%load_ext oomph` has to run before it"
            )
        raise ValueError(f"unknown `{command}`; {_USAGE}" if command else _USAGE)

    def before_cell(self, info: Any) -> None:
        self.cells.begin(info)
        self.recorded_cell.begin()

    def after_cell(self, result: Any) -> None:
        self.cells.end(result)
        self._show(self.recorded_cell.end(getattr(result, "error_in_exec", None)))

    def transform_lines(self, lines: list[str]) -> list[str]:
        return recorded_cell.recorded_lines(lines, self._transform)

    def _show(self, report: recorded_cell.ShownReport | None) -> None:
        if report is not None:
            display(report)  # type: ignore[no-untyped-call]


def load_ipython_extension(shell: Any) -> None:
    """For `%load_ext oomph`."""
    magics = OomphMagics(shell)
    shell.register_magics(magics)
    shell.events.register("pre_run_cell", magics.before_cell)
    shell.events.register("post_run_cell", magics.after_cell)
    shell.input_transformers_cleanup.append(recorded_cell.start_of_cell)
    shell.input_transformers_post.append(magics.transform_lines)
    shell.set_hook("complete_command", lambda _shell, _event: list(_COMMANDS), str_key="%oomph")


def unload_ipython_extension(shell: Any) -> None:
    """For `%unload_ext oomph` and `%reload_ext oomph`."""
    magics = shell.magics_manager.registry[OomphMagics.__name__]
    shell.events.unregister("pre_run_cell", magics.before_cell)
    shell.events.unregister("post_run_cell", magics.after_cell)
    shell.input_transformers_cleanup.remove(recorded_cell.start_of_cell)
    shell.input_transformers_post.remove(magics.transform_lines)
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("oomph", None)
