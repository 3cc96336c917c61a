"""Checks of a retrieval, before and after its rows are read.

Before: join values and events are unique, so that each label has one row. After: warnings about
nearly empty groups and about label rows that inner joins drop. Values and rows are counted while
they are read or exported. Only for a nearly empty group a sample of the labels is joined again, to
explain the nulls; only after filters a narrow join counts the dropped rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from featurestore.errors import FeatureStoreError, InvalidArgument, NoJoinKey
from featurestore.model.arguments import warn_caller
from featurestore.model.plan import FeaturePlan, Join, Source, WindowJoin
from featurestore.plugins.engine import Relation
from featurestore.retrieval.conversions import cell
from featurestore.retrieval.coverage import coverage
from featurestore.retrieval.execution import Labels, run, run_query
from featurestore.session import Session
from featurestore.usersql import quote

_EXAMPLES = 3
_log = logging.getLogger("featurestore.retrieval")
_MIN_COVERED = 0.01
_SAMPLE = 1000


def check_unique(session: Session, plan: FeaturePlan) -> None:
    """Refuse joins on columns of a group without key and time that hold a value more than once.

    Only such columns are read; groups that declare a key or an event time cost nothing.

    Raises:
        NoJoinKey: Some values occur in several rows; suggests what to declare.
    """
    for join in plan.joins:
        if join.source.spec.primary_key or join.event_time is not None:
            continue
        count, example = _count_repeated(session, join)
        if not count:
            continue
        name = join.source.spec.name
        columns = [key for _, key in join.on]
        raise NoJoinKey(
            f"Feature group {name!r} declares neither a primary key nor an event time, and {count} "
            f"values of {', '.join(columns)} are in several of its rows, for example {example}: "
            "the row of a label is ambiguous.",
            hint=f"make the group with primary_key={columns!r} (and event_time=, or rows put "
            f"together first); for one row of each pair, let {name!r} be the labels",
        )


def check_ties(session: Session, plan: FeaturePlan) -> None:
    """Refuse aggregates of groups in which rows of one key and event time may be one event or two.

    Only groups are read whose commits do not declare key and event time unique.

    Raises:
        InvalidArgument: Shows such rows, and suggests what to declare.
    """
    joins = [*plan.windows]
    if plan.left_plan is not None:
        joins += plan.left_plan.windows
    for join in joins:
        if join.members or join.created_time is not None or join.source.unique:
            continue
        example = _example_of_ties(session, join)
        if example is not None:
            raise InvalidArgument(
                f"Feature group {join.source.spec.name!r} has several rows of one key and event "
                f"time, for example {example}: they may be several events or versions of one.",
                hint="declare the column that distinguishes them in primary_key, or a created_time",
            )


def _example_of_ties(session: Session, join: WindowJoin) -> str | None:
    """Return key and event time of rows that share them; None where no rows do."""
    columns = [*[key for _, key in join.on], join.event_time]
    tied_events = repeated_values(session, join.source, columns)
    for row in session.engine.stream(tied_events, limit=1).read_all().to_pylist():
        return ", ".join([f"{name}={cell(value)}" for name, value in row.items()])
    return None


def repeated_values(session: Session, source: Source, columns: Sequence[str]) -> Relation:
    """Return the values of columns that are in several rows of a group, without nulls."""
    engine = session.engine
    names = list(dict.fromkeys(columns))
    rows = engine.read_table(
        source.path, version=source.delta_version, schema=source.spec.schema, columns=names
    )
    quoted = [quote(name, dialect=engine.dialect) for name in names]
    present = " AND ".join(f"{name} IS NOT NULL" for name in quoted)
    column_list = ", ".join(quoted)
    repeated_relation = engine.sql(
        f"SELECT {column_list} FROM fs_rows WHERE {present} GROUP BY {column_list} HAVING count(*) > 1",
        tables={"fs_rows": rows},
        parameters={},
    )
    return Relation(engine.name, repeated_relation.native, rows.schema)


def _count_repeated(session: Session, join: Join) -> tuple[int, str]:
    """Return how many values are in several rows, and the first of them as text."""
    engine = session.engine
    repeated_relation = repeated_values(session, join.source, [key for _, key in join.on])
    count = engine.count(repeated_relation)
    if not count:
        return 0, ""
    first_values = engine.stream(repeated_relation, limit=_EXAMPLES).read_all().to_pylist()[0]
    return count, ", ".join(f"{name}={cell(value)}" for name, value in first_values.items())


class CoverageWarning(UserWarning):
    """A group gives values to no label, or to very few."""


def warn_of_empty_groups(
    session: Session,
    plan: FeaturePlan | None,
    reader: pa.RecordBatchReader,
    *,
    labels: Labels | None,
) -> pa.RecordBatchReader:
    """Return a reader that warns, once exhausted, of groups that gave nearly no values.

    Plans with filters or samples are not checked: these select rows on purpose.
    """
    if plan is None or plan.cuts_rows or not plan.joins:
        return reader
    batches = _batches_with_warning(session, plan, reader, labels)
    return pa.RecordBatchReader.from_batches(reader.schema, batches)


def warn_of_export(
    session: Session,
    plan: FeaturePlan,
    *,
    labels: Labels | None,
    rows: int,
    nulls: Mapping[str, int],
) -> None:
    """Warn of groups whose features are nearly all null in the rows of an export."""
    if plan.cuts_rows:
        return
    values = {}
    for group, names in _columns_by_group(plan).items():
        values[group] = max(rows - nulls.get(name, 0) for name in names)
    _warn(session, plan, labels, rows=rows, values=values)


def _columns_by_group(plan: FeaturePlan) -> dict[str, list[str]]:
    """Return the columns that each joined group gives to the result."""
    features: dict[str, list[str]] = {}
    for join in plan.joins:
        names = [output.name for output in join.outputs if output.name in plan.columns]
        if names:
            spec = join.source.spec
            features.setdefault(f"{spec.name}@v{spec.version}", []).extend(names)
    return features


def _batches_with_warning(
    session: Session, plan: FeaturePlan, reader: pa.RecordBatchReader, labels: Labels | None
) -> Iterator[pa.RecordBatch]:
    features = _columns_by_group(plan)
    values = dict.fromkeys(features, 0)
    rows = 0
    for batch in reader:
        rows += batch.num_rows
        for group, names in features.items():
            values[group] += _rows_with_value(batch, names)
        yield batch
    _warn(session, plan, labels, rows=rows, values=values)


def _rows_with_value(batch: pa.RecordBatch, names: Sequence[str]) -> int:
    """Return how many rows have a value in one of some columns."""
    has_value = np.zeros(batch.num_rows, bool)
    for name in names:
        column = batch.column(batch.schema.get_field_index(name))
        if not column.null_count:
            return int(batch.num_rows)
        if column.null_count < batch.num_rows:
            has_value |= column.is_valid().to_numpy(zero_copy_only=False)
    return int(has_value.sum())


def _warn(
    session: Session,
    plan: FeaturePlan,
    labels: Labels | None,
    *,
    rows: int,
    values: Mapping[str, int],
) -> None:
    nearly_empty = [group for group, count in values.items() if count < _MIN_COVERED * rows]
    dropped_all = not rows and plan.how == "inner" and plan.left_rows
    if dropped_all:
        nearly_empty = list(values)
    if not nearly_empty:
        return
    lines = []
    if dropped_all:
        lines.append("join='inner' dropped every label")
    for group in nearly_empty:
        lines.append(f"{group} gives {values[group] or 'no'} values to {rows:,} rows")
    try:
        report = coverage(session, plan, labels=labels, sample=_SAMPLE)
        lines.append(str(report).rstrip())
        if report.sampled:
            lines.append("frame.coverage() looks at more labels")
    except FeatureStoreError as error:
        lines.append(f"why is not known: {error.message}")
    warn_caller("\n".join(lines), CoverageWarning)


def dropped_rows(
    session: Session, plan: FeaturePlan, *, labels: Labels | None = None, rows: int | None = None
) -> int | None:
    """Return how many label rows the inner joins of a plan, and of the plans that feed it, drop.

    None where no join drops any. ``rows`` is the number of the plan's rows where the caller has
    counted them; then, without filters, the labels alone are counted, and only where planning does
    not know how many there are. Else the joins run once more, on keys and times alone. Rows that
    filters leave out are not counted.
    """
    chain = [plan]
    while chain[-1].left_plan is not None:
        chain.append(chain[-1].left_plan)
    if not drops(plan):
        return None
    if rows is not None and not any(each.cuts_rows for each in chain):
        return _left_rows(session, chain[-1], labels) - rows
    dropped = 0
    for each in chain:
        if each.how == "inner":
            dropped += _left_rows(session, each, labels) - _joined_rows(session, each, labels)
    return dropped


def log_dropped_rows(
    session: Session,
    plan: FeaturePlan | None,
    reader: pa.RecordBatchReader,
    *,
    labels: Labels | None,
) -> pa.RecordBatchReader:
    """Return a reader that logs, once exhausted, how many label rows the joins dropped.

    A filter between the joins and the reader hides their number: then the log says how to count.
    """
    if plan is None or not drops(plan):
        return reader
    return pa.RecordBatchReader.from_batches(
        reader.schema, _batches_with_log(session, plan, reader, labels)
    )


def dropped_message(dropped: int) -> str:
    """Return the log message for dropped label rows."""
    rows = f"{dropped:,} label rows"
    if dropped == 1:
        rows = "1 label row"
    return f"{rows} without a row in every group dropped (join='inner')"


def _batches_with_log(
    session: Session, plan: FeaturePlan, reader: pa.RecordBatchReader, labels: Labels | None
) -> Iterator[pa.RecordBatch]:
    rows = 0
    for batch in reader:
        rows += batch.num_rows
        yield batch
    if _has_filters(plan):
        _log.warning(
            "join='inner' and filters dropped label rows; frame.dropped() counts those of the join"
        )
        return
    dropped = dropped_rows(session, plan, labels=labels, rows=rows)
    if dropped:
        _log.warning(dropped_message(dropped))


def drops(plan: FeaturePlan) -> bool:
    """Return True if a plan, or one that feeds it, drops label rows."""
    return plan.how == "inner" or (plan.left_plan is not None and drops(plan.left_plan))


def _has_filters(plan: FeaturePlan) -> bool:
    return plan.cuts_rows or (plan.left_plan is not None and _has_filters(plan.left_plan))


def _left_rows(session: Session, plan: FeaturePlan, labels: Labels | None) -> int:
    """Return how many rows the left side of one plan has."""
    if plan.left_rows is not None:
        return plan.left_rows
    if plan.left_plan is not None:
        return session.engine.count(run(session, plan.left_plan, labels=labels))
    if plan.left_source is not None:
        source = plan.left_source
        columns = plan.left_schema.names[:1]
        relation = session.engine.read_table(
            source.path, version=source.delta_version, schema=source.spec.schema, columns=columns
        )
        return session.engine.count(relation)
    if plan.left_query is not None:
        return session.engine.count(run_query(session, plan.left_query))
    if labels is None:
        raise InvalidArgument("The frame has no labels any more.")
    return session.engine.count(labels())


def _joined_rows(session: Session, plan: FeaturePlan, labels: Labels | None) -> int:
    """Return how many rows the joins of one plan leave, before its filters."""
    narrow = replace(plan, filters=(), samples=(), keep_order=False).select(plan.left_columns[:1])
    return session.engine.count(run(session, narrow, labels=labels))
