"""The JSON schemas describe what commands print with `--json`. Those of `predict`, `fit` and of programs that `watch` sees
are checked wherever a test reads their JSON (`schemas.parsed`)."""

import copy
import json
import os
import pathlib
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from conftest import FIXTURES, OOMPH, ROOT
from schemas import COMMANDS, parsed, validator

ZOO = [str(FIXTURES / f"zoo/{name}.pickle.xz") for name in ("leak_infer_outputs", "no_zero_grad", "cuda_graph", "oom_too_big")]
RECORDINGS = [str(FIXTURES / f"recordings/{name}") for name in ("gpu", "cpu", "oom", "holders")]
HOLDERS = RECORDINGS[-1]
LIMITS = ["--max-peak", "1GiB", "--max-reserved", "1GiB", "--no-leaks", "--max-growth", "1MiB", "--max-fragmentation", "10%"]
NOTEBOOK = {
    "cells": [
        {"cell_type": "code", "source": ["kept = []\n", "for x in data:\n", "    loss = model(x)\n", "    kept.append(loss)\n"]}
    ],
    "nbformat": 4,
}
RUN_PROGRAMS = ("predict", "fit")
FREE = {"evidence", "values"}
"""Fields whose own fields depend on the finding or on the release of torch."""


def printed(*arguments: str | pathlib.Path) -> str:
    environment = {**os.environ, "OOMPH_RUNTIME_DIR": "/nowhere"}
    done = subprocess.run([OOMPH, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A notebook with a finding, and the baseline of a recording."""
    folder = tmp_path_factory.mktemp("schemas")
    (folder / "train.ipynb").write_text(json.dumps(NOTEBOOK))
    printed("check", "--baseline", folder / "memory.json", "--update", ZOO[0])
    return folder


def questions(command: str, folder: pathlib.Path) -> list[list[str]]:
    """Options and inputs with which a command prints different documents."""
    snapshots = [*ZOO, *RECORDINGS]
    match command:
        case "report":
            kinds = [["--by", key, "--at", "end", HOLDERS] for key in ("category", "stack", "module", "size")]
            return [
                *([one] for one in snapshots),
                *kinds,
                ["--summary", ZOO[0]],
                ZOO,
                [str(FIXTURES / "formats/segments-2.pickle.xz")],
            ]
        case "simulate":
            tight = ["--gpu", "1GiB", "--non-pytorch", "1MiB", ZOO[0]]
            return [
                *([one] for one in ZOO),
                tight,
                ["--search", ZOO[0]],
                ["--smallest-gpu", ZOO[0]],
                *(["--verify", *inputs] for inputs in ([ZOO[0]], ZOO, [str(FIXTURES / "zoo")])),
            ]
        case "diff":
            return [[before, after] for before in snapshots for after in (ZOO[1], HOLDERS)]
        case "fleet":
            return [[*ZOO, *RECORDINGS], [HOLDERS]]
        case "holders":
            since = ["--since", f"{HOLDERS}/rank0.growing.heap"]
            return [
                [HOLDERS, *options] for options in ([], ["--tree"], ["--path"], ["--cycles"], since, ["--of", "holders.py:64"])
            ]
        case "explain":
            return [[str(path)] for path in sorted((FIXTURES / "messages").glob("*.txt"))]
        case "check":
            baseline = ["--baseline", str(folder / "memory.json")]
            return [*([*LIMITS, one] for one in snapshots), *([*baseline, one] for one in ZOO), [*LIMITS, *ZOO]]
        case "lint":
            programs = str(FIXTURES / "field/programs")
            return [[programs], ["--statistics", programs], [str(folder / "train.ipynb")], [str(folder)]]
        case "rule":
            return [[], ["OOM101"]]
        case "query":
            sql = "SELECT * FROM blocks JOIN stacks USING (stack_id)"
            return [[ZOO[0], sql], ["--limit", "2", HOLDERS, "SELECT event, action, NULL, 0.5 FROM events"]]
        case "doctor":
            return [["--python", "/nowhere"]]
        case "watch":
            return [["--once"]]
    return []


@pytest.mark.parametrize("command", COMMANDS)
def test_the_schema_allows_what_the_command_prints(command: str, folder: pathlib.Path) -> None:
    asked = questions(command, folder)
    assert asked or command in RUN_PROGRAMS
    for arguments in asked:
        parsed(command, printed(command, "--json", *arguments))


def fields(value: Any) -> Iterator[tuple[dict, str]]:
    """Every field, with the object that has it; of a list, those of its first and last item."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield value, name
            if name not in FREE:
                yield from fields(inner)
    elif isinstance(value, list):
        for inner in value[:1] + value[1:][-1:]:
            yield from fields(inner)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in RUN_PROGRAMS])
def test_a_wrong_type_is_found_in_every_field(command: str, folder: pathlib.Path) -> None:
    # A field that the schema does not know could have any type.
    for arguments in questions(command, folder)[::4]:
        document = parsed(command, printed(command, "--json", *arguments))
        for holder, name in list(fields(document)):
            right, holder[name] = holder[name], {"wrong": None} if isinstance(holder[name], list) else [["wrong"]]
            assert not validator(command).is_valid(document), (arguments, name)
            holder[name] = right


def test_a_missing_field_is_found() -> None:
    document = parsed("report", printed("report", "--json", ZOO[0]))
    assert document["version"] == 2
    for name in ("version", "inputs"):
        without = copy.deepcopy(document)
        del without[name]
        assert not validator("report").is_valid(without)
    # Fields may be added.
    assert validator("report").is_valid({**document, "new": 1})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_schema_says_what_it_is(command: str) -> None:
    schema = validator(command).schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == f"oomph {command} --json" and schema["description"]
    objects = [schema, *schema.get("$defs", {}).values()]
    undescribed = [
        (each.get("description"), name)
        for each in objects
        for name, field in each.get("properties", {}).items()
        if not field.get("description")
    ]
    assert not undescribed


def test_every_command_with_json_has_a_schema() -> None:
    listed = printed("--help").partition("\nCommands:\n")[2].partition("\n\n")[0]
    names = set(re.findall(r"^  ([a-z]+) ", listed, re.MULTILINE)) - {"help"}
    with_json = {name for name in names if re.search(r"^ +--json\b", printed(name, "--help"), re.MULTILINE)}
    # Both print the report.
    assert with_json - {"run", "attach"} == set(COMMANDS)
    assert set(printed("schema").split()) == set(COMMANDS)
    page = (ROOT / "docs/reference/json.md").read_text()
    assert [name for name in COMMANDS if f"(schemas/{name}.json)" not in page] == []
