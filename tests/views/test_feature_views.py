"""Feature views: one retrieval for training and scoring, stored as a file."""

from __future__ import annotations

import inspect
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pytest

import featurestore
import featurestore_schemas
from featurestore import transform as t
from featurestore.errors import (
    FeatureNotFound,
    FeatureViewBroken,
    FeatureViewDamaged,
    FeatureViewExists,
    FeatureViewNotFound,
    FeatureViewWarning,
    InvalidArgument,
    NoJoinKey,
    UsedByFeatureView,
)
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.recovery.rebuild import rebuild
from featurestore.store import FeatureStore

START = datetime(2013, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
BOTH_ENDS = [
    "planes.seats",
    "weather.temp as origin_temp",
    {"features": ["weather.temp as dest_temp"], "join_key": {"dest": "origin"}},
]


def fill(store: FeatureStore) -> FeatureStore:
    """Create weather of two airports, planes, and flights between them as labels."""
    weather = {
        "origin": ["JFK", "LGA"] * 3,
        "t": [START + hour * HOUR for hour in range(6)],
        "temp": [30.0 + hour for hour in range(6)],
    }
    request = {
        "tail": ["N1", "N2"],
        "origin": ["JFK", "LGA"],
        "dest": ["LGA", "JFK"],
        "asked": [START + 3 * HOUR, START + 5 * HOUR],
        "late": [False, True],
    }
    planes = {"tail": ["N1", "N2"], "seats": [100, 200]}
    store.create_featuregroup(pa.table(weather), "weather", primary_key="origin", event_time="t")
    store.create_featuregroup(pa.table(planes), "planes", primary_key="tail")
    store.create_featuregroup(pa.table(request), "asked", primary_key="tail", event_time="asked")
    return store


@pytest.fixture
def flights(empty_store: FeatureStore) -> FeatureStore:
    return fill(empty_store)


def test_view_training_and_scoring_give_same_features(store: FeatureStore) -> None:
    """With two roles of one group."""
    fill(store)
    new_view = store.create_feature_view("late", features=BOTH_ENDS, labels="asked", label="late")
    view = store.get_feature_view("late")
    assert view == new_view
    dataset = view.create_training_dataset("flights", data_format="parquet", progress=False)
    trained = {row["tail"]: row for row in dataset.read("train").to_arrow().to_pylist()}
    assert (trained["N1"]["origin_temp"], trained["N1"]["dest_temp"]) == (32.0, 33.0)
    assert dataset.manifest.column("late").role == "label"
    scored = [{"tail": "N1", "origin": "JFK", "dest": "LGA"}]
    frame = view.get_features(labels=scored, label_time=START + 3 * HOUR)
    (row,) = frame.to_arrow().to_pylist()
    for name in ("seats", "origin_temp", "dest_temp"):
        assert row[name] == trained["N1"][name]


def test_training_dataset_of_deleted_view_is_reproducible(flights: FeatureStore) -> None:
    view = flights.create_feature_view("late", features=BOTH_ENDS, labels="asked", label="late")
    first = view.create_training_dataset("flights", tags={"of": "a view"}, progress=False)
    rows = view.get_features().filter("seats > 100")
    second = flights.create_training_dataset(rows, "few", label="late", progress=False)
    plain = flights.create_training_dataset(flights.get_featuregroup("planes"), "plain")
    assert first.manifest.view == second.manifest.view == {"name": "late", "version": 1}
    assert "view" not in plain.manifest.to_json()
    assert view.training_datasets() == [("flights", 1), ("few", 1)]
    derived = {(edge.kind, edge.name) for edge in flights.featuregroup("weather").derived()}
    assert derived == {
        ("feature_view", "late"),
        ("training_dataset", "flights"),
        ("training_dataset", "few"),
    }
    flights.delete_feature_view("late", version=1)
    report = flights.get_training_dataset("flights").verify(recompute=True)
    assert report.ok, report.problems
    again = flights.create_feature_view("late", features="planes.seats")
    assert again.version == 2  # the number 1 stays that of the view which the datasets remember
    assert flights.get_training_dataset("flights").manifest.view == {"name": "late", "version": 1}


def test_view_is_unchanged_by_new_group_versions(flights: FeatureStore) -> None:
    view = flights.create_feature_view("v", features=["planes.*"], labels="asked")
    wider = {"tail": "N1", "seats": 101, "wings": 2}
    flights.insert_into_featuregroup([wider], "planes", mode="upsert", schema_change="add")
    flights.create_featuregroup([{"tail": "N1", "seats": -1}], "planes", primary_key="tail")
    assert view.featuregroups == ["asked@v1", "planes@v1"]
    rows = view.get_features().select("tail", "seats").to_arrow().to_pylist()
    assert sorted(row["seats"] for row in rows) == [101, 200]
    before = view.get_features(as_of={"planes": 1}).to_arrow().column("seats")
    assert sorted(before.to_pylist()) == [100, 200]


def test_group_change_that_affects_view_warns(flights: FeatureStore) -> None:
    view = flights.create_feature_view("v", features=["planes.seats"], labels="asked")
    with pytest.warns(
        FeatureViewWarning, match="in version 2 'seats' no longer exists. It continues to read"
    ):
        flights.create_featuregroup([{"tail": "N1", "chairs": 1}], "planes", primary_key="tail")
    with pytest.warns(FeatureViewWarning, match="'seats' is string, previously int64"):
        flights.create_featuregroup([{"tail": "N1", "seats": "a"}], "planes", primary_key="tail")
    assert view.problems == []
    with pytest.raises(UsedByFeatureView, match="'v version 1'"):
        flights.delete_featuregroup("planes", version=1)
    with pytest.warns(FeatureViewWarning, match="can no longer be read"):
        flights.delete_featuregroup("planes", version=1, force=True)
    assert view.problems == ["planes@v1 no longer exists"]
    with pytest.raises(FeatureViewBroken, match="planes@v1 no longer exists"):
        view.get_features()
    with pytest.warns(
        FeatureViewWarning, match=r"is string, previously.* It can no longer be read"
    ):
        flights.create_featuregroup(
            [{"tail": "N1", "seats": "a"}], "planes", primary_key="tail", version=1
        )
    with pytest.raises(FeatureViewBroken, match="'seats' is string, previously int64"):
        view.get_features()


def test_create_feature_view_invalid_raises_without_writing(flights: FeatureStore) -> None:
    frame = pa.table({"tail": ["N1"]})
    refused: list[tuple[type[Exception], dict[str, Any]]] = [
        (FeatureNotFound, {"features": "planes.wings"}),
        (FeatureNotFound, {"features": "planes.seats", "labels": "asked", "label": "lat"}),
        (NoJoinKey, {"features": "weather.temp", "labels": "planes"}),
        (InvalidArgument, {"features": "planes.seats", "labels": frame}),
        (InvalidArgument, {"features": "planes.seats", "label_time": START}),
        (InvalidArgument, {"features": [{"feature": "planes.seats"}]}),
        (InvalidArgument, {"features": [{"features": ["planes.seats"]}, "weather.temp"]}),
    ]
    for error, arguments in refused:
        with pytest.raises(error):
            flights.create_feature_view("v", **arguments)
    assert flights.get_feature_views() == []
    assert not list(Path(flights.location).glob("featureviews/v/*/*"))
    flights.create_feature_view("v", features="planes.seats")
    with pytest.raises(FeatureViewExists, match="Version 1"):
        flights.create_feature_view("v", features="planes.seats", version=1)
    with pytest.raises(FeatureViewNotFound, match="Available: 'v'"):
        flights.get_feature_view("w")


def test_view_file_restores_view_after_rebuild(flights: FeatureStore) -> None:
    flights.create_feature_view("v", features=BOTH_ENDS, labels="asked", tags={"team": "sky"})
    flights.create_feature_view("v", features="planes.seats")
    file = Path(flights.location) / "featureviews" / "v" / "v1" / "view.json"
    schema = Path(featurestore_schemas.__path__[0]) / "feature_view.schema.json"
    jsonschema.validate(json.loads(file.read_text()), json.loads(schema.read_text()))
    flights.close()
    (Path(flights.location) / "registry.db").unlink()
    assert rebuild(flights.location).feature_views == ["v@v1", "v@v2"]
    again = featurestore.connect(flights.location, engine="duckdb")
    view = again.get_feature_view("v", version=1)
    assert (view.tags, view.labels, len(view.features)) == ({"team": "sky"}, "asked@v1", 3)
    with pytest.raises(UsedByFeatureView):
        again.delete_featuregroup("weather", version=1)
    content = file.read_bytes()
    assert FeatureViewSpec.from_bytes(content, path=str(file)).to_bytes() == content
    file.write_bytes(content.replace(b"sky", b"sea"))
    with pytest.raises(FeatureViewDamaged, match="checksum"):
        again.get_feature_view("v", version=1)
    with pytest.warns(UserWarning, match="v version 1 is skipped"):
        assert [view.version for view in again.get_feature_views()] == [2]
    again.close()
    actual = rebuild(again.location)
    assert actual.feature_views == ["v@v2"]
    assert [path for path, _ in actual.unreadable] == [str(file.parent)]


def test_view_commands_list_and_show_views(flights: FeatureStore, command_line: Any) -> None:
    view = flights.create_feature_view("late", features=BOTH_ENDS, labels="asked", label="late")
    view.create_training_dataset("flights", progress=False)
    location = ("--location", flights.location, "--output", "json")
    (listed,) = json.loads(command_line("fv", "list", *location).out)
    assert (listed["name"], listed["labels"], listed["label"]) == ("late", "asked@v1", ["late"])
    shown = json.loads(command_line("fv", "show", "late", *location).out)
    assert shown["training_datasets"] == ["flights version 1"]
    assert shown["joins"][1]["join_key"] == {"dest": "origin"}
    assert shown["problems"] == []


def test_view_export_accepts_all_export_arguments() -> None:
    of_store = inspect.signature(FeatureStore.create_training_dataset).parameters
    of_view = inspect.signature(featurestore.FeatureView.create_training_dataset).parameters
    missing = set(of_store) - set(of_view) - {"data", "label"}
    assert missing == set()
    assert set(of_view) - set(of_store) == {"labels", "label_time", "as_of"}


def test_view_transformations_apply_to_training_datasets(flights_copy: FeatureStore) -> None:
    flights_copy.create_feature_view(
        "scaled",
        features=["weather.temp", "weather.wind"],
        label="wind",
        transformations={"temp": t.impute("mean") | t.min_max()},
    )
    view = flights_copy.get_feature_view("scaled")
    dataset = view.create_training_dataset("scaled", progress=False)
    batch = next(dataset.reader("train", global_batch_size=72).batches())
    assert (batch["temp"].min(), batch["temp"].max()) == (0.0, 1.0)
    plain = view.create_training_dataset("plain", transformations={}, progress=False)
    assert plain.transformations is None
    schema = Path(featurestore_schemas.__path__[0]) / "feature_view.schema.json"
    jsonschema.validate(
        json.loads(view.spec.to_bytes()), json.loads(schema.read_text(encoding="utf-8"))
    )


def test_view_invalid_transformations_raise(flights_store: FeatureStore) -> None:
    with pytest.raises(InvalidArgument, match="vocabulary"):
        flights_store.create_feature_view(
            "wrong", features=["flights.tailnum"], transformations={"tailnum": t.standardize()}
        )
    assert [view.name for view in flights_store.get_feature_views()] == ["late_flights"]
