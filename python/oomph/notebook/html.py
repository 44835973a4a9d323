"""Answers as HTML, for notebooks: no scripts, no style sheets, nothing from the network, and colors for light and dark themes.

File names, functions and settings come from a stranger's file: nothing reaches the page without `escape`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from oomph._native import size

from .timeline import OOM_COLOR, Timeline

if TYPE_CHECKING:
    from ..answers import Device, Finding, Report

_SEVERITIES = {"high": OOM_COLOR, "medium": "#c98a1b", "low": "#7d8b99"}
KINDS = {"variable": "#2f86c7", "kept": "#e07b1a", "other": "#8a96a5"}
_MAX_BAR_PIXELS = 120
_CELL = "text-align: left; vertical-align: top; padding: 2px 14px 2px 0; border: none"
_NO_BREAK = '<span style="white-space: nowrap">'
_NUMBER = "text-align: right; vertical-align: top; padding: 2px 10px 2px 0; border: none; white-space: nowrap"


@dataclass(frozen=True)
class BarRow:
    """A row with a bar. All texts are HTML."""

    bytes: int
    name: str
    where: str = ""
    what: str = ""
    kind: str = "variable"
    """`variable`, `kept` (what `%oomph free` lets go of) or `other`."""


def text(of: str) -> str:
    """What a terminal shows, as it is."""
    return f'<pre style="line-height: 1.25">{escape(of)}</pre>'


def report(of: Report, timelines: list[dict[str, Any]]) -> str:
    """The findings, the memory timeline and what fills memory, with the whole text folded behind them."""
    # Pinned memory has none.
    drawn = iter(timelines)
    devices = [_device(device, next(drawn, {}).get("columns", []) if device.kind != "pinned" else []) for device in of.devices]
    return page(*devices, f"<details><summary>as in a terminal</summary>{text(str(of))}</details>")


def page(*parts: str) -> str:
    return f'<div style="max-width: 900px; line-height: 1.45; overflow-x: auto">{"".join(parts)}</div>'


def title(of: str) -> str:
    return f'<div style="font-weight: 600; margin: 0.3em 0 0.5em">{escape(of)}</div>'


def paragraph(of: str, kind: str = "") -> str:
    """`kind`: that of the rows which it explains."""
    mark = f'<span style="color: {KINDS[kind]}">■</span> ' if kind else ""
    return f'<div style="margin: 0.5em 0">{mark}{with_code(of)}</div>' if of else ""


def with_code(of: str) -> str:
    """Text in which code stands between backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(of))


def bars(rows: Iterable[BarRow], whole: int) -> str:
    """A table with a bar for each row, as long as its share of `whole`."""
    return _table("".join(_bar(row, whole) for row in rows))


def _bar(row: BarRow, whole: int) -> str:
    width = max(round(_MAX_BAR_PIXELS * row.bytes / max(whole, 1)), 2)
    margin = f"0.4em {_MAX_BAR_PIXELS - width}px 0 0"
    bar = f'<div style="width: {width}px; height: 0.7em; margin: {margin}; background: {KINDS[row.kind]}"></div>'
    number = f'<td style="{_NUMBER}" title="{row.bytes:,} bytes">{escape(size(row.bytes))}</td>'
    cells = "".join(
        f'<td style="{_CELL}">{text}</td>' for text in (bar, *(f"{_NO_BREAK}{text}</span>" for text in (row.name, row.where)))
    )
    cells += f'<td style="{_CELL}">{row.what}</td>'
    return f'<tr style="background: none">{number}{cells}</tr>'


def _table(rows: str) -> str:
    return f'<table style="border: none; margin: 0; border-collapse: collapse">{rows}</table>' if rows else ""


def _device(of: Device, columns: list[dict[str, Any]]) -> str:
    where = "CPU" if of.kind == "cpu" else f"GPU {of.device}"
    steps = f" · {of.steps:,} step{'s' if of.steps > 1 else ''}" if of.steps else ""
    reserved = "" if of.kind == "cpu" else f", {size(of.reserved.peak)} reserved"
    heading = f"{of.file} · {where} · peak {size(of.allocated.peak)} allocated{reserved}{steps}"
    findings = "".join(_finding(finding) for finding in of.findings) or paragraph("✓ nothing stands out")
    bounds = of.json["steps"]["bounds"]
    oom = next((finding.evidence.get("event") for finding in of.findings if finding.kind == "oom"), None)
    drawn = Timeline(columns, bounds, of.events, of.allocated.peak, of.allocated.peak_event, oom).svg()
    return f"{title(heading)}{findings}{drawn}{_groups(of)}"


def _finding(of: Finding) -> str:
    color = _SEVERITIES.get(of.severity, _SEVERITIES["low"])
    site = "" if of.site is None else f"<br><code>{escape(str(of.site))}</code>"
    held = "" if of.held_by is None else f"<br>held by <code>{escape(of.held_by)}</code>"
    return (
        f'<div style="border-left: 4px solid {color}; padding-left: 0.7em; margin: 0.5em 0">'
        f'<b style="color: {color}">{escape(of.kind.upper().replace("_", " "))}</b> {with_code(of.summary)}{site}{held}'
        f"<br>fix: {with_code(of.fix)}</div>"
    )


def _groups(of: Device) -> str:
    live = of.json["live"]
    rows = [
        BarRow(
            group.bytes,
            f"<code>{escape(_name(group.json))}</code>",
            f"{group.count:,} block{'' if group.count == 1 else 's'}",
            "",
            "variable",
        )
        for group in of.live
    ]
    moment = {"peak": "the peak", "oom": "the failed allocation", "end": "the end"}.get(str(live["at"]), str(live["at"]))
    head = paragraph(f"live at {moment}, by {live['by'].replace('site', 'line')}")
    return head + bars(rows, max((row.bytes for row in rows), default=1)) if rows else ""


def _name(group: dict[str, object]) -> str:
    """What the blocks of a group have in common."""
    match group:
        case {"site": {"file": file, "line": line, "function": function}}:
            return f"{file}:{line} {function}"
        case {"category": str(name)} | {"module": str(name)}:
            return name
        case {"stack": [{"file": file, "line": line, "function": function}, *rest]}:
            return f"{file}:{line} {function}" + (f" and {len(rest)} more frames" if rest else "")
        case {"size": int(bytes_each)}:
            return f"{size(bytes_each)} each"
        case {"origin": "before"}:
            return "(from before the recording)"
        case {"origin": str(origin)}:
            return origin
    return "no stack"
