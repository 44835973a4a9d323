"""Iterations in which a condition of a loop holds for the first time run, although the ones before them do not."""

import pathlib
import runpy
import sys
import textwrap

import pytest

from oomph.bootstrap.later_iterations import LaterIterations
from oomph.bootstrap.leaving import Leaving, Outcome
from oomph.bootstrap.line_trace import LineTrace
from oomph.bootstrap.statements import Statements
from oomph.interpreter.frames import callers


class Stop(BaseException):
    pass


class Program:
    """Runs a program that calls `step(i)`, whose loop repeats from the 20th call on. It ends when nothing is left to run."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = folder / "program.py"
        self.problems: list[str] = []
        statements, trace = Statements(), LineTrace(self.problems.append)
        self.later = LaterIterations(statements, trace, self.problems.append, lambda: True)
        self.leaving = Leaving(statements, trace, self.later)
        self.leaves = False
        """Whether loops are left, as well."""
        self.steps: list[int] = []
        self.log: list[object] = []

    def step(self, number: int) -> None:
        self.steps.append(number)
        # As four of them repeat.
        if len(self.steps) >= 20 and len(self.steps) % 4 == 0:
            frames = [frame for frame in callers() if frame.f_code.co_filename == str(self.path)]
            outcome = self.leaving.leave(frames)
            if outcome is not Outcome.RUNS_LATER_ITERATIONS and not (self.leaves and outcome is Outcome.LEAVES):
                raise Stop

    def run(self, text: str) -> list[object]:
        self.path.write_text(textwrap.dedent(text))
        try:
            runpy.run_path(str(self.path), {"step": self.step, "log": self.log.append}, "__main__")
        except Stop:
            pass
        assert sys.gettrace() is None
        assert self.problems == []
        return self.log

    @property
    def numbers(self) -> list[int]:
        """The numbers that the program was taken to."""
        return [of["number"] for of in self.later.reached]


@pytest.fixture
def program(tmp_path: pathlib.Path) -> Program:
    return Program(tmp_path)


@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        ("i % 100 == 0", [100]),
        ("i > 0 and i % 100 == 0", [100]),
        ("(i + 1) % 100 == 0", [99]),
        ("not (1 + i) % 100", [99]),
        ("i % 100 == 7", []),
        ("i % 100 == 77", [77]),
        ("77 == i % 100", [77]),
        ("i % 100 > 90", [91]),
        ("i % 100 <= 50", [51]),
        ("[0] * 5000 and data[i % len(data)]", []),
        ("i == 50 or i == 60", [50, 60]),
        ("i > 50", [51]),
        ("50 <= i", [50]),
        ("i < 50", [50]),
        ("i == len(data) - 1", [999]),
        ("i % args.every == 0", [250]),
        ("i % config['every'] == 0", [40]),
        ("i % (2 * Fixed.every) == 0", [600]),
        ("i % 5 == 0", []),
        ("i % 2000 == 0", []),
        ("i == 1000", []),
        ("i % unknown() == 0", []),
        ("i % 0 == 1 if False else False", []),
        ("other % 100 == 0", []),
    ],
)
@pytest.mark.parametrize(
    "loop",
    ["for i in range(1000):", "for i in bar(range(1000)):", "for i in around:", "for i, x in enumerate(data):"],
    ids=["range", "call", "attribute", "enumerate"],
)
def test_each_condition_holds_once_more(program: Program, loop: str, condition: str, numbers: list[int]) -> None:
    program.run(
        f"""
        import argparse

        class Fixed:
            every = 300

        class Bar:
            def __init__(self, iterable):
                self.iterable = iterable

            def __iter__(self):
                return iter(self.iterable)

        args, config = argparse.Namespace(every=250), {{"every": 40}}
        other, unknown, data, bar = 0, (lambda: 100), list(range(1000)), iter
        around = Bar(range(1000))

        def main():
            {loop}
                step(
                    i,
                )
                if {condition}:
                    log(i)

        main()
        """
    )
    assert program.numbers == numbers
    assert set(numbers) <= {*program.steps}
    assert program.steps[:20] == list(range(20))


def test_a_later_iteration_is_the_next_one_and_the_others_go_on_from_where_they_were(program: Program) -> None:
    log = program.run(
        """
        for i in range(1000):
            step(i)
            if i % 100 == 0:
                log(f"evaluate {i}")
            later = i + 1 if i % 250 == 249 else None
        """
    )
    assert log == ["evaluate 0", "evaluate 100"]
    assert program.steps[20:] == [100, 249, 22, 23]


@pytest.mark.parametrize("loop", ["while i < 1000:", "while True:", "while i <= limit:"])
@pytest.mark.parametrize("counts_first", [True, False])
def test_a_counter_of_the_program_goes_on_from_the_later_iteration(program: Program, loop: str, counts_first: bool) -> None:
    body = ["i += 1", "if i % 100 == 0: log(i)"] if counts_first else ["if i % 100 == 0: log(i)", "i += 1"]
    log = program.run("i, limit = 0, 500\n" + "\n    ".join([loop, "step(i)", *body]))
    assert 100 in log
    assert max(program.steps) <= 103


@pytest.mark.parametrize(
    "loop", ["while i < 50:", "while i < end():", "while end() > i:", "for i in iter(range(50)):", "for i in values:"]
)
def test_a_loop_does_not_get_further_than_it_would(program: Program, loop: str) -> None:
    program.run(
        f"""
        i, values, end = 0, [0] * 50, lambda: 50
        {loop}
            step(i)
            if i % 100 == 0:
                log(i)
            i += 1
        """
    )
    assert program.numbers == []


def test_a_loop_that_the_program_leaves_gets_no_other_number(program: Program) -> None:
    log = program.run(
        """
        def first():
            for i in range(1000):
                step(i)
                if i % 100 == 0 and i:
                    break
                if i % 500 == 0:
                    pass

        first()
        for i in range(3):
            log(i)
        """
    )
    assert log == [0, 1, 2]
    assert program.numbers == [100]


def test_an_exception_in_a_later_iteration_is_the_programs_own(program: Program) -> None:
    log = program.run(
        """
        def main():
            for i in range(1000):
                step(i)
                if i == 100:
                    raise ValueError(i)

        try:
            main()
        except ValueError as error:
            log(str(error))
        """
    )
    assert log == ["100"]


def test_a_debuggers_trace_stays(program: Program) -> None:
    def trace(*_: object) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        program.path.write_text("for i in range(1000):\n    step(i)\n    if i == 100: log(i)\n")
        with pytest.raises(Stop):
            runpy.run_path(str(program.path), {"step": program.step, "log": program.log.append})
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
    assert program.numbers == []


def test_iterations_of_a_loop_around_run_when_the_inner_loop_is_left(program: Program) -> None:
    program.leaves = True
    log = program.run(
        """
        def main():
            for epoch in range(100):
                for k in range(1000):
                    x = 1
                    step(k)
                x = 2
                if epoch % 25 == 24 or epoch == 60:
                    log(epoch)

        main()
        """
    )
    # The loop around is the last statement, so it goes on.
    assert log[:2] == [24, 60] and program.numbers == [24, 60]


def test_other_loops_inside_of_a_later_iteration_do_not_end_it(program: Program) -> None:
    log = program.run(
        """
        def evaluate():
            for k in range(60):
                step(k)

        def main():
            for i in range(1000):
                step(i)
                if i % 100 == 99:
                    evaluate()
                if i % 250 == 249:
                    log(i)

        main()
        """
    )
    assert log == [249]


def test_a_global_counter_is_set(program: Program) -> None:
    log = program.run(
        """
        i = 0

        def main():
            global i
            while i < 1000:
                step(i)
                i += 1
                if i % 100 == 0:
                    log(i)

        main()
        """
    )
    assert log == [100]


@pytest.mark.parametrize("conditions", ["i % 100 == 0", "i % 100 == 0 or i % 250 == 0"])
@pytest.mark.parametrize("copy", ["None", "locals()"])
def test_no_value_of_a_variable_is_kept(program: Program, copy: str, conditions: str) -> None:
    log = program.run(
        f"""
        import gc, weakref

        class Batch:
            pass

        def main():
            alive = weakref.WeakSet()
            copy = {copy}
            for i in range(1000):
                batch = Batch()
                alive.add(batch)
                step(i)
                if {conditions}:
                    log(i)
                log(len(alive) if copy is None else sorted(copy))

        gc.disable()
        main()
        gc.enable()
        """
    )
    number = log.index(100)
    after = log[number + 1 :]
    after = [of for of in after if of != 250]
    assert len(after) == 3
    if copy == "None":
        assert {*log[number - 20 : number], *after} == {1}
    else:
        # What `locals()` returned stays.
        assert all("alive" in of for of in after)
