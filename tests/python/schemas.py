"""The JSON schemas of docs/reference/schemas."""

import functools
import json
import pathlib
from typing import Any

import jsonschema

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs/reference/schemas"
COMMANDS = sorted(path.stem for path in FOLDER.glob("*.json"))


@functools.cache
def validator(command: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((FOLDER / f"{command}.json").read_text()))


def parsed(command: str, text: str) -> Any:
    """What a command printed with `--json`; fails if its schema does not allow it."""
    document = json.loads(text)
    validator(command).validate(document)
    return document
