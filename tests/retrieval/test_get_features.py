"""get_features through the store.

Every kind of labels, pinned versions, chained calls, both engines.
"""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import (
    FeatureGroupNotFound,
    FeatureNotFound,
    InvalidArgument,
    InvalidSql,
    UnsupportedDataframe,
    VersionNotFound,
)
from featurestore.model.times import NaiveTimeWarning
from featurestore.retrieval.conversions import to_pandas
from tests.on_spark import spark_in_soak

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

T0 = datetime(2024, 1, 1, tzinfo=UTC)


def hours(*counts: float) -> pa.Array:
    return pa.array([T0 + timedelta(hours=count) for count in counts], pa.timestamp("us", tz="UTC"))


def weather() -> pa.Table:
    return pa.table(
        {
            "origin": ["JFK", "LGA", "JFK", "LGA"],
            "seen": hours(0, 0, 2, 3),
            "temp": [1.0, 2.0, 3.0, None],
            "wind": pa.array([1, 2, 3, 4], pa.uint8()),
        }
    )


def labels() -> pa.Table:
    return pa.table(
        {
            "origin": ["LGA", "JFK", "XXX", "JFK"],
            "tailnum": ["b", "a", "a", None],
            "at": hours(4, 1, 1, 2),
            "y": [0, 1, 2, 3],
        }
    )


def fill(store: FeatureStore) -> FeatureStore:
    store.create_featuregroup(
        weather(),
        "weather",
        primary_key=["origin"],
        event_time="seen",
        validation="off",
        statistics=False,
    )
    planes = pa.table({"tailnum": ["a", "b"], "seats": [100, 200]})
    store.create_featuregroup(
        planes, "planes", primary_key=["tailnum"], validation="off", statistics=False
    )
    return store


@pytest.fixture
def filled(empty_store: FeatureStore) -> FeatureStore:
    return fill(empty_store)


EXPECTED = {"y": [0, 1, 2, 3], "temp": [None, 1.0, None, 3.0], "seats": [200, 100, 100, None]}
FEATURES = ["weather.temp", "planes.seats"]


def test_get_features_keeps_label_order(store: FeatureStore) -> None:
    fill(store)
    frame = store.get_features(FEATURES, labels=labels())
    assert frame.columns == ["origin", "tailnum", "at", "y", "temp", "seats"]
    assert frame.select("y", "temp", "seats").to_arrow().to_pydict() == EXPECTED
    assert frame.count() == 4
    cut = frame.filter("temp >= 1 and origin = 'JFK'").select("seats", "y")
    assert cut.to_arrow().to_pydict() == {"seats": [100, None], "y": [1, 3]}
    assert store.get_features("planes.seats as s", labels=frame.filter("y < 2")).to_arrow()[
        "s"
    ].to_pylist() == [
        200,
        100,
    ]


def kinds_of_labels() -> list[Any]:
    polars = pytest.importorskip("polars")
    return [
        to_pandas(labels()), polars.from_arrow(labels()), labels(), labels().to_reader(max_chunksize=1),
        labels().to_pylist(), iter(labels().to_batches()), labels().to_batches()[0],
    ]  # fmt: skip


@pytest.mark.parametrize("index", range(7))
def test_labels_of_any_dataframe_are_rereadable(filled: FeatureStore, index: int) -> None:
    frame = filled.get_features(FEATURES, labels=kinds_of_labels()[index])
    for _ in range(2):
        assert frame.select(*EXPECTED).to_arrow().to_pydict() == EXPECTED


def test_engine_relation_is_accepted_as_labels(filled: FeatureStore) -> None:
    import duckdb

    table = labels()
    relation = duckdb.from_arrow(table)
    rows = filled.get_features(FEATURES, labels=relation, dataframe_type="python")
    assert sorted((row["y"], row["temp"], row["seats"]) for row in rows if row["temp"]) == [
        (1, 1.0, 100),
        (3, 3.0, None),
    ]


def test_labels_other_than_dataframes_are_refused(filled: FeatureStore) -> None:
    with pytest.raises(UnsupportedDataframe):
        filled.get_features(FEATURES, labels=7)
    with pytest.raises(FeatureGroupNotFound):
        filled.get_features(FEATURES, labels="questions")


@spark_in_soak
def test_naive_label_times_are_utc_with_warning(
    store: FeatureStore,
) -> None:
    naive = to_pandas(labels())
    naive["at"] = naive["at"].dt.tz_localize(None)
    fill(store)
    with pytest.warns(NaiveTimeWarning) as warned:
        frame = store.get_features(FEATURES, labels=naive)
    assert [warning.category for warning in warned].count(NaiveTimeWarning) == 1
    assert frame.to_arrow()["temp"].to_pylist() == EXPECTED["temp"]


def test_label_times_are_converted_between_zones(
    empty_store: FeatureStore,
) -> None:
    eastern = to_pandas(labels())
    eastern["at"] = eastern["at"].dt.tz_convert("America/New_York")
    assert (
        fill(empty_store).get_features(FEATURES, labels=eastern).to_arrow()["temp"].to_pylist()
        == EXPECTED["temp"]
    )


def test_fixed_label_time_scores_a_batch(filled: FeatureStore) -> None:
    input_rows = pa.table({"origin": ["JFK", "LGA"]})
    frame = filled.get_features(
        "weather.temp", labels=input_rows, label_time="2024-01-01T01:00:00Z"
    )
    assert frame.to_arrow().to_pydict() == {"origin": ["JFK", "LGA"], "temp": [1.0, 2.0]}


def test_group_as_labels_returns_its_columns_first(filled: FeatureStore) -> None:
    filled.create_featuregroup(labels(), "questions", primary_key=["y"], event_time="at")
    frame = filled.get_features(["temp", "seats"], labels="questions")
    assert frame.columns == ["origin", "tailnum", "at", "y", "temp", "seats"]
    rows = sorted(
        (row["y"], row["temp"], row["seats"])
        for row in frame.to_arrow().to_pylist()
        if row["y"] in (1, 2)
    )
    assert rows == [(1, 1.0, 100), (2, None, 100)]
    assert frame.plan.left_source.delta_version == 1


def test_get_features_without_labels_returns_first_group(filled: FeatureStore) -> None:
    frame = filled.get_features(["weather.wind", "weather.temp as t"], include_keys=True)
    assert frame.columns == ["origin", "seen", "wind", "t"]
    assert frame.schema.field("wind").type == pa.uint8()
    assert sorted(frame.to_arrow()["wind"].to_pylist()) == [1, 2, 3, 4]
    assert sorted(
        filled.get_feature("planes.seats", dataframe_type="arrow")["seats"].to_pylist()
    ) == [100, 200]
    with pytest.raises(InvalidArgument, match="include_keys= is for retrieval without labels"):
        filled.get_features(FEATURES, labels=labels(), include_keys=True)


def test_group_joins_in_two_roles_by_chaining(filled: FeatureStore) -> None:
    input_rows = pa.table(
        {"here": ["JFK", "LGA"], "there": ["LGA", "JFK"], "at": hours(2, 1), "n": [0, 1]}
    )
    first = filled.get_features(
        "weather.temp as here_temp", labels=input_rows, join_key={"here": "origin"}
    )
    both = filled.get_features(
        "weather.temp as there_temp", labels=first, join_key={"there": "origin"}
    )
    table = both.to_arrow()
    assert table.column_names == ["here", "there", "at", "n", "here_temp", "there_temp"]
    assert table.select(["n", "here_temp", "there_temp"]).to_pydict() == {
        "n": [0, 1], "here_temp": [3.0, 2.0], "there_temp": [2.0, 1.0],
    }  # fmt: skip
    assert both.plan.left_plan == first.plan
    assert both.filter("here_temp > 2").select("n").to_arrow().to_pydict() == {"n": [0]}
    assert both.count() == 2


def test_chained_retrievals_use_their_label_times(
    empty_store: FeatureStore,
) -> None:
    rows = pa.table(
        {"k": [1, 1, 2], "seen": hours(0, 0, 0), "known": hours(0, 3, 0), "x": [1.0, 9.0, 2.0]}
    )
    for name in ("a", "b"):
        empty_store.create_featuregroup(
            rows, name, primary_key=["k"], event_time="seen", created_time="known"
        )
    input_rows = pa.table({"k": [1, 2, 1, 3], "other": [2, 1, 1, None], "at": hours(1, 4, 4, 4)})
    first = empty_store.get_features(["a.x", "b.x as bx"], labels=input_rows)
    both = empty_store.get_features("a.x as ox", labels=first, join_key={"other": "k"}).to_arrow()
    assert both.select(["x", "bx", "ox"]).to_pydict() == {
        "x": [1.0, 2.0, 9.0, None], "bx": [1.0, 2.0, 9.0, None], "ox": [2.0, 9.0, 9.0, None],
    }  # fmt: skip


def test_inner_join_drops_labels_left_keeps_them(filled: FeatureStore) -> None:
    frame = filled.get_features(FEATURES, labels=labels(), join="inner")
    assert frame.to_arrow()["y"].to_pylist() == [0, 1]
    assert frame.count() == 2


def test_requests_in_any_order_give_equal_values(filled: FeatureStore) -> None:
    names = ["weather.temp", "planes.seats", "weather.wind"]
    tables = [
        filled.get_features(list(order), labels=labels()).to_arrow()
        for order in itertools.permutations(names)
    ]
    columns = ["y", "temp", "seats", "wind"]
    assert all(table.select(columns).equals(tables[0].select(columns)) for table in tables)


# -- versions ---------------------------------------------------------------------------------


def test_as_of_reads_groups_at_that_time(empty_store: FeatureStore) -> None:
    filled = fill(empty_store)
    before = filled.get_featuregroup_history("weather")[0].timestamp
    late = pa.table(
        {"origin": ["JFK"], "seen": hours(0.5), "temp": [99.0], "wind": pa.array([9], pa.uint8())}
    )
    while datetime.now(UTC) <= before + timedelta(milliseconds=2):
        pass
    filled.insert_into_featuregroup(late, "weather")
    label_rows = labels().slice(1, 1)

    def temperature(**pins: Any) -> Any:
        return (
            filled.get_features("weather.temp", labels=label_rows, **pins)
            .to_arrow()["temp"][0]
            .as_py()
        )

    assert temperature() == 99.0
    assert temperature(as_of=before) == 1.0
    assert temperature(as_of={"weather": 1}) == 1.0
    assert temperature(as_of={"weather": before.isoformat()}) == 1.0
    assert temperature(as_of={"weather@v1": 2}) == 99.0
    with pytest.raises(VersionNotFound):
        temperature(as_of={"weather": 77})
    with pytest.raises(InvalidArgument, match="as_of= pins 'planes'"):
        temperature(as_of={"planes": 1})
    with pytest.raises(FeatureGroupNotFound):
        temperature(as_of={"nothing": 1})
    with pytest.raises(VersionNotFound, match="its commits are from"):
        temperature(as_of="2001-01-01T00:00:00Z")


def test_frame_pins_versions_at_creation(filled: FeatureStore) -> None:
    frame = filled.get_features("weather.temp", labels=labels())
    more = pa.table(
        {"origin": ["JFK"], "seen": hours(0.5), "temp": [99.0], "wind": pa.array([9], pa.uint8())}
    )
    filled.insert_into_featuregroup(more, "weather")
    assert frame.to_arrow()["temp"].to_pylist() == EXPECTED["temp"]


def test_later_feature_is_missing_in_older_versions(filled: FeatureStore) -> None:
    more = weather().slice(0, 1).append_column("rain", pa.array([0.5]))
    filled.insert_into_featuregroup(more, "weather", schema_change="add")
    assert filled.get_features("weather.rain", labels=labels()).columns[-1] == "rain"
    with pytest.raises(FeatureNotFound, match="had no 'rain' at Delta version 1"):
        filled.get_features("weather.rain", labels=labels(), as_of={"weather": 1})


# -- frames -----------------------------------------------------------------------------------


def test_planning_reads_no_data_files(
    filled: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = filled.get_features(FEATURES, labels=labels())
    monkeypatch.setattr(
        type(filled.session.engine),
        "retrieve",
        lambda *_, **__: pytest.fail("the engine was asked"),
    )
    assert len(frame.select("y", "temp").columns) == 2
    assert "temp" in repr(frame.filter("temp > 1"))
    assert "weather@v1" in str(frame.plan)


def test_only_requested_columns_are_read(filled: FeatureStore) -> None:
    frame = filled.get_features(["weather.temp", "weather.wind"], labels=labels())
    engine = filled.session.engine
    assert "wind" in engine.explain(frame.relation)
    assert "wind" not in engine.explain(frame.select("y", "temp").relation)


def test_unknown_columns_and_invalid_filters_are_refused(filled: FeatureStore) -> None:
    frame = filled.get_features(FEATURES, labels=labels())
    with pytest.raises(FeatureNotFound, match="Unknown columns 'tmp'"):
        frame.select("tmp")
    with pytest.raises(InvalidArgument):
        frame.select("y", "y")
    with pytest.raises(InvalidSql):
        frame.filter("nothing > 1")
    with pytest.raises(InvalidSql):
        frame.filter("temp >")


def test_frame_converts_to_common_libraries(filled: FeatureStore) -> None:
    polars = pytest.importorskip("polars")
    frame = filled.get_features(FEATURES, labels=labels())
    assert frame.to_pandas()["seats"].tolist()[:2] == [200, 100]
    assert frame.to_polars().shape == (4, 6)
    assert polars.from_arrow(pa.table(frame.select("y"))).to_dict(as_series=False) == {
        "y": [0, 1, 2, 3]
    }
    assert [batch.num_rows for batch in frame.to_batches(rows=3)] == [3, 1]
    numbers = frame.select("y", "temp").to_numpy()
    assert numbers.dtype == np.float64
    assert np.array_equal(numbers, [[0, np.nan], [1, 1], [2, np.nan], [3, 3]], equal_nan=True)
    assert (
        filled.get_features(FEATURES, labels=labels(), dataframe_type="python")[1]["seats"] == 100
    )
    assert frame.head(2).num_rows == 2
    assert frame.head(0).num_rows == 0
    assert type(frame.native()).__name__ == "DuckDBPyRelation"
    with pytest.raises(InvalidArgument, match="dataframe_type='excel'"):
        filled.get_features(FEATURES, labels=labels(), dataframe_type="excel")


def test_show_draws_a_table_and_html_escapes(
    filled: FeatureStore, capsys: pytest.CaptureFixture[str]
) -> None:
    input_rows = labels().append_column(
        "note", pa.array(["<b>", "a text that is longer than twenty", "", None])
    )
    frame = filled.get_features("planes.seats", labels=input_rows).select("y", "note", "seats")
    frame.show(2)
    assert capsys.readouterr().out == (
        "+---+--------------------+-----+\n"
        "|  y|                note|seats|\n"
        "+---+--------------------+-----+\n"
        "|  0|                 <b>|  200|\n"
        "|  1|a text that is lo...|  100|\n"
        "+---+--------------------+-----+\n"
        "only showing top 2 rows\n"
    )
    html = frame._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html


def test_explain_features_writes_and_returns_the_plan(
    filled: FeatureStore, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = filled.explain_features(FEATURES, labels=labels())
    out = capsys.readouterr().out
    assert out == str(plan)
    assert "weather@v1 at Delta version 1: 4 rows" in out
    assert "rows       4 expected (one for each label row)" in out
    assert re.search(
        r"reads      [\d.]+ (B|KiB) of data files, needs \d+ B of memory or spills", out
    )
    assert "planes@v1 has no event time: joined on its key only, at any label time" in out
    assert "the latest by seen with seen <= at" in out


def test_module_function_uses_current_store(filled: FeatureStore) -> None:
    assert filled is not None
    assert featurestore.get_features(FEATURES, labels=labels()).count() == 4
