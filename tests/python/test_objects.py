"""Looking at all objects of a process while other threads work."""

import gc
import sys
import threading
import time

import pytest

from oomph.interpreter import objects

ROUNDS = 30


class Thing:
    pass


@pytest.fixture
def quick_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def tuples_are_built_while(look) -> list[BaseException]:
    """Builds tuples from generators that let other threads run, as a DataLoader's pin-memory thread does."""
    failed: list[BaseException] = []
    is_done = threading.Event()

    def build() -> None:
        try:
            while not is_done.is_set():
                tuple(time.sleep(0) for _ in range(12))
        except SystemError as error:
            failed.append(error)

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(ROUNDS):
        look()
    is_done.set()
    for thread in threads:
        thread.join()
    return failed


@pytest.mark.nightly
def test_a_tuple_that_a_thread_is_filling_is_not_touched(quick_switches) -> None:
    thing = Thing()
    assert tuples_are_built_while(lambda: objects.instances(Thing)) == []
    assert objects.instances(Thing) == [thing]


def test_a_plain_look_would_break_the_thread(quick_switches) -> None:
    """What the other test is worth."""

    def look() -> None:
        things = gc.get_objects()
        time.sleep(0.01)
        del things

    assert tuples_are_built_while(look)


def test_a_tuple_that_is_being_filled_is_not_among_the_complete_ones() -> None:
    found = []

    def fill():
        yield from range(3)
        tuples = [of for of in objects.complete_objects() if type(of) is tuple and len(of) == 10]
        # Objects of other tests may not be comparable.
        found.extend(of for of in tuples if [*map(type, of[:3])] == [int] * 3 and of[:3] == (0, 1, 2))
        yield 3

    assert tuple(fill()) == (0, 1, 2, 3)
    assert found == []


def test_instances_of_subclasses_are_found() -> None:
    class Other(Thing):
        pass

    kept = [Thing(), Other()]
    assert sorted(map(id, objects.instances(Thing))) == sorted(map(id, kept))
