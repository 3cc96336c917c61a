"""Frames restricted to some rows and columns.

Samples, columns left out, and how many rows are known.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from featurestore.errors import FeatureNotFound, InvalidArgument
from featurestore.hashing import row_hash
from featurestore.store import FeatureStore

PEOPLE = pa.table(
    {
        "person": pa.array(np.arange(1000) // 4),
        "visit": pa.array(np.arange(1000) % 4),
        "age": pa.array(np.arange(1000) % 90, pa.float64()),
    }
)


def test_sample_selects_low_hashes_on_every_engine(store: FeatureStore) -> None:
    store.create_featuregroup(
        PEOPLE, "people", primary_key=["person", "visit"], validation="off", statistics=False
    )
    hashes = row_hash(PEOPLE, columns=["person", "visit"], seed=7 ^ 0x53414D504C45)
    expected = PEOPLE.filter(pa.array(hashes < np.uint64(int(0.2 * 2**64))))
    assert 150 < expected.num_rows < 250
    sample = store.get_featuregroup("people").sample(fraction=0.2, seed=7)
    order = [("person", "ascending"), ("visit", "ascending")]
    assert sample.to_arrow().sort_by(order) == expected
    cut = sample.select("age").filter("age >= 45")
    assert cut.count() == sum(age >= 45 for age in expected.column("age").to_pylist())


def test_renamed_features_can_be_filtered(
    empty_store: FeatureStore,
) -> None:
    empty_store.create_featuregroup(PEOPLE, "people", primary_key=["person", "visit"])
    frame = empty_store.get_features(["people.age as years", "people.visit as nth"])
    table = frame.filter("years = 85 and nth < 3").select("nth").to_arrow()
    rows = [row for row in PEOPLE.to_pylist() if row["age"] == 85 and row["visit"] < 3]
    assert sorted(table.column("nth").to_pylist()) == sorted(row["visit"] for row in rows)
    assert rows


def test_sample_keeps_rows_of_equal_keys_together(
    empty_store: FeatureStore,
) -> None:
    frame = empty_store.create_featuregroup(
        PEOPLE, "people", primary_key=["person", "visit"]
    ).read()
    persons = frame.sample(fraction=0.3, by="person").to_arrow().column("person").to_pylist()
    assert all(persons.count(person) == 4 for person in set(persons))
    assert 50 < len(set(persons)) < 100
    other_persons = (
        frame.sample(fraction=0.3, seed=1, by="person").to_arrow().column("person").to_pylist()
    )
    assert set(other_persons) != set(persons)


def test_sample_covers_splits_and_is_reproducible(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup(PEOPLE, "people", primary_key=["person", "visit"])
    frame = empty_store.get_featuregroup("people").sample(fraction=0.5)
    assert "0.5 of the rows by the hash of person, visit, seed 0" in str(frame.plan)
    dataset = empty_store.create_training_dataset(
        frame, "halves", splits={"train": 0.5, "test": 0.5}, data_format="parquet", progress=False
    )
    assert dataset.num_rows("train") > 200
    assert dataset.num_rows("test") > 200
    assert dataset.verify(recompute=True).ok


def test_sample_without_keys_hashes_all_columns(empty_store: FeatureStore) -> None:
    frame = empty_store.create_featuregroup(PEOPLE, "people").read()
    assert frame.sample(fraction=1.0).to_arrow() == PEOPLE
    assert frame.plan is not None
    assert frame.sample(fraction=0.5).plan.samples[0].by == ("person", "visit", "age")  # type: ignore[union-attr]


@pytest.mark.parametrize("fraction", [0, -1, 1.5, float("nan"), True])
def test_sample_refuses_invalid_fraction(flights_store: FeatureStore, fraction: float) -> None:
    frame = flights_store.get_featuregroup("flights")
    with pytest.raises(InvalidArgument, match=r"fraction=0\.1"):
        frame.sample(fraction=fraction)


def test_drop_removes_columns_by_name(flights_store: FeatureStore) -> None:
    frame = flights_store.get_featuregroup("weather")
    expected = ["origin", "hour", "temp"]
    assert frame.drop("wind").columns == frame.drop(["wind"]).columns == expected
    for wrong in (lambda: frame.drop("winds"), lambda: frame.sample(fraction=0.5, by="winds")):
        with pytest.raises(FeatureNotFound, match="'wind'"):
            wrong()
    with pytest.raises(InvalidArgument):
        frame.drop("origin", "hour", "temp", "wind")


def test_frame_length_comes_from_the_log(flights_store: FeatureStore) -> None:
    frame = flights_store.get_featuregroup("flights")
    assert len(frame) == 40
    assert frame.filter("distance > 500")
    with pytest.raises(InvalidArgument, match=r"count\(\)"):
        len(frame.filter("distance > 500"))


def test_filter_now_is_evaluated_once(empty_store: FeatureStore) -> None:
    table = PEOPLE.append_column("at", pa.array([0] * 1000, pa.timestamp("us", tz="UTC")))
    frame = empty_store.create_featuregroup(table, "people").read()
    cut = frame.filter("at < now() - interval 1 day")
    assert cut.plan is not None
    assert "now()" not in cut.plan.filters[0]
    assert "now()" in str(cut.plan)
    assert cut.count() == 1000
    commit = empty_store.delete_from_featuregroup("people", "at > now()")
    assert commit.delta_version == 1
