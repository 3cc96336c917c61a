"""Ties between events, refused before aggregates over windows are computed."""

from __future__ import annotations

from featurestore.errors import InvalidArgument
from featurestore.model.plan import FeaturePlan, WindowJoin
from featurestore.retrieval.rendering import cell
from featurestore.retrieval.unique_columns import repeated_values
from featurestore.session import Session


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
        example = _example(session, join)
        if example is not None:
            raise InvalidArgument(
                f"Feature group {join.source.spec.name!r} has several rows of one key and event "
                f"time, for example {example}: they may be several events or versions of one.",
                hint="declare the column that distinguishes them in primary_key, or a created_time",
            )


def _example(session: Session, join: WindowJoin) -> str | None:
    """Return key and event time of rows that share them; None where no rows do."""
    columns = [*[key for _, key in join.on], join.event_time]
    tied_events = repeated_values(session, join.source, columns)
    for row in session.engine.stream(tied_events, limit=1).read_all().to_pylist():
        return ", ".join([f"{name}={cell(value)}" for name, value in row.items()])
    return None
