"""Vectors of a published view equal the retrieval of the same entities at the same time."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import time_machine

import featurestore
from featurestore import transform as t
from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import (
    DefinitionMismatch,
    InvalidArgument,
    NotPublished,
    PublishedStateDamaged,
    PublishedValueMismatch,
    UnsupportedDataframe,
)
from featurestore.serving.state import PublishedView, ViewState
from featurestore.store import FeatureStore
from tests.store_copies import Connect, copy_of

START = datetime(2013, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
FEATURES: list[Any] = [
    "planes.home",
    "weather.temp as origin_temp",
    "planes.seats",
    "weather.sky",
    featurestore.feature("per_seat", "Distance / seats"),
    featurestore.feature("asked_hour", "extract(hour from asked)"),
    {"features": ["weather.temp as dest_temp"], "join_key": {"dest": "origin"}},
    {"features": ["weather.wind as home_wind", "weather.t"], "join_key": {"home": "origin"}},
]
ENTITY = {"tail": "N1", "origin": "JFK", "dest": "LGA", "distance": 2}


@pytest.fixture(scope="module")
def stored_flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with weather that is valid for two days, planes and questions."""
    weather = pa.table(
        {
            "origin": ["JFK", "LGA"] * 3,
            "t": [START + hour * HOUR for hour in range(6)],
            "temp": pa.array([30.0 + hour for hour in range(6)], pa.float32()),
            "wind": pa.array([[1.0, 2.0]] * 6, pa.list_(pa.float32(), 2)),
            "sky": ["clear", None] * 3,
        }
    )
    planes = {"tail": ["N1", "N2"], "seats": [100, 200], "home": ["JFK", "BOS"]}
    questions = {
        "tail": ["N1", "N2"],
        "origin": ["JFK", "LGA"],
        "dest": ["LGA", "JFK"],
        "asked": [START + 3 * HOUR, START + 5 * HOUR],
        "distance": [1.5, 2.0],
        "late": [False, True],
    }
    location = tmp_path_factory.mktemp("flights") / "store"
    with featurestore.connect(location) as store:
        store.create_featuregroup(
            weather, "weather", primary_key="origin", event_time="t", ttl=timedelta(days=2)
        )
        store.create_featuregroup(pa.table(planes), "planes", primary_key="tail")
        store.create_featuregroup(
            pa.table(questions), "questions", primary_key="tail", event_time="asked"
        )
    return location


@pytest.fixture
def flights(stored_flights: Path, tmp_path: Path, connect: Connect) -> FeatureStore:
    """A copy of the store; the test runs once per engine."""
    return copy_of(stored_flights, tmp_path / "store", connect=connect)


@time_machine.travel(START + 30 * HOUR, tick=False)
def test_vectors_equal_retrieval(flights: FeatureStore) -> None:
    view = flights.create_feature_view("late", features=FEATURES, labels="questions", label="late")
    with pytest.raises(NotPublished, match="'late' version 1 is not published"):
        view.server()
    flights.publish("late")
    server = view.server()
    assert server.entity == ["tail", "origin", "distance", "dest"]
    entities = [
        ENTITY,
        {**ENTITY, "tail": "N2", "distance": 7.25},  # its home has no weather
        {**ENTITY, "origin": None, "distance": None},
        {**ENTITY, "tail": "N9", "dest": "BOS", "asked": START},
    ]
    vectors = server.get_vectors(entities)
    now = START + 30 * HOUR
    labels = pa.Table.from_pylist(
        [{"asked": now, **entity} for entity in entities],
        schema=flights.get_featuregroup("questions").schema.remove(5),
    )
    frame = view.get_features(labels=labels, label_time=now)
    expected = frame.select(*vectors[0]).to_arrow()
    assert repr([dict(vector) for vector in vectors]) == repr(expected.to_pylist())
    assert server.get_vectors(entities, as_="arrow") == expected
    assert [vector.status for vector in vectors] == ["found", "missing", "missing", "missing"]
    assert vectors[1].groups == {"planes@v1": "found", "weather@v1": "missing"}
    first = view.get_features(labels=labels.slice(0, 1), label_time=now).select(*vectors[0])
    numbers = server.get_vector(ENTITY, as_="numpy")
    assert repr(numbers.tolist()) == repr(first.to_numpy()[0].tolist())
    assert asyncio.run(server.aget_vectors(entities)) == vectors
    assert asyncio.run(server.aget_vector(ENTITY)) == vectors[0]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(server.get_vector, entities * 10))
    assert results == vectors * 10
    server.close()


def test_vector_of_stale_group_is_null(flights: FeatureStore) -> None:
    view = flights.create_feature_view("v", features=["weather.temp", "planes.seats"])
    with time_machine.travel(START + 4 * HOUR, tick=False) as clock:
        flights.publish("v")
        with view.server() as server:
            entity = {"origin": "JFK", "tail": "N1"}
            clock.move_to(START + 52 * HOUR)
            assert server.get_vector(entity) == {"temp": 34.0, "seats": 100}
            clock.move_to(START + 52 * HOUR + timedelta(microseconds=1))
            vector = server.get_vector(entity)
            assert (vector, vector.status) == ({"temp": None, "seats": 100}, "stale")
            assert vector.groups == {"weather@v1": "stale", "planes@v1": "found"}
            # Before its event time, a row is not current.
            clock.move_to(START)
            assert server.get_vector(entity).groups["weather@v1"] == "missing"


def test_server_follows_generations_and_schemas(flights: FeatureStore) -> None:
    view = flights.create_feature_view("v", features=["planes.seats"])
    flights.publish("v")
    server = view.server()
    assert server.get_vector({"tail": "N1"}) == {"seats": 100}
    flights.insert_into_featuregroup(
        [{"tail": "N1", "seats": 9, "home": "JFK"}], "planes", mode="upsert"
    )
    flights.publish("v", full=True)
    assert server.get_vector({"tail": "N1"}) == {"seats": 9}
    # Another process publishes other columns under the same view version.
    other_view = flights.create_feature_view("other", features=["planes.home"])
    flights.publish("other")
    online = server._backend._store  # type: ignore[attr-defined]
    published, other = [PublishedView(name, 1, "embedded") for name in ("v", "other")]
    content, wrong = online.read([published.key, other.key])
    assert online.compare_and_set(published.key, content, wrong or b"")
    with pytest.raises(PublishedStateDamaged, match=r"store\.publish"):
        server.get_vector({"tail": "N1"})
    resealed = ViewState.parse(wrong, other).to_bytes(published.key)
    assert online.compare_and_set(published.key, wrong, resealed)
    with pytest.raises(PublishedValueMismatch, match=r"store\.publish"):
        server.get_vector({"tail": "N1"})
    assert other_view.server().get_vector({"tail": "N2"}) == {"home": "BOS"}


def test_server_reads_values_published_before_a_write_widened_their_type(
    store: FeatureStore,
) -> None:
    kind = pa.decimal128(4, 2)
    amounts = [Decimal("1.50"), Decimal("99.99"), None]
    rows = pa.table({"k": [1, 2, 3], "n": [1, 2, 3], "amount": pa.array(amounts, kind)})
    store.create_featuregroup(rows, "sales", primary_key="k")
    view = store.create_feature_view("v", features=["sales.amount", "sales.n"])
    plus = featurestore.feature("plus", "amount + 1")
    computed = store.create_feature_view("computed", features=["sales.amount", plus])
    entities = [{"k": key} for key in (1, 2, 3, 4)]
    for name in ("v", "computed"):
        store.publish(name)
    running = view.server()
    before = running.get_vectors(entities)
    wide = Decimal("123456.789")
    store.insert_into_featuregroup(
        [{"k": 4, "n": 4, "amount": wide}], "sales", mode="upsert", schema_change="add"
    )
    with view.server() as server, computed.server() as computing:
        for vectors in (server.get_vectors(entities), running.get_vectors(entities)):
            assert vectors == before
            assert [vector.status for vector in vectors] == ["found"] * 3 + ["missing"]
        table = server.get_vectors(entities[:3], as_="arrow")
        assert (
            table.schema.field("amount").type
            == store.get_featuregroup("sales").schema.field("amount").type
        )
        assert table["amount"].to_pylist() == amounts
        sums = [vector["plus"] for vector in computing.get_vectors(entities[:3])]
        assert sums == [2.5, 100.99, None]
        store.publish("v")
        for reader in (server, running):
            assert reader.get_vector({"k": 4}) == {"amount": wide, "n": 4}
    running.close()


MALFORMED: list[tuple[Any, str]] = [
    ({"tail": "N1", "Origin": "JFK"}, "rename 'Origin' to 'origin'"),
    ({"tail": "N1"}, r"no 'origin'.*requires 'tail', 'origin', 'distance'"),
    ({**ENTITY, "tail": 5}, "'tail': 5 is not a value of the type string"),
    ({**ENTITY, "distance": "far"}, "'distance': 'far' is not a value of the type double"),
    ({**ENTITY, "distance": True}, "'distance': True"),
    ({**ENTITY, "asked": pd.Timestamp("2013-01-01 00:00:00.000000001Z")}, "'asked': Timestamp"),
    ("N1", "An entity is a dict with 'tail', 'origin', 'distance', 'dest', not 'N1'"),
    (None, "An entity is a dict with .*, not None"),
]


def test_malformed_entity_raises(flights: FeatureStore) -> None:
    view = flights.create_feature_view("late", features=FEATURES, labels="questions", label="late")
    flights.publish("late")
    with view.server() as server:
        for entity, message in MALFORMED:
            with pytest.raises(InvalidArgument, match=message):
                server.get_vectors([ENTITY, entity])


_DAY = date(2024, 1, 31)
_NOON = datetime(2024, 1, 31, 12, tzinfo=UTC)
# Two keys of each type, and the values that equal the first one.
KEYS: dict[pa.DataType, tuple[list[Any], list[Any]]] = {
    pa.int8(): ([7, -1], [7, 7.0, Decimal("7.00"), np.int64(7), np.float32(7)]),
    pa.int64(): ([7, 2**63 - 1], [7, 7.0, Decimal("7.00"), np.int8(7)]),
    pa.uint64(): ([2**64 - 1, 7], [2**64 - 1, Decimal(2**64 - 1), np.uint64(2**64 - 1)]),
    pa.decimal128(18, 2): ([Decimal("7.25"), 7], [Decimal("7.25"), Decimal("7.250")]),
    pa.string(): (["7", "x"], ["7", np.str_("7")]),
    pa.bool_(): ([True, False], [True, np.bool_(True)]),
    pa.date32(): ([_DAY, date(1969, 1, 1)], [_DAY, np.datetime64("2024-01-31")]),
    pa.timestamp("us", tz="UTC"): (
        [_NOON, START],
        [
            _NOON,
            _NOON.replace(tzinfo=None),
            _NOON.astimezone(timezone(HOUR)),
            pd.Timestamp(_NOON),
            np.datetime64("2024-01-31T12:00", "ns"),
        ],
    ),
    pa.binary(): ([b"7", b""], [b"7", bytearray(b"7")]),
}
# Values of other types, fractions and nanoseconds.
NO_KEYS: list[Any] = [
    *(1.7, 7.5, float("inf"), "8", b"8", True, np.bool_(False), [7], {"a": 7}),
    *(Decimal("1.555"), Decimal("7.255"), _DAY, _NOON, np.datetime64("2024-01-31T12:00", "us")),
    pd.Timestamp("2024-01-31 12:00:00.000000001", tz="UTC"),
]
_OWN_TYPES: dict[pa.DataType, tuple[type, ...]] = {
    pa.string(): (str,),
    pa.bool_(): (bool, np.bool_),
    pa.binary(): (bytes,),
}


@pytest.mark.parametrize("computed", [False, True], ids=["fast path", "on-demand features"])
def test_entities_are_converted_exactly_or_refused(
    empty_store: FeatureStore, computed: bool, subtests: pytest.Subtests
) -> None:
    features = [featurestore.feature("next", "v + 1")] if computed else []
    for number, (kind, (keys, equal_values)) in enumerate(KEYS.items()):
        rows = pa.table({"k": pa.array(keys, kind), "v": [1, 2]})
        empty_store.create_featuregroup(rows, f"g{number}", primary_key="k")
        view = empty_store.create_feature_view(f"v{number}", features=[f"g{number}.v", *features])
        empty_store.publish(view.name)
        with view.server() as server:
            for value in equal_values:
                with subtests.test(str(kind), value=repr(value)):
                    assert server.get_vector({"k": value})["v"] == 1
            for value in NO_KEYS:
                is_day = pa.types.is_date(kind) and type(value) is date
                is_time = pa.types.is_timestamp(kind) and isinstance(
                    value, datetime | np.datetime64
                )
                is_time = is_time and not getattr(value, "nanosecond", 0)
                if is_day or is_time or isinstance(value, _OWN_TYPES.get(kind, ())):
                    continue
                with (
                    subtests.test(str(kind), value=repr(value)),
                    pytest.raises(InvalidArgument, match=r"'k': .* is not a value of the type"),
                ):
                    server.get_vectors([{"k": keys[0]}, {"k": value}])


def test_keys_of_comparable_types_are_equal_as_in_retrieval(
    store: FeatureStore, subtests: pytest.Subtests
) -> None:
    kinds = {
        "i8": pa.int8(),
        "i64": pa.int64(),
        "u64": pa.uint64(),
        "d0": pa.decimal128(18, 0),
        "d2": pa.decimal128(18, 2),
    }
    for name, kind in kinds.items():
        rows = pa.table({"k": pa.array([1, 5, 7], kind), f"v_{name}": [1.0, 5.0, 7.0]})
        store.create_featuregroup(rows, name, primary_key="k")
        links = pa.table({"k0": [1, 5], "link": pa.array([5, 100], kind)})
        store.create_featuregroup(links, f"to_{name}", primary_key="k0")
    values = [f"{name}.v_{name}" for name in kinds]
    views = {"same": store.create_feature_view("same", features=values)}
    for name in kinds:
        steps: list[Any] = [f"to_{name}.link", {"features": values, "join_key": {"link": "k"}}]
        views[name] = store.create_feature_view(f"by_{name}", features=steps)
    for name, view in views.items():
        store.publish(view.name)
        with view.server() as server, subtests.test(name):
            if name == "same":
                keys: list[Any] = [5, 7, 300, -3, 2**63, 2**64, Decimal("5.00"), Decimal("5.25")]
                expected = [5.0, 7.0, None, None, None, None, 5.0, None]
                vectors = server.get_vectors([{"k": key} for key in keys])
                assert [set(vector.values()) for vector in vectors] == [{v} for v in expected]
                continue
            vectors = server.get_vectors([{"k0": 1}, {"k0": 5}])
            retrieved = view.get_features(labels=[{"k0": 1}, {"k0": 5}]).to_arrow()
            assert vectors == retrieved.drop_columns(["k0"]).to_pylist()
            assert [set(vector.values()) for vector in vectors] == [{5.0}, {100, None}]


@pytest.mark.parametrize("computed", [False, True], ids=["fast path", "on-demand features"])
def test_entities_are_rows_of_any_dataframe(store: FeatureStore, computed: bool) -> None:
    planes = {"tail": [1, 2], "seats": [100, None], "sky": [None, True]}
    store.create_featuregroup(pa.table(planes), "planes", primary_key="tail")
    features: list[Any] = ["planes.seats", "planes.sky"]
    if computed:
        features.append(featurestore.feature("per_seat", "distance / seats"))
    view = store.create_feature_view("v", features=features)
    store.publish("v")
    rows = [{"tail": 2, "distance": 4.0}, {"tail": 1, "distance": 8.0}]
    frame = pd.DataFrame(rows)
    with view.server() as server:
        expected = server.get_vectors(rows)
        for entities in (frame, pl.DataFrame(rows), pa.Table.from_pylist(rows), iter(rows)):
            assert server.get_vectors(entities) == expected
        assert asyncio.run(server.aget_vectors(frame)) == expected
        assert server.get_vectors([row for _, row in frame.astype({"tail": object}).iterrows()])
        assert server.get_vectors([]) == server.get_vectors(frame[:0]) == []
        nulls = server.get_vectors([{"tail": 1, "distance": None}, {"tail": 2, "distance": None}])
        assert [vector.get("per_seat") for vector in nulls] == [None, None]
        missing = server.get_vector({"tail": None, "distance": 1.0})
        for null in (pd.NA, float("nan")):
            assert server.get_vector({"tail": null, "distance": 1.0}) == missing
        out_of_range = {"tail": 2**63, "distance": 1.0}
        assert server.get_vectors([out_of_range, rows[0]]) == [missing, expected[0]]
        with pytest.raises(InvalidArgument, match=r"get_vectors\(\[\{\.\.\.\}\]\)"):
            server.get_vectors(rows[0])
        with pytest.raises(UnsupportedDataframe, match="3 of type int"):
            server.get_vectors(3)


def test_request_columns_without_label_group_have_types_of_values(flights: FeatureStore) -> None:
    features = ["planes.seats", featurestore.feature("per_seat", "distance / seats")]
    view = flights.create_feature_view("v", features=features)
    flights.publish("v")
    with view.server() as server:
        for distance in (7, 7.5, np.int64(3)):
            vector = server.get_vector({"tail": "N2", "distance": distance})
            assert vector == {"seats": 200, "per_seat": float(distance) / 200}
        with pytest.raises(InvalidArgument, match="rename 'distances' to 'distance'"):
            server.get_vector({"tail": "N2", "distances": 7})


def test_dataset_vectors_equal_its_reader(flights: FeatureStore) -> None:
    features = ["weather.temp", "planes.seats", featurestore.feature("per", "distance / seats")]
    view = flights.create_feature_view("v", features=features, labels="questions", label="late")
    rules = {"seats": t.vocabulary(unknown=1), "temp": t.impute("mean") | t.standardize()}
    dataset = view.create_training_dataset(
        "d", features=["distance"], transformations=rules, progress=False
    )
    reader = dataset.reader("train", global_batch_size=2, shuffle=False)
    (batch,) = reader.batches(epoch=0)
    rows = dataset.read("train").to_arrow().to_pylist()
    with time_machine.travel(START + 5 * HOUR, tick=False):
        flights.publish("v")
        with view.server(dataset=dataset) as server:
            assert server.entity == ["origin", "tail", "distance"]
            vectors = server.get_vectors(rows)
            assert list(vectors[0]) == ["distance", "temp", "seats", "per"]
            for name in ("distance", "seats", "per"):
                assert [vector[name] for vector in vectors] == batch[name].tolist()
            table = server.get_vectors(rows, as_="arrow")
            assert table.column("seats").to_numpy().dtype == batch["seats"].dtype
            assert server.get_vector(rows[0], as_="numpy").shape == (4,)
    other_view = flights.create_feature_view("other", features=["planes.seats"])
    flights.publish("other")
    with pytest.raises(InvalidArgument, match="from 'v' version 1, not from feature view 'other'"):
        other_view.server(dataset=dataset)


def test_dataset_vectors_are_rounded_like_its_files_or_refused(empty_store: FeatureStore) -> None:
    """The files of TFRecord datasets store doubles as float32, also in lists."""
    vectors = pa.array([[0.1, 1.0], [0.2, 2.0]], pa.list_(pa.float64(), 2))
    rows = pa.table({"k": [1, 2], "v": [0.1, 1e-3], "l": vectors})
    empty_store.create_featuregroup(rows, "g", primary_key="k")
    labels = pa.table({"k": [1, 2], "r": [0.3, 16777217.0], "y": [0, 1]})
    empty_store.create_featuregroup(labels, "labels", primary_key="k")
    double = featurestore.feature("double", "r * 2")
    view = empty_store.create_feature_view(
        "view", features=["g.v", "g.l", double], labels="labels", label="y"
    )
    empty_store.publish("view")
    datasets = {
        data_format: view.create_training_dataset(
            data_format, features=["r"], data_format=data_format, progress=False
        )
        for data_format in ("tfrecord", "parquet")
    }
    for name, dataset in datasets.items():
        reader = dataset.reader("train", global_batch_size=2, shuffle=False)
        (batch,) = reader.batches(epoch=0)
        keys = (batch["y"] + 1).astype(int).tolist()
        entities = [{"k": key, "r": labels["r"][key - 1].as_py()} for key in keys]
        with view.server(dataset=dataset) as server:
            inputs = server.get_vectors(entities, as_="arrow")
            for column in inputs.column_names:
                assert np.array_equal(inputs[column].to_pylist(), batch[column]), (name, column)
            for value in (2**53 + 1, 1.5 + 0j, "1"):
                with pytest.raises(InvalidArgument, match=r"'r': .* is not a value of the type"):
                    server.get_vectors([entities[0], {"k": 1, "r": value}])
            if name == "parquet":
                assert server.get_vector({"k": 1, "r": 1e300})["r"] == 1e300
                continue
            with pytest.raises(InvalidArgument, match=r"column 'r' of a vector: 1e\+300 of type"):
                server.get_vector({"k": 1, "r": 1e300})
            with pytest.raises(InvalidArgument, match="column 'double' of a vector: 6e"):
                server.get_vector({"k": 1, "r": 3e38})


def test_lag_counts_unpublished_commits(flights: FeatureStore) -> None:
    view = flights.create_feature_view("v", features=["planes.seats", "weather.temp"])
    flights.publish("v")
    assert [(lag.featuregroup, lag.commits, lag.behind) for lag in view.online_lag()] == [
        ("planes@v1", 0, None),
        ("weather@v1", 0, None),
    ]
    before = datetime.now(UTC)
    for seats in (1, 2):
        row = {"tail": "N1", "seats": seats, "home": "JFK"}
        flights.insert_into_featuregroup([row], "planes", mode="upsert")
    planes, weather = view.online_lag()
    assert (planes.commits, weather.commits) == (2, 0)
    # The age of the first of the two commits, whose times are in milliseconds.
    assert planes.behind is not None
    assert planes.behind <= datetime.now(UTC) - before + timedelta(milliseconds=1)


def test_verify_online_gives_reasons(flights: FeatureStore) -> None:
    view = flights.create_feature_view("late", features=FEATURES, labels="questions", label="late")
    with time_machine.travel(START + 30 * HOUR, tick=False):
        flights.publish("late")
        report = view.verify_online()
        assert (report.ok, report.vectors) == (True, 2), report
        row = {"tail": "N1", "seats": 7, "home": "JFK"}
        flights.insert_into_featuregroup([row], "planes", mode="upsert")
        flights.delete_from_featuregroup("weather", "origin = 'LGA'")
        report = view.verify_online(sample=50)
        differences = {
            (difference.feature, difference.served, difference.offline)
            for difference in report.differences
        }
        assert ("seats", 100, 7) in differences
        reasons = {difference.feature: difference.reason for difference in report.differences}
        assert reasons["seats"] == (
            "not yet published: planes@v1 up to Delta version 2, published 1"
        )
        assert reasons["dest_temp"] == "deleted"
        assert "100, not 7" in repr(report)
        flights.publish("late", full=True)
        assert view.verify_online().ok


def test_verify_online_distinguishes_late_rows(flights: FeatureStore) -> None:
    view = flights.create_feature_view("v", features=["weather.temp"])
    weather = {"wind": [0.0, 0.0], "sky": "late"}
    with time_machine.travel(START + 5 * HOUR, tick=False) as clock:
        flights.publish("v")
        clock.move_to(START + 6 * HOUR)
        rows = [
            # The last row of JFK is of hour 4, that of LGA of hour 5.
            {"origin": "JFK", "t": START + timedelta(hours=4, minutes=30), "temp": 1.0, **weather},
            {"origin": "LGA", "t": START + timedelta(hours=5, minutes=30), "temp": 2.0, **weather},
        ]
        flights.insert_into_featuregroup(rows, "weather")
        report = view.verify_online()
        # Each key once, although the group has a row of each hour.
        assert report.vectors == len(
            set(flights.get_featuregroup("weather").to_arrow()["origin"].to_pylist())
        )
        assert len(report.differences) == 2
        reasons = {difference.offline: difference.reason for difference in report.differences}
    versions = "weather@v1 up to Delta version 2, published 1"
    assert reasons == {1.0: f"late row: {versions}", 2.0: f"not yet published: {versions}"}


def test_verify_online_without_label_group_samples_keys(flights: FeatureStore) -> None:
    features = ["planes.seats", "weather.temp", featurestore.feature("per", "distance / seats")]
    view = flights.create_feature_view("v", features=features)
    with time_machine.travel(START + 30 * HOUR, tick=False):
        flights.publish("v")
        report = view.verify_online()
        assert report.ok
        assert report.vectors >= 2
    with pytest.raises(InvalidArgument, match="sample=0 is not"):
        view.verify_online(sample=0)


def test_log_vectors_writes_a_sample_that_equals_the_vectors(
    flights: FeatureStore, caplog: pytest.LogCaptureFixture
) -> None:
    features = ["weather.temp", "planes.seats", featurestore.feature("per", "distance / seats")]
    view = flights.create_feature_view("v", features=features, labels="questions", label="late")
    rules = {"seats": t.min_max()}
    dataset = view.create_training_dataset(
        "d", features=["distance"], transformations=rules, progress=False
    )
    rows = dataset.read("train").to_arrow().to_pylist()
    with time_machine.travel(START + 5 * HOUR, tick=False):
        flights.publish("v")
        server = view.server(dataset=dataset, log_vectors="served", log_sample=1)
        server.get_vectors(rows)
        asyncio.run(server.aget_vector(rows[0], as_="arrow"))
        server.close()
        server.close()
        group = flights.featuregroup("served")
        logged = group.read().to_arrow().to_pylist()
        assert len(logged) == 3
        assert {row["served_at"] for row in logged} == {START + 5 * HOUR}
        # Raw values, as in the statistics of the dataset.
        assert {row["seats"] for row in logged} == {100, 200}
        drift = featurestore.compare_statistics(dataset.statistics("train"), group)
        assert (drift.added, drift.removed) == ((), ("late",)), drift
        direct = flights.create_feature_view("two", features=["weather.temp", "planes.seats"])
        flights.publish("two")
        with direct.server(log_vectors="sampled", log_sample=0.5) as server:
            for form in ("dict", "numpy", "arrow"):
                server.get_vectors([{"origin": "JFK", "tail": "N1"}] * 100, as_=form)
        count = flights.get_featuregroup("sampled").count()
        assert 90 < count < 210
        with pytest.raises(DefinitionMismatch, match="sampled"):
            view.server(log_vectors="sampled")
        with pytest.raises(InvalidArgument, match="log_sample=7 is not a fraction"):
            view.server(log_vectors="served", log_sample=7)
        # A failing write does not fail requests.
        with direct.server(log_vectors="sampled", log_sample=1) as server:
            flights.delete_featuregroup("sampled", version=1)
            assert server.get_vector({"origin": "JFK", "tail": "N1"})["seats"] == 100
    assert "1 vectors were not logged to 'sampled'" in caplog.text


def _log_series(store: FeatureStore, group: str) -> dict[str, float]:
    """Return the metrics of a log by name."""
    series = [line.split() for line in store.get_metrics().splitlines()]
    ending = f'{{featuregroup="{group}"}}'
    return {
        fields[0].removesuffix(ending): float(fields[1])
        for fields in series
        if fields[0].endswith(f"logged_vectors_total{ending}")
    }


@pytest.mark.parametrize("order", [1, -1], ids=["integers first", "floats first"])
def test_vector_that_cannot_be_logged_is_the_only_one_missing(
    empty_store: FeatureStore, order: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Request values without declared types: integers and floats, in both orders."""
    empty_store.create_featuregroup(pa.table({"k": [1], "v": [1.5]}), "g", primary_key="k")
    twice = featurestore.feature("twice", "amount * 2")
    view = empty_store.create_feature_view("view", features=["g.v", twice])
    empty_store.publish("view")
    # A double does not represent every integer near 2**54.
    unfit = 2**53 + 1
    amounts: list[Any] = [unfit, 2, 3, None, -(2**52), 2.5][::order]
    integers = [unfit, *[2, None, 3] * 33][::order]
    with time_machine.travel(datetime(2024, 1, 31, 12, 0, 0, 123457, tzinfo=UTC), tick=False):
        for name, rows in (("one", [[amount] for amount in amounts]), ("all", [integers])):
            with view.server(log_vectors=name, log_sample=1.0) as server:
                expected = []
                for row in rows:
                    vectors = server.get_vectors([{"k": 1, "amount": amount} for amount in row])
                    expected += [vector["twice"] for vector in vectors]
            logged = empty_store.get_featuregroup(name).to_arrow()
            missing = [value for value in expected if value == 2**54 + 2]
            assert sorted(map(str, logged["twice"].to_pylist())) == sorted(
                [str(value and float(value)) for value in expected if value not in missing]
            )
            assert logged.schema.types == [pa.float64(), pa.float64(), TIMESTAMP]
            assert set(logged["served_at"].to_pylist()) == {datetime.now(UTC)}
            state = server.log_state
            assert state is not None
            logged_count = len(expected) - len(missing)
            assert (state.featuregroup, state.waiting) == (name, 0)
            assert (state.written, state.missing) == (logged_count, len(missing))
            reason = "column 'twice': 18014398509481986 of type int does not fit double"
            assert state.last_error == reason
            assert f"{len(missing)} vectors were not logged to {name!r}: {reason}" in caplog.text
            assert _log_series(empty_store, name) == {
                "featurestore_logged_vectors_total": logged_count,
                "featurestore_unlogged_vectors_total": len(missing),
            }
    # An existing group declares the types.
    old = pa.table({"v": [1.5], "twice": [4], "served_at": [START]})
    empty_store.create_featuregroup(old, "old", event_time="served_at")
    with view.server(log_vectors="old", log_sample=1.0) as server:
        for amount in (2.5, 2.25, 3):
            server.get_vector({"k": 1, "amount": amount})
    assert server.log_state is not None
    assert server.log_state.last_error == "column 'twice': 4.5 of type float does not fit int64"
    assert (server.log_state.written, server.log_state.missing) == (2, 1)
    logged = empty_store.get_featuregroup("old").to_arrow()["twice"].to_pylist()
    assert sorted(logged) == [4, 5, 6]


# The limits of each type, and values that a float or a first row of another type changes.
LOGGED_VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [-128, None]),
    (pa.int64(), [2**63 - 1, -(2**53) - 1]),
    (pa.uint64(), [0, 2**64 - 1]),
    (pa.float32(), [np.float32(0.1).item(), float("inf")]),
    (pa.float64(), [1.0, 1e300]),
    (pa.bool_(), [None, True]),
    (pa.string(), ["", "a\x00é"]),
    (pa.binary(), [b"\xff", None]),
    (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    (pa.timestamp("us", tz="UTC"), [START, datetime.max.replace(tzinfo=UTC)]),
    (pa.decimal128(38, 2), [Decimal("0.10"), Decimal("-" + "9" * 36 + ".99")]),
    (pa.list_(pa.float32()), [[], [None, 2.5]]),
    (pa.list_(pa.int8(), 2), [[1, -2], None]),
    (pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": 1, "b": None}, None]),
]


def test_log_has_the_types_and_values_of_the_view(empty_store: FeatureStore) -> None:
    """Also for request values, whose types the dataset declares."""
    columns = {f"v{n}": pa.array(values, kind) for n, (kind, values) in enumerate(LOGGED_VALUES)}
    empty_store.create_featuregroup(pa.table({"k": [1, 2], **columns}), "g", primary_key="k")
    requested = {f"r{name}": column for name, column in columns.items()}
    labels = pa.table({"k": [1, 2], "y": [0, 1], "at": [START, START], **requested})
    empty_store.create_featuregroup(labels, "labels", primary_key="k", event_time="at")
    computed = featurestore.feature("computed", "coalesce(rv3, rv3)")
    view = empty_store.create_feature_view(
        "view", features=["g.*", computed], labels="labels", label="y", label_time="at"
    )
    # Times are no model inputs.
    times = [name for name, column in columns.items() if pa.types.is_timestamp(column.type)]
    inputs = [name for name in requested if name[1:] not in times]
    dataset = view.create_training_dataset(
        "data", features=inputs, exclude=times, data_format="parquet", progress=False
    )
    plain = empty_store.create_feature_view("plain", features=["g.*"])
    empty_store.publish("view")
    empty_store.publish("plain")
    rows = labels.drop_columns(["y"]).to_pylist()
    logs: list[tuple[Any, Any, list[str]]] = [
        (plain, None, [*columns]),
        (view, None, [*columns, "computed"]),
        (view, dataset, [*(set(columns) - set(times)), *inputs, "computed"]),
    ]
    for served, model, names in logs:
        frame = served.get_features(labels=labels).to_arrow()
        for form in ("dict", "arrow"):
            for order in (rows, rows[::-1]):
                log = f"{served.name}{len(names)}_{form}_{order[0]['k']}"
                with served.server(dataset=model, log_vectors=log, log_sample=1.0) as server:
                    for row in order:
                        server.get_vector(row, as_=form)
                logged = empty_store.get_featuregroup(log).to_arrow().drop_columns(["served_at"])
                assert sorted(logged.column_names) == sorted(names)
                expected = frame.select(logged.column_names)
                assert logged.schema.types == expected.schema.types
                assert sorted(map(repr, logged.to_pylist())) == sorted(
                    map(repr, expected.to_pylist())
                )


EXITING = """
import sys, featurestore
store = featurestore.connect(sys.argv[1], engine=sys.argv[2])
server = store.get_feature_view("v").server(log_vectors="served", log_sample=1)
server.get_vector({"tail": "N1"})
"""


def test_logged_vectors_are_written_at_process_exit(
    flights: FeatureStore, engine_name: str
) -> None:
    flights.create_feature_view("v", features=["planes.seats"])
    flights.publish("v")
    command = [sys.executable, "-c", EXITING, flights.location, engine_name]
    subprocess.run(command, check=True, timeout=120)
    assert flights.get_featuregroup("served").to_arrow()["seats"].to_pylist() == [100]


def test_online_lag_and_verify_commands_set_the_exit_code(
    flights: FeatureStore, engine_name: str, command_line: Callable[..., Any]
) -> None:
    flights.create_feature_view("v", features=["planes.seats"])

    def run(*words: str, code: int = 0) -> Any:
        options = ("--location", flights.location, "--engine", engine_name, "--output", "json")
        arguments = (*options, "online", *words)
        return json.loads(command_line(*arguments, code=code).out)

    run("publish", "v")
    run("verify", "v")
    assert [lag["commits"] for lag in run("lag", "v@v1", "--max-behind", "0s")] == [0]
    row = {"tail": "N1", "seats": 7, "home": "JFK"}
    flights.insert_into_featuregroup([row], "planes", mode="upsert")
    (difference,) = run("verify", "v", code=1)
    assert (difference["served"], difference["offline"]) == (100, 7)
    assert difference["reason"].startswith("not yet published: planes@v1")
    assert [len(run("lag", "v", *more)) for more in ((), ("--max-behind", "1d"))] == [1, 1]
    assert [lag["commits"] for lag in run("lag", "v", "--max-behind", "0s", code=1)] == [1]
