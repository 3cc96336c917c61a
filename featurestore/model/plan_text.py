"""Formatting of a feature plan as text for display.

The text has sources, Delta versions, keys, join rules, and expected rows, bytes and memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pyarrow as pa
import pyarrow.types as pat

from featurestore.model.display import escape_line
from featurestore.model.plan import FeaturePlan, Join, Output, Source, WindowJoin, WindowOutput
from featurestore.model.times import format_duration
from featurestore.model.window_features import format_window

# The assumed size of a variable-size value.
_TEXT_BYTES = 16


def describe(plan: FeaturePlan) -> str:
    """Format a plan for display."""
    lines = [*_describe_header(plan), "", *_describe_left_side(plan)]
    for number, window in enumerate(plan.windows, start=1):
        lines += ["", *_describe_window(plan, window, number)]
    for number, join in enumerate(plan.joins, start=1):
        lines += ["", *_describe_join(plan, join, number)]
    for output in plan.on_demand:
        text = escape_line(output.feature.sql)
        lines += ["", f"on demand  {output.name} = {text} ({output.kind})"]
    if plan.filters:
        lines += ["", f"filter     {' and '.join(plan.filters)}"]
    for sample in plan.samples:
        share = f"{sample.fraction:g} of the rows by the hash of {', '.join(sample.by)}"
        lines += ["", f"sample     {share}, seed {sample.seed}"]
    if plan.notes:
        lines.append("")
    for note in plan.notes:
        lines.append(f"note       {note}")
    return "\n".join(lines) + "\n"


def estimate_bytes_read(plan: FeaturePlan) -> int | None:
    """Return the number of data file bytes that the plan reads.

    It is each source's size in proportion to the width of the columns that are read, or None if the
    size of a source is unknown.
    """
    total = 0
    for source, columns in _column_reads(plan):
        size = _bytes_read(source, columns)
        if size is None:
            return None
        total += size
    return total


def estimate_memory(plan: FeaturePlan) -> int | None:
    """Return the memory in bytes that the rows of all sides require together.

    This is the memory of a join without spilling.
    """
    if plan.left_rows is None:
        return None
    total = plan.left_rows * _width(plan.schema, plan.schema.names)
    for source, columns in _column_reads(plan):
        size = _memory_bytes(source, columns)
        if size is None:
            return None
        total += size
    return total


def _describe_header(plan: FeaturePlan) -> Iterator[str]:
    """Yield the lines about the result: columns, rows, bytes and memory."""
    rows = "unknown"
    if plan.rows is not None:
        rows = f"{plan.rows:,}"
    elif plan.left_rows is not None:
        rows = f"at most {plan.left_rows:,}"
    join_text = "join=inner"
    if plan.how == "left":
        left_rows = "label row"
        if plan.left_source is not None:
            left_rows = f"row of {plan.left_source.spec.name}"
        join_text = f"one for each {left_rows}"
    yield f"columns    {', '.join(plan.columns)}"
    yield f"rows       {rows} expected ({join_text})"
    reads, needs = _size_text(estimate_bytes_read(plan)), _size_text(estimate_memory(plan))
    yield f"reads      {reads} of data files, needs {needs} of memory or spills"


def _describe_left_side(plan: FeaturePlan) -> Iterator[str]:
    """Yield the lines about the rows that features are joined to."""
    if plan.left_source is not None:
        yield f"left       {_describe_source(plan.left_source)}"
    elif plan.left_plan is not None:
        yield "left       the result of another retrieval:"
        for line in describe(plan.left_plan).splitlines():
            yield f"           | {line}"
    elif plan.left_query is not None:
        yield f"left       {escape_line(' '.join(plan.left_query.sql.split()))}"
        for name, source in plan.left_query.tables:
            yield f"           {name}: {_describe_source(source)}"
    else:
        location = "in memory, order kept" if plan.keep_order else "an engine table"
        yield f"left       labels ({location}): {', '.join(plan.left_schema.names)}"
    if plan.fixed_time is not None:
        yield f"           time: {plan.fixed_time.isoformat()} for all rows"
    elif plan.left_time is not None:
        yield f"           time: {plan.left_time}"


def _describe_join(plan: FeaturePlan, join: Join, number: int) -> Iterator[str]:
    """Yield the lines about one joined group."""
    yield f"join {number:<6}{_describe_source(join.source)}"
    yield f"           on {', '.join(f'{left_column} = {key}' for left_column, key in join.on)}"
    yield f"           {_join_rule(plan, join)}"
    if not (join.source.unique and join.source.spec.primary_key):
        yield (
            "           keys and times may repeat: the row with the greatest row hash is selected"
        )
    yield f"           features: {', '.join(map(_describe_output, join.outputs))}"


def _describe_window(plan: FeaturePlan, window: WindowJoin, number: int) -> Iterator[str]:
    """Yield the lines about the window aggregates of one group."""
    time = plan.left_time or "the fixed time"
    yield f"window {number:<4}{_describe_source(window.source)}"
    yield f"           on {', '.join(f'{left_column} = {key}' for left_column, key in window.on)}"
    rule = f"rows of each key by {window.event_time}, up to {time}"
    if window.created_time is not None and plan.created_time_filter:
        rule += f", known by {window.created_time}"
    yield f"           {rule}"
    if window.members:
        yield f"           one event for each {', '.join((*window.members, window.event_time))}"
    for output in window.outputs:
        yield f"           {output.name} = {_describe_aggregate(output, time)}"


def _describe_aggregate(output: WindowOutput, time: str) -> str:
    """Format a window aggregate with its interval."""
    window = format_window(output.over, output.offset, time=time)
    text = f"{output.function}({output.column}) over {window}"
    if output.where is not None:
        text += f" where {output.where}"
    return text


def _join_rule(plan: FeaturePlan, join: Join) -> str:
    """Return the rule that selects the row of a group for each label."""
    if join.event_time is None:
        return "no event time: the row with the key"
    time = plan.left_time or "the fixed time"
    order = [join.event_time]
    rules = [f"{join.event_time} <= {time}"]
    if join.created_time is not None:
        order.append(join.created_time)
        if plan.created_time_filter:
            rules.append(f"{join.created_time} <= {time}")
        else:
            rules.append("created time ignored")
    if join.ttl is not None:
        rules.append(_ttl_rule(join.event_time, time, join.ttl))
    return f"the latest by {', '.join(order)} with {' and '.join(rules)}"


def _ttl_rule(event: str, time: str, ttl: timedelta) -> str:
    if not ttl:
        return f"{event} = {time}"
    return f"{event} >= {time} - {format_duration(ttl)}, else null"


def _describe_output(output: Output) -> str:
    if output.column == output.name:
        return output.column
    return f"{output.column} as {output.name}"


def _describe_source(source: Source) -> str:
    """Return the group, its versions and its number of rows."""
    group = f"{source.spec.name}@v{source.spec.version}"
    if source.to_json().get("live"):
        return f"{group} at {escape_line(str(source.spec.external))}: read when needed"
    rows = "unknown number of rows"
    if source.rows is not None:
        rows = f"{source.rows:,} rows"
    return f"{group} at Delta version {source.delta_version}: {rows}"


def _column_reads(plan: FeaturePlan) -> Iterator[tuple[Source, Sequence[str]]]:
    """Yield each source with the columns that are read from it."""
    if plan.left_plan is not None:
        yield from _column_reads(plan.left_plan)
    if plan.left_query is not None:
        for _, source in plan.left_query.tables:
            yield source, source.spec.schema.names
    if plan.left_source is not None:
        columns = [output.column for output in plan.left_outputs]
        for join in plan.all_joins:
            for left_column, _ in join.on:
                columns.append(left_column)
        if plan.left_time is not None:
            columns.append(plan.left_time)
        yield plan.left_source, list(dict.fromkeys(columns))
    for join in plan.all_joins:
        yield join.source, _find_join_columns(join)


def _find_join_columns(join: Join | WindowJoin) -> list[str]:
    """Return the source columns that a join reads: keys, times, features."""
    columns = [key for _, key in join.on]
    for time in (join.event_time, join.created_time):
        if time is not None:
            columns.append(time)
    if isinstance(join, WindowJoin):
        columns += join.members
        columns += _find_condition_columns(join)
    for output in join.outputs:
        columns.append(output.column)
    return list(dict.fromkeys(columns))


def _find_condition_columns(window: WindowJoin) -> list[str]:
    """Return the columns in aggregate conditions, which are also read."""
    # Words, not parsed SQL: a word of a string literal may only raise the estimate.
    words: set[str] = set()
    for output in window.outputs:
        words.update(re.findall(r"\w+", (output.where or "").lower()))
    return [name for name in window.source.spec.schema.names if name.lower() in words]


def _bytes_read(source: Source, columns: Sequence[str]) -> int | None:
    if source.bytes is None:
        return None
    schema = source.spec.schema
    # Parquet stores columns separately, so the bytes are read in proportion to the selected width.
    return round(source.bytes * _width(schema, columns) / max(1, _width(schema, schema.names)))


def _memory_bytes(source: Source, columns: Sequence[str]) -> int | None:
    if source.rows is None:
        return None
    return source.rows * _width(source.spec.schema, columns)


def _width(schema: pa.Schema, columns: Sequence[str]) -> int:
    width = 0
    for name in columns:
        width += _estimate_value_bytes(schema.field(name).type)
    return width


def _estimate_value_bytes(dtype: pa.DataType) -> int:
    """Estimate the size of one value in memory."""
    if pat.is_fixed_size_list(dtype):
        return int(dtype.list_size) * _estimate_value_bytes(dtype.value_type)
    if pat.is_struct(dtype):
        return sum(
            _estimate_value_bytes(dtype.field(index).type) for index in range(dtype.num_fields)
        )
    if pat.is_list(dtype):
        # The number of items is not known; four are assumed.
        return _TEXT_BYTES + 4 * _estimate_value_bytes(dtype.value_type)
    try:
        return max(1, int(dtype.bit_width) // 8)
    except ValueError:
        return _TEXT_BYTES


def _size_text(number: int | None) -> str:
    """Format a number of bytes."""
    if number is None:
        return "an unknown number of bytes"
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            digits = 0 if unit == "B" or size >= 10 else 1
            return f"{size:.{digits}f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
