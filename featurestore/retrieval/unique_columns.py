"""Groups without key and time, joined on columns: each value has to be there once.

One row for each label is the promise of a retrieval, and nothing would say which of several rows
it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from featurestore.errors import NoJoinKey
from featurestore.model.plan import FeaturePlan, Join, Source
from featurestore.plugins.engine import Relation
from featurestore.retrieval.rendering import cell
from featurestore.session import Session
from featurestore.usersql import quote

_EXAMPLES = 3


def check_unique(session: Session, plan: FeaturePlan) -> None:
    """Refuse joins on columns of a group without key and time that hold a value more than once.

    Only such columns are read; groups that declare a key or an event time cost nothing.

    Raises:
        NoJoinKey: Says how many values are there more than once, and what to declare.
    """
    for join in plan.joins:
        if join.source.spec.primary_key or join.event_time is not None:
            continue
        count, example = _repeated(session, join)
        if not count:
            continue
        name = join.source.spec.name
        columns = [key for _, key in join.on]
        raise NoJoinKey(
            f"Feature group {name!r} declares neither a primary key nor an event time, and {count} "
            f"values of {', '.join(columns)} are in several of its rows, for example {example}: "
            "nothing says which row a label gets.",
            hint=f"make the group with primary_key={columns!r} (and event_time=, or rows put "
            f"together first); for one row of each pair, let {name!r} be the labels",
        )


def repeated(session: Session, source: Source, columns: Sequence[str]) -> Relation:
    """Return the values of columns that are in several rows of a group, nulls left out."""
    engine = session.engine
    names = list(dict.fromkeys(columns))
    rows = engine.read_table(
        source.path, version=source.delta_version, schema=source.spec.schema, columns=names
    )
    quoted = [quote(name, dialect=engine.dialect) for name in names]
    present = " AND ".join(f"{name} IS NOT NULL" for name in quoted)
    listed = ", ".join(quoted)
    found = engine.sql(
        f"SELECT {listed} FROM fs_rows WHERE {present} GROUP BY {listed} HAVING count(*) > 1",
        tables={"fs_rows": rows},
        parameters={},
    )
    return Relation(engine.name, found.native, rows.schema)


def _repeated(session: Session, join: Join) -> tuple[int, str]:
    """Return how many values are in several rows, and the first of them as text."""
    engine = session.engine
    found = repeated(session, join.source, [key for _, key in join.on])
    count = engine.count(found)
    if not count:
        return 0, ""
    first = engine.stream(found, limit=_EXAMPLES).read_all().to_pylist()[0]
    return count, ", ".join(f"{name}={cell(value)}" for name, value in first.items())
