"""Changes of a database whose event times are not in the order of its log.

A row of a snapshot has the time at which the snapshot was read. A change that is logged before that
time, but is not in the snapshot, follows the row with an earlier time. The clock of a database may
also be set back. The log has the order of the changes: the last one is the current state of its
key.

Therefore a change removes the rows of its primary key with later event times. This excludes changes
that the group already contains, because a connector that is restarted repeats its last changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from featurestore.arrow.column_names import quoted
from featurestore.featuregroups import record_queries as queries
from featurestore.featuregroups.record_queries import OFFSET, PARTITION
from featurestore.featuregroups.table import OpenGroup
from featurestore.ingest import open_relation
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.plugins.engine import Engine, Relation
from featurestore.session import Session


@dataclass(frozen=True)
class ReplacedRows:
    """The rows that a later change of their key replaces.

    ``positions`` has the partitions and offsets of records in the batch, ``stored_keys`` the upsert
    keys of stored rows, or None.
    """

    positions: pa.Table
    stored_keys: pa.Table | None


def has_decreasing_times(session: Session, rows: object, group: OpenGroup) -> bool:
    """Return True if a record follows a record of its primary key with a later event time.

    ``rows`` have partition and offset of their records, and must be readable more than once.
    """
    spec, engine = group.spec, session.engine
    with open_relation(rows, engine=engine, like=spec.schema) as relation:
        stored_keys = queries.read_stored_keys(engine, relation, group, with_later=True)
    tables = {} if stored_keys is None else {"stored": stored_keys}
    with open_relation(rows, engine=engine, like=spec.schema) as relation:
        tables["batch"] = relation
        query = f"{_decreasing_keys(spec, tables)} SELECT 1 AS n FROM decreasing LIMIT 1"
        return engine.count(queries.run_query(engine, query, tables)) > 0


def find_replaced_rows(
    engine: Engine, spec: FeatureGroupSpec, tables: Mapping[str, Relation]
) -> ReplacedRows:
    """Return the rows that a later change of their key replaces.

    ``tables`` has the records (``batch``), the stored keys of their times and later ones
    (``stored``), and the keys that records delete (``deleted``); the last two are optional.
    """
    key, time = spec.primary_key, str(spec.event_time)
    decreasing = _decreasing_keys(spec, tables)
    names = ", ".join(map(quoted, (*key, time, PARTITION, OFFSET)))
    same = queries.equality_condition("live", "decreasing", key)
    query = (
        f"{decreasing} SELECT {names} FROM live "
        f"WHERE EXISTS (SELECT 1 FROM decreasing WHERE {same})"
    )
    records = engine.stream(queries.run_query(engine, query, tables)).read_all()
    records = records.sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")])
    stored_keys = None
    if "stored" in tables:
        names = ", ".join(map(quoted, spec.upsert_key))
        same = queries.equality_condition("stored", "decreasing", key)
        query = (
            f"{decreasing} SELECT {names} FROM stored "
            f"WHERE EXISTS (SELECT 1 FROM decreasing WHERE {same})"
        )
        if "deleted" in tables:
            # The live records follow the delete, which removes the stored rows.
            same = queries.equality_condition("stored", "deleted", key)
            query += f" AND NOT EXISTS (SELECT 1 FROM deleted WHERE {same})"
        stored_keys = engine.stream(queries.run_query(engine, query, tables)).read_all()
    record_indices, stored_indices = _replay_changes(spec, records, stored_keys)
    positions = records.select([PARTITION, OFFSET]).take(pa.array(record_indices, pa.int64()))
    if stored_keys is None or not stored_indices:
        return ReplacedRows(positions, None)
    return ReplacedRows(positions, stored_keys.take(pa.array(stored_indices, pa.int64())))


def _decreasing_keys(spec: FeatureGroupSpec, tables: Mapping[str, Relation]) -> str:
    """Return the common table expressions ``live`` and ``decreasing``.

    ``live`` has the records that no later record deletes, ``decreasing`` the primary keys of those
    that follow a record with a later event time.
    """
    names = ", ".join(map(quoted, spec.primary_key))
    time = quoted(str(spec.event_time))
    latest = (
        f"SELECT {names}, {time} AS this_time, max({time}) OVER (PARTITION BY {names}, {PARTITION} "
        f"ORDER BY {OFFSET} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS latest_time "
        "FROM live"
    )
    decreasing = f"SELECT {names} FROM ({latest}) AS times WHERE latest_time > this_time"
    if "stored" in tables:
        same = queries.equality_condition("live", "stored", spec.primary_key)
        decreasing += (
            f" UNION SELECT {names} FROM live WHERE EXISTS "
            f"(SELECT 1 FROM stored WHERE {same} AND stored.{time} > live.{time})"
        )
    live = queries.live_records_query(spec, tables)
    return f"WITH live AS ({live}), decreasing AS (SELECT DISTINCT * FROM ({decreasing}) AS keys)"


def _replay_changes(
    spec: FeatureGroupSpec, records: pa.Table, stored_keys: pa.Table | None
) -> tuple[list[int], list[int]]:
    """Return the indices of the records and of the stored rows that later records replace.

    The records are in the order of their partition.
    """
    # The indices of the current rows of each key by event time: records are counted from 0, and
    # stored rows are counted down from -1.
    current: defaultdict[Any, defaultdict[Any, list[int]]]
    current = defaultdict(lambda: defaultdict(list))
    if stored_keys is not None:
        for index, (key, time) in enumerate(_keys_and_times(spec, stored_keys)):
            current[key][time].append(-1 - index)
    replaced: list[int] = []
    for index, (key, time) in enumerate(_keys_and_times(spec, records)):
        indices_by_time = current[key]
        if time not in indices_by_time:
            for later in [later for later in indices_by_time if later > time]:
                replaced += indices_by_time.pop(later)
        indices_by_time[time].append(index)
    record_indices = [index for index in replaced if index >= 0]
    return record_indices, [-1 - index for index in replaced if index < 0]


def _keys_and_times(spec: FeatureGroupSpec, rows: pa.Table) -> list[tuple[Any, Any]]:
    keys = zip(*(rows.column(name).to_pylist() for name in spec.primary_key), strict=True)
    times = rows.column(str(spec.event_time))
    micros = times.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return list(zip(keys, micros.to_pylist(), strict=True))
