#!/usr/bin/env python3
"""The terminal of the documentation, docs/images/terminal.svg: `oomph` as it prints on a terminal, with its colors.

    python docs/terminal.py            # draws it
    python docs/terminal.py --check    # fails if `oomph` prints something else by now

Runs `oomph` on a bundled snapshot under a pseudo-terminal and draws what it prints. The command is typed by a CSS
animation; where animations are off, the picture shows the end. The environment variable OOMPH names the program;
default: target/debug/oomph.
"""

import fcntl
import html
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import termios

ROOT = pathlib.Path(__file__).resolve().parents[1]
OOMPH = pathlib.Path(os.environ.get("OOMPH", ROOT / "target/debug/oomph")).absolute()
PICTURE = ROOT / "docs/images/terminal.svg"
COMMAND = "oomph report leak.pickle"
SNAPSHOT = "fixtures/zoo/leak_infer_outputs.pickle.xz"
COLUMNS = 100
LINES = 23

CHARACTER, LINE, MARGIN, TITLE = 8.4, 19, 16, 36
"""Width of a character, height of a line, margin and title bar, in pixels."""
TYPING_SECONDS = 1.0

COLORS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "34": "#79c0ff", "35": "#d2a8ff", "36": "#76e3ea"}


def printed(*arguments: str) -> str:
    """What `oomph` writes to a terminal of `COLUMNS` columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "CI")}
    process = subprocess.Popen(
        [OOMPH, *arguments], cwd=ROOT, env={**env, "TERM": "xterm-256color"}, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    chunks = []
    try:
        while chunk := os.read(ours, 65536):
            chunks.append(chunk)
    except OSError:
        pass  # The terminal is closed when the program has ended.
    os.close(ours)
    assert process.wait() == 0, process.returncode
    text = b"".join(chunks).decode().replace("\r\n", "\n")
    return re.sub(r"[^\n]*\r", "", re.sub(r"\x1b\[[0-9;?]*[A-LN-Za-ln-z]", "", text))


def drawn(line: str) -> str:
    """A line of text with SGR sequences, as the content of an SVG `text` element."""
    parts, style = [], set()
    for piece in re.split(r"(\x1b\[[0-9;]*m)", line):
        if sequence := re.fullmatch(r"\x1b\[([0-9;]*)m", piece):
            for code in (sequence[1] or "0").split(";"):
                style = set() if code in ("", "0") else style | {code}
        elif piece:
            fill = next((f' fill="{COLORS[code]}"' for code in COLORS if code in style), "")
            weight = ' font-weight="700"' if "1" in style else ""
            dim = ' opacity="0.65"' if "2" in style else ""
            parts.append(f"<tspan{fill}{weight}{dim}>{html.escape(piece, quote=False)}</tspan>")
    return "".join(parts)


def picture(lines: list[str]) -> str:
    width = round(COLUMNS * CHARACTER + 2 * MARGIN)
    height = TITLE + (len(lines) + 1) * LINE + 2 * MARGIN
    top = TITLE + MARGIN + 13

    def text(row: int, content: str) -> str:
        # The width is fixed, whatever font the reader has.
        length = len(html.unescape(re.sub(r"<[^>]*>", "", content))) * CHARACTER
        fixed = f'textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs"'
        return f'<text x="{MARGIN}" y="{top + row * LINE}" {fixed} xml:space="preserve">{content}</text>'

    typed = len(COMMAND) + 2
    rows = "\n".join(text(at + 1, drawn(line)) for at, line in enumerate(lines) if line.strip())
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>$ {html.escape(COMMAND)}</title>
<style>
text {{ font: 14px ui-monospace, SFMono-Regular, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #d1d7e0; }}
.cover {{ transform: translateX({typed * CHARACTER:.1f}px); animation: typing {TYPING_SECONDS}s steps({len(COMMAND)}) both; }}
.output {{ animation: shown 0.2s {TYPING_SECONDS + 0.2:.1f}s both; }}
@keyframes typing {{ from {{ transform: translateX({2 * CHARACTER:.1f}px); }} }}
@keyframes shown {{ from {{ opacity: 0; }} }}
@media (prefers-reduced-motion: reduce) {{ .cover, .output {{ animation: none; }} }}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#151b23"/>
<circle cx="20" cy="18" r="6" fill="#ff5f57"/><circle cx="40" cy="18" r="6" fill="#febc2e"/><circle cx="60" cy="18" r="6" fill="#28c840"/>
{text(0, f'<tspan fill="#7ee787">$</tspan> {html.escape(COMMAND)}')}
<rect class="cover" x="{MARGIN}" y="{top - 15}" width="{width - 2 * MARGIN}" height="{LINE}" fill="#151b23"/>
<g class="output">
{rows}
</g>
</svg>
"""


def main() -> None:
    lines = printed("report", SNAPSHOT).replace(SNAPSHOT, "leak.pickle").splitlines()
    now = picture(lines[:LINES])
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if PICTURE.read_text() == now else f"{PICTURE.relative_to(ROOT)} is out of date: run docs/terminal.py")
    PICTURE.write_text(now)
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
