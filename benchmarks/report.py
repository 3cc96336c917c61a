"""Record the figures of the benchmarks as JSON and render RESULTS.md from them.

Each program adds its figures to a ``Report``, which merges them into ``results/PROGRAM.json``. A
figure keeps the date and the commit of its own run, so a run of one part leaves the other figures
as they are. Runs with ``--quick`` write to ``results/local/``, which git ignores.

python benchmarks/report.py            render RESULTS.md from results/*.json
python benchmarks/report.py --check    exit with 1 if RESULTS.md differs from results/*.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
PAGE = FOLDER / "RESULTS.md"
COMPARISONS = "measurement"
TOPICS: dict[str, tuple[str, ...]] = {
    "End to end": ("end_to_end",),
    "Point-in-time joins and aggregates": ("point_in_time", "aggregates", "leakage", "taxi"),
    "Reading": (
        "read",
        "pytorch",
        "gpu",
        "categories_and_images",
        "transformations",
        "verified_reads",
    ),
    "Exports": ("encode", "export", "shapes"),
    "Spark": ("spark",),
    "Feature groups": (
        "feature_groups",
        "validation_and_statistics",
        "durability",
        "checksums",
        "hashing",
    ),
    "Growth and scale": ("growth", "catalog", "scale"),
    "Fresh processes": ("fresh_process",),
    "Jobs, streams, sources and the server": (
        "jobs",
        "streams",
        "sources",
        "server",
        "remote",
        "long_run",
    ),
    "Serving": ("serving",),
    "Monitors, experiments and scores": ("monitoring", "experiments", "scoring"),
    "Object stores": ("storage",),
}
HEAD = """\
# Benchmark results

`make bench` runs the programs in this folder, writes their figures to `results/*.json` and renders
this page. `make bench BENCH=name` runs one program; `make results` only renders the page. "a / b"
is the figure of a divided by that of b in the same run, on equal results. A number in brackets is
the same figure by processor time; compare those where the machine is shared. A figure that misses
its limit is **bold**. Several runs are shown as lowest to highest. The machine has two cores and
24 GiB, with Python 3.11, pyarrow 14.0.2, DuckDB 2.0.0, delta-rs 1.6.6, Spark 4.0.5, Delta 4.0.1 and
TensorFlow 2.21.0. [Benchmarks](../docs/benchmarks.md) compares with other tools.
"""


class Report:
    """The figures of one program.

    ``note`` is a sentence above the tables, about data and peers that rows and columns do not name.
    Programs of one topic share the tables of the same name.
    """

    def __init__(self, program: str, note: str) -> None:
        self.program = program
        self.note = note
        self._tables: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}

    def add(
        self,
        table: str,
        row: str,
        column: str,
        value: float | Sequence[float] | None,
        unit: str = "",
        *,
        processor: float | Sequence[float] | None = None,
        at_most: float | None = None,
        at_least: float | None = None,
        is_lower_bound: bool = False,
    ) -> None:
        """Add a figure, which replaces an earlier one of the same table, row and column.

        Args:
            table: The header of the first column, which names what the rows are.
            row: The subject of the figure, with its number of rows where that can vary.
            column: The measure; a peer is named here, as in "time / pandas".
            value: The figure, or those of several runs; None if only processor time is known.
            unit: "s", "ms", "MiB" and so on; nothing for ratios and counts.
            processor: The same figure by processor time.
            at_most: The limit of a figure that should be low.
            at_least: The limit of a figure that should be high.
            is_lower_bound: True if the peer was stopped, so that the figure is larger.
        """
        fields = {
            "value": value,
            "unit": unit or None,
            "processor": processor,
            "at_most": at_most,
            "at_least": at_least,
            "is_lower_bound": is_lower_bound or None,
        }
        figure = {name: _rounded(field) for name, field in fields.items() if field is not None}
        self._tables.setdefault(table, {}).setdefault(row, {})[column] = figure

    def compare(
        self,
        row: str,
        ours: float,
        peer: float,
        unit: str = "",
        *,
        processor: float | None = None,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """Add a comparison with a peer, which the row names: both figures and their ratio.

        Args:
            row: The subject and the peer, as in "upsert of 100 rows, vs delta-rs".
            ours: Our time or rate.
            peer: That of the peer, in the same unit.
            unit: "s", "rows/s" and so on.
            processor: The ratio by processor time.
            at_most: The limit of the ratio, for times.
            at_least: The limit of the ratio, for rates.
        """
        self.add(COMPARISONS, row, "ours", ours, unit)
        self.add(COMPARISONS, row, "peer", peer, unit)
        self.add(
            COMPARISONS,
            row,
            "ours / peer",
            ours / peer,
            processor=processor,
            at_most=at_most,
            at_least=at_least,
        )

    def save(self, *, quick: bool = False, stamp: dict[str, str] | None = None) -> Path:
        """Merge the figures into the JSON file of the program and return its path.

        Args:
            quick: Write to ``results/local/``, since small runs are not comparable.
            stamp: The date and the commit of the figures, those of this run if omitted.
        """
        path = (RESULTS / "local" if quick else RESULTS) / f"{self.program}.json"
        merged = read_results(path) if path.exists() else {"tables": {}}
        for table, rows in self._tables.items():
            for row, figures in rows.items():
                row_figures = merged["tables"].setdefault(table, {}).setdefault(row, {})
                stamp = stamp or _stamp_of_run()
                row_figures |= {column: figure | stamp for column, figure in figures.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        merged = {"note": self.note, "tables": merged["tables"]}
        path.write_text(_to_json(merged) + "\n", encoding="utf-8")
        self._tables.clear()
        return path


def read_results(path: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results


def render(folder: Path = RESULTS) -> str:
    """Return the page with the figures of all JSON files in a folder."""
    lines = [HEAD]
    for topic, programs in TOPICS.items():
        paths = [folder / f"{program}.json" for program in programs]
        results = {path.stem: read_results(path) for path in paths if path.exists()}
        if not results:
            continue
        lines.append(f"## {topic}\n")
        notes = [f"`{program}.py`: {result['note']}" for program, result in results.items()]
        lines.append(" ".join(notes) + "\n")
        tables: dict[str, dict[str, Any]] = {}
        for result in results.values():
            for name, rows in result["tables"].items():
                tables.setdefault(name, {}).update(rows)
        lines += [_render_table(name, rows) for name, rows in tables.items()]
    return "\n".join(lines)


def _render_table(name: str, rows: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return a table with a row per subject and a column per measure.

    A limit that a column shares is in its header. Otherwise a column "limit" has those of the rows,
    one for the table if no row has two different limits.
    """
    columns = list(dict.fromkeys(column for figures in rows.values() for column in figures))
    shared = {column: _shared_limit(column, rows) for column in columns}
    own_limits = [
        {limit for column in columns if (limit := _own_limit(figures, column, shared))}
        for figures in rows.values()
    ]
    has_one_limit_column = any(own_limits) and max(map(len, own_limits)) == 1
    header, body = [name], [[row] for row in rows]
    for column in columns:
        header.append(f"{column} ({shared[column]})" if shared[column] else column)
        limits = [_own_limit(figures, column, shared) for figures in rows.values()]
        has_limit_column = any(limits) and not has_one_limit_column
        if has_limit_column:
            header.append("limit")
        for cells, figures, limit in zip(body, rows.values(), limits, strict=True):
            cells.append(_cell(figures[column]) if column in figures else "")
            if has_limit_column:
                cells.append(limit or "")
    if has_one_limit_column:
        header.append("limit")
        for cells, limits_of_row in zip(body, own_limits, strict=True):
            cells.append("".join(limits_of_row))
    header.append("measured")
    for cells, figures in zip(body, rows.values(), strict=True):
        stamps = (f"{figure['date']} {figure['commit']}" for figure in figures.values())
        cells.append(", ".join(dict.fromkeys(stamps)))
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _shared_limit(column: str, rows: dict[str, dict[str, dict[str, Any]]]) -> str | None:
    """Return the limit that all figures of a column share, or None."""
    limits = {_limit(figures[column]) for figures in rows.values() if column in figures}
    return limits.pop() if len(limits) == 1 else None


def _own_limit(
    figures: dict[str, dict[str, Any]], column: str, shared: dict[str, str | None]
) -> str | None:
    """Return the limit of a figure that its column does not share."""
    return None if shared[column] or column not in figures else _limit(figures[column])


def _limit(figure: dict[str, Any]) -> str | None:
    for key, sign in (("at_most", "≤"), ("at_least", "≥")):
        if key in figure:
            return f"{sign} {_number(figure[key])}"
    return None


def _cell(figure: dict[str, Any]) -> str:
    unit = f" {figure['unit']}" if "unit" in figure else ""
    sign = "> " if "is_lower_bound" in figure else ""
    value = figure.get("value")
    shown = "" if value is None else f"{sign}{_emphasized(figure, value)}{unit}"
    processor = figure.get("processor")
    if processor is None:
        return shown
    return f"{shown} ({_emphasized(figure, processor)})".strip()


def _emphasized(figure: dict[str, Any], value: float | list[float]) -> str:
    """Return a number or a range, in bold if one of its runs misses the limit."""
    runs = value if isinstance(value, list) else [value]
    numbers = dict.fromkeys(_number(bound) for bound in (min(runs), max(runs)))
    text = " to ".join(numbers)
    missed = max(runs) > figure.get("at_most", max(runs))
    missed = missed or min(runs) < figure.get("at_least", min(runs))
    return f"**{text}**" if missed else text


def _number(value: float) -> str:
    """Return three significant digits, or all digits of a number from 100 on."""
    if float(value).is_integer() or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _rounded(field: Any) -> Any:
    """Return numbers with four significant digits, which is more than a run repeats."""
    if isinstance(field, (list, tuple)):
        return [_rounded(number) for number in field]
    if isinstance(field, (bool, str)):
        return field
    number = float(field)
    if number.is_integer() or abs(number) >= 1000:
        return round(number)
    return float(f"{number:.4g}")


def _stamp_of_run() -> dict[str, str]:
    """Return today and the commit, with a "+" if the code has changes that are not committed."""
    code = ["featurestore", "connectors", "benchmarks/*.py"]
    commit = _git("rev-parse", "--short=7", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", *code)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": today, "commit": commit + ("+" if changes else "")}


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(FOLDER.parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _to_json(value: Any, indent: str = "") -> str:
    """Return JSON with one line per figure, so that a change of a figure is a change of a line."""
    if not isinstance(value, dict) or not any(
        isinstance(member, dict) for member in value.values()
    ):
        return json.dumps(value, ensure_ascii=False)
    deeper = indent + "  "
    members = [
        f"{deeper}{json.dumps(key, ensure_ascii=False)}: {_to_json(member, deeper)}"
        for key, member in value.items()
    ]
    return "{\n" + ",\n".join(members) + f"\n{indent}}}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    page = render()
    if parser.parse_args().check:
        return int(PAGE.read_text(encoding="utf-8") != page)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
