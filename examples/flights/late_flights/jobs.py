"""The schedule of the example: how busy and how late an airport was, an hour at a time.

featurestore --location examples/flights/build/store job register
examples/flights/late_flights/jobs.py featurestore --location examples/flights/build/store job
backfill origin_traffic --start 2013-01-01 --end 2013-12-31
"""

from __future__ import annotations

from typing import Any

import narwhals as nw

import featurestore

LATE_MINUTES = 15
RULES: dict[str, Any] = {
    "primary_key": ["origin"],
    "event_time": "known_at",
    "schedule": "0 * * * *",
    "start": "2013-01-01T00:00Z",
    "allowed_lateness": "15min",
    "inputs": {"departures": "departures"},
    "ttl": "3h",
    "description": "Departures of the hour that ended at known_at",
}

# What happened between 9:00 and 10:00 is stamped 10:00, when it became known, so no question asked
# earlier can see it.
origin_traffic = featurestore.sql_job(
    "origin_traffic",
    sql=f"""
        select origin,
               date_trunc('hour', left_at) + interval 1 hour as known_at,
               count(*) as departures,
               avg(delay) as mean_delay,
               avg(case when delay > {LATE_MINUTES} then 1 else 0 end) as late_share
        from departures
        where left_at >= $window_start and left_at < $window_end
        group by origin, known_at
    """,
    **RULES,
)


@featurestore.job(featuregroup="origin_traffic_by_frames", **RULES)
def origin_traffic_by_frames(window: Any, departures: Any) -> Any:
    """Return the same in Narwhals.

    ``departures`` is DuckDB's relation or Spark's DataFrame, and so is the result.
    """
    return traffic(departures)


def traffic(departures: Any) -> Any:
    """Return departures, mean delay and share of late ones per origin and hour, stamped when the hour was over."""
    hours = nw.from_native(departures).with_columns(
        known_at=nw.col("left_at").dt.truncate("1h").dt.offset_by("1h"),
        is_late=(nw.col("delay") > LATE_MINUTES).cast(nw.Float64),
    )
    return (
        hours.group_by("origin", "known_at")
        .agg(
            departures=nw.len().cast(nw.Int64),
            mean_delay=nw.col("delay").mean(),
            late_share=nw.col("is_late").mean(),
        )
        .to_native()
    )
