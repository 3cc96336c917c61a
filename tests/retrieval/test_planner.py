"""Planning of retrievals, without an engine.

References, names, keys and times are settled, or refused, before anything is read.
"""

from __future__ import annotations

import ast
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import (
    AmbiguousFeature,
    ColumnConflict,
    FeatureGroupNotFound,
    FeatureNotFound,
    InvalidArgument,
    InvalidReference,
    LabelTimeRequired,
    NoJoinKey,
)
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.plan import FeaturePlan, Source
from featurestore.model.requests import RetrievalRequest
from featurestore.retrieval.planner import (
    LabelSide,
    plan_with_labels,
    plan_without_labels,
)
from featurestore.retrieval.resolve import Specs, resolve


def spec(name: str, version: int = 1, **columns: Any) -> FeatureGroupSpec:
    roles = {
        role: columns.pop(role)
        for role in ("primary_key", "event_time", "created_time", "ttl")
        if role in columns
    }
    return FeatureGroupSpec(name=name, version=version, schema=pa.schema(columns), **roles)


WEATHER = spec(
    "weather", origin=pa.string(), seen=TIMESTAMP, temp=pa.float64(), wind=pa.float32(),
    primary_key=("origin",), event_time="seen", ttl=timedelta(hours=6),
)  # fmt: skip
PLANES = spec(
    "planes", tailnum=pa.string(), seats=pa.int32(), temp=pa.float64(), primary_key=("tailnum",)
)
PLANES2 = spec(
    "planes", 2, tailnum=pa.string(), seats=pa.int64(), engine=pa.string(), primary_key=("tailnum",)
)
ROUTES = spec(
    "routes", origin=pa.string(), dest=pa.string(), miles=pa.int32(), primary_key=("origin", "dest")
)
MATRIX = spec("matrix", col_0=pa.float64(), col_1=pa.float64())
SPECS: Specs = {
    "weather": {1: WEATHER}, "planes": {1: PLANES, 2: PLANES2}, "routes": {1: ROUTES}, "matrix": {1: MATRIX},
}  # fmt: skip
LABELS = pa.schema(
    {
        "origin": pa.string(),
        "dest": pa.string(),
        "tailnum": pa.string(),
        "at": TIMESTAMP,
        "y": pa.int8(),
    }
)


def source(group: tuple[str, int]) -> Source:
    return Source(SPECS[group[0]][group[1]], "/nowhere", 3, "id", rows=1000, bytes=64_000)


def plan(
    *features: str, labels: pa.Schema | None = LABELS, versions: Any = None, **options: Any
) -> FeaturePlan:
    result = resolve(list(features), specs=SPECS, versions=versions)
    request = RetrievalRequest(features=features, **options)
    if labels is not None:
        label_side = LabelSide(labels, ordered=True, rows=10)
        return plan_with_labels(result, request, labels=label_side, source=source)
    first = source(result[0].group)
    label_side = LabelSide(
        first.spec.schema, source=first, time=first.spec.event_time, rows=first.rows
    )
    return plan_without_labels(result, request, spec=first.spec, labels=label_side, source=source)


# -- references -----------------------------------------------------------------------------


def test_plain_name_resolves_in_latest_versions() -> None:
    assert [str(feature) for feature in resolve(["wind", "engine", "miles"], specs=SPECS)] == [
        "weather@v1.wind", "planes@v2.engine", "routes@v1.miles",
    ]  # fmt: skip
    assert str(resolve("temp", specs=SPECS)[0]) == "weather@v1.temp"  # planes@v2 has none


def test_ambiguous_name_lists_qualified_candidates() -> None:
    with pytest.raises(AmbiguousFeature) as refused:
        resolve("temp", specs=SPECS, versions={"planes": 1})
    assert "'planes.temp', 'weather.temp'" in str(refused.value)
    assert "Hint: request one reference, for example 'planes.temp'" in str(refused.value)


def test_plain_name_prefers_features_over_keys() -> None:
    assert str(resolve("tailnum", specs=SPECS)[0]) == "planes@v2.tailnum"
    with pytest.raises(AmbiguousFeature):
        resolve("origin", specs=SPECS)


@pytest.mark.parametrize(
    ("text", "near"),
    [("wnd", "weather.wind"), ("weather.tmp", "weather.temp"), ("planes@v2.seat", "planes.seats")],
)
def test_unknown_feature_suggests_similar_names(text: str, near: str) -> None:
    with pytest.raises(FeatureNotFound) as refused:
        resolve(text, specs=SPECS)
    assert near in (refused.value.hint or "")


def test_unknown_group_or_version_lists_existing() -> None:
    with pytest.raises(
        FeatureGroupNotFound, match=r"Available: 'matrix', 'planes', 'routes', 'weather'"
    ):
        resolve("wether.temp", specs=SPECS)
    with pytest.raises(FeatureGroupNotFound, match="Available: '1', '2'"):
        resolve("planes@v7.seats", specs=SPECS)
    with pytest.raises(FeatureGroupNotFound):
        resolve("seats", specs=SPECS, versions={"planes": 9})


def test_conflicting_pinned_versions_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="specify the version once"):
        resolve("planes@v1.seats", specs=SPECS, versions={"planes": 2})


def test_star_selects_features_without_keys() -> None:
    assert [feature.name for feature in resolve("weather.*", specs=SPECS)] == ["temp", "wind"]


@pytest.mark.parametrize(
    "text", ["", "a b", "weather.", "weather.* as x", "*", "w@2.x", "weather.temp as 1x"]
)
def test_invalid_feature_reference_is_refused(text: str) -> None:
    with pytest.raises(InvalidReference):
        resolve(text, specs=SPECS)


def test_empty_feature_list_is_refused() -> None:
    with pytest.raises(InvalidReference):
        resolve([], specs=SPECS)


# -- columns --------------------------------------------------------------------------------


def test_plan_columns_are_labels_then_features() -> None:
    actual = plan("planes.seats", "weather.wind", "routes.miles", "weather.temp")
    assert actual.columns == (*LABELS.names, "seats", "wind", "miles", "temp")
    assert actual.schema.types[-4:] == [pa.int64(), pa.float32(), pa.int32(), pa.float64()]
    assert [join.source.spec.name for join in actual.joins] == ["planes", "weather", "routes"]


def test_equal_feature_names_require_alias() -> None:
    with pytest.raises(ColumnConflict) as refused:
        plan("weather.temp", "planes@v1.temp")
    assert "planes@v1.temp has the same output name 'temp' as weather@v1.temp" in str(refused.value)
    assert "'planes.temp as planes_temp'" in str(refused.value)
    assert plan("weather.temp", "planes@v1.temp as plane_temp").columns[-2:] == (
        "temp",
        "plane_temp",
    )


def test_label_conflicts_are_case_insensitive() -> None:
    with pytest.raises(ColumnConflict, match="the left column 'Temp'"):
        plan("weather.temp", labels=LABELS.append(pa.field("Temp", pa.int64())))


def test_plan_without_labels_uses_first_group() -> None:
    actual = plan(
        "routes.miles",
        "weather.temp",
        "routes.dest",
        labels=None,
        label_time=datetime(2024, 1, 1, tzinfo=UTC),
    )
    assert actual.columns == ("miles", "temp", "dest")
    assert actual.left_source is not None
    assert actual.left_source.spec.name == "routes"
    assert actual.fixed_time is not None


def test_include_keys_adds_key_and_event_time() -> None:
    assert plan("weather.temp as t", labels=None, include_keys=True).columns == (
        "origin",
        "seen",
        "t",
    )
    assert plan("planes.tailnum", "planes.seats", labels=None, include_keys=True).columns == (
        "tailnum",
        "seats",
    )


def test_plan_names_keys_and_time() -> None:
    assert (plan("weather.temp").keys, plan("weather.temp").time) == (("origin",), "at")
    group_plan = plan("weather.origin as place", "weather.temp", labels=None)
    assert (group_plan.keys, group_plan.time) == (("place",), None)


# -- keys -----------------------------------------------------------------------------------


def test_composite_key_joins_in_order() -> None:
    assert plan("routes.miles").joins[0].on == (("origin", "origin"), ("dest", "dest"))


def test_missing_key_column_lists_both_sides() -> None:
    with pytest.raises(NoJoinKey) as refused:
        plan("routes.miles", labels=LABELS.remove(1))
    assert "'origin', 'dest'" in str(refused.value)
    assert "join_key={'routes': {'your column': 'dest'}}" in str(refused.value)
    for name in ("Dest", "_DEST"):
        labels = LABELS.set(1, LABELS.field(1).with_name(name))
        with pytest.raises(NoJoinKey) as refused:
            plan("routes.miles", labels=labels)
        line = f"{{'routes': {{'{name}': 'dest'}}}}"
        assert f"join_key={line}" in str(refused.value)
        joins = plan("routes.miles", labels=labels, join_key=ast.literal_eval(line)).joins
        assert joins[0].on == (("origin", "origin"), (name, "dest"))


def test_missing_key_column_lists_group_keys() -> None:
    with pytest.raises(NoJoinKey) as refused:
        plan(
            "weather.temp",
            "routes.miles",
            "planes.seats",
            labels=pa.schema({"at": TIMESTAMP, "tailnum": pa.string()}),
        )
    assert "Keys: weather@v1 (origin); routes@v1 (origin, dest); planes@v2 (tailnum)." in str(
        refused.value
    )


RENAMED = pa.schema({"airport": pa.string(), "plane": pa.string(), "at": TIMESTAMP})


@pytest.mark.parametrize(
    "join_key",
    [
        {"airport": "origin", "plane": "tailnum"},
        {"weather": "airport", "planes": "plane"},
        {"weather": ["airport"], "planes@v2": {"plane": "tailnum"}},
        {"airport": "origin", "planes": "plane"},
    ],
)
def test_join_key_takes_columns_lists_and_groups(join_key: Any) -> None:
    actual = plan("weather.temp", "planes.seats", labels=RENAMED, join_key=join_key)
    assert [join.on for join in actual.joins] == [(("airport", "origin"),), (("plane", "tailnum"),)]


def test_join_key_name_joins_single_key() -> None:
    assert plan("weather.temp", labels=RENAMED, join_key="airport").joins[0].on == (
        ("airport", "origin"),
    )
    assert plan("weather.temp", join_key="origin").joins[0].on == (("origin", "origin"),)


@pytest.mark.parametrize("join_key", [{"nowhere": "origin"}, {"airport": 7}])
def test_invalid_join_key_type_is_refused(join_key: Any) -> None:
    with pytest.raises(InvalidArgument):
        plan("weather.temp", labels=RENAMED, join_key=join_key)


@pytest.mark.parametrize(
    "join_key", ["nowhere", {"airport": "tailnum"}, {"weather": {"airport": "temp"}}]
)
def test_unused_join_key_is_refused(join_key: Any) -> None:
    with pytest.raises(NoJoinKey):
        plan("weather.temp", labels=RENAMED, join_key=join_key)


def test_partial_key_is_refused() -> None:
    with pytest.raises(NoJoinKey):
        plan("routes.miles", labels=LABELS.remove(1), join_key="origin")


@pytest.mark.parametrize("dtype", [pa.int64(), pa.float64(), pa.binary(), TIMESTAMP])
def test_incomparable_key_types_are_refused(dtype: pa.DataType) -> None:
    with pytest.raises(NoJoinKey, match="the left column 'origin' is"):
        plan("weather.temp", labels=LABELS.set(0, pa.field("origin", dtype)), label_time="at")


def test_group_without_key_requires_join_key() -> None:
    labels = LABELS.append(pa.field("col_0", pa.int64()))
    with pytest.raises(NoJoinKey, match="declares no primary key"):
        plan("matrix.col_1", labels=labels)
    with pytest.raises(NoJoinKey, match="cannot be a key"):
        plan(
            "matrix.col_1",
            labels=LABELS.append(pa.field("col_0", pa.float64())),
            join_key={"matrix": "col_0"},
        )


# -- times ----------------------------------------------------------------------------------


def test_a_single_time_column_is_the_label_time() -> None:
    assert plan("weather.temp").left_time == "at"


def test_several_time_columns_need_label_time() -> None:
    labels = LABELS.append(pa.field("landed", pa.timestamp("us", tz="UTC")))
    with pytest.raises(LabelTimeRequired, match="candidates: 'at', 'landed'"):
        plan("weather.temp", labels=labels)
    assert plan("weather.temp", labels=labels, label_time="landed").left_time == "landed"
    assert plan("planes.seats", labels=labels).left_time is None


def test_label_time_hint_prefers_earliest_time_of_labels() -> None:
    def column(*days: int | None) -> pa.Array:
        times = [None if day is None else datetime(2024, 1, day, tzinfo=UTC) for day in days]
        return pa.array(times, TIMESTAMP)

    columns = {
        "settled": column(9, 9), "maybe": column(1, None), "asked": column(2, 3),
        "born": pa.array([date(1980, 1, 1)] * 2),
    }  # fmt: skip
    expected_hints = {
        ("settled", "maybe", "asked", "born"): "label_time='asked' if",
        ("settled", "maybe"): "label_time='settled' if",
        ("born",): "label_time=datetime(...), one time for all rows, or label_time='born' if",
    }
    for names, hint in expected_hints.items():
        table = pa.table({"origin": ["a", "b"], **{name: columns[name] for name in names}})
        labels = LabelSide(table.schema, peek=partial(table.slice, 0))
        features = resolve(["weather.temp"], specs=SPECS)
        with pytest.raises(LabelTimeRequired) as refused:
            plan_with_labels(features, RetrievalRequest(features=()), labels=labels, source=source)
        assert str(refused.value.hint).startswith(hint)


def test_label_time_hint_omits_times_of_joined_features() -> None:
    first = plan("weather.temp", "weather.seen as seen_at", "weather.seen as last_seen",
                 labels=LABELS.remove(3), label_time=datetime(2024, 1, 1, tzinfo=UTC))  # fmt: skip
    labels = LabelSide(first.schema, plan=first)
    features = resolve(["weather.wind"], specs=SPECS)
    with pytest.raises(LabelTimeRequired) as refused:
        plan_with_labels(features, RetrievalRequest(features=()), labels=labels, source=source)
    assert refused.value.hint == "label_time=datetime(...), one time for all rows"


def test_labels_without_time_need_label_time() -> None:
    labels = LABELS.remove(3)
    with pytest.raises(LabelTimeRequired, match="has no time column"):
        plan("weather.temp", labels=labels)
    fixed_time = datetime(2024, 1, 1, tzinfo=UTC)
    for output in (fixed_time, "2024-01-01T01:00:00+01:00"):
        assert plan("weather.temp", labels=labels, label_time=output).fixed_time == fixed_time
    assert plan("planes.seats", labels=labels).fixed_time is None


@pytest.mark.parametrize("label_time", ["nowhere", "y", "2024-13-01"])
def test_label_time_of_wrong_type_is_refused(label_time: str) -> None:
    with pytest.raises(LabelTimeRequired):
        plan("weather.temp", label_time=label_time)


def test_join_kind_must_be_left_or_inner() -> None:
    assert plan("planes.seats", join="inner").how == "inner"
    with pytest.raises(InvalidArgument, match="'outer'"):
        plan("planes.seats", join="outer")


# -- the plan as text and JSON ------------------------------------------------------------------


def test_plan_text_describes_joins() -> None:
    text = str(plan("weather.temp", "planes.seats as size"))
    assert "weather@v1 at Delta version 3: 1,000 rows" in text
    assert "the latest by seen with seen <= at and seen >= at - 6h, else null" in text
    assert "planes@v2 has no event time: joined on its key only, at any label time" in text
    assert "seats as size" in text
    assert "rows       10 expected" in text


def test_selected_plan_joins_only_needed_groups() -> None:
    actual = plan("weather.temp", "planes.seats", "weather.wind").select(["seats", "y"])
    assert actual.columns == ("seats", "y")
    assert [join.source.spec.name for join in actual.joins] == ["planes"]
    assert len(plan("weather.temp", "planes.seats", join="inner").select(["y"]).joins) == 2


def test_equal_plans_have_equal_hash() -> None:
    assert plan("weather.temp").hash == plan("weather.temp").hash
    other_plans = [
        plan("weather.wind"),
        plan("weather.temp", join="inner"),
        plan("weather.temp").filter("temp > 0"),
    ]
    assert len({plan("weather.temp").hash, *(other_plan.hash for other_plan in other_plans)}) == 4
