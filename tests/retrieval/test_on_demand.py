"""On-demand features: one expression for training and scoring, on both engines."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import narwhals as nw
import pyarrow as pa
import pytest

import featurestore
import featurestore_schemas
from featurestore import transform as t
from featurestore.errors import (
    ColumnConflict,
    FeatureStoreError,
    FeatureViewDamaged,
    InvalidArgument,
    InvalidName,
    InvalidSql,
)
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.json_object import seal
from featurestore.store import FeatureStore
from featurestore.usersql.row_functions import feature

START = datetime(2013, 1, 1, 22, tzinfo=UTC)
FLIGHTS = pa.table(
    {
        "tail": ["N1", "N2", "N9", "N1"] * 10,
        "asked": [START + timedelta(hours=hour) for hour in range(40)],
        "distance": pa.array([1000 + hour for hour in range(40)], pa.int64()),
        "late": [False, True] * 20,
    }
)
FEATURES = [
    feature("per_seat", "distance / seats"),
    "planes.seats",
    feature("far", "distance > 1020 and seats is not null"),
    feature("hour", "hour(asked)"),
    feature("tail_2", "substring(tail, 2, 1) || '-x'"),
    feature("day", "cast(asked as date)"),
]


INPUTS = {
    "distance": "int64",
    "seats": "int64",
    "asked": "timestamp",
    "tail": "string",
}


def per_seat(row: Any) -> Any:
    return nw.when(row["seats"] > 0).then(row["distance"] / row["seats"])


# The same features as functions of Narwhals.
FUNCTIONS = [
    feature("per_seat", per_seat, inputs=INPUTS),
    "planes.seats",
    feature("far", lambda row: (row["distance"] > 1020) & ~row["seats"].is_null(), inputs=INPUTS),
    feature("hour", lambda row: row["asked"].dt.hour(), inputs=INPUTS),
    feature("tail_2", lambda row: row["tail"].str.slice(1, 1), inputs=INPUTS),
    feature("day", lambda row: row["asked"].dt.date(), inputs=INPUTS),
]


def fill(location: Path, **options: Any) -> FeatureStore:
    store = featurestore.connect(location, **options)
    planes = pa.table({"tail": ["N1", "N2"], "seats": pa.array([0, 200], pa.int64())})
    store.create_featuregroup(planes, "planes", primary_key="tail")
    store.create_featuregroup(FLIGHTS, "flights", primary_key="tail", event_time="asked")
    return store


@pytest.fixture
def planes_store(tmp_path: Path) -> Any:
    with fill(tmp_path / "store") as store:
        yield store


def by_hand(row: dict[str, Any]) -> dict[str, Any]:
    """Return a label row with its features, computed without the library."""
    seats = {"N1": 0, "N2": 200}.get(row["tail"])
    return {
        **row,
        "per_seat": row["distance"] / seats if seats else None,
        "seats": seats,
        "far": row["distance"] > 1020 and seats is not None,
        "hour": row["asked"].hour,
        "tail_2": row["tail"][1] + "-x",
        "day": row["asked"].date(),
    }


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def test_on_demand_expressions_agree_on_engines(
    tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    fill(tmp_path / "store").close()
    with featurestore.connect(tmp_path / "store", engine=engine) as store:
        frame = store.get_features(FEATURES, labels=FLIGHTS)
        table = frame.to_arrow()
        assert table.schema.names == list(by_hand(FLIGHTS.to_pylist()[0]))
        assert [str(table.schema.field(name).type) for name in ("per_seat", "far", "hour")] == [
            "double",
            "bool",
            "int64",
        ]
        assert table.to_pylist() == list(map(by_hand, FLIGHTS.to_pylist()))
        by_functions = store.get_features(FUNCTIONS, labels=FLIGHTS).to_arrow()
        for name in ("per_seat", "far", "hour", "day"):
            assert by_functions.column(name).equals(table.column(name))
        assert by_functions.column("tail_2").to_pylist()[:3] == ["1", "2", "9"]
        cut = frame.filter("far and hour > 12").select(["hour", "distance"]).to_arrow().to_pylist()
        expected = []
        for row in map(by_hand, FLIGHTS.to_pylist()):
            if row["far"] and row["hour"] > 12:
                expected.append({"hour": row["hour"], "distance": row["distance"]})
        assert cut == expected


def test_on_demand_features_are_inputs_of_later_retrieval(planes_store: FeatureStore) -> None:
    first = planes_store.get_features(
        ["planes.seats", feature("a", "distance * 2")], labels=FLIGHTS
    )
    again = planes_store.get_features([feature("b", "a + 1")], labels=first)
    assert again.to_arrow().column("b").to_pylist() == [2 * n + 1 for n in range(1000, 1040)]
    alone = planes_store.get_features(feature("b", "distance + 1"), labels=FLIGHTS)
    assert alone.to_arrow().column("b").to_pylist() == list(range(1001, 1041))
    windowed = [featurestore.window("flights.distance", "max", over=None), feature(
        "share", "distance / distance_max"
    )]  # fmt: skip
    frame = planes_store.get_features(windowed, labels=FLIGHTS, label_time="asked").to_arrow()
    assert frame.column("share").to_pylist()[:2] == [1.0, 1.0]


def test_dataset_records_on_demand_features(
    planes_store: FeatureStore,
) -> None:
    def make(sql: str) -> Any:
        frame = planes_store.get_features(["planes.seats", feature("far", sql)], labels="flights")
        chains = {"far": t.cast("float32")}
        return planes_store.create_training_dataset(
            frame, "d", label="late", transformations=chains
        )

    first, same, other_dataset = make("distance > 9"), make("distance > 9"), make("distance > 1010")
    assert first.roles["far"] == "feature"
    (stated,) = first.manifest.plan["on_demand"]
    assert stated["sql"] == "distance > 9"
    assert len(stated["sha256"]) == 64
    assert first.verify(recompute=True).ok
    assert first.manifest.plan_hash == same.manifest.plan_hash != other_dataset.manifest.plan_hash
    assert (
        first.manifest.content_hash
        == same.manifest.content_hash
        != other_dataset.manifest.content_hash
    )


def test_training_and_scoring_share_on_demand_function(planes_store: FeatureStore) -> None:
    view = planes_store.create_feature_view("f", features=FUNCTIONS, labels="flights", label="late")
    assert view.on_demand["per_seat"].startswith("(CASE WHEN")
    content = view.spec.to_bytes()
    schema = Path(featurestore_schemas.__path__[0]) / "feature_view.schema.json"
    jsonschema.validate(json.loads(content), json.loads(schema.read_text()))
    again = FeatureViewSpec.from_bytes(content, path="view.json")
    assert again.on_demand == view.spec.on_demand
    assert all(len(function.source or "") == 64 for function in again.on_demand)
    dataset = view.create_training_dataset("by_functions")
    stated = dataset.manifest.plan["on_demand"]
    assert [record["source"] for record in stated] == [
        function.source for function in again.on_demand
    ]
    assert dataset.verify(recompute=True).ok
    scored = planes_store.get_feature_view("f").get_features(labels=FLIGHTS.slice(1, 2)).to_arrow()
    assert scored.column("per_seat").to_pylist() == [1001 / 200, None]


def test_explain_coverage_and_leakage_support_on_demand(
    planes_store: FeatureStore, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planes_store.explain_features(FEATURES, labels="flights")
    printed = capsys.readouterr().out
    assert "on demand  per_seat = distance / seats (double)" in printed
    assert [source.spec.name for source in plan.sources] == ["flights", "planes"]
    frame = planes_store.get_features(FEATURES, labels="flights")
    assert not planes_store.check_leakage(frame).leaks
    assert [coverage.group for coverage in frame.coverage().groups] == ["planes@v1"]


def test_view_on_demand_equals_scoring(planes_store: FeatureStore) -> None:
    view = planes_store.create_feature_view("v", features=FEATURES, labels="flights", label="late")
    assert view.on_demand["far"] == "distance > 1020 and seats is not null"
    expected = sorted(map(str, map(by_hand, FLIGHTS.to_pylist())))
    columns = list(by_hand(FLIGHTS.to_pylist()[0]))
    again = planes_store.get_feature_view("v")
    assert sorted(map(str, again.get_features().select(columns).to_arrow().to_pylist())) == expected
    scored = again.get_features(labels=FLIGHTS.slice(3, 2)).select(columns).to_arrow().to_pylist()
    assert scored == [by_hand(row) for row in FLIGHTS.slice(3, 2).to_pylist()]
    content = view.spec.to_bytes()
    schema = Path(featurestore_schemas.__path__[0]) / "feature_view.schema.json"
    jsonschema.validate(json.loads(content), json.loads(schema.read_text()))
    changed = json.loads(content)
    changed["steps"][0]["on_demand"][0]["sql"] = "seats"
    changed.pop("checksum")
    with pytest.raises(FeatureViewDamaged, match="sha256"):
        FeatureViewSpec.from_bytes(seal(changed), path="view.json")


@pytest.mark.parametrize(
    ("make_feature", "error", "words"),
    [
        (lambda: feature("x", "nothing + 1"), InvalidSql, "'x'.*unknown column 'nothing'"),
        (lambda: feature("x", "now()"), InvalidSql, "reads the clock"),
        (lambda: feature("x", "sum(seats)"), InvalidSql, "not verified to be equal"),
        (lambda: feature("x", "seats +"), InvalidSql, "cannot be parsed"),
        (lambda: feature("x", "tail + 1"), InvalidSql, "'x'"),
        (lambda: feature("Seats", "distance"), ColumnConflict, "'Seats' has the name"),
        (lambda: feature("late", "distance"), ColumnConflict, "'late' has the name"),
        (lambda: feature("a b", "distance"), InvalidName, "'a b'"),
        (lambda: feature("x", ""), InvalidArgument, "not an SQL expression"),
        (lambda: feature("x", lambda row: 1), InvalidArgument, "requires the types of its inputs"),
        (lambda: feature("x", lambda row: 1, inputs=INPUTS), InvalidArgument, "returned int"),
        (
            lambda: feature("x", lambda row: row["seats"].sum(), inputs=INPUTS),
            InvalidArgument,
            "several rows",
        ),
        (
            lambda: feature("x", lambda row: row["tail"] + 1, inputs=INPUTS),
            InvalidArgument,
            "cannot be converted to SQL",
        ),
        (
            lambda: feature("x", lambda row: 1, inputs={"seats": "number"}),
            InvalidArgument,
            "supported types: ",
        ),
        (lambda: feature("x", 3), InvalidArgument, "not an SQL expression"),  # type: ignore[arg-type]
    ],
)
def test_invalid_on_demand_is_refused_before_reading(
    planes_store: FeatureStore, make_feature: Any, error: type[FeatureStoreError], words: str
) -> None:
    with pytest.raises(error, match=words):
        planes_store.get_features(["planes.seats", make_feature()], labels=FLIGHTS)


def test_on_demand_without_inputs_is_refused(planes_store: FeatureStore) -> None:
    with pytest.raises(InvalidArgument, match="no rows to compute from"):
        planes_store.get_features([feature("x", "seats * 2")])
    rows = planes_store.get_features(["planes.seats", feature("x", "seats * 2")]).to_arrow()
    assert sorted(rows.column("x").to_pylist()) == [0, 400]
