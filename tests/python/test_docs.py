"""The examples of the documentation, run as they stand."""

import doctest

import pytest

from conftest import ROOT


@pytest.mark.parametrize("name", ["reference/python.md"])
def test_every_example_gives_what_the_page_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(str(ROOT / "docs" / name), module_relative=False)
    assert tried > 0 and failed == 0
