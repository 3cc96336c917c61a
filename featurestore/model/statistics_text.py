"""Formatting of statistics for display: as text that fits a screen, and as table records."""

from __future__ import annotations

from featurestore.model.display import escape_line, value_text
from featurestore.model.json_object import JsonMapping
from featurestore.model.statistics import ColumnStatistics, Statistics, Value

_MAX_LINES = 20
_NAME, _VALUE = 18, 11
_HEAD = ("name", "kind", "missing", "distinct", "min", "mean", "max")
_WIDTHS = (_NAME, 7, 8, 10, _VALUE, _VALUE, _VALUE)


def describe(statistics: Statistics, *, lines: int = _MAX_LINES) -> str:
    """Format statistics as a table of at most 80 characters, with one line per column."""
    columns = statistics.columns[:lines]
    text_lines = [format_title(statistics), _format_line(_HEAD)]
    text_lines += [_format_column(column, statistics.rows) for column in columns]
    omitted = len(statistics.columns) - lines
    if omitted > 0:
        text_lines.append(f"... and {omitted:,} more; .column(name) returns one")
    return "\n".join(text_lines)


def to_records(statistics: Statistics) -> list[dict[str, object]]:
    """Return one record per column, with the statistics that fit a table."""
    rows: list[dict[str, object]] = [
        {
            "name": column.name,
            "type": column.type,
            "role": column.role,
            "missing": _format_missing(column, statistics.rows),
            "distinct": _format_distinct(column),
            "mean": _display_value(column.mean, column),
            "std": column.std,
            "min": _display_value(column.minimum, column),
            "50%": _display_value(column.quantile(0.5), column),
            "max": _display_value(column.maximum, column),
            "most frequent": _format_top_values(column),
            "counted": coverage(column),
        }
        for column in statistics.columns
    ]
    return rows


def coverage(column: ColumnStatistics) -> str:
    """Return the number of values in ``top``, and the fraction of rows with these values.

    >>> coverage(store.get_featuregroup_statistics("weather").column("origin"))
    'all 2 values'
    """
    share, distinct = column.top_share, _format_distinct(column)
    if share is None or not column.distinct:
        return ""
    if column.top_complete:
        return f"all {distinct} values"
    if not column.top:
        return "no repeated values"
    return f"{len(column.top)} of {distinct} values, {format_share(share)} of rows"


def format_share(share: float) -> str:
    """Format a fraction as a percentage that is never rounded to 0 or 100 percent.

    >>> format_share(0.5), format_share(0.00001), format_share(0.99999), format_share(1.0)
    ('50 %', '<0.1 %', '>99.9 %', '100 %')
    """
    # "0 %" and "100 %" would exclude such rows, or all others.
    if 0 < share < 0.001:
        return "<0.1 %"
    if 0.999 < share < 1:
        return ">99.9 %"
    return f"{100 * share:.3g} %"


def format_source_name(source: JsonMapping) -> str:
    """Format a statistics source for display.

    >>> format_source_name({"featuregroup": "weather", "version": 2, "delta_version": 7})
    'weather v2 (Delta 7)'
    """
    words = []
    name = source.get("featuregroup") or source.get("training_dataset")
    if name:
        words.append(str(name))
    if source.get("version") is not None:
        words.append(f"v{source['version']}")
    if source.get("split"):
        words.append(str(source["split"]))
    if source.get("delta_version") is not None:
        words.append(f"(Delta {source['delta_version']})")
    return " ".join(words)


def short(name: str, longest: int) -> str:
    """Shorten a name in the middle, since names often differ at the end.

    >>> short("temperature_of_the_sea", 11)
    'tempe…e_sea'
    """
    if len(name) <= longest:
        return name
    tail = (longest - 1) // 2
    return f"{name[: longest - 1 - tail]}…{name[-tail:]}"


def format_title(statistics: Statistics) -> str:
    """Return the number of rows as text, with the sampled fraction."""
    name = format_source_name(statistics.source) or "statistics"
    coverage_text = "all rows counted"
    if not statistics.exact:
        coverage_text = f"distributions from {statistics.sample_rows:,} rows"
    columns = len(statistics.columns)
    return f"{name}: {statistics.rows:,} rows, {columns:,} columns; {coverage_text}"


def _format_column(column: ColumnStatistics, rows: int) -> str:
    """Format the statistics of one column as a line."""
    name, missing = short(escape_line(column.name), _NAME), _format_missing(column, rows)
    first = [name, column.kind, missing or "-", _format_distinct(column)]
    if column.kind in ("text", "boolean"):
        values_text = _format_top_values(column) if column.top_complete else coverage(column)
        return f"{_format_line(first)}  {short(values_text, 3 * _VALUE - 1)}"
    values = (column.minimum, column.mean, column.maximum)
    if column.lengths is not None:
        lengths = column.lengths
        return f"{_format_line(first)}  lengths {lengths.minimum:,} to {lengths.maximum:,}"
    return _format_line([*first, *map(_format_value, values)])


def _format_top_values(column: ColumnStatistics) -> str:
    """Return the three most frequent values."""
    names = [
        value_text(_display_value(top_value.value, column)) or '""' for top_value in column.top[:3]
    ]
    if len(column.top) > len(names):
        names.append("...")
    return ", ".join(names)


def _display_value(value: Value | None, column: ColumnStatistics) -> Value | None:
    """Round a value for display: times are truncated to seconds."""
    if column.kind == "time" and isinstance(value, str):
        return value[:19].replace("T", " ")
    return value


def _format_line(cells: tuple[str, ...] | list[str]) -> str:
    """Align the cells of a line in columns."""
    padded = []
    for number, text in enumerate(cells):
        if number < 2:
            padded.append(text.ljust(_WIDTHS[number]))
        else:
            padded.append(text.rjust(_WIDTHS[number] - 1))
    return " ".join(padded).rstrip()


def _format_missing(column: ColumnStatistics, rows: int) -> str:
    if not column.missing:
        return ""
    return format_share(column.missing / max(rows, 1))


def _format_distinct(column: ColumnStatistics) -> str:
    if column.distinct is None:
        return "-"
    if column.distinct_exact:
        return f"{column.distinct:,}"
    return f"~{column.distinct:,}"


def _format_value(value: Value | None) -> str:
    """Format a number or time within the column width."""
    if value is None:
        return "-"
    if isinstance(value, str):
        # The date of an ISO 8601 time.
        return value[:10]
    if isinstance(value, int) and abs(value) < 1_000_000:
        return str(value)
    text = f"{value:.6g}"
    if len(text) < _VALUE:
        return text
    return f"{value:.4g}"
