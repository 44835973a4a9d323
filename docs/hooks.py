"""What MkDocs cannot do by itself. Called by `mkdocs build`; see mkdocs.yml."""

import re
from typing import Any

RULES = """# Rules of the linter

`oomph lint` reports these mistakes; `oomph rule CODE` prints the same text. [The linter](../how-to/lint.md) explains
severities, fixes and how to ignore a finding.

"""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Gives the page of rules, which is the output of `oomph rule --markdown --all`, a title and a short table of contents."""
    if page.file.src_uri != "reference/rules.md":
        return markdown
    fenced = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    for at in range(0, len(fenced), 2):
        text = re.sub(r"^## (.*)$", r"**\1**", fenced[at], flags=re.MULTILINE)
        fenced[at] = re.sub(r"^# (.*)$", r"## \1", text, flags=re.MULTILINE)
    return RULES + "".join(fenced)
