"""Checks that a retrieval has one row for each label: join values and events are unique."""

from __future__ import annotations

from collections.abc import Sequence

from featurestore.errors import InvalidArgument, NoJoinKey
from featurestore.model.plan import FeaturePlan, Join, Source, WindowJoin
from featurestore.plugins.engine import Relation
from featurestore.retrieval.rendering import cell
from featurestore.session import Session
from featurestore.usersql import quote

_EXAMPLES = 3


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
