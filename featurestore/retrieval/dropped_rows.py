"""Counts of the label rows that inner joins drop: from known counts, else by a narrow join."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from featurestore.errors import InvalidArgument
from featurestore.model.plan import FeaturePlan
from featurestore.retrieval.execution import Labels, run, run_query
from featurestore.session import Session

_log = logging.getLogger("featurestore.retrieval")


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
        reader.schema, _counting_batches(session, plan, reader, labels)
    )


def dropped_message(dropped: int) -> str:
    """Return the log message for dropped label rows."""
    rows = f"{dropped:,} label rows"
    if dropped == 1:
        rows = "1 label row"
    return f"{rows} without a row in every group dropped (join='inner')"


def _counting_batches(
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
