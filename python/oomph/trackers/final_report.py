"""The report of a recording that has ended, as trackers get it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import oomph

_MAX_HEADLINE = 500
"""Characters that a tag of MLflow may have in any of its stores."""


@dataclass(frozen=True)
class FinalReport:
    findings: list[dict[str, Any]]
    """`kind`, `severity` and `summary` of each and, where known, `site` and `bytes_per_step`."""
    text: str
    """As `oomph report` prints it."""
    html: str
    json: dict[str, Any]

    @property
    def headline(self) -> str:
        """All findings in one line."""
        return "; ".join(map(_headline, self.findings))[:_MAX_HEADLINE] or "none"


def final_report(path: str) -> FinalReport:
    """`path`: a snapshot with its sidecar files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes, which are in the text as well
        report = oomph.load(path).report()
        return FinalReport([_as_dict(of) for of in report.findings], str(report), report._repr_html_(), report.json)


def _as_dict(of: oomph.Finding) -> dict[str, Any]:
    found = {"kind": of.kind, "severity": of.severity, "summary": of.summary}
    more = {"site": None if of.site is None else str(of.site), "bytes_per_step": of.bytes_per_step}
    return found | {name: value for name, value in more.items() if value is not None}


def _headline(finding: dict[str, Any]) -> str:
    where = f" ({finding['site']})" if "site" in finding else ""
    return f"{finding['kind']}: {finding['summary']}{where}"
