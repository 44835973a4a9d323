"""The memory timeline as a picture: static SVG that takes the color of its text from the page, for light and dark themes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from oomph._native import size

COLUMNS = 240
"""Each is a few numbers in the notebook's file."""
OOM_COLOR = "#d9534a"
_WIDTH, _HEIGHT = 760, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 18, 22
_MAX_MARKED_STEPS = 60
_MIN_STEP_LABEL_WIDTH = 46
_MIN_SHARE = 0.002
"""Of the peak: less is thinner than a pixel."""
_BEFORE = "before the recording"
_COLORS = {
    _BEFORE: "#9aa3ae",
    "parameter": "#0072b2",
    "buffer": "#00446b",
    "optimizer": "#009e73",
    "gradient": "#e69f00",
    "activation": "#d55e00",
    "input": "#d8c93a",
    "workspace": "#56b4e9",
    "temporary": "#cc79a7",
    "unknown": "#7a72b8",
}
"""Those of `oomph view`, from the bottom up: what stays, then what comes and goes."""


@dataclass(frozen=True)
class Timeline:
    """What is allocated on one device over a run."""

    columns: list[dict[str, Any]]
    """`position`, bytes from `before`, and bytes of `categories`."""
    bounds: list[int]
    """Event with which each step begins, and the end of the last."""
    events: int
    peak: int
    peak_event: int
    oom_event: int | None

    def svg(self) -> str:
        """Empty if nothing happened."""
        if len(self.columns) < 2 or not self.peak:
            return ""
        top = _above(self.peak)
        parts = [
            *self._grid(top),
            *self._steps(),
            *self._areas(top),
            *(self._peak(top) if self.oom_event is None else self._oom(self.oom_event)),
        ]
        label = escape(f"Allocated memory over {self.events:,} events, at most {size(self.peak)}")
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            f'width="{_WIDTH}" height="{_HEIGHT}" style="max-width: 100%; height: auto; display: block" '
            f'font-family="system-ui, sans-serif" font-size="11">{"".join(parts)}</svg>{self._legend()}'
        )

    def _x(self, position: float) -> float:
        """Where the state after that many events begins."""
        return _LEFT + position / (self.events + 1) * (_WIDTH - _LEFT - _RIGHT)

    def _y(self, bytes: float, top: int) -> float:
        return _HEIGHT - _BOTTOM - bytes / top * (_HEIGHT - _TOP - _BOTTOM)

    def _grid(self, top: int) -> Iterator[str]:
        for part in (0, 0.5, 1):
            y = self._y(top * part, top)
            label = size(round(top * part)) if part else "0"
            opacity = 0.15 if part else 0.5
            yield f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="currentColor" stroke-opacity="{opacity}"/>'
            yield _text(_LEFT - 7, y + 4, label, anchor="end")

    def _steps(self) -> Iterator[str]:
        """A line where each step begins, and as many numbers as there is room for."""
        steps = list(enumerate(pairwise(self.bounds), 1))
        room = 0.0
        for number, (begin, end) in steps:
            x = self._x(begin)
            if len(steps) <= _MAX_MARKED_STEPS:
                yield f'<path d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM + 4}" stroke="currentColor" stroke-opacity="0.12"/>'
            if x >= room and self._x(end) <= _WIDTH - _RIGHT + 1:
                yield _text((x + self._x(end)) / 2, _HEIGHT - 6, f"step {number}" if room == 0 else str(number), anchor="middle")
                room = max(self._x(end), x + _MIN_STEP_LABEL_WIDTH)
        if not steps:
            yield _text(_LEFT, _HEIGHT - 6, "time →")

    def _areas(self, top: int) -> Iterator[str]:
        """A band for each category, stacked."""
        floor = [0] * len(self.columns)
        edges = [self._x((self.events + 1) * at / len(self.columns)) for at in range(len(self.columns) + 1)]
        for name in self._categories():
            roof = [low + _bytes(column, name) for low, column in zip(floor, self.columns, strict=True)]
            upper = _steps_of(edges, [self._y(value, top) for value in roof])
            lower = _steps_of(edges, [self._y(value, top) for value in floor])
            yield f'<path d="M{"L".join([*upper, *reversed(lower)])}Z" fill="{_COLORS[name]}"><title>{name}</title></path>'
            floor = roof

    def _peak(self, top: int) -> Iterator[str]:
        # The state after the event, which lasts until the next.
        x, y = self._x(self.peak_event + 1.5), self._y(self.peak, top)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="none" stroke="currentColor" stroke-width="1.5"/>'
        yield self._label(x, max(y - 5, 11), f"peak {size(self.peak)}")

    def _oom(self, event: int) -> Iterator[str]:
        x = self._x(event + 0.5)
        line = f"M{x:.1f} {_TOP - 6}V{_HEIGHT - _BOTTOM}"
        yield f'<path d="{line}" stroke="{OOM_COLOR}" stroke-width="1.5" stroke-dasharray="4 3"/>'
        yield self._label(x, 11, f"out of memory, {size(self.peak)} allocated at most")

    def _label(self, x: float, y: float, text: str) -> str:
        is_left = x > _WIDTH / 2
        return _text(x + (-7 if is_left else 7), y, text, anchor="end" if is_left else "start", weight=600)

    def _categories(self) -> list[str]:
        return [name for name in _COLORS if any(_bytes(column, name) > self.peak * _MIN_SHARE for column in self.columns)]

    def _legend(self) -> str:
        entries = "".join(
            f'<span style="white-space: nowrap; margin-right: 1.1em"><span style="color: {_COLORS[name]}">■</span> {name}</span>'
            for name in self._categories()
        )
        return f'<div style="font-size: 0.85em; margin: 0.1em 0 0.7em {_LEFT}px; opacity: 0.85">{entries}</div>'


def _bytes(column: dict[str, Any], name: str) -> int:
    found: int = column["before"] if name == _BEFORE else column["categories"].get(name, 0)
    return found


def _steps_of(edges: list[float], heights: list[float]) -> list[str]:
    """Corners of a line that keeps its height from each edge to the next; those in the middle of a straight line are left out."""
    corners: list[str] = []
    for at, height in enumerate(heights):
        if at and height == heights[at - 1]:
            corners[-1] = f"{edges[at + 1]:.1f} {height:.1f}"
        else:
            corners += [f"{edges[at]:.1f} {height:.1f}", f"{edges[at + 1]:.1f} {height:.1f}"]
    return corners


def _above(peak: int) -> int:
    """The next amount that reads well, in its unit."""
    unit = 1 << (max(peak.bit_length() - 1, 0) // 10 * 10)
    for scale in (
        1,
        1.5,
        2,
        3,
        4,
        5,
        6,
        8,
        10,
        12,
        15,
        16,
        20,
        24,
        30,
        32,
        40,
        50,
        60,
        64,
        80,
        100,
        120,
        150,
        200,
        256,
        300,
        400,
        512,
    ):
        if peak <= scale * unit:
            return int(scale * unit)
    return unit << 10


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: int = 400) -> str:
    opacity = 1 if weight > 400 else 0.75
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="currentColor" '
        f'fill-opacity="{opacity}">{escape(text)}</text>'
    )
