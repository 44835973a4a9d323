"""What MkDocs cannot do by itself. Called by `mkdocs build`; see mkdocs.yml."""

import pathlib
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


def on_post_build(config: Any, **_: Any) -> None:
    """Writes llms-full.txt, all pages as one text for language models."""
    docs = pathlib.Path(config["docs_dir"])
    pages = [docs / "index.md", *sorted(path for path in docs.rglob("*.md") if path != docs / "index.md")]
    text = "\n\n".join(path.read_text().rstrip() for path in pages)
    (pathlib.Path(config["site_dir"]) / "llms-full.txt").write_text(text + "\n")
