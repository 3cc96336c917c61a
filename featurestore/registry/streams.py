"""Progress of stream jobs in the registry: offsets by partition, last commit, rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model import times
from featurestore.model.times import to_micros
from featurestore.registry.rows import to_column, to_time
from featurestore.registry.tables import stream_offsets, stream_progress


@dataclass(frozen=True)
class PartitionOffset:
    """The progress in a partition: next offset, end offset of the topic, and lag."""

    topic: str
    partition: int
    offset: int
    end_offset: int | None
    lag: int | None
    at: datetime | None


@dataclass(frozen=True)
class StreamStatus:
    """The status of a stream job; ``lag`` is the sum over all partitions, None if unknown."""

    lag: int | None = None
    rows_per_second: float | None = None
    bad_records: int | None = None
    last_commit: datetime | None = None
    looked: datetime | None = None
    offsets: tuple[PartitionOffset, ...] = ()

    def summary(self) -> dict[str, object]:
        """Return what people look at."""
        rate = self.rows_per_second
        if rate is not None:
            rate = round(rate, 1)
        return {
            "lag": self.lag,
            "rows_per_second": rate,
            "bad_records": self.bad_records,
            "last_commit": self.last_commit,
        }


# Of a job that has not read its topic yet, or has none.
NO_STATUS = StreamStatus()


def record_offsets(
    connection: Connection,
    job: str,
    topic: str,
    offsets: Mapping[int, int],
    *,
    ends: Mapping[int, int],
) -> None:
    """Record the next offsets of partitions, and where the topic ends (not known: left out)."""
    now = to_micros(times.utc_now())
    for number, offset in offsets.items():
        end = ends.get(number)
        lag = None if end is None else max(end - offset, 0)
        key = {"job": job, "topic": topic, "partition": number}
        values = {"offset": offset, "end_offset": end, "lag": lag, "at": now}
        _put(connection, stream_offsets, key, values)


def record_progress(
    connection: Connection,
    job: str,
    *,
    topic_id: str | None,
    rows_per_second: float | None,
    bad_records: int,
    last_commit: datetime | None,
    delta_version: int | None,
) -> None:
    """Record a poll of a topic and its commit; ``bad_records`` are added up."""
    progress = connection.execute(
        sa.select(stream_progress).where(stream_progress.c.job == job)
    ).one_or_none()
    values: dict[str, Any] = {"looked": to_micros(times.utc_now())}
    values["bad_records"] = bad_records + (0 if progress is None else int(progress.bad_records))
    optional_values = {
        "topic_id": topic_id,
        "rows_per_second": rows_per_second,
        "last_commit": to_column(last_commit),
        "delta_version": delta_version,
    }
    values |= {name: value for name, value in optional_values.items() if value is not None}
    _put(connection, stream_progress, {"job": job}, values)


def topic_id(connection: Connection, job: str) -> str | None:
    """Return the id of the topic that a job read last, None where none is known."""
    query = sa.select(stream_progress.c.topic_id).where(stream_progress.c.job == job)
    identifier: str | None = connection.execute(query).scalar_one_or_none()
    return identifier


def forget(connection: Connection, job: str) -> None:
    """Remove the progress of a job whose definition now reads another topic."""
    for table in (stream_offsets, stream_progress):
        connection.execute(table.delete().where(table.c.job == job))


def status(connection: Connection, job: str) -> StreamStatus | None:
    """Return the status of a stream job; None before its first poll."""
    progress = connection.execute(
        sa.select(stream_progress).where(stream_progress.c.job == job)
    ).one_or_none()
    if progress is None:
        return None
    query = (
        sa.select(stream_offsets)
        .where(stream_offsets.c.job == job)
        .order_by(stream_offsets.c.topic, stream_offsets.c.partition)
    )
    offsets = [
        PartitionOffset(
            row.topic, row.partition, row.offset, row.end_offset, row.lag, to_time(row.at)
        )
        for row in connection.execute(query)
    ]
    lags = [each.lag for each in offsets if each.lag is not None]
    return StreamStatus(
        lag=sum(lags) if lags else None,
        rows_per_second=progress.rows_per_second,
        bad_records=progress.bad_records,
        last_commit=to_time(progress.last_commit),
        looked=to_time(progress.looked),
        offsets=tuple(offsets),
    )


def _put(
    connection: Connection, table: sa.Table, key: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    """Change a row, or add it."""
    same = sa.and_(*(table.c[name] == value for name, value in key.items()))
    changed = connection.execute(table.update().where(same).values(**values))
    if not changed.rowcount:
        connection.execute(table.insert().values(**key, **values))
