"""`In [3]:7` in the place of the file names that IPython makes up for cells."""

from __future__ import annotations

import re
from html import escape
from typing import Any

_WITH_NUMBER = r"(?:<|&lt;)ipython-input-(?P<number>\d+)-[0-9a-f]+(?:>|&gt;)"
"""In a terminal, and everywhere in older versions of IPython."""


def with_cell_names(text: str, shell: Any) -> str:
    """Text or HTML about code of cells, as their author would write it. Columns keep their places."""
    numbers: dict[str, int] = getattr(shell.compile, "_filename_map", {})
    text = re.sub(r"\b__main__\.", "", text)
    labels: dict[str, str] = {}
    for file, number in numbers.items():
        short = file.rpartition("/")[2]
        labels |= dict.fromkeys((file, short, escape(file), escape(short)), f"In [{number}]")
    names = "|".join([*map(re.escape, sorted(labels, key=len, reverse=True)), _WITH_NUMBER])

    def renamed(match: re.Match[str]) -> str:
        label = labels.get(match["name"]) or f"In [{match['number']}]"
        gap = match["gap"] + " " * (len(match["name"]) - len(label)) if match["gap"] else ""
        return f"{label}{match['line']}{gap}"

    return re.sub(rf"(?<![\w/-])(?P<name>{names})(?P<line>(?::\d+)?)(?P<gap>(?:  +)?)", renamed, text)
