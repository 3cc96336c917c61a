"""Output of commands: tables for people, JSON for programs.

The JSON output of a command is stable: keys may be added, but are never renamed.
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
from functools import partial
from pathlib import Path
from typing import Annotated, Generic, Protocol, TextIO, TypeVar

import typer

from featurestore.cli.state import OutputFormat, settings
from featurestore.errors import FeatureStoreError
from featurestore.model.display import escape_controls, value_text
from featurestore.model.times import format_duration

ROWS_OF_A_PAGE = 50
# Arguments and options whose help does not show a default value.
argument = partial(typer.Argument, show_default=False)
option = partial(typer.Option, show_default=False)
Limit = Annotated[
    int | None, option(min=1, help="Rows per page; default: 50 in a table, all in JSON.")
]
PageNumber = Annotated[int, typer.Option("--page", min=1, help="Page number.")]
DefinitionFile = Annotated[
    Path,
    argument(help="TOML file with the definition.", exists=True, dir_okay=False, readable=True),
]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


# Python calls, arguments and indexing, but not `pip install 'featurestore[spark]'`.
_PYTHON = re.compile(r"\w\(|\w=['\"{\[(\dA-Z]|\w= |\bdf\b|\w\[['\"]")


@dataclass(frozen=True)
class Page(Generic[T]):
    """A page of items; ``next`` is the next page number, None on the last page."""

    items: Sequence[T]
    next: int | None


class GetsPage(Protocol[T_co]):
    """A function that returns a part of a list; ``limit``: None for all items."""

    def __call__(self, *, limit: int | None, offset: int) -> Sequence[T_co]: ...


def get_page(context: typer.Context, get: GetsPage[T], *, limit: int | None, page: int) -> Page[T]:
    """Get a page of items.

    The function is called with one more than the limit, to determine whether there is another page.
    """
    if limit is None and (page > 1 or settings(context).output is OutputFormat.TEXT):
        limit = ROWS_OF_A_PAGE
    if limit is None:
        return Page(get(limit=None, offset=0), None)
    # One more item shows whether there is another page.
    items = get(limit=limit + 1, offset=(page - 1) * limit)
    if len(items) <= limit:
        return Page(items, None)
    return Page(items[:limit], page + 1)


def show_page(
    context: typer.Context,
    get: GetsPage[T],
    to_row: Callable[[T], Mapping[str, object]],
    *,
    limit: int | None,
    page: int,
    columns: Sequence[str],
    wide: Sequence[str] = (),
    optional: Sequence[str] = (),
    empty: str,
) -> None:
    """Print a page of items as records; the arguments are those of ``get_page`` and ``show_rows``."""
    items_page = get_page(context, get, limit=limit, page=page)
    rows = map(to_row, items_page.items)
    next_page = items_page.next
    show_rows(
        context,
        rows,
        columns=columns,
        wide=wide,
        optional=optional,
        empty=empty,
        next_page=next_page,
    )


def show_rows(
    context: typer.Context,
    rows: Iterable[Mapping[str, object]],
    *,
    columns: Sequence[str],
    wide: Sequence[str] = (),
    optional: Sequence[str] = (),
    empty: str = "no entries",
    next_page: int | None = None,
) -> None:
    """Print records, either with all keys as a JSON list or as a table of 80 characters.

    ``columns`` are the default columns, ``wide`` the additional columns for ``--wide``. Columns in
    ``optional`` are shown only if at least one record has a value for them.
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
            sys.stdout.write(f"more entries: --page {next_page}\n")


def show_record(
    context: typer.Context,
    record: Mapping[str, object],
    *,
    tables: Mapping[str, Sequence[Mapping[str, object]]] | None = None,
) -> None:
    """Print one record, either as a JSON object or as one line per key followed by the tables.

    Tables without rows are in the JSON object only.
    """
    tables = tables or {}
    if settings(context).output is OutputFormat.JSON:
        show_json({**record, **tables})
        return
    width = max(map(len, record))
    for key, value in record.items():
        sys.stdout.write(f"{key.replace('_', ' '):<{width}}  {value_text(value)}\n")
    for key, rows in tables.items():
        if rows:
            sys.stdout.write(f"\n{key.replace('_', ' ')}:\n")
            _print_table(rows, list(rows[0]))


def show_text(context: typer.Context, text: str, *, data: object) -> None:
    """Print a string, or ``data`` as JSON."""
    if settings(context).output is OutputFormat.JSON:
        show_json(data)
    else:
        sys.stdout.write(text.removesuffix("\n") + "\n")


class Report(Protocol):
    """The result of a check, as text or as a JSON object."""

    def to_json(self) -> Mapping[str, object]: ...


def show_report(context: typer.Context, report: Report, *, ok: bool) -> None:
    """Print the result of a check; the exit code is 1 unless ``ok``."""
    show_text(context, str(report), data=report.to_json())
    if not ok:
        raise typer.Exit(1)


def show_json(data: object) -> None:
    """Print a value as JSON."""
    sys.stdout.write(json.dumps(data, default=to_json_value, indent=2, ensure_ascii=False) + "\n")


def show_error(error: FeatureStoreError, *, output: OutputFormat) -> None:
    """Print an error message and its hint to standard error."""
    # An error is one line, so that scripts can parse it.
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
    """Return the hint unless it contains Python code, which is of no use on the command line."""
    if error.command is not None:
        return error.command
    if error.hint is None or (_PYTHON.search(error.hint) and "pip install" not in error.hint):
        return None
    return error.hint


def to_json_value(value: object) -> object:
    """Convert a value to a type that JSON supports."""
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


def _print_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Print rows as a table without colors."""
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
    # No colors, because EscapingStream would escape their control sequences.
    console = Console(
        file=sys.stdout, markup=False, highlight=False, color_system=None, width=width
    )
    with console.capture() as captured:
        console.print(table)
    # Rich pads each line to the width of the table.
    for line in captured.get().strip("\n").split("\n"):
        sys.stdout.write(f"{line.rstrip()}\n")


class EscapingStream(io.TextIOBase):
    """A stream that escapes control characters and writes to ``raw``.

    Results, errors, warnings and logs are escaped, so that strings in a store cannot control the
    terminal. Only the program's own output may be written to ``raw``, such as a progress bar, which
    moves the cursor.
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

    def close(self) -> None:
        # The owner of `raw` closes it. Garbage collection also calls this method, possibly later.
        pass

    def isatty(self) -> bool:
        return self.raw.isatty()

    def fileno(self) -> int:
        return self.raw.fileno()

    def writable(self) -> bool:
        return True


@contextmanager
def escaping() -> Iterator[None]:
    """Escape control characters in standard output and standard error during the block."""
    output, errors = sys.stdout, sys.stderr
    sys.stdout = EscapingStream(output)
    sys.stderr = EscapingStream(errors)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = output, errors
