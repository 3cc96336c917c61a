"""Rendering of pages and CSV files: templates, filters, paginated lists and Markdown."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Generic, Protocol, TypeVar
from urllib.parse import urlencode

from fastapi import Query, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from featurestore import __version__
from featurestore.errors import FeatureStoreError
from featurestore.model.display import escape_line, value_text
from featurestore.model.runtime import iterate_within_limit, time_limit
from featurestore.model.statistics import ColumnStatistics, Statistics
from featurestore.registry.stored_errors import text_for_readers
from featurestore.server.access.visitors import Visitor, compute_form_token
from featurestore.server.snippets import Snippets

# Excludes HTML, images and headings.
_RULES = ["backticks", "code", "emphasis", "escape", "fence", "link", "list", "newline"]
T = TypeVar("T")
AGES = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7)}
PageNumber = Annotated[int, Query(alias="page", ge=1, le=100_000)]
_OUTSIDE_FILE_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_MAX_FILE_NAME_LENGTH = 200
_SPACES = re.compile(r"[ \t\r\n]+")
# The address and the name of each part of the site in the navigation.
_SECTIONS = [
    ("/groups", "Groups", "layers"),
    ("/datasets", "Datasets", "database"),
    ("/views", "Views", "columns-3"),
    ("/jobs", "Jobs", "calendar-clock"),
    ("/monitors", "Monitors", "activity"),
    ("/experiments", "Experiments", "flask-conical"),
    ("/models", "Models", "box"),
    ("/lineage", "Lineage", "workflow"),
    ("/basket", "Basket", "shopping-basket"),
]
_STATISTICS = ["name", "kind", "missing", "distinct", "min", "median", "mean", "max", "std"]
_MAX_STATISTIC_LENGTH = 24
_MAX_VALUE_LENGTH = 48


def markdown(text: str) -> Markup:
    """Render a description as HTML with paragraphs, lists, code, emphasis and links.

    >>> markdown("as *of* `t` <b>").strip()
    Markup('<p>as <em>of</em> <code>t</code> &lt;b&gt;</p>')
    """
    lines = [escape_line(line) for line in text.splitlines()]
    return Markup(_parser().render("\n".join(lines)))


@cache
def _parser() -> MarkdownIt:
    # The preset "zero" has no rules, so rules that a new release adds stay disabled.
    return MarkdownIt("zero", {"html": False, "linkify": False}).enable(_RULES)


@dataclass(frozen=True)
class ListPage(Generic[T]):
    """One page of a list; ``more`` is True if there is a next page."""

    items: list[T]
    number: int
    more: bool


class ReadsPage(Protocol[T]):
    """A function that returns a part of a list."""

    def __call__(self, *, limit: int, offset: int) -> list[T]: ...


def load_page(read: ReadsPage[T], *, number: int, size: int) -> ListPage[T]:
    """Load one page of a list."""
    # One more entry shows whether there is another page.
    entries = read(limit=size + 1, offset=(number - 1) * size)
    return ListPage(entries[:size], number, len(entries) > size)


def page(request: Request, template: str, **values: Any) -> HTMLResponse:
    """Render a page from a template."""
    return _render(request, template, 200, values)


def error_page(request: Request, template: str, status: int, **values: Any) -> HTMLResponse:
    """Render an error page from a template."""
    # The error may be an exceeded time limit, so rendering its page needs additional time.
    with time_limit(None):
        return _render(request, template, status, values)


def is_partial(request: Request) -> bool:
    """Return True if htmx requests a page fragment."""
    headers = request.headers
    # htmx sends hx-request also for restored history entries and boosted links, which replace the
    # full page.
    needs_full_page = "hx-history-restore-request" in headers or "hx-boosted" in headers
    return headers.get("hx-request") == "true" and not needs_full_page


def csv_file(name: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Response:
    """Return a table as a CSV download."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in iterate_within_limit(rows):
        writer.writerow([_csv_cell(value) for value in row])
    headers = {"Content-Disposition": f'attachment; filename="{file_name(name)}.csv"'}
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def file_name(text: str) -> str:
    r"""Return a safe file name for a download, without control characters and path separators.

    >>> file_name('of_visits-v1-train'), file_name('../a"\r\nSet-Cookie: b')
    ('of_visits-v1-train', '_a_Set-Cookie_b')
    """
    return _OUTSIDE_FILE_NAMES.sub("_", text)[:_MAX_FILE_NAME_LENGTH]


def objects_to_csv(name: str, columns: Sequence[str], items: Iterable[object]) -> Response:
    """Return attributes of objects as a CSV download, with one column per attribute."""
    return csv_file(name, columns, map(attrgetter(*columns), items))


def statistics_file(name: str, statistics: Statistics | None) -> Response:
    """Return column statistics as a CSV download."""
    rows = []
    for column in statistics.columns if statistics is not None else ():
        row = [
            column.name,
            column.kind,
            column.missing,
            column.distinct,
            column.minimum,
            column.quantile(0.5),
        ]
        rows.append([*row, column.mean, column.maximum, column.std])
    return csv_file(name, _STATISTICS, rows)


def _csv_cell(value: object) -> str:
    """Format a CSV cell; a leading quote protects strings that a spreadsheet would evaluate.

    >>> _csv_cell("=1+1"), _csv_cell(-4711), _csv_cell(None), _csv_cell(0.1 / 3)
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
    """Render a template with the values that all pages need."""
    state = request.app.state
    visitor: Visitor | None = getattr(request.state, "visitor", None)
    # Pages without objects of the store, such as the sign-in page, have no snippets.
    snippets: Snippets | None = getattr(request.state, "snippets", None)
    # Visitors who are not signed in or have no role see neither the location nor the navigation.
    is_allowed = not state.settings.auth or (visitor is not None and visitor.has_role)
    registry = state.store.session.registry
    texts = {
        name: text_for_readers(registry, value)
        for name, value in values.items()
        if isinstance(value, FeatureStoreError)
    }
    chunks = (
        _environment()
        .get_template(template)
        .generate(
            request=request,
            path=request.url.path,
            partial=is_partial(request),
            location=state.store.location if is_allowed else None,
            loss=state.losses.notice(visitor) if is_allowed else None,
            release=__version__,
            visitor=visitor,
            form_field=_form_field(visitor),
            snippets=snippets,
            **{**values, **texts},
        )
    )
    # The template yields parts of the page, so the time limit is checked while it is rendered.
    return HTMLResponse("".join(iterate_within_limit(chunks)), status_code=status)


def _form_field(visitor: Visitor | None) -> Markup:
    """Render the hidden CSRF token field that all forms contain."""
    if visitor is None or visitor.cookie is None:
        return Markup("")
    return Markup('<input type="hidden" name="form_token" value="{}">').format(
        compute_form_token(visitor.cookie)
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("featurestore.server"),
        autoescape=True,
        # A misspelled name in a template raises an error instead of rendering nothing.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=number,
        plain=plain,
        seconds=seconds,
        when=when,
        ago=ago,
        share=share,
        line=line,
        marked=highlight,
        markdown=markdown,
        short=short,
        text=value_text,
        statistic=statistic,
        deviation=deviation,
    )
    environment.globals.update(with_query=with_query, sections=_SECTIONS, icon=icon)
    return environment


def line(value: object) -> str:
    r"""Return a string on one line with escaped control characters.

    >>> line("no such\ncolumn\x00")
    'no such column\\u0000'
    """
    return escape_line(_SPACES.sub(" ", str(value)))


def highlight(value: object, text: str) -> Markup:
    """Return a string with all occurrences of a substring highlighted.

    >>> highlight("Amounts", "am")
    Markup('<mark>Am</mark>ounts')
    """
    shown = line(value)
    if not text.strip():
        return Markup("{}").format(shown)
    segments = re.split(f"({re.escape(text.strip())})", shown, flags=re.IGNORECASE)
    # Segments are escaped after the search: in escaped text, "am" would also match "&amp;".
    escaped = [Markup("{}").format(part) for part in segments]
    for index in range(1, len(escaped), 2):
        escaped[index] = Markup("<mark>{}</mark>").format(segments[index])
    return Markup("").join(escaped)


def number(value: object) -> str:
    """Format a number for display.

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
    """Format a number, string or time in column statistics on one short line."""
    if value is None:
        return ""
    if column.kind == "time":
        return str(value)[:19].replace("T", " ")
    text = escape_line(number(value))
    return text if len(text) <= _MAX_STATISTIC_LENGTH else text[: _MAX_STATISTIC_LENGTH - 1] + "…"


def deviation(column: ColumnStatistics) -> str:
    """Format the standard deviation of a column; times have one in days, hours or seconds."""
    if column.std is None or column.kind != "time":
        return number(column.std)
    for unit, seconds in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if column.std >= seconds:
            return f"{column.std / seconds:,.3g} {unit}"
    return f"{column.std:.3g} s"


def short(value: object) -> str:
    """Format any value on one short line.

    >>> short([1, 2]), short("a" * 60)[-2:], short(None)
    ('1, 2', 'a…', '')
    """
    text = escape_line(plain(value))
    return text if len(text) <= _MAX_VALUE_LENGTH else text[: _MAX_VALUE_LENGTH - 1] + "…"


def share(value: float | None) -> str:
    """Format a fraction as a percentage."""
    if value is None:
        return ""
    return "0 %" if value == 0 else f"{100 * value:.2g} %"


def when(value: object) -> str:
    """Format a time in UTC with second precision.

    >>> when(datetime(2013, 1, 1, 6, tzinfo=UTC))
    '2013-01-01 06:00:00'
    """
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return aware.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return "" if value is None else str(value)


def plain(value: object) -> str:
    """Format a value of the data or a setting: integers may be names, such as years and seeds.

    >>> plain(4711), plain(0.123456789), plain("a"), plain(None)
    ('4711', '0.123457', 'a', '')
    """
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_integer else number(value)


def seconds(value: float | None) -> str:
    """Format a duration in seconds.

    >>> seconds(0.0312), seconds(12.3), seconds(75), seconds(7500), seconds(None)
    ('0.03 s', '12 s', '1 min 15 s', '2 h 5 min', '')
    """
    if value is None:
        return ""
    if value < 10:
        return f"{value:.2f} s"
    if value < 60:
        return f"{value:.0f} s"
    minutes, rest_seconds = divmod(round(value), 60)
    hours, rest_minutes = divmod(minutes, 60)
    return f"{hours} h {rest_minutes} min" if hours else f"{minutes} min {rest_seconds} s"


def ago(value: datetime | None) -> str:
    """Format the age of a time."""
    if value is None:
        return "never"
    seconds = max((datetime.now(UTC) - value).total_seconds(), 0)
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        count = int(seconds // length)
        if count:
            return f"{count:,} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def icon(name: str) -> Markup:
    """Return an icon of static/icons.svg; the text next to it is its label.

    >>> icon("search")
    Markup('<svg class="icon" aria-hidden="true"><use href="/static/icons.svg#search"/></svg>')
    """
    link = Markup('<use href="/static/icons.svg#{}"/>').format(name)
    return Markup('<svg class="icon" aria-hidden="true">{}</svg>').format(link)


def with_query(request: Request, **changed: object) -> str:
    """Return the query string of a request with changed parameters; None removes one."""
    # The basket repeats the parameter "feature".
    arguments = [item for item in request.query_params.multi_items() if item[0] not in changed]
    arguments += [(name, str(value)) for name, value in changed.items() if value is not None]
    return f"?{urlencode(arguments)}" if arguments else request.url.path
