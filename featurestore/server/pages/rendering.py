"""Templates and what they need: every text is escaped by them, numbers and times look alike."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from operator import attrgetter
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from featurestore import __version__
from featurestore.model.printable import printable_line, value_text
from featurestore.model.statistics import ColumnStatistics, Statistics
from featurestore.model.time_limits import in_time, time_limit
from featurestore.server.access.secrets import form_token
from featurestore.server.access.visitors import Visitor
from featurestore.server.pages.markdown import markdown

_OUTSIDE_FILE_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_FILE_NAME = 200
_SPACES = re.compile(r"[ \t\r\n]+")
_STATISTICS = ["name", "kind", "missing", "distinct", "min", "median", "mean", "max", "std"]
_LONGEST = 24
_LONGEST_VALUE = 48


def page(request: Request, template: str, **values: Any) -> HTMLResponse:
    """Return a page made of a template."""
    return _render(request, template, 200, values)


def error_page(request: Request, status: int, told: Mapping[str, object]) -> HTMLResponse:
    """Return the page of an error."""
    # Time that is over is what many of these pages say.
    with time_limit(None):
        return _render(request, "error.html", status, {"told": told, "title": told["title"]})


def is_partial(request: Request) -> bool:
    """Tell whether a script asks for the part of a page that changed."""
    headers = request.headers
    whole = "hx-history-restore-request" in headers or "hx-boosted" in headers
    return headers.get("hx-request") == "true" and not whole


def csv_file(name: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Response:
    """Return a table as a file to download."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in in_time(rows):
        writer.writerow([_cell(value) for value in row])
    headers = {"Content-Disposition": f'attachment; filename="{file_name(name)}.csv"'}
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def file_name(text: str) -> str:
    r"""Return a name for a file to download: nothing in it ends a header or leads to a folder.

    >>> file_name('of_visits-v1-train'), file_name('../a"\r\nSet-Cookie: b')
    ('of_visits-v1-train', '_a_Set-Cookie_b')
    """
    return _OUTSIDE_FILE_NAMES.sub("_", text)[:_LONGEST_FILE_NAME]


def csv_of(name: str, columns: Sequence[str], items: Iterable[object]) -> Response:
    """Return the attributes of items as a file to download, by a column each."""
    return csv_file(name, columns, map(attrgetter(*columns), items))


def statistics_file(name: str, counted: Statistics | None) -> Response:
    """Return the statistics of columns as a file to download, in full."""
    rows = []
    for each in counted.columns if counted is not None else ():
        row = [each.name, each.kind, each.missing, each.distinct, each.minimum, each.quantile(0.5)]
        rows.append([*row, each.mean, each.maximum, each.std])
    return csv_file(name, _STATISTICS, rows)


def _cell(value: object) -> str:
    """Return a value as a cell; a text that a spreadsheet would compute is kept a text.

    >>> _cell("=1+1"), _cell(-4711), _cell(None), _cell(0.1 / 3)
    ("'=1+1", '-4711', '', '0.03333333333333333')
    """
    if value is None:
        return ""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return str(value) if is_plain else value_text(value)


def _render(
    request: Request, template: str, status: int, values: Mapping[str, Any]
) -> HTMLResponse:
    state = request.app.state
    visitor: Visitor | None = getattr(request.state, "visitor", None)
    known = visitor is not None or not state.settings.auth
    parts = (
        _environment()
        .get_template(template)
        .generate(
            request=request,
            path=request.url.path,
            partial=is_partial(request),
            location=state.store.location if known else None,
            release=__version__,
            visitor=visitor,
            form_field=_form_field(visitor),
            **values,
        )
    )
    return HTMLResponse("".join(in_time(parts)), status_code=status)


def _form_field(visitor: Visitor | None) -> Markup:
    """Return what each form holds, so that no page of another site can send it."""
    if visitor is None or visitor.cookie is None:
        return Markup("")
    return Markup('<input type="hidden" name="form_token" value="{}">').format(
        form_token(visitor.cookie)
    )


@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("featurestore.server"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        number=number,
        when=when,
        ago=ago,
        share=share,
        line=line,
        marked=marked,
        markdown=markdown,
        short=short,
        text=value_text,
        statistic=statistic,
    )
    found.globals.update(with_query=with_query)
    return found


def line(value: object) -> str:
    r"""Return a text on one line; what a browser would not show is spelled out.

    >>> line("no such\ncolumn\x00")
    'no such column\\u0000'
    """
    return printable_line(_SPACES.sub(" ", str(value)))


def marked(value: object, text: str) -> Markup:
    """Return a text with each place of another text in it marked.

    >>> marked("Amounts", "am")
    Markup('<mark>Am</mark>ounts')
    """
    shown = line(value)
    if not text.strip():
        return Markup("{}").format(shown)
    parts = re.split(f"({re.escape(text.strip())})", shown, flags=re.IGNORECASE)
    told = [Markup("{}").format(part) for part in parts]
    for place in range(1, len(told), 2):
        told[place] = Markup("<mark>{}</mark>").format(parts[place])
    return Markup("").join(told)


def number(value: object) -> str:
    """Return a number as people read it.

    >>> number(1234567), number(0.123456789), number(None)
    ('1,234,567', '0.123457', '')
    """
    if value is None:
        return ""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    return value_text(value)


def statistic(value: object, column: ColumnStatistics) -> str:
    """Return a number, text or time of a column's statistics on one short line."""
    if value is None:
        return ""
    if column.kind == "time":
        return str(value)[:19].replace("T", " ")
    text = printable_line(number(value))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def short(value: object) -> str:
    """Return any value on one short line.

    >>> short([1, 2]), short("a" * 60)[-2:], short(None)
    ('1, 2', 'a…', '')
    """
    text = printable_line(number(value))
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def share(value: float | None) -> str:
    """Return a share in per cent."""
    if value is None:
        return ""
    return "0 %" if value == 0 else f"{100 * value:.2g} %"


def when(value: object) -> str:
    """Return a time to the second in UTC.

    >>> when(datetime(2013, 1, 1, 6, tzinfo=UTC))
    '2013-01-01 06:00:00'
    """
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return aware.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return "" if value is None else str(value)


def ago(value: datetime | None) -> str:
    """Return how long ago a time was."""
    if value is None:
        return "never"
    seconds = max((datetime.now(UTC) - value).total_seconds(), 0)
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        count = int(seconds // length)
        if count:
            return f"{count:,} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def with_query(request: Request, **changed: object) -> str:
    """Return the address of a request with some arguments changed; None takes one away."""
    found = [item for item in request.query_params.multi_items() if item[0] not in changed]
    found += [(name, str(value)) for name, value in changed.items() if value is not None]
    return f"?{urlencode(found)}" if found else request.url.path
