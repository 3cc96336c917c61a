"""Output of commands: tables for people, JSON for programs.

The JSON of a command is stable: keys are added, never renamed.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Generic, TextIO, TypeVar

import typer

from featurestore.cli.state import OutputFormat, settings
from featurestore.errors import FeatureStoreError
from featurestore.model.display import escape_controls, value_text
from featurestore.model.times import format_duration

ROWS_OF_A_PAGE = 50
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Rows of a page: 50 as a table, all as JSON.", show_default=False),
]
PageNumber = Annotated[int, typer.Option("--page", min=1, help="Number of the page.")]
T = TypeVar("T")


# Calls, arguments and indexing in Python, but not `pip install 'featurestore[spark]'`.
_PYTHON = re.compile(r"\w\(|\w=['\"{\[(\dA-Z]|\w= |\bdf\b|\w\[['\"]")


@dataclass(frozen=True)
class Page(Generic[T]):
    """A page of items; ``next`` is the number of the next page, None on the last one."""

    items: Sequence[T]
    next: int | None


def get_page(
    context: typer.Context,
    get: Callable[[int | None, int], Sequence[T]],
    *,
    limit: int | None,
    page: int,
) -> Page[T]:
    """Return a page of the items that a function of limit and offset returns.

    The function is called with one more than the limit, to find out if there is another page.
    """
    if limit is None and (page > 1 or settings(context).output is OutputFormat.TEXT):
        limit = ROWS_OF_A_PAGE
    if limit is None:
        return Page(get(None, 0), None)
    items = get(limit + 1, (page - 1) * limit)
    if len(items) <= limit:
        return Page(items, None)
    return Page(items[:limit], page + 1)


def show_rows(
    context: typer.Context,
    rows: Iterable[Mapping[str, Any]],
    *,
    columns: Sequence[str],
    wide: Sequence[str] = (),
    optional: Sequence[str] = (),
    empty: str = "nothing there",
    next_page: int | None = None,
) -> None:
    """Print records: all their keys as a JSON list, or as a table of 80 characters.

    ``columns`` are those that fit, ``wide`` the additional ones of ``--wide``; ``optional`` are
    shown if any record has a value for them.
    """
    records = list(rows)
    columns = [
        *columns,
        *[
            column
            for column in optional
            if any(row.get(column) not in (None, "") for row in records)
        ],
    ]
    if settings(context).wide:
        columns += [name for name in wide if name not in columns]
    if settings(context).output is OutputFormat.JSON:
        show_json(records)
    elif not records:
        sys.stdout.write(f"{empty}\n")
    else:
        _print_table(records, columns)
        if next_page is not None:
            sys.stdout.write(f"there are more: --page {next_page}\n")


def show_record(
    context: typer.Context,
    record: Mapping[str, Any],
    *,
    tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> None:
    """Print one record: as a JSON object, or one line per key and then the tables."""
    tables = tables or {}
    if settings(context).output is OutputFormat.JSON:
        show_json({**record, **tables})
        return
    width = max(map(len, record))
    for key, value in record.items():
        sys.stdout.write(f"{key.replace('_', ' '):<{width}}  {value_text(value)}\n")
    for key, rows in tables.items():
        sys.stdout.write(f"\n{key.replace('_', ' ')}:\n")
        _print_table(rows, list(rows[0]))


def show_text(context: typer.Context, text: str, *, data: Any) -> None:
    """Print a text, or ``data`` as JSON."""
    if settings(context).output is OutputFormat.JSON:
        show_json(data)
    else:
        sys.stdout.write(text.removesuffix("\n") + "\n")


def show_json(data: Any) -> None:
    """Print a value as JSON."""
    sys.stdout.write(json.dumps(data, default=to_json_value, indent=2, ensure_ascii=False) + "\n")


def show_error(error: FeatureStoreError, *, output: OutputFormat) -> None:
    """Print an error to standard error: one line and the hint."""
    message = " ".join(error.message.split())
    hint = _command_hint(error)
    if output is OutputFormat.JSON:
        data = {"error": {"type": type(error).__name__, "message": message, "hint": hint}}
        sys.stderr.write(json.dumps(data, ensure_ascii=False) + "\n")
        return
    sys.stderr.write(f"error: {message}\n")
    if hint:
        sys.stderr.write(f"hint: {hint}\n")


def _command_hint(error: FeatureStoreError) -> str | None:
    """Return the hint for the command line; one in Python is of no use there."""
    if error.command is not None:
        return error.command
    if error.hint is None or (_PYTHON.search(error.hint) and "pip install" not in error.hint):
        return None
    return error.hint


def to_json_value(value: Any) -> Any:
    """Convert a value to one that JSON supports."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return format_duration(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: getattr(value, field.name) for field in fields}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)


def _print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        title, values = column.replace("_", " "), [row.get(column) for row in rows]
        if all(isinstance(value, int | float | None) for value in values):
            table.add_column(title, justify="right", overflow="fold")
        else:
            table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*[value_text(row.get(column)) for column in columns])
    width = None
    if not sys.stdout.isatty():
        width = 10_000  # a pipe has no width, and output must not be truncated
    # No colors: EscapingStream would escape their control sequences.
    console = Console(
        file=sys.stdout, markup=False, highlight=False, color_system=None, width=width
    )
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().strip("\n").split("\n"):
        sys.stdout.write(f"{line.rstrip()}\n")


class EscapingStream(io.TextIOBase):
    """A stream that escapes control characters and writes to ``raw``.

    Results, errors, warnings and logs go through it, so that text in a store cannot control the
    terminal. Only the program's own text may be written to ``raw``: a progress bar moves the
    cursor.
    """

    def __init__(self, raw: TextIO) -> None:
        super().__init__()
        self.raw = raw

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.raw.encoding

    def write(self, text: str) -> int:
        self.raw.write(escape_controls(text))
        return len(text)

    def flush(self) -> None:
        self.raw.flush()

    def isatty(self) -> bool:
        return self.raw.isatty()

    def fileno(self) -> int:
        return self.raw.fileno()

    def writable(self) -> bool:
        return True


@contextmanager
def escaping() -> Iterator[None]:
    """Escape control characters in standard output and standard error."""
    output, errors = sys.stdout, sys.stderr
    sys.stdout = EscapingStream(output)
    sys.stderr = EscapingStream(errors)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = output, errors


def raw_errors() -> TextIO:
    """Return standard error without escaping, for a progress bar."""
    if isinstance(sys.stderr, EscapingStream):
        return sys.stderr.raw
    return sys.stderr
