"""Lineage of aggregates in plans, manifests, views, groups, the registry and search."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest
from typer.testing import CliRunner

import featurestore
import featurestore_schemas
from featurestore import FeatureStore
from featurestore import transform as t
from featurestore.cli import app
from featurestore.errors import FeatureViewBroken, FeatureViewWarning, InvalidArgument, JobWarning
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.model.window_features import window_from_json, window_to_json
from featurestore.recovery.rebuild import rebuild
from tests.store_copies import copy_of

DAY = pd.Timestamp("2024-01-01", tz="UTC")
FEATURES: list[Any] = [
    "customers.segment",
    featurestore.window(
        "purchases.amount", "sum", over="7d", offset="1d", where="status = 'settled'"
    ),
    "purchases.shop|count_distinct|all as shops",
]
SETTLED = (
    "amount_sum_7d_before_1d = sum(amount) of purchases@v1 over (t - 8d, t - 1d] "
    "where status = 'settled'"
)
SHOPS = "shops = count_distinct(shop) of purchases@v1 over (the first row, t]"
JOB = """
import featurestore
featurestore.window_job(
    "spend",
    [
        featurestore.window(
            "purchases.amount", "sum", over="7d", offset="1d", where="status = 'settled'"
        ),
        "purchases.shop|count_distinct|all as shops",
    ],
    every="1d", featuregroup="spend", primary_key="customer", start="2024-01-01T00:00Z",
)
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a dataset, a view and a group that contain aggregates."""
    folder = tmp_path_factory.mktemp("lineage")
    purchases = pd.DataFrame(
        {
            "customer": ["ann", "ann", "ann", "bob"],
            "purchase": [1, 2, 3, 4],
            "amount": [20.0, 5.0, 12.5, 80.0],
            "shop": ["north", "south", "north", "north"],
            "status": ["settled", "open", "settled", "settled"],
            "at": DAY + pd.to_timedelta([0, 3, 9, 2], unit="D"),
        }
    )
    questions = pd.DataFrame(
        {
            "customer": ["ann", "bob", "ann"],
            "asked_at": DAY + pd.to_timedelta([9, 5, 4], unit="D"),
            "returns": [True, True, False],
        }
    )
    (folder / "jobs.py").write_text(JOB)
    with featurestore.connect(folder / "store") as store:
        store.create_featuregroup(
            purchases, "purchases", primary_key=["customer", "purchase"], event_time="at"
        )
        customers = pd.DataFrame({"customer": ["ann", "bob"], "segment": ["gold", "new"]})
        store.create_featuregroup(customers, "customers", primary_key="customer")
        store.create_featuregroup(
            questions, "questions", primary_key="customer", event_time="asked_at"
        )
        view = store.create_feature_view(
            "returning", features=FEATURES, labels="questions", label="returns"
        )
        view.create_training_dataset("returns", data_format="parquet", progress=False)
        store.register_jobs(str(folder / "jobs.py"))
        store.backfill_job("spend", "2024-01-01T00:00Z", "2024-01-11T00:00Z")
    return folder / "store"


@pytest.fixture
def aggregates_store(filled: Path, tmp_path: Path) -> Iterator[FeatureStore]:
    with copy_of(filled, tmp_path / "store") as store:
        yield store


def search_windows(store: FeatureStore, text: str) -> list[tuple[str, str]]:
    return [(hit.reference, hit.text) for hit in store.search(text) if hit.where == "window"]


def test_search_matches_aggregates_after_registry_rebuild(
    aggregates_store: FeatureStore,
) -> None:
    expected = [
        ("featureviews/returning", SETTLED),
        ("spend.amount_sum_7d_before_1d", SETTLED),
        ("trainingdatasets/returns", SETTLED),
    ]
    for text in ("SETTLED", "sum(amount)", "t - 8d"):
        assert sorted(search_windows(aggregates_store, text)) == expected, text
    assert len(search_windows(aggregates_store, "purchases@v1")) == 6
    assert search_windows(aggregates_store, "nothing of the kind") == []
    result = rebuild(aggregates_store.location, url=None)
    assert not result.unreadable
    assert sorted(search_windows(aggregates_store, "settled")) == expected
    aggregates_store.delete_training_dataset("returns", version=1)
    aggregates_store.delete_feature_view("returning", version=1)
    with pytest.warns(JobWarning, match="again from"):
        aggregates_store.delete_featuregroup("spend", version=1)
    assert search_windows(aggregates_store, "settled") == []


def test_manifest_and_td_show_list_windows(aggregates_store: FeatureStore) -> None:
    dataset = aggregates_store.get_training_dataset("returns")
    assert list(map(str, dataset.manifest.windows)) == [SETTLED, SHOPS]
    arguments = [
        "--location",
        aggregates_store.location,
        "--output",
        "json",
        "td",
        "show",
        "returns",
    ]
    shown = CliRunner().invoke(app, arguments)
    assert json.loads(shown.output)["windows"] == [SETTLED, SHOPS]
    few = aggregates_store.create_training_dataset(
        aggregates_store.get_features(FEATURES, labels="questions").drop("shops"), "few", label="returns",
        data_format="parquet", progress=False,
    )  # fmt: skip
    assert list(map(str, few.manifest.windows)) == [SETTLED]


def test_feature_view_of_aggregates_equals_get_features(
    aggregates_store: FeatureStore,
) -> None:
    view = aggregates_store.get_feature_view("returning")
    plain = aggregates_store.get_features(FEATURES, labels="questions").to_arrow()
    assert view.get_features().to_arrow().equals(plain)
    assert view.features == [
        "customers@v1.segment", "purchases@v1.amount|sum|7d", "purchases@v1.shop|count_distinct|all",
    ]  # fmt: skip
    assert aggregates_store.get_training_dataset("returns").verify(recompute=True).ok
    file = Path(aggregates_store.location) / "featureviews" / "returning" / "v1" / "view.json"
    schema = Path(featurestore_schemas.__path__[0]) / "feature_view.schema.json"
    jsonschema.validate(json.loads(file.read_text()), json.loads(schema.read_text()))
    scored = [{"customer": "bob"}]
    frame = view.get_features(labels=scored, label_time="2024-01-05T00:00Z")
    assert frame.to_arrow().to_pylist() == [
        {"customer": "bob", "segment": "new", "amount_sum_7d_before_1d": 80.0, "shops": 1}
    ]
    with pytest.warns(FeatureViewWarning):
        aggregates_store.delete_featuregroup("purchases", version=1, force=True)
    with pytest.raises(FeatureViewBroken, match="purchases@v1 no longer exists"):
        view.get_features()


def test_plan_and_statistics_describe_windows(
    aggregates_store: FeatureStore, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = aggregates_store.explain_features(FEATURES, labels="questions")
    text = capsys.readouterr().out
    assert text == str(plan)
    line = "sum(amount) over (asked_at - 8d, asked_at - 1d] where status = 'settled'"
    assert f"amount_sum_7d_before_1d = {line}" in text
    assert "one event for each purchase, at" in text
    heads = [plan_line for plan_line in text.splitlines() if "reads" in plan_line]
    assert len(heads) == 2  # the aggregates, and the features that are joined to them
    assert all("of memory" in head and "unknown" not in head for head in heads)
    statistics = aggregates_store.get_training_dataset("returns").statistics("train")
    assert statistics.column("shops").count == 3
    group = aggregates_store.get_featuregroup_statistics("spend")
    assert group.column("amount_sum_7d_before_1d").count > 0


def test_registry_lineage_includes_window_jobs(aggregates_store: FeatureStore) -> None:
    derived = {
        (edge.kind, edge.name) for edge in aggregates_store.featuregroup("purchases").derived()
    }
    assert derived == {
        ("feature_view", "returning"),
        ("featuregroup", "spend"),
        ("training_dataset", "returns"),
    }


FILLS: list[Any] = [
    0.5, float("nan"), float("-inf"), 3, "none", True, Decimal("1.50"), DAY.to_pydatetime(),
    DAY.date(), b"\x00\xff", [1.0, None],
]  # fmt: skip


@pytest.mark.parametrize("fill", FILLS)
def test_window_json_round_trip(fill: object) -> None:
    expected = featurestore.window(
        "purchases@v2.amount", "last", over=None, offset="1us", key=["shop"], fill_value=fill
    )
    data = json.loads(json.dumps(window_to_json(expected)))
    assert str(window_from_json(JsonObject(data))) == str(expected)
    again = window_from_json(JsonObject(data)).fill_value
    assert again == fill or (fill != fill and again != again)  # NaN differs from itself


def test_fill_values_are_restored_from_manifest(aggregates_store: FeatureStore) -> None:
    aggregates = [
        featurestore.window("purchases.at", "last", over="1us", fill_value="1970-01-01T00:00Z"),
    ]
    with pytest.raises(InvalidArgument, match="fill_value"):
        aggregates_store.get_features(aggregates, labels="questions")
    aggregates = [featurestore.window("purchases.at", "last", over="1us", fill_value=DAY)]
    frame = aggregates_store.get_features(aggregates, labels="questions")
    dataset = aggregates_store.create_training_dataset(
        frame,
        "filled",
        label="returns",
        transformations={"at_last_1us": t.cyclical(86_400_000_000)},
        data_format="parquet",
        progress=False,
    )
    assert dataset.verify(recompute=True).ok
    assert set(frame.to_pandas()["at_last_1us"]) == {DAY, DAY + pd.Timedelta(days=9)}


@pytest.mark.parametrize(
    "damage",
    [{"function": "eval"}, {"over_us": -1}, {"over_us": 0}, {"feature": "x"}, {"n": "all"}, {"key": 3},
     {"fill_value": {"eval": "1"}}, {"fill_value": {"decimal": "x"}}, {"where": 1}],
)  # fmt: skip
def test_window_from_json_damaged_raises(damage: dict[str, object]) -> None:
    data = window_to_json(featurestore.window("purchases.amount", "sum", over="1d"))
    with pytest.raises(MalformedJson):
        window_from_json(JsonObject({**data, **damage}))
