"""Write ``docs/assets/packages.svg`` from the layers that import-linter checks.

Usage: ``python scripts/package_picture.py``. A test compares the file with the output.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "assets" / "packages.svg"
CAPTIONS = {
    "cli": "parse, one call, print",
    "testing": "shipped conformance suites",
    "compat": "calls of other stores",
    "store": "FeatureStore: thin; each method calls one package",
    "server": "pages and a REST interface",
    "experiments": "runs, search, models, scoring",
    "jobs": "definitions, windows, backfill, scheduler",
    "views": "named retrievals",
    "monitoring": "windows of a group compared with a baseline",
    "streams": "topics into groups, each record once",
    "training": "splits, shards, export",
    "featuregroups": "the one write path",
    "sources": "registered sources",
    "transform": "fitted transformations: numpy, TensorFlow, PyTorch, Keras",
    "validation": "policies, checks",
    "statistics": "accumulators, plots",
    "retrieval": "plans, point in time",
    "readers": "order, batches",
    "external": "rows of other systems: open and read sources",
    "lineage": "runs, as events",
    "alerts": "incidents, channels, outbox",
    "session": "location + engine + registry",
    "recovery": "liveness and crash recovery",
    "registry": "the SQL index over tables and manifests",
    "delta": "the Delta log: snapshots, history, protocol, commit metadata",
    "storage": "the only package that opens files",
    "plugins": "interfaces",
    "conversion": "casts and renames",
    "ingest": "dataframes to Arrow",
    "config": "settings",
    "hashing": "row hash",
    "usersql": "conditions",
    "aggregates": "windows",
    "model": "specs and stored records: frozen dataclasses, no IO",
    "arrow": "types, casts and dataframes of every library",
    "errors": "every exception",
}
# The fill of a layer, by its first package: front, work, questions, state, ground, words.
FILLS = {
    "cli": "#eef2f7",
    "jobs": "#e5ecfb",
    "validation": "#e3f1ea",
    "alerts": "#eef2f7",
    "delta": "#fdecd8",
    "model": "#efe7fa",
}
# Packages that connectors import, in addition to the lower packages.
SEEN = ("delta", "storage", "plugins")
LEFT, WIDTH, TOP, HEIGHT, GAP = 20, 640, 44, 42, 8
STYLE = (
    ".n{font-size:13px;font-weight:600;fill:#1d2430}.s{font-size:11.5px;fill:#465062}.d{fill:#1d2430}"
    "text{text-anchor:middle}.l{fill:none;stroke:#5b6472;stroke-width:2;marker-end:url(#a)}"
)
MARKER = (
    '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0 10 5 0 10z" fill="#5b6472"/></marker></defs>'
)


def layers() -> list[list[str]]:
    """Return the packages of each layer, the highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for contract in settings["tool"]["importlinter"]["contracts"]:
        if contract["id"] == "layers":
            found = []
            for layer in contract["layers"]:
                found.append([name.strip(" ()") for name in layer.split("|")])
            return found
    raise LookupError("pyproject.toml has no contract 'layers'")


def connectors() -> list[str]:
    """Return the names of the connectors."""
    found = []
    for entry in sorted((ROOT / "connectors" / "featurestore_connectors").iterdir()):
        name = entry.name.removesuffix(".py")
        if not name.startswith("_") and (entry.is_dir() or entry.suffix == ".py"):
            found.append(name)
    return found


def drawing() -> str:
    """Return the picture as SVG."""
    rows = layers()
    height = TOP + len(rows) * (HEIGHT + GAP) + 14
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 940 {height}" role="img" '
        'aria-labelledby="t d" font-family="system-ui, -apple-system, \'Segoe UI\', sans-serif">',
        '  <title id="t">The packages of featurestore</title>',
        '  <desc id="d">Packages in layers, each importing only from layers below it; connectors '
        "stand beside and see plugins, storage, delta, hashing, model and errors only.</desc>",
        f"  <style>{STYLE}</style>",
        f"  {MARKER}",
        f'  <rect width="940" height="{height}" rx="10" fill="#ffffff"/>',
        f'  <text x="{LEFT + WIDTH // 2}" y="28" class="s">imports point downward only; packages '
        "side by side do not know each other</text>",
    ]
    fill, seen = "", []
    for number, names in enumerate(rows):
        top = TOP + number * (HEIGHT + GAP)
        fill = FILLS.get(names[0], fill)
        lines += _layer(names, top, fill)
        if names[0] in SEEN:
            seen.append(top + HEIGHT // 2)
    lines += _connectors(connectors(), seen)
    return "\n".join([*lines, "</svg>", ""])


def _layer(names: Sequence[str], top: int, fill: str) -> Iterator[str]:
    width = (WIDTH - GAP * (len(names) - 1)) / len(names)
    for index, name in enumerate(names):
        left = LEFT + index * (width + GAP)
        middle = f"{left + width / 2:.0f}"
        yield (
            f'  <rect x="{left:.0f}" y="{top}" width="{width:.0f}" height="{HEIGHT}" rx="7" '
            f'fill="{fill}" stroke="#9aa5b5"/>'
        )
        yield (
            f'  <text x="{middle}" y="{top + 18}" class="n">{name}</text>'
            f'<text x="{middle}" y="{top + 33}" class="s">{CAPTIONS.get(name, "")}</text>'
        )


def _connectors(names: Sequence[str], seen: Sequence[int]) -> Iterator[str]:
    height = 34 + 30 * len(names) + 6
    top = (seen[0] + seen[-1] - height) // 2
    yield (
        f'  <rect x="708" y="{top}" width="224" height="{height}" rx="9" fill="#ffffff" '
        'stroke="#d98a29" stroke-dasharray="5 4"/>'
    )
    yield f'  <text x="820" y="{top + 22}" class="n">featurestore_connectors</text>'
    for number, name in enumerate(names):
        y = top + 34 + 30 * number
        yield (
            f'  <rect x="720" y="{y}" width="200" height="24" rx="6" fill="#fdecd8" '
            f'stroke="#d98a29"/><text x="820" y="{y + 16}" class="s d">{name}</text>'
        )
    for y in seen:
        yield f'  <path class="l" d="M708 {y} H664"/>'


if __name__ == "__main__":
    PICTURE.write_text(drawing(), encoding="utf-8")
