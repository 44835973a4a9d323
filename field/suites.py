"""PyTorch's own tests of CUDA memory on the emulated GPU, without the recorder and with it.

    python field/suites.py ~/pytorch                                  the suites below
    python field/suites.py ~/pytorch --only test_cuda.py              one of them
    python field/suites.py ~/pytorch --only test_cuda.py --tests '*memory*'

`~/pytorch` is a checkout of the release that is installed. Tests expected to fail are listed in suites.json, with the reason. A test
that ends its process or hangs has failed, and the rest go on in another process.

Exit codes: 0 all as listed, 1 unexpected failures or unexpected passes, 2 the tests could not run.
"""

from __future__ import annotations

import argparse
import fnmatch
import glob
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from emulated import HERE, Emulated, stop

ROOT = HERE.parent
EVENT_TIMEOUT = 300
"""Seconds without an event after which a process counts as hung."""
MAX_PROCESSES = 100
"""Processes for one suite."""
BARE, RECORDED = "bare", "recorded"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
EXIT = "exit"
"""Stands for the end of a process after its last test."""


@dataclass(frozen=True)
class Suite:
    path: str
    """Below the checkout's `test`."""
    gpus: int = 1


SUITES = (
    Suite("test_cuda.py"),
    Suite("test_cuda_trace.py"),
    Suite("test_cuda_primary_ctx.py"),
    Suite("test_cuda_multigpu.py", gpus=2),
    Suite("inductor/test_cudagraph_trees.py"),
)


@dataclass
class Result:
    outcome: str
    cause: str = ""


@dataclass(frozen=True)
class Known:
    """Tests expected to fail, and why."""

    why: str
    tests: list[str]
    """Patterns, `SUITE::CLASS::METHOD`."""
    only: str | None = None
    """Only bare, or only recorded."""

    @classmethod
    def read(cls, path: pathlib.Path, mode: str) -> list[Known]:
        """The groups for one mode."""
        groups = [cls(**group) for group in json.loads(path.read_text())]
        return [group for group in groups if group.only in (None, mode)]


def is_listed(test: str, known: list[Known]) -> bool:
    return any(fnmatch.fnmatchcase(test, pattern) for group in known for pattern in group.tests)


class Runner:
    """Runs one suite in one mode, in as many processes as it takes."""

    def __init__(self, oomph: pathlib.Path, card: str, python: pathlib.Path, tests: pathlib.Path, folder: pathlib.Path) -> None:
        self.oomph, self.card, self.python, self.tests, self.folder = oomph, card, python, tests, folder
        self.emulated: dict[int, Emulated] = {}
        for gpus in {suite.gpus for suite in SUITES}:
            (folder / f"emulated{gpus}").mkdir()
            self.emulated[gpus] = Emulated(oomph, card, folder / f"emulated{gpus}", "--gpus", str(gpus))

    def run(self, suite: Suite, mode: str, chosen: str, known: list[Known]) -> dict[str, Result]:
        results = self._run(suite, mode, chosen)
        # Failed tests can leave settings and tensors behind that make others fail, so each unlisted failure runs again alone.
        for test in [test for test, result in results.items() if result.outcome == FAILED and test != EXIT]:
            if not is_listed(f"{suite.path}::{test}", known):
                results |= self._run(suite, mode, glob.escape(test))
        return results

    def _run(self, suite: Suite, mode: str, chosen: str) -> dict[str, Result]:
        results: dict[str, Result] = {}
        for _ in range(MAX_PROCESSES):
            side = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
            (side / "left_out").write_text("\n".join(results))
            code = self._process(suite, mode, chosen, side)
            found, running, is_finished = read(side / "events")
            results |= found
            if is_finished and (results or code in (0, 5)):
                if code not in (0, 1, 5):
                    results[EXIT] = Result(FAILED, f"exit code {code} after the last test; {_end(side / 'output', 1)}")
                if chosen == "*" and not results:
                    stop(f"{suite.path} has no tests ({mode})\n{_end(side / 'output')}")
                return results
            if not found:
                stop(f"{suite.path} does not run ({mode}, exit code {code})\n{_end(side / 'output')}")
            results[running or [*found][-1]] = Result(FAILED, f"its process ended with {code}; {_end(side / 'output', 1)}")
        stop(f"{suite.path} ended {MAX_PROCESSES} processes ({mode})")

    def _process(self, suite: Suite, mode: str, chosen: str, side: pathlib.Path) -> int:
        file = self.tests / suite.path
        script = [str(HERE / "suite.py"), str(file), str(side / "events"), str(side / "left_out"), chosen]
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        if mode == BARE:
            environment |= self.emulated[suite.gpus].variables(side)
            command = [str(self.python), *script]
        else:
            options = ["--emulate", self.card, "--gpus", str(suite.gpus), "-o", str(side / "recording")]
            command = [str(self.oomph), "run", *options, "--python", str(self.python), *script]
        with open(side / "output", "wb") as output:
            process = subprocess.Popen(
                command,
                cwd=file.parent,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                return self._wait(process, side / "events")
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
                shutil.rmtree(side / "recording", ignore_errors=True)

    def _wait(self, process: subprocess.Popen[bytes], events: pathlib.Path) -> int:
        size, since = 0, time.monotonic()
        while process.poll() is None:
            time.sleep(0.2)
            now = events.stat().st_size if events.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > EVENT_TIMEOUT:
                return 124
        return process.returncode


def read(events: pathlib.Path) -> tuple[dict[str, Result], str | None, bool]:
    """Results, the test that was running when the process ended, and whether all have ended."""
    results: dict[str, Result] = {}
    running, is_finished = None, False
    for line in events.read_text().splitlines() if events.exists() else []:
        event = json.loads(line)
        if "start" in event:
            running = event["start"]
            results[running] = Result(PASSED)
        elif "result" in event and running is not None and results[running].outcome != FAILED:
            # A test fails by any of its parts: subtests, preparation, clean-up.
            results[running] = Result(event["result"], event["cause"])
        elif "end" in event:
            running = None
        elif "finished" in event:
            is_finished = True
    return results, running, is_finished


def _end(path: pathlib.Path, lines: int = 12) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def judge(mode: str, results: dict[str, Result], known: list[Known]) -> list[str]:
    """Unexpected failures and passes in one mode, of the tests of all suites."""
    failed = {test: result.cause for test, result in results.items() if result.outcome == FAILED}
    ran = [test for test, result in results.items() if result.outcome != SKIPPED]
    found = [f"{test} ({mode}): {cause}" for test, cause in failed.items() if not is_listed(test, known)]
    for group in known:
        for pattern in group.tests:
            if fnmatch.filter(ran, pattern) and not fnmatch.filter(failed, pattern):
                found.append(f"{pattern} ({mode}): passes, but is listed as failing: {group.why}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pytorch", type=pathlib.Path, help="a checkout of PyTorch")
    parser.add_argument("--only", action="append", metavar="SUITE", help="one of the suites; repeatable")
    parser.add_argument("--tests", default="*", metavar="PATTERN", help="tests by name, CLASS::METHOD")
    parser.add_argument("--mode", choices=(BARE, RECORDED), help="without or with the recorder (default: both)")
    parser.add_argument("--emulate", default="h200", metavar="NAME", help="a GPU of `oomph predict`")
    parser.add_argument("--jobs", type=int, default=2, help="suites to run in parallel")
    parser.add_argument("--oomph", type=pathlib.Path, default=ROOT / "target/debug/oomph")
    parser.add_argument("--python", type=pathlib.Path, default=pathlib.Path(sys.executable))
    parser.add_argument("--known", type=pathlib.Path, default=HERE / "suites.json", help="tests expected to fail")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all results")
    args = parser.parse_args()
    tests = args.pytorch.resolve() / "test"
    oomph = shutil.which(args.oomph)
    chosen = [suite for suite in SUITES if args.only is None or suite.path in args.only]
    missing = [suite.path for suite in chosen if not (tests / suite.path).exists()]
    if oomph is None:
        stop(f"`{args.oomph}` not found\nhint: build it with `cargo build`, or name it with --oomph")
    if missing:
        stop(f"no {missing[0]} in {tests}\nhint: name a checkout of PyTorch")
    if not chosen:
        stop(f"no suite is called {args.only[0]}; there are {', '.join(suite.path for suite in SUITES)}")
    modes = [args.mode] if args.mode else [BARE, RECORDED]
    known = {mode: Known.read(args.known, mode) for mode in modes}
    outcomes: dict[str, dict[str, Result]] = {mode: {} for mode in modes}
    with tempfile.TemporaryDirectory(prefix="suites-") as folder, ThreadPoolExecutor(args.jobs) as pool:
        # Not resolved: the path of a virtual environment's interpreter is what makes it that environment's.
        python = pathlib.Path(os.path.abspath(args.python))
        runner = Runner(pathlib.Path(oomph).resolve(), args.emulate, python, tests, pathlib.Path(folder))
        running = [
            (suite, mode, pool.submit(runner.run, suite, mode, args.tests, known[mode])) for suite in chosen for mode in modes
        ]
        try:
            for suite, mode, future in running:
                results = future.result()
                outcomes[mode].update({f"{suite.path}::{test}": result for test, result in results.items()})
                counts = [
                    f"{sum(result.outcome == outcome for result in results.values())} {outcome}"
                    for outcome in (PASSED, FAILED, SKIPPED)
                ]
                print(f"{suite.path:35} {mode:9} {', '.join(counts)}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if not any(outcomes.values()):
        stop(f"no test matches {args.tests}")
    found = [line for mode, results in outcomes.items() for line in judge(mode, results, known[mode])]
    for line in found:
        print(line)
    if args.json:
        rows = {mode: {test: vars(result) for test, result in results.items()} for mode, results in outcomes.items()}
        args.json.write_text(json.dumps(rows, indent=1))
    print(f"{len(found)} not as listed in {args.known.name}" if found else "all as listed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
