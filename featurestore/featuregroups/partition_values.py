"""The partitions of a group, from its log."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from featurestore.featuregroups.table import TableVersion, open_group
from featurestore.session import Session


def partitions_of(
    session: Session, name: str, *, version: int | None = None, as_of: TableVersion | None = None
) -> list[dict[str, Any]]:
    """Return the values of each partition of a group, sorted; no data file is read."""
    group = open_group(session, name, version, as_of=as_of)
    columns = group.spec.partition_by
    if not columns:
        return []
    texts = [tuple(map(file.partition.get, columns)) for file in group.state.files]
    distinct = list(dict.fromkeys(texts))
    arrays = {}
    for position, column in enumerate(columns):
        values = pa.array([each[position] for each in distinct], pa.string())
        arrays[column] = values.cast(group.spec.schema.field(column).type)
    ordered = [(column, "ascending") for column in columns]
    partitions: list[dict[str, Any]] = pa.table(arrays).sort_by(ordered).to_pylist()
    return partitions
