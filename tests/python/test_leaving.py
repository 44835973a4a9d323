"""A loop that repeats itself is left as by `break`, wherever something follows it."""

import pathlib
import runpy
import textwrap

import pytest

from oomph.bootstrap.leaving import Leaving, Outcome
from oomph.interpreter.frames import callers


class Program:
    """Runs a program that calls `step()`; at each third call the loop around it is left."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = folder / "program.py"
        self.problems: list[str] = []
        self.leaving = Leaving(self.problems.append)
        self.outcomes: list[Outcome] = []
        self.steps = 0
        self.log: list[object] = []

    def step(self) -> None:
        self.steps += 1
        if self.steps % 3 == 0:
            frames = [frame for frame in callers() if frame.f_code.co_filename == str(self.path)]
            self.outcomes.append(self.leaving.leave(frames))
            if self.outcomes[-1] is not Outcome.LEAVES:
                raise KeyboardInterrupt

    def run(self, text: str) -> list[object]:
        self.path.write_text(textwrap.dedent(text))
        try:
            runpy.run_path(str(self.path), {"step": self.step, "log": self.log.append}, "__main__")
        except KeyboardInterrupt:
            self.log.append("stopped")
        assert self.problems == []
        return self.log


@pytest.fixture
def program(tmp_path: pathlib.Path) -> Program:
    return Program(tmp_path)


@pytest.mark.parametrize(
    "loop",
    ["for i in range(1000):", "while step.__self__.steps < 1000:", "for i, x in enumerate(range(1000)):"],
    ids=["for", "while", "enumerate"],
)
@pytest.mark.parametrize(
    "follows",
    [
        "log('after')",
        "if True: log('after')",
        "with open(__file__):\n    log('after')",
        "for k in [1]:\n    log('after')",
        "while not seen:\n    seen = True; log('after')",
        "try:\n    log('after')\nfinally:\n    pass",
    ],
    ids=["call", "if", "with", "for", "while", "try"],
)
def test_what_follows_a_loop_runs(program: Program, loop: str, follows: str) -> None:
    body = f"seen = False\n{loop}\n    before = 1\n    step()\n{follows}\nlog('end')"
    in_function = "def main():\n" + textwrap.indent(body, "    ") + "\nmain()"
    for text in (body, in_function):
        program.log.clear()
        assert program.run(text) == ["after", "end"]


def test_loops_around_are_left_after_a_few_times(program: Program) -> None:
    text = """
        def train():
            for i in range(1000):
                x = 1
                step()
            return i
        for epoch in range(1000):
            train()
            log(epoch)
        log("end")
    """
    assert program.run(text) == [0, 1, 2, 3, "end"]
    assert program.steps == 12


def test_nested_loops_of_one_function_are_left_together(program: Program) -> None:
    text = """
        def main():
            for epoch in range(1000):
                for i in range(1000):
                    x = 1
                    step()
                log(epoch)
            log("end")
        main()
    """
    assert program.run(text) == [0, 1, 2, "end"]


@pytest.mark.parametrize("block", ["with open(__file__):", "try:"])
def test_no_block_around_a_loop_is_skipped(program: Program, block: str) -> None:
    text = f"{block}\n    for i in range(1000):\n        x = 1\n        step()\n"
    text += "finally:\n    log('closed')" if block == "try:" else ""
    assert program.run(text + "\nlog('after')")[-1] in ("stopped", "closed")
    assert program.outcomes == [Outcome.CANNOT]


def test_a_loop_with_nothing_behind_it_is_the_end(program: Program) -> None:
    text = """
        def main():
            for i in range(1000):
                x = 1
                step()
        if __name__ == "__main__":
            main()
    """
    assert program.run(text) == ["stopped"] and program.outcomes == [Outcome.NOTHING_FOLLOWS]
