"""Plans use only columns and times that their left side has; an engine never gets another plan."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import DatasetDamaged, InvalidPlan
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.plan import FeaturePlan, Join, Output, Source, WindowJoin, WindowOutput
from featurestore.store import FeatureStore
from featurestore.training.recompute import replay_plan

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
SPEC = FeatureGroupSpec(
    name="weather",
    version=1,
    schema=pa.schema({"origin": pa.string(), "at": TIMESTAMP, "temp": pa.float64()}),
    primary_key=("origin",),
    event_time="at",
)
SOURCE = Source(SPEC, "/weather", delta_version=1, table_id="t")
JOIN = Join(
    source=SOURCE,
    on=(("airport", "origin"),),
    outputs=(Output("temp", "temp"),),
    event_time="at",
    created_time=None,
    ttl=None,
)
LEFT_SCHEMA = pa.schema({"airport": pa.string(), "departure": TIMESTAMP})
PLAN = FeaturePlan(
    left_source=None,
    left_schema=LEFT_SCHEMA,
    left_columns=("airport", "when"),
    left_time="departure",
    fixed_time=None,
    joins=(JOIN,),
    columns=("airport", "when", "temp"),
    schema=pa.schema({"airport": pa.string(), "when": TIMESTAMP, "temp": pa.float64()}),
    left_renames=(Output("departure", "when"),),
)
TOTAL = WindowOutput(
    column="temp",
    name="total",
    function="sum",
    over=timedelta(hours=1),
    offset=timedelta(0),
    where=None,
    fill_value=None,
    n=1,
    kind=pa.float64(),
)
WINDOWS = WindowJoin(
    source=SOURCE,
    on=(("airport", "origin"),),
    members=(),
    outputs=(TOTAL,),
    event_time="at",
    created_time=None,
)
OF_WINDOWS: dict[str, Any] = {
    "joins": (),
    "windows": (WINDOWS,),
    "columns": ("airport", "total"),
    "schema": pa.schema({"airport": pa.string(), "total": pa.float64()}),
}
UNTIMED: dict[str, Any] = {"joins": (replace(JOIN, event_time=None),), "left_time": None}


@pytest.mark.parametrize(
    "change",
    [
        {"left_time": None, "fixed_time": NOON},
        UNTIMED,
        UNTIMED | {"left_schema": LEFT_SCHEMA.append(pa.field("more", pa.int64()))},
        OF_WINDOWS,
        {"columns": ("temp",), "schema": pa.schema({"temp": pa.float64()})},
    ],
)
def test_plan_with_columns_of_its_left_side_is_valid(change: dict[str, Any]) -> None:
    plan = replace(PLAN, **change)
    assert plan.select(plan.columns[:1]).columns == plan.columns[:1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"left_time": "label_time"},
            "'label_time' for the label time.*has 'airport', 'departure'",
        ),
        ({"left_schema": LEFT_SCHEMA.remove(0)}, "'airport' for its result.*has 'departure'"),
        ({"left_renames": ()}, "'when' for its result"),
        ({"left_renames": (Output("day", "when"),)}, "'day' for its result"),
        ({"joins": (replace(JOIN, on=(("city", "origin"),)),)}, "'city' for the join of 'weather'"),
        (OF_WINDOWS | {"windows": (replace(WINDOWS, on=(("city", "origin"),)),)}, "'city' for the"),
        ({"left_time": None}, "as of a time, but has none: 'weather'"),
        (OF_WINDOWS | {"left_time": None}, "as of a time, but has none: 'weather'"),
        ({"fixed_time": NOON}, "'departure' and one time for all rows"),
        ({"joins": ()}, "returns 'temp', but computes 'airport', 'when'"),
        ({"columns": ("airport", "temp", "when")}, "returns 'airport', 'temp', 'when'"),
        # Groups without event time need no label time, but one that is named must exist.
        (UNTIMED | {"left_time": "label_time"}, "'label_time' for the label time"),
    ],
)
def test_plan_with_other_columns_cannot_be_written(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidPlan, match=message):
        replace(PLAN, **change)


def test_stored_plan_with_other_columns_is_damaged(flights_store: FeatureStore) -> None:
    frame = flights_store.get_features(["weather.temp"], labels="flights")
    assert frame.plan is not None
    stored_plan = frame.plan.to_json()
    assert replay_plan(flights_store.session, stored_plan).hash == frame.plan.hash
    with pytest.raises(DatasetDamaged, match="'absent' for the label time"):
        replay_plan(flights_store.session, stored_plan | {"left_time": "absent"})
