"""Times that are computed on demand have the limits of written ones, in retrieval and serving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore import feature
from featurestore.errors import OutOfRange
from featurestore.model.on_demand import OnDemandFeature
from featurestore.store import FeatureStore
from tests.on_spark import on_engines

DAY = timedelta(days=1)
START = datetime(2024, 1, 1, tzinfo=UTC)
TIMES = [START, START + DAY, START + 2 * DAY, None]
LABELS = pa.table(
    {
        "k": pa.array([1, 2, 3, 4], pa.int64()),
        "t": pa.array(TIMES, pa.timestamp("us", tz="UTC")),
    }
)
# Only the last of the times leaves the year 9999, and only the first one the year 1.
LATER = (datetime.max - datetime(2024, 1, 2)).days
EARLIER = START.toordinal()
FEATURES = {
    "later": (feature("far", f"t + interval {LATER} days"), LATER),
    "earlier": (feature("far", f"t - interval {EARLIER} days"), -EARLIER),
    "date": (feature("far", f"cast(t + interval {LATER} days as date) -- with a comment"), LATER),
    "function": (
        feature("far", lambda row: row["t"].dt.offset_by(f"{LATER}d"), inputs={"t": "timestamp"}),
        LATER,
    ),
}


def shift(time: datetime | None, days: int) -> datetime | None:
    """Return a time some days later, None beyond the years of Python."""
    try:
        return None if time is None else time + timedelta(days=days)
    except OverflowError:
        return None


def fill(store: FeatureStore) -> None:
    groups = pa.table({"k": LABELS["k"], "size": pa.array([1, 2, 3, 4], pa.int64())})
    store.create_featuregroup(groups, "sizes", primary_key="k")
    store.create_featuregroup(LABELS, "times", primary_key="k")


def offline_doors(
    store: FeatureStore, computed: OnDemandFeature, features: list[Any]
) -> Mapping[str, Callable[[], object]]:
    """Return the ways to read a feature without a server."""
    frame = store.get_features(features, labels=LABELS)

    def export(data_format: str) -> object:
        # A timestamp is no input of a model.
        day = feature("far", f"cast({computed.sql.partition('--')[0]} as date)")
        days = store.get_features([*features[:-1], day], labels=LABELS, label_time="t")
        return store.create_training_dataset(
            days, f"far_{data_format}", data_format=data_format, exclude=["t"], progress=False
        )

    return {
        "to_arrow": frame.to_arrow,
        "to_pandas": frame.to_pandas,
        "to_batches": lambda: list(frame.to_batches()),
        "show": frame.show,
        "HTML": frame._repr_html_,
        "filtered": lambda: frame.filter("k > 0").select("far").to_arrow(),
        "chained": lambda: store.get_features(feature("x", "year(far)"), labels=frame).to_arrow(),
        "coverage": frame.coverage,
        "written": lambda: store.create_featuregroup(frame, "copy", primary_key="k"),
        "TFRecord": lambda: export("tfrecord"),
        "Parquet": lambda: export("parquet"),
    }


@on_engines("name", FEATURES, spark=["later"])
def test_computed_time_out_of_range_raises_at_every_read(
    store: FeatureStore, engine_name: str, name: str, subtests: pytest.Subtests
) -> None:
    fill(store)
    computed, _ = FEATURES[name]
    features = ["sizes.size", computed]
    doors = dict(offline_doors(store, computed, features))
    view = store.create_feature_view("v", features=features)
    doors["view"] = view.get_features(labels=LABELS).to_arrow
    store.publish("v")
    server = view.server()
    entities = [row for row in LABELS.to_pylist() if row["t"] is not None]
    doors["server"] = lambda: server.get_vectors(entities)
    doors["server to Arrow"] = lambda: server.get_vectors(entities, as_="arrow")
    outside = "0000-12-31" if name == "earlier" else "10000-01-01"
    titles = ("to_arrow", "Parquet", "server") if engine_name == "spark" else doors
    for title in titles:
        with subtests.test(title), pytest.raises(OutOfRange) as refusal:
            doors[title]()
        with subtests.test(f"the message of {title}"):
            assert refusal.match(f"A row has {outside}.* in 'far', outside of the years 1 to 9999")
    server.close()


@on_engines("name", FEATURES, spark=["date"])
def test_hint_for_computed_time_keeps_times_in_range(store: FeatureStore, name: str) -> None:
    fill(store)
    computed, days = FEATURES[name]
    with pytest.raises(OutOfRange) as refusal:
        store.get_features(["sizes.size", computed], labels=LABELS).to_arrow()
    line = str(refusal.value.hint).partition(": ")[2]
    corrected = eval(line, {"featurestore": featurestore})
    expected: list[date | None] = [shift(time, days) for time in TIMES]
    if name == "date":
        expected = [None if time is None else time.date() for time in expected]
    assert expected.count(None) == 2
    frame = store.get_features(["sizes.size", corrected], labels=LABELS)
    assert sorted(map(str, frame.to_arrow()["far"].to_pylist())) == sorted(map(str, expected))
    view = store.create_feature_view("v", features=["sizes.size", corrected])
    store.publish("v")
    with view.server() as server:
        for row, time in zip(LABELS.to_pylist()[:3], expected, strict=False):
            assert server.get_vector(row)["far"] == time


def test_computed_time_is_checked_after_filter_and_select(empty_store: FeatureStore) -> None:
    fill(empty_store)
    computed, days = FEATURES["later"]
    frame = empty_store.get_features(["sizes.size", computed], labels=LABELS)
    assert frame.drop("far").to_arrow().num_rows == 4
    in_range = frame.filter("far <= '9999-12-31'").to_arrow()
    assert in_range["far"].to_pylist() == [shift(time, days) for time in TIMES[:2]]


def test_time_computed_by_query_out_of_range_raises(empty_store: FeatureStore) -> None:
    store = empty_store
    fill(store)
    frame = store.sql(f"select *, t + interval {LATER} day as far from times")
    for read in (frame.to_arrow, frame.show, frame.to_pandas, frame._repr_html_):
        with pytest.raises(OutOfRange, match=r"A row has 10000-01-01.* in 'far'") as refusal:
            read()
    line = str(refusal.value.hint).partition(": featurestore.sql(")[2].removesuffix(")")
    rows = store.sql(eval(line)).to_arrow()
    expected = {key: shift(time, LATER) for key, time in zip(range(1, 5), TIMES, strict=True)}
    assert dict(zip(rows["k"].to_pylist(), rows["far"].to_pylist(), strict=True)) == expected
    nested = store.sql(f"select [t + interval {LATER} day] as listed from times")
    with pytest.raises(OutOfRange, match=r"10000-01-01.* in 'listed'"):
        nested.show()
