"""A feature plan as text for people.

Sources, Delta versions, keys, rules, expected rows, bytes and memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

import pyarrow as pa
import pyarrow.types as pat

from featurestore.model.durations import format_duration
from featurestore.model.plan import FeaturePlan, Join, Source

# What a value of unknown length is taken to need.
_TEXT_BYTES = 16


def describe(plan: FeaturePlan) -> str:
    """Return the text of a plan."""
    lines = [*_head(plan), "", *_left(plan)]
    for number, join in enumerate(plan.joins, start=1):
        lines += ["", *_join(plan, join, number)]
    if plan.filters:
        lines += ["", f"filter     {' and '.join(plan.filters)}"]
    if plan.notes:
        lines += ["", *(f"note       {note}" for note in plan.notes)]
    return "\n".join(lines) + "\n"


def expected_bytes(plan: FeaturePlan) -> int | None:
    """Return how many bytes of data files the plan reads.

    Each source's share by the width of the columns read.
    """
    found = [_bytes_read(source, columns) for source, columns in _reads(plan)]
    return None if None in found else sum(each for each in found if each is not None)


def expected_memory(plan: FeaturePlan) -> int | None:
    """Return the bytes that the rows of all sides need at once.

    What a join without spilling holds.
    """
    sizes = [_held(source, columns) for source, columns in _reads(plan)]
    rows = plan.left_rows
    if rows is None or None in sizes:
        return None
    return rows * _width(plan.schema, plan.schema.names) + sum(
        size for size in sizes if size is not None
    )


def _head(plan: FeaturePlan) -> Iterator[str]:
    most = "" if plan.rows is not None or plan.left_rows is None else "at most "
    rows = "unknown" if plan.left_rows is None else f"{most}{plan.left_rows:,}"
    yield f"columns    {', '.join(plan.columns)}"
    yield f"rows       {rows} expected ({'one for each label row' if plan.how == 'left' else 'join=inner'})"
    memory = _size(expected_memory(plan))
    yield f"reads      {_size(expected_bytes(plan))} of data files, needs {memory} of memory or spills"


def _left(plan: FeaturePlan) -> Iterator[str]:
    if plan.left_source is not None:
        yield f"left       {_source(plan.left_source)}"
    elif plan.left_plan is not None:
        yield "left       the result of another retrieval:"
        yield from (f"           | {line}" for line in describe(plan.left_plan).splitlines())
    else:
        where = "in memory, order kept" if plan.keep_order else "a table of the engine"
        yield f"left       labels ({where}): {', '.join(plan.left_schema.names)}"
    if plan.fixed_time is not None:
        yield f"           time: {plan.fixed_time.isoformat()} for all rows"
    elif plan.left_time is not None:
        yield f"           time: {plan.left_time}"


def _join(plan: FeaturePlan, join: Join, number: int) -> Iterator[str]:
    yield f"join {number:<6}{_source(join.source)}"
    yield f"           on {', '.join(f'{left} = {key}' for left, key in join.on)}"
    yield f"           {_rule(plan, join)}"
    if not (join.source.unique and join.source.spec.primary_key):
        yield "           keys and times may repeat: of equal rows the one with the greatest row hash"
    yield f"           features: {', '.join(_renamed(join))}"


def _rule(plan: FeaturePlan, join: Join) -> str:
    if join.event_time is None:
        return "no event time: the row of the key"
    time = plan.left_time or "the moment"
    rules = [f"{join.event_time} <= {time}"]
    if join.created_time is not None:
        rules.append(
            f"{join.created_time} <= {time}"
            if plan.created_time_filter
            else "created time not looked at"
        )
    if join.ttl is not None:
        rules.append(_freshness(join.event_time, time, join.ttl))
    order = ", ".join(name for name in (join.event_time, join.created_time) if name is not None)
    return f"the latest by {order} with {' and '.join(rules)}"


def _freshness(event: str, time: str, ttl: timedelta) -> str:
    return (
        f"{event} = {time}" if not ttl else f"{event} >= {time} - {format_duration(ttl)}, else null"
    )


def _renamed(join: Join) -> Iterator[str]:
    for output in join.outputs:
        yield output.column if output.column == output.name else f"{output.column} as {output.name}"


def _source(source: Source) -> str:
    rows = "unknown rows" if source.rows is None else f"{source.rows:,} rows"
    return (
        f"{source.spec.name}@v{source.spec.version} at Delta version {source.delta_version}: {rows}"
    )


def _reads(plan: FeaturePlan) -> Iterator[tuple[Source, Sequence[str]]]:
    if plan.left_plan is not None:
        yield from _reads(plan.left_plan)
    if plan.left_source is not None:
        columns = [output.column for output in plan.left_outputs]
        columns += [left for join in plan.joins for left, _ in join.on]
        columns += [plan.left_time] if plan.left_time is not None else []
        yield plan.left_source, list(dict.fromkeys(columns))
    for join in plan.joins:
        times = [time for time in (join.event_time, join.created_time) if time is not None]
        keys = [key for _, key in join.on]
        yield (
            join.source,
            list(dict.fromkeys([*keys, *times, *(output.column for output in join.outputs)])),
        )


def _bytes_read(source: Source, columns: Sequence[str]) -> int | None:
    if source.bytes is None:
        return None
    schema = source.spec.schema
    return round(source.bytes * _width(schema, columns) / max(1, _width(schema, schema.names)))


def _held(source: Source, columns: Sequence[str]) -> int | None:
    return None if source.rows is None else source.rows * _width(source.spec.schema, columns)


def _width(schema: pa.Schema, columns: Sequence[str]) -> int:
    return sum(_bytes_of(schema.field(name).type) for name in columns)


def _bytes_of(kind: pa.DataType) -> int:
    if pat.is_fixed_size_list(kind):
        return int(kind.list_size) * _bytes_of(kind.value_type)
    if pat.is_struct(kind):
        return sum(_bytes_of(kind.field(index).type) for index in range(kind.num_fields))
    if pat.is_list(kind):
        return _TEXT_BYTES + 4 * _bytes_of(kind.value_type)
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _TEXT_BYTES


def _size(number: int | None) -> str:
    if number is None:
        return "an unknown number of bytes"
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
