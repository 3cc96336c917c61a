"""Draw ``docs/assets/demo-light.svg`` and ``demo-dark.svg`` from the output of the demo.

Usage: ``python scripts/demo_picture.py [OUTPUT]``. OUTPUT is a file with the text that
``make demo`` printed; without it the demo runs. The pictures show its lines in order. Omitted
are durations, folders, the roles of columns, and the second copy of the dataset.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "docs" / "assets"
COMMAND = "$ make demo"
OMITTED = re.compile(
    r"^  [\d.]+ s$|^(store|dataset|run|open the store).*:|petastorm|^only showing"
    r"|^(inputs|label|key|time|not used):|^ {10}|^Training dataset|^\s*$|^. training$"
    r"|^test AUC:"
)
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colors and cursor movement of a terminal
FOLDER = re.compile(r"(?<=^  )/.*/")
HEADING = re.compile(r"^\d+\. ")
RESULT = re.compile(r"\bok\b|\b\d[\d,.]*\d\b")
STYLES = {
    "light": {"back": "#f6f7fb", "edge": "#d5d9e8", "text": "#1f2430", "head": "#303f9f", "number": "#00695c"},
    "dark": {"back": "#171a26", "edge": "#343a52", "text": "#dfe3f0", "head": "#9fa8ff", "number": "#6fd6bf"},
}  # fmt: skip
LINE, CHARACTER, MARGIN = 20, 8.43, 18


def main() -> None:
    """Write both pictures."""
    output = Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else demo_output()
    lines = selected_lines(output)
    for name, colors in STYLES.items():
        (ASSETS / f"demo-{name}.svg").write_text(drawing(lines, colors), encoding="utf-8")


def demo_output() -> str:
    """Run the demo in a temporary folder and return its output."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "examples" / "flights" / "main.py"), "--out", folder]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def selected_lines(output: str) -> list[str]:
    """Return the lines of the picture, without terminal controls."""
    lines = [COMMAND]
    for line in CONTROL.sub("", output).splitlines():
        if not OMITTED.search(line):
            lines.append(FOLDER.sub("", line.rstrip()))
    return lines


def drawing(lines: Sequence[str], colors: dict[str, str]) -> str:
    """Return the lines as an SVG picture without references to fonts or other files."""
    width = round(max(map(len, lines)) * CHARACTER) + 2 * MARGIN
    height = len(lines) * LINE + 2 * MARGIN
    font = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="{font}" font-size="14">',
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"'
        f' fill="{colors["back"]}" stroke="{colors["edge"]}"/>',
    ]
    for number, line in enumerate(lines):
        y = MARGIN + number * LINE + 14
        # The length is fixed, so that columns are aligned in every monospaced font.
        length = f' textLength="{len(line) * CHARACTER:.1f}" lengthAdjust="spacingAndGlyphs"'
        parts.append(
            f'<text x="{MARGIN}" y="{y}" xml:space="preserve" fill="{colors["text"]}"{length}>'
            f"{styled(line, colors)}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def styled(line: str, colors: dict[str, str]) -> str:
    """Return a line with colors for headings and results."""
    if line == COMMAND or HEADING.match(line):
        return f'<tspan fill="{colors["head"]}" font-weight="600">{escape(line)}</tspan>'
    if line.startswith(("+", "|")):
        return escape(line)
    return RESULT.sub(
        lambda match: f'<tspan fill="{colors["number"]}">{match[0]}</tspan>', escape(line)
    )


if __name__ == "__main__":
    main()
