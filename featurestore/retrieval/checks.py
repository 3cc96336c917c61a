"""Checks before and after the rows of a retrieval are read.

Before reading, join values and events are checked to be unique, so that each label has one row.
After reading, warnings are issued about nearly empty groups and about label rows that inner joins
drop. Values and rows are counted while they are read or exported. If a group is nearly empty, a
sample of the labels is joined again to explain the nulls. If there are filters, a join of keys and
times counts the dropped rows.
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
from featurestore.retrieval.conversions import format_cell
from featurestore.retrieval.execution import Labels, run, run_query
from featurestore.session import Session
from featurestore.usersql import quote

_EXAMPLES = 3
_log = logging.getLogger("featurestore.retrieval")
_MIN_COVERED = 0.01
_SAMPLE = 1000


def check_unique(session: Session, plan: FeaturePlan) -> None:
    """Refuse joins on columns with repeated values if the group has neither key nor event time.

    Only these columns are read. Groups that declare a key or an event time are not read.

    Raises:
        NoJoinKey: Values occur in several rows. The hint suggests a declaration.
    """
    for join in plan.joins:
        # The point-in-time rule selects one row per key. Only a group without key and event time is
        # ambiguous.
        if join.source.spec.primary_key or join.event_time is not None:
            continue
        count, example = _count_repeated_values(session, join)
        if not count:
            continue
        name = join.source.spec.name
        columns = [key for _, key in join.on]
        raise NoJoinKey(
            f"Feature group {name!r} declares neither a primary key nor an event time, and {count} "
            f"values of {', '.join(columns)} occur in several rows, for example {example}, so the "
            "row for a label is ambiguous.",
            hint=f"create the group with primary_key={columns!r} (and event_time=, or after "
            f"aggregating its rows); for one row of each pair, pass labels={name!r}",
        )


def check_ties(session: Session, plan: FeaturePlan) -> None:
    """Refuse aggregates of groups in which several rows have the same key and event time.

    Such rows may be one event or several. Groups are read only if their commits do not declare key
    and event time unique.

    Raises:
        InvalidArgument: A group has such rows. The message shows an example, and the hint suggests
            a declaration.
    """
    # Aggregates count every row, so it must be clear whether two rows are one event.
    joins = [*plan.windows]
    if plan.left_plan is not None:
        joins += plan.left_plan.windows
    for join in joins:
        if join.members or join.created_time is not None or join.source.unique:
            continue
        example = _find_tied_rows(session, join)
        if example is not None:
            raise InvalidArgument(
                f"Feature group {join.source.spec.name!r} has several rows with the same key and "
                f"event time, for example {example}. They may be different events or versions of "
                "one event.",
                hint="add a column that identifies events to primary_key, or declare created_time",
            )


def _find_tied_rows(session: Session, join: WindowJoin) -> str | None:
    """Find a key and event time shared by several rows; return them formatted, or None."""
    columns = [*[key for _, key in join.on], join.event_time]
    tied_events = find_repeated_values(session, join.source, columns)
    # One example suffices for the message, so the query stops at the first.
    for row in session.engine.stream(tied_events, limit=1).read_all().to_pylist():
        return ", ".join([f"{name}={format_cell(value)}" for name, value in row.items()])
    return None


def find_repeated_values(session: Session, source: Source, columns: Sequence[str]) -> Relation:
    """Return the non-null column values that occur in several rows of a group."""
    engine = session.engine
    names = list(dict.fromkeys(columns))
    rows = engine.read_table(
        source.path, version=source.delta_version, schema=source.spec.schema, columns=names
    )
    quoted = [quote(name, dialect=engine.dialect) for name in names]
    # Null keys match no label, so repeated nulls are not ambiguous.
    present = " AND ".join(f"{name} IS NOT NULL" for name in quoted)
    column_list = ", ".join(quoted)
    repeated_relation = engine.sql(
        f"SELECT {column_list} FROM fs_rows WHERE {present} GROUP BY {column_list} HAVING count(*) > 1",
        tables={"fs_rows": rows},
        parameters={},
    )
    return Relation(engine.name, repeated_relation.native, rows.schema)


def _count_repeated_values(session: Session, join: Join) -> tuple[int, str]:
    """Return how many values occur in several rows, and the first of them as a string."""
    engine = session.engine
    repeated_relation = find_repeated_values(session, join.source, [key for _, key in join.on])
    count = engine.count(repeated_relation)
    if not count:
        return 0, ""
    first_values = engine.stream(repeated_relation, limit=_EXAMPLES).read_all().to_pylist()[0]
    return count, ", ".join(f"{name}={format_cell(value)}" for name, value in first_values.items())


class CoverageWarning(UserWarning):
    """A warning about a group that has values for no label or for very few labels."""


def warn_of_empty_groups(
    session: Session,
    plan: FeaturePlan | None,
    reader: pa.RecordBatchReader,
    *,
    labels: Labels | None,
) -> pa.RecordBatchReader:
    """Wrap a reader so that it warns about nearly empty groups once it is exhausted.

    Plans with filters or samples are not checked, since these select rows on purpose.
    """
    if plan is None or plan.drops_rows or not plan.joins:
        return reader
    batches = _batches_with_warning(session, plan, reader, labels)
    return pa.RecordBatchReader.from_batches(reader.schema, batches)


def warn_of_empty_groups_in_export(
    session: Session,
    plan: FeaturePlan,
    *,
    labels: Labels | None,
    rows: int,
    nulls: Mapping[str, int],
) -> None:
    """Warn about groups whose features are nearly all null in an export."""
    if plan.drops_rows:
        return
    values = {}
    for group, names in _columns_by_group(plan).items():
        # Null counts do not show which rows have any value, so the column with the fewest nulls
        # gives a lower bound.
        values[group] = max(rows - nulls.get(name, 0) for name in names)
    _warn(session, plan, labels, rows=rows, values=values)


def _columns_by_group(plan: FeaturePlan) -> dict[str, list[str]]:
    """Return the output columns of each joined group."""
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
            values[group] += _count_rows_with_value(batch, names)
        yield batch
    _warn(session, plan, labels, rows=rows, values=values)


def _count_rows_with_value(batch: pa.RecordBatch, names: Sequence[str]) -> int:
    """Return how many rows have a non-null value in at least one of the columns."""
    has_value = np.zeros(batch.num_rows, bool)
    for name in names:
        column = batch.column(batch.schema.get_field_index(name))
        # A column without nulls covers all rows; counting its mask would be wasted.
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
    """Warn about nearly empty groups, with the reasons from a sample of the labels."""
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
        lines.append(f"{group} has values for {values[group]:,} of {rows:,} rows")
    try:
        # Most retrievals have values, and need no report.
        from featurestore.retrieval.coverage import coverage

        report = coverage(session, plan, labels=labels, sample=_SAMPLE)
        lines.append(str(report).rstrip())
        if report.sampled:
            lines.append("frame.coverage() checks more labels")
    except FeatureStoreError as error:
        # A failed explanation must not replace the retrieved rows by an error.
        lines.append(f"the reasons could not be determined: {error.message}")
    warn_caller("\n".join(lines), CoverageWarning)


def count_dropped_rows(
    session: Session, plan: FeaturePlan, *, labels: Labels | None = None, rows: int | None = None
) -> int | None:
    """Return how many label rows the inner joins of a plan and its left plans drop.

    None if the plans have no inner join. If the caller has counted the rows of the plan (``rows``)
    and there are no filters, only the labels are counted, unless planning knows their number.
    Otherwise, the joins run again on keys and times only. Rows that filters drop are not counted.
    """
    chain = [plan]
    while chain[-1].left_plan is not None:
        chain.append(chain[-1].left_plan)
    if not drops_label_rows(plan):
        return None
    # Without filters, each difference between labels and rows is a dropped label.
    if rows is not None and not any(chained_plan.drops_rows for chained_plan in chain):
        return _count_left_rows(session, chain[-1], labels) - rows
    dropped = 0
    for chained_plan in chain:
        if chained_plan.how == "inner":
            left_rows = _count_left_rows(session, chained_plan, labels)
            # One left column, no filters and no order: the cheapest plan with the same number of
            # joined rows.
            narrow = replace(chained_plan, filters=(), samples=(), keep_order=False)
            narrow = narrow.select(chained_plan.left_columns[:1])
            dropped += left_rows - session.engine.count(run(session, narrow, labels=labels))
    return dropped


def log_dropped_rows(
    session: Session,
    plan: FeaturePlan | None,
    reader: pa.RecordBatchReader,
    *,
    labels: Labels | None,
) -> pa.RecordBatchReader:
    """Wrap a reader so that it logs the number of dropped label rows once it is exhausted.

    If there are filters, the number is not known, and the log message explains how to count.
    """
    if plan is None or not drops_label_rows(plan):
        return reader
    return pa.RecordBatchReader.from_batches(
        reader.schema, _batches_with_log(session, plan, reader, labels)
    )


def format_dropped_rows(dropped: int) -> str:
    """Format the log message about dropped label rows."""
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
            "join='inner' and filters dropped label rows; frame.dropped() counts the rows that the "
            "join dropped"
        )
        return
    dropped = count_dropped_rows(session, plan, labels=labels, rows=rows)
    if dropped:
        _log.warning(format_dropped_rows(dropped))


def drops_label_rows(plan: FeaturePlan) -> bool:
    """Return whether a plan or one of its left plans drops label rows."""
    return plan.how == "inner" or (plan.left_plan is not None and drops_label_rows(plan.left_plan))


def _has_filters(plan: FeaturePlan) -> bool:
    return plan.drops_rows or (plan.left_plan is not None and _has_filters(plan.left_plan))


def _count_left_rows(session: Session, plan: FeaturePlan, labels: Labels | None) -> int:
    """Count the rows on the left side of a plan."""
    if plan.left_rows is not None:
        return plan.left_rows
    if plan.left_plan is not None:
        return session.engine.count(run(session, plan.left_plan, labels=labels))
    if plan.left_source is not None:
        source = plan.left_source
        # Any column suffices to count rows, and Parquet reads only this one.
        columns = plan.left_schema.names[:1]
        relation = session.engine.read_table(
            source.path, version=source.delta_version, schema=source.spec.schema, columns=columns
        )
        return session.engine.count(relation)
    if plan.left_query is not None:
        return session.engine.count(run_query(session, plan.left_query))
    if labels is None:
        raise InvalidArgument("The frame no longer has its labels.")
    return session.engine.count(labels())
