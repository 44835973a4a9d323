"""Field trials: runs programs with and without the recorder, and compares everything visible from outside.

    python field/run.py --gpu real --runs 3 --jobs 5          on this machine's GPU
    python field/run.py --gpu h200-emulated                   on the emulated GPU
    python field/run.py --attach                              `oomph attach` comes and goes, instead of `oomph run`

Compares standard output, standard error, exit code, written files, allocator requests and peaks, and the number of ranks in
the recording. Measures times: per step, from the end of the program's own code (or a signal) to the end of the process, and
in total. The literal `PROGRAM` at the top of a program describes what it needs; see docs/explanation/field-trials.md.

Exit codes: 0 no differences, 1 some programs differ, 2 the trials could not run.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import difflib
import fnmatch
import hashlib
import itertools
import json
import os
import pathlib
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from emulated import Emulated

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
PROGRAMS = HERE / "programs"
PROBE = "probe.py"
EMULATED = "-emulated"

MARKER_TIMEOUT = 120
"""Seconds to wait for the line after which a signal is sent."""
MEMORY_TOLERANCE = 0.01
"""Share by which memory may differ in programs whose kernels are chosen by timing."""
DIFF_LINES = 12
VISIT_PAUSE = "0.5"
"""Seconds that a program stays at each step when it is attached to."""

SAME, DIFFERS, KNOWN, NOT_INSTALLED, FAILED_BARE = "same", "differs", "known", "not installed", "failed bare"


@dataclass(frozen=True)
class Program:
    """A program in one of its variants."""

    name: str
    path: pathlib.Path
    about: str
    arguments: tuple[str, ...] = ()
    command: tuple[str, ...] = ("{script}",)
    """Arguments of the interpreter; `{script}`: the program by relative path, `{work}`: the working directory."""
    needs: tuple[str, ...] = ()
    """Modules that must be installed."""
    only: str | None = None
    """`real`: needs values that the emulated GPU does not compute."""
    exit: int | None = 0
    """Exit code without oomph; None: any."""
    ranks: int | None = 1
    """Processes that use CUDA; None if some exit without leaving a trace."""
    stdin: str | None = None
    """Standard input; on the emulated GPU it is empty, as in `oomph run`."""
    signal: dict[str, str] | None = None
    """Signal to `send` after the program prints the line `after`."""
    wait_for: str | None = None
    """File written by a process that outlives the program."""
    jitter: dict[str, Any] = field(default_factory=dict)
    """What differs between bare runs: patterns by stream, globs of `files`, and whether `memory` and `exit` do."""
    known: str | None = None
    """Why it differs, if that is documented and intended."""
    environment: dict[str, str] = field(default_factory=dict)
    timeout: float = 180


def programs() -> list[Program]:
    """All programs, each variant by itself."""
    found = []
    for path in sorted(PROGRAMS.glob("*.py")):
        if path.name == PROBE:
            continue
        tree = ast.parse(path.read_text())
        literals = [
            node.value for node in tree.body if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "PROGRAM"
        ]
        if not literals:
            raise SystemExit(f"error: {path} has no PROGRAM = {{...}} at its top")
        needs: dict[str, Any] = ast.literal_eval(literals[0])
        about = (ast.get_docstring(tree) or "").split("\n")[0].rstrip(".")
        for variant, changes in needs.pop("variants", {"": {}}).items():
            settings = {**needs, **changes}
            for name in ("arguments", "command", "needs"):
                if name in settings:
                    settings[name] = tuple(settings[name])
            name = path.stem.replace("_", "-") + (f"-{variant}" if variant else "")
            found.append(Program(name=name, path=path, about=about, **settings))
    return found


@dataclass
class Run:
    """Results of one run of a program."""

    exit: int
    stdout: str
    stderr: str
    files: dict[str, str]
    memory: list[dict[str, int]]
    """Counters of each process that used CUDA."""
    ranks: int | None
    steps: list[float]
    seconds: float
    """From the start of the interpreter to its end."""
    ending: float | None
    """From the end of the program's code, or the signal, to the end of the process."""
    own: str
    """Output of oomph itself, or what became of each `oomph attach`."""
    last_lines: str
    """End of standard error, including its variable parts, for programs that fail."""


@dataclass
class Verdict:
    program: Program
    word: str
    differences: list[str] = field(default_factory=list)
    bare: list[Run] = field(default_factory=list)
    recorded: list[Run] = field(default_factory=list)


class Visitor(threading.Thread):
    """Attaches to the processes of a program, one after the other and again and again, until it has ended."""

    KINDS = (["--for", "1s"], [], ["--no-holders"])

    def __init__(self, oomph: pathlib.Path, process: subprocess.Popen[bytes], folder: pathlib.Path) -> None:
        super().__init__(daemon=True)
        self.oomph = oomph
        self.process = process
        self.folder = folder
        self.outcomes: dict[str, int] = {}

    def run(self) -> None:
        kinds = itertools.cycle(self.KINDS)
        for number in itertools.count():
            found = self._processes()
            if self.process.poll() is not None:
                return
            for pid in found:
                options = ["--timeout", "5s", "-o", str(self.folder / f"recording{number}-{pid}")]
                command = [str(self.oomph), "attach", str(pid), *next(kinds), *options]
                done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                outcome = "recorded" if done.returncode == 0 else re.sub(r"\d+", "#", "".join(_causes(done.stderr)))
                self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
            time.sleep(0.1)

    def _processes(self) -> list[int]:
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                group = path.read_text().rpartition(")")[2].split()[2]
            except OSError:
                continue
            if int(group) == self.process.pid:
                found.append(int(path.parent.name))
        return sorted(found)


def _causes(text: str) -> list[str]:
    lines = text.splitlines()
    return [line.strip() for line in lines if "cause:" in line] or lines[-1:]


class Trial:
    """Runs programs on one GPU."""

    def __init__(
        self,
        oomph: pathlib.Path,
        python: pathlib.Path,
        gpu: str,
        folder: pathlib.Path,
        options: list[str] | None,
    ) -> None:
        """`options`: those of `oomph run`; None for `oomph attach`."""
        self.oomph = oomph
        self.options = options
        self.python = python
        self.folder = folder
        self.card = gpu.removesuffix(EMULATED) if gpu.endswith(EMULATED) else None
        self.emulated = None
        if self.card is not None:
            (folder / "emulated").mkdir()
            self.emulated = Emulated(oomph, self.card, folder / "emulated")

    def installed(self, modules: set[str]) -> set[str]:
        text = "import sys, importlib.util as u; print([m for m in sys.argv[1:] if u.find_spec(m)])"
        done = subprocess.run([self.python, "-c", text, *sorted(modules)], capture_output=True, text=True, check=True)
        return set(ast.literal_eval(done.stdout))

    def judge(self, program: Program, runs: int, exit_limit: float | None) -> Verdict:
        bare = []
        for number in range(runs):
            bare.append(self.run(program, f"bare{number}", is_recorded=False))
            if program.exit is not None and bare[-1].exit != program.exit:
                return Verdict(program, FAILED_BARE, [f"exit code {bare[-1].exit}\n{bare[-1].last_lines}"], bare)
        recorded = [self.run(program, f"recorded{number}", is_recorded=True) for number in range(runs)]
        differences = compare(program, bare, recorded)
        if exit_limit is not None:
            times = [median(run.ending for run in kind) for kind in (bare, recorded)]
            if None not in times and times[1] - times[0] > exit_limit:
                differences.append(f"time to exit: {times[0]:.2f} s bare, {times[1]:.2f} s recorded")
        word = (KNOWN if program.known else DIFFERS) if differences else SAME
        return Verdict(program, word, [program.known] if word == KNOWN else differences, bare, recorded)

    def run(self, program: Program, label: str, *, is_recorded: bool) -> Run:
        base = self.folder / program.name / label
        work, side = base / "work", base / "side"
        work.mkdir(parents=True)
        side.mkdir()
        placed = {program.path.name, PROBE}
        for name in placed:
            shutil.copy(PROGRAMS / name, work)
        recording = base / "recording"
        words = {"{script}": program.path.name, "{work}": str(work)}
        command = [*program.command, *program.arguments]
        for placeholder, value in words.items():
            command = [word.replace(placeholder, value) for word in command]
        is_started_by_oomph = is_recorded and self.options is not None
        if is_started_by_oomph:
            own = ["--emulate", self.card] if self.card else []
            own += [*self.options, "-o", str(recording)]
            # A script or `-m MODULE` goes to an interpreter of our choice; with options of its own, the interpreter is named.
            has_options = command[0].startswith("-") and command[0] != "-m"
            started = ["--", str(HERE / "interpreter.sh")] if has_options else ["--python", str(HERE / "interpreter.sh")]
            command = [str(self.oomph), "run", *own, *started, *command]
        else:
            command = [str(HERE / "interpreter.sh"), *command]
        environment = {
            **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")},
            **(self.emulated.variables(side) if self.emulated and not is_started_by_oomph else {}),
            # What one run has compiled is not there for the next.
            **{name: str(side / name.lower()) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR") if not self.card},
            "FIELD_SIDE": str(side),
            "FIELD_PYTHON": str(self.python),
            "NO_COLOR": "1",
            "HF_HUB_OFFLINE": "1",
            "FIELD_PAUSE": "0" if self.options is not None else VISIT_PAUSE,
            **program.environment,
        }
        given = program.stdin if self.card is None else None
        exit_code, own_words, sent, ended = self._wait(
            program, command, environment, work, side, given, is_visited=is_recorded and not is_started_by_oomph
        )
        if program.wait_for is not None:
            deadline = time.monotonic() + 20
            while not (work / program.wait_for).exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        top, began = _top(side)
        processes = [json.loads(path.read_text()) for path in sorted(side.glob("process*.json"))]
        main = next((found for found in processes if found["pid"] == top), None)
        since = sent if sent is not None else main and main["ended"]
        replaced = {str(work): "{work}", str(work.resolve()): "{work}"}
        if self.emulated is not None:
            replaced[str(HERE / "bare")] = ""

        def text(name: str) -> str:
            # Where the emulated GPU's own files are, which PyTorch names in warnings.
            found = re.sub(
                r'[^\s"\']*/oomph(?:_child|_emulated)?/(?:emulation|techniques)/', "{emulated}/", _read(side / name, replaced)
            )
            return re.sub(r"\(pid=\d+\)", "(pid)", found)  # of Python's warnings

        stderr = "".join(line for line in text("stderr").splitlines(True) if not line.startswith("oomph: "))
        return Run(
            exit=exit_code,
            stdout=_removed(text("stdout"), program.jitter.get("stdout", ())),
            stderr=_removed(stderr, program.jitter.get("stderr", ())),
            files=_files(work, placed, program.jitter.get("files", ())),
            memory=sorted((found["cuda"] for found in processes if "cuda" in found), key=str),
            ranks=len(list(recording.glob("rank*.json"))) if is_started_by_oomph else program.ranks,
            steps=[step for found in processes for step in found["steps"]],
            seconds=ended - began,
            ending=ended - since if since else None,
            own=own_words,
            last_lines="\n".join(stderr.splitlines()[-DIFF_LINES:]),
        )

    def _wait(
        self,
        program: Program,
        command: list[str],
        environment: dict[str, str],
        work: pathlib.Path,
        side: pathlib.Path,
        given: str | None,
        *,
        is_visited: bool,
    ) -> tuple[int, str, float | None, float]:
        """Exit code, what oomph printed, when the signal was sent, and when the interpreter ended."""
        with open(side / "own", "w+b") as own, open(side / "stdin", "w+") as stdin:
            stdin.write(given or "")
            stdin.seek(0)
            process = subprocess.Popen(
                command, cwd=work, env=environment, stdin=stdin, stdout=own, stderr=own, start_new_session=True
            )
            visitor = Visitor(self.oomph, process, side.parent)
            if is_visited:
                visitor.start()
            deadline = time.monotonic() + program.timeout
            try:
                watched = _watch(process, side)
                sent = self._send(program, process, side) if program.signal else None
                ended = _ended(watched, process, deadline)
                code = process.wait(timeout=max(1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                code, sent, ended = 124, None, time.time()
                with open(side / "stderr", "a") as stderr:
                    stderr.write(f"\nnot ended after {program.timeout:.0f} s\n")
            finally:
                # What the program has left behind, apart from daemons with a session of their own.
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
            own.seek(0)
            said = own.read().decode(errors="replace")
            if is_visited:
                visitor.join()
                said += "\n".join(f"{count} × {outcome}" for outcome, count in sorted(visitor.outcomes.items()))
            return (128 - code if code < 0 else code), said, sent, ended

    def _send(self, program: Program, process: subprocess.Popen[bytes], side: pathlib.Path) -> float | None:
        assert program.signal is not None
        number = signal.Signals[program.signal["send"]]
        deadline = time.monotonic() + MARKER_TIMEOUT
        while program.signal["after"] not in _read(side / "stdout", {}).splitlines():
            if process.poll() is not None or time.monotonic() > deadline:
                return None
            time.sleep(0.02)
        sent = time.time()
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does for Ctrl-C
        else:
            process.send_signal(number)
        return sent


def _watch(process: subprocess.Popen[bytes], side: pathlib.Path) -> int | None:
    """A descriptor of the interpreter process started by oomph; None if it has already exited."""
    while process.poll() is None:
        top, _ = _top(side)
        if top is not None:
            try:
                return os.pidfd_open(top)
            except ProcessLookupError:
                return None
        time.sleep(0.005)
    return None


def _ended(watched: int | None, process: subprocess.Popen[bytes], deadline: float) -> float:
    if watched is not None:
        waiting = select.poll()
        waiting.register(watched, select.POLLIN)
        ready = waiting.poll(max(0, deadline - time.monotonic()) * 1000)
        os.close(watched)
        if not ready:
            raise subprocess.TimeoutExpired(process.args, 0)
    return time.time()


def _top(side: pathlib.Path) -> tuple[int | None, float]:
    """Process ID of the interpreter, and when it started."""
    words = _read(side / "top", {}).split()
    return (int(words[0]), float(words[1].replace(",", "."))) if len(words) == 2 else (None, time.time())


def _read(path: pathlib.Path, replaced: dict[str, str]) -> str:
    text = path.read_text(errors="replace") if path.exists() else ""
    for old, new in replaced.items():
        text = text.replace(old, new)
    return text


def _removed(text: str, patterns: Any) -> str:
    """The text without its variable parts; `True`: all of it varies."""
    if patterns is True:
        return ""
    for pattern in patterns:
        text = re.sub(pattern, "", text, flags=re.MULTILINE)
    return text


def _files(work: pathlib.Path, placed: set[str], jitter: Any) -> dict[str, str]:
    """Files below the working directory with a hash of each; only names for files that vary."""
    found = {}
    for path in sorted(work.rglob("*")):
        name = str(path.relative_to(work))
        if name in placed or "__pycache__" in path.parts or path.is_dir():
            continue
        mode = oct(path.stat().st_mode & 0o777)
        is_jittery = any(fnmatch.fnmatch(name, pattern) for pattern in jitter)
        content = "~" if is_jittery else hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        found[name] = f"{mode} {content}"
    return found


def compare(program: Program, bare: list[Run], recorded: list[Run]) -> list[str]:
    """Visible differences between recorded and bare runs. A recorded run must match one of the bare runs."""
    found = []

    def judge(what: str, of: Any, show: Any, without_jitter: Any = None) -> None:
        known = [of(run) for run in bare]
        values = [of(run) for run in recorded]
        # Where bare runs differ among themselves, only what they have in common can be compared.
        if without_jitter is not None and any(one != known[0] for one in known):
            known, values = [without_jitter(one) for one in known], [without_jitter(one) for one in values]
        for value in values:
            if value not in known:
                found.append(f"{what}: {show(known[0], value)}")
                return

    numbers = lambda text: re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?", "#", text)

    plain = lambda old, new: f"{old} bare, {new} recorded"
    judge("exit code", lambda run: run.exit, plain)
    judge("standard output", lambda run: run.stdout, _diff, numbers)
    judge("standard error", lambda run: run.stderr, _diff, numbers)
    lines = lambda files: "\n".join(f"{name} {content}" for name, content in files.items())
    names = lambda files: {name: content.split()[0] for name, content in files.items()}
    judge("files", lambda run: run.files, lambda old, new: _diff(lines(old), lines(new)), names)
    if program.jitter.get("memory") or any(run.memory != bare[0].memory for run in bare):
        found += _memory_beyond(bare, recorded)
    else:
        rows = lambda memory: "\n".join(map(str, memory))
        judge("allocator", lambda run: run.memory, lambda old, new: _diff(rows(old), rows(new)))
    wrong = sorted({run.ranks for run in recorded if run.ranks != program.ranks})
    if wrong and program.ranks is not None:
        found.append(f"ranks: {program.ranks} process(es) used CUDA, {wrong[0]} recorded")
    return found


def _memory_beyond(bare: list[Run], recorded: list[Run]) -> list[str]:
    """Counters outside the range of bare runs, for kernels chosen by timing."""
    for key in ("allocations", "requested", "peak_allocated", "peak_reserved"):
        totals = lambda runs: [sum(process[key] for process in run.memory) for run in runs]
        low, high = min(totals(bare)), max(totals(bare))
        for total in totals(recorded):
            if not low * (1 - MEMORY_TOLERANCE) <= total <= high * (1 + MEMORY_TOLERANCE):
                return [f"allocator: {key} {low} to {high} bare, {total} recorded"]
    return []


def _diff(old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), "bare", "recorded", lineterm="", n=0)
    lines = [line[:300] for line in lines if not line.startswith(("---", "+++", "@@"))]
    more = [f"… {len(lines) - DIFF_LINES} more lines"] if len(lines) > DIFF_LINES else []
    return "\n" + "\n".join(f"    {line}" for line in lines[:DIFF_LINES] + more)


def median(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _pair(verdict: Verdict, of: Any, form: str) -> str:
    """A figure for both kinds of run, `-` if there is none."""
    figures = [of(runs) if runs else None for runs in (verdict.bare, verdict.recorded)]
    return " → ".join("-" if figure is None else form.format(figure) for figure in figures)


def table(verdicts: list[Verdict]) -> str:
    """The results in Markdown."""
    lines = [
        "| program | what it does | result | requests | peak allocated, MiB | ranks | step, ms | to exit, s | in all, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    memory = lambda key, unit: lambda runs: sum(process[key] for process in runs[0].memory) / unit if runs[0].memory else None
    steps = lambda runs: median(1e3 * step for run in runs for step in run.steps[1:])
    described = ""
    for verdict in verdicts:
        about, described = ("" if verdict.program.about == described else verdict.program.about), verdict.program.about
        reason = "; ".join(difference.split(":")[0].split(" (")[0] for difference in verdict.differences)
        result = f"**differs**: {reason}" if verdict.word == DIFFERS else verdict.word
        result = f"differs as documented: {verdict.program.known}" if verdict.word == KNOWN else result
        cells = ["-"] * 6
        if verdict.word in (SAME, DIFFERS, KNOWN):
            cells = [
                _pair(verdict, memory("allocations", 1), "{:.0f}"),
                _pair(verdict, memory("peak_allocated", 1 << 20), "{:.1f}"),
                f"{'any' if verdict.program.ranks is None else verdict.program.ranks} → {verdict.recorded[0].ranks}",
                _pair(verdict, steps, "{:.2f}"),
                _pair(verdict, lambda runs: median(run.ending for run in runs), "{:.2f}"),
                _pair(verdict, lambda runs: median(run.seconds for run in runs), "{:.1f}"),
            ]
        lines.append(f"| {verdict.program.name} | {about} | {result} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_markdown(path: pathlib.Path, gpu: str, text: str) -> None:
    """Inserts the table into the page at its marker; a new page consists of the table alone."""
    begin, end = f"<!-- field trials: {gpu} -->", "<!-- end of field trials -->"
    page = path.read_text() if path.exists() else ""
    place = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    section = f"{begin}\n{text}\n{end}"
    path.write_text(place.sub(lambda _: section, page) if place.search(page) else f"{page}{section}\n")


def as_json(verdict: Verdict) -> dict[str, Any]:
    own = {"name": verdict.program.name, "verdict": verdict.word, "differences": verdict.differences}
    return {**own, "bare": [vars(run) for run in verdict.bare], "recorded": [vars(run) for run in verdict.recorded]}


def from_json(path: pathlib.Path) -> list[Verdict]:
    known = {program.name: program for program in programs()}
    runs = lambda rows: [Run(**row) for row in rows]
    return [
        Verdict(known[row["name"]], row["verdict"], row["differences"], runs(row["bare"]), runs(row["recorded"]))
        for row in json.loads(path.read_text())
    ]


def part(text: str) -> tuple[int, int]:
    number, of = map(int, text.split("/"))
    if not 1 <= number <= of:
        raise ValueError
    return number, of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="h200-emulated", help="`real`, or a card of `oomph predict` with `-emulated`")
    parser.add_argument("--only", action="append", metavar="NAME", help="programs by name or pattern; repeatable")
    parser.add_argument("--runs", type=int, default=1, help="runs of each kind")
    parser.add_argument("--jobs", type=int, default=1, help="programs to run in parallel")
    parser.add_argument("--oomph", type=pathlib.Path, default=ROOT / "target/debug/oomph")
    parser.add_argument("--python", type=pathlib.Path, default=pathlib.Path(sys.executable))
    parser.add_argument("--part", type=part, metavar="K/N", default=(1, 1), help="the K-th of N parts")
    parser.add_argument("--exit-limit", type=float, help="seconds that a recorded program may take longer to exit")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="page to insert the table into")
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR", help="keep the working directories here")
    parser.add_argument("--from", dest="files", type=pathlib.Path, action="append", metavar="FILE", help="results of --json")
    parser.add_argument("--trace-driver", action="store_true", help="record with `oomph run --trace-driver`; needs a real GPU")
    parser.add_argument("--attach", action="store_true", help="attach to the programs while they run")
    parser.add_argument("--list", action="store_true", help="list the programs")
    args = parser.parse_args()
    if args.files:
        verdicts = [verdict for path in args.files for verdict in from_json(path)]
        return finish(verdicts, args)
    number, parts = args.part
    chosen = programs()
    if args.only:
        chosen = [one for one in chosen if any(fnmatch.fnmatch(one.name, pattern) for pattern in args.only)]
    chosen = chosen[number - 1 :: parts]
    if not chosen:
        print(f"error: no program is called {', '.join(args.only or [])}", file=sys.stderr)
        return 2
    if args.list:
        for program in chosen:
            print(f"{program.name:30} {program.about}")
        return 0
    oomph = shutil.which(args.oomph)
    if oomph is None:
        print(f"error: `{args.oomph}` not found\nhint: build it with `cargo build`, or name it with --oomph", file=sys.stderr)
        return 2
    # Ignored signals are inherited, and in the background of a shell or under nohup some are; programs are sent them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(128 + signal.SIGHUP))
    with tempfile.TemporaryDirectory(prefix="field-") as scratch:
        folder = args.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        # Not resolved: the path of a virtual environment's interpreter is what makes it that environment's.
        python = pathlib.Path(os.path.abspath(args.python))
        options = None if args.attach else ["--trace-driver"] if args.trace_driver else []
        trial = Trial(pathlib.Path(oomph).resolve(), python, args.gpu, folder.resolve(), options)
        chosen = [program for program in chosen if trial.card is None or program.only != "real"]
        installed = trial.installed({module for program in chosen for module in program.needs} | {"torch"})

        def judge(program: Program) -> Verdict:
            missing = [module for module in program.needs if module not in installed]
            if missing:
                return Verdict(program, NOT_INSTALLED, [", ".join(missing)])
            return trial.judge(program, args.runs, args.exit_limit)

        verdicts = []
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            for running in concurrent.futures.as_completed([pool.submit(judge, program) for program in chosen]):
                verdict = running.result()
                verdicts.append(verdict)
                print(f"{verdict.program.name:30} {verdict.word}", flush=True)
                if args.attach:
                    print(*(f"  {line}" for run in verdict.recorded for line in run.own.splitlines()), sep="\n", flush=True)
                for difference in verdict.differences:
                    print("  " + difference.replace("\n", "\n  "), flush=True)
    verdicts.sort(key=lambda verdict: chosen.index(verdict.program))
    return finish(verdicts, args)


def finish(verdicts: list[Verdict], args: argparse.Namespace) -> int:
    """Writes the results and returns whether any program differs."""
    counts = {word: sum(v.word == word for v in verdicts) for word in (SAME, DIFFERS, KNOWN, NOT_INSTALLED, FAILED_BARE)}
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    if args.json:
        args.json.write_text(json.dumps([as_json(verdict) for verdict in verdicts], indent=1))
    if args.markdown:
        write_markdown(args.markdown, args.gpu, table(verdicts))
    return 1 if counts[DIFFERS] else 0


if __name__ == "__main__":
    sys.exit(main())
