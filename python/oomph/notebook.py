"""Answers as HTML, for notebooks.

File names, functions and settings come from a stranger's file: nothing reaches the page without `escape`.
"""

from html import escape
from typing import TYPE_CHECKING

from oomph._native import size

if TYPE_CHECKING:
    from oomph.answers import Device, Finding, Report

_COLOURS = {"high": "#c0392b", "medium": "#b7791f", "low": "#5a6b7b"}


def text(of: str) -> str:
    """What a terminal shows, as it is."""
    return f'<pre style="line-height: 1.25">{escape(of)}</pre>'


def report(of: "Report") -> str:
    """The findings and what fills memory, with the whole text folded behind them."""
    devices = "".join(_device(device) for device in of.devices)
    return f"<div>{devices}<details><summary>as in a terminal</summary>{text(str(of))}</details></div>"


def _device(of: "Device") -> str:
    where = "CPU" if of.kind == "cpu" else f"GPU {of.device}"
    title = f"{of.file} · {where} · {of.events:,} events"
    peak = f"peak {size(of.allocated.peak)} allocated, {size(of.reserved.peak)} reserved"
    findings = "".join(_finding(finding) for finding in of.findings) or "<p>✓ nothing stands out</p>"
    return f"<h4>{escape(title)}</h4>{findings}<p>{escape(peak)}</p>{_groups(of)}"


def _finding(of: "Finding") -> str:
    colour = _COLOURS.get(of.severity, _COLOURS["low"])
    site = "" if of.site is None else f"<br><code>{escape(str(of.site))}</code>"
    held = "" if of.held_by is None else f"<br>held by <code>{escape(of.held_by)}</code>"
    return (
        f'<div style="border-left: 4px solid {colour}; padding-left: 0.7em; margin: 0.5em 0">'
        f'<b style="color: {colour}">{escape(of.kind.upper())}</b> {escape(of.summary)}{site}{held}'
        f"<br>fix: {escape(of.fix)}</div>"
    )


def _groups(of: "Device") -> str:
    live = of.json["live"]
    rows = "".join(
        f'<tr><td style="text-align: left"><code>{escape(_name(group.json))}</code></td>'
        f"<td>{escape(size(group.bytes))}</td><td>{group.count:,}</td></tr>"
        for group in of.live
    )
    head = f"<tr><th>live at {escape(str(live['at']))}, by {escape(live['by'])}</th><th>bytes</th><th>blocks</th></tr>"
    return f"<table>{head}{rows}</table>" if rows else ""


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
        case {"origin": str(origin)}:
            return origin
    return "no stack"
