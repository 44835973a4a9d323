"""A loop that repeats itself is left as by `break`, wherever something follows it."""

import pathlib
import runpy
import textwrap

import pytest

from oomph.bootstrap.leaving import Leaving, Outcome
from oomph.bootstrap.line_trace import LineTrace
from oomph.bootstrap.statements import Statements
from oomph.interpreter.frames import callers


class Stop(BaseException):
    pass


class Program:
    """Runs a program that calls `step()`; at each third call the loop around it is left."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = folder / "program.py"
        self.problems: list[str] = []
        self.leaving = Leaving(Statements(), LineTrace(self.problems.append))
        self.outcomes: list[Outcome] = []
        self.steps = 0
        self.goes_on = False
        """Whether the program runs on where a loop cannot be left."""
        self.log: list[object] = []

    def step(self) -> None:
        self.steps += 1
        if self.steps % 3 == 0:
            frames = list(callers())
            while frames[-1].f_code.co_filename != str(self.path):
                frames.pop()
            self.outcomes.append(self.leaving.leave(frames))
            if self.outcomes[-1] is not Outcome.LEAVES and not self.goes_on:
                raise Stop

    def run(self, text: str) -> list[object]:
        self.path.write_text(textwrap.dedent(text))
        try:
            runpy.run_path(str(self.path), {"step": self.step, "log": self.log.append}, "__main__")
        except Stop:
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
        "result = (\n    log('after')\n)\nassert result is None",
        "log(\n    'after'\n)",
        "table = {\n    'a': log('after'),\n    'b': 2,\n}\nassert table == {'a': None, 'b': 2}",
    ],
    ids=["call", "if", "with", "for", "while", "try", "expression", "argument", "dictionary"],
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


@pytest.mark.parametrize(
    ("steps", "epochs", "outcomes"),
    [
        (3, 2, [Outcome.CANNOT, Outcome.NOTHING_FOLLOWS]),  # in the second epoch it has run
        (9, 1, [Outcome.CANNOT] * 3),  # however often the same call is asked
    ],
)
def test_the_rest_of_an_iteration_follows_a_loop_at_the_end_of_a_function(
    program: Program, steps: int, epochs: int, outcomes: list[Outcome]
) -> None:
    text = f"""
        def train():
            for i in range({steps}):
                x = 1
                step()
        for epoch in range({epochs}):
            train()
            log(epoch)
    """
    program.goes_on = True
    assert program.run(text) == list(range(epochs))
    assert program.outcomes == outcomes


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


@pytest.mark.parametrize(
    ("calls", "outcome"),
    [
        ("click.command()(main).main([], standalone_mode=False)", Outcome.NOTHING_FOLLOWS),
        ("torch.no_grad()(main)()", Outcome.NOTHING_FOLLOWS),
        ("next(map(logging.Filterer.filter, [Trainer()], [None]))", Outcome.CANNOT),
        ("torch.no_grad()(main)(); log('evaluated')", Outcome.CANNOT),
    ],
    ids=["command line", "decorator", "library", "followed"],
)
def test_what_calls_a_function_of_the_program_for_its_command_line_does_no_more(
    program: Program, calls: str, outcome: Outcome
) -> None:
    text = """
        import click, logging, torch

        def main():
            for i in range(1000):
                x = 1
                step()

        class Trainer:
            @property
            def filters(self):
                main()
                return []

    """
    program.run(textwrap.dedent(text) + calls)
    assert program.outcomes == [outcome]


@pytest.mark.parametrize("around", ["if True:", "with open(__file__):", "try:"])
def test_what_follows_in_a_block_around_is_not_overlooked(program: Program, around: str) -> None:
    text = (
        f"def train():\n    for i in range(1000):\n        x = 1\n        step()\n{around}\n    train()\n    log('evaluated')\n"
    )
    program.run(text + ("finally:\n    pass\n" if around == "try:" else ""))
    assert program.outcomes == [Outcome.CANNOT]


def test_what_follows_a_step_in_its_function_is_part_of_the_loop(program: Program) -> None:
    text = """
        def train_step():
            step()
            return 1
        for i in range(1000):
            x = train_step()
    """
    assert program.run(text) == ["stopped"] and program.outcomes == [Outcome.NOTHING_FOLLOWS]


def test_a_caught_exception_does_not_keep_the_program_in_the_loop(program: Program) -> None:
    text = """
        for i in range(1000):
            x = 1
            step()
            try:
                raise ValueError
            except ValueError:
                pass
        log("after")
    """
    assert program.run(text) == ["after"]


def test_without_source_nothing_is_claimed() -> None:
    leaving, outcomes = Leaving(Statements(), LineTrace(print)), []

    def step() -> None:
        frames = [frame for frame in callers() if frame.f_code.co_filename == "<string>"]
        outcomes.append(leaving.leave(frames))

    exec(compile("for i in range(2):\n    x = 1\n    step()", "<string>", "exec"), {"step": step})
    assert outcomes == [Outcome.CANNOT] * 2
