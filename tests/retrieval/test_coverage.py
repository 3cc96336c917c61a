"""Coverage counts each reason for missing values, names the argument, and warns.

The reasons agree with the definition looked at row by row, on random histories and both engines.
"""

from __future__ import annotations

import importlib
import random
import warnings
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from featurestore.errors import InvalidArgument, NoJoinKey
from featurestore.model.times import SuspiciousTimeWarning
from featurestore.retrieval import CoverageWarning
from tests.on_spark import spark_in_soak

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

NOW = datetime(2021, 4, 12, 10, tzinfo=UTC)
LOADED = datetime(2025, 1, 1, tzinfo=UTC)
REASONS = ("found", "no_such_key", "before_first_row", "not_known_yet", "older_than_ttl", "null")


def hours(count: float) -> datetime:
    return NOW + timedelta(hours=count)


def counts(covered: Any) -> dict[str, int]:
    return {name: getattr(covered, name) for name in REASONS if getattr(covered, name)}


def test_coverage_counts_each_reason(store: FeatureStore) -> None:
    rows = [
        {"id": "a", "at": hours(0), "known": hours(2), "x": 1.0, "y": 1},
        {"id": "b", "at": hours(0), "known": hours(0), "x": None, "y": None},
        {"id": "c", "at": hours(0), "known": hours(0), "x": None, "y": 7},
    ]
    store.create_featuregroup(
        rows,
        "g",
        primary_key="id",
        event_time="at",
        created_time="known",
        ttl="6h",
        validation="off",
        statistics=False,
    )
    labels = [
        {"id": "A", "t": hours(3)}, {"id": None, "t": hours(3)}, {"id": "a", "t": hours(-1)},
        {"id": "a", "t": None}, {"id": "a", "t": hours(1)}, {"id": "a", "t": hours(30)},
        {"id": "b", "t": hours(3)}, {"id": "c", "t": hours(3)}, {"id": "a", "t": hours(3)},
    ]  # fmt: skip
    report = store.get_features(["g.x", "g.y"], labels=labels).coverage()
    covered = report["g"]
    assert not report.sampled
    assert covered.labels == sum(counts(covered).values()) == len(labels)
    assert counts(covered) == {
        "found": 2, "no_such_key": 2, "before_first_row": 2, "not_known_yet": 1,
        "older_than_ttl": 1, "null": 1,
    }  # fmt: skip
    assert covered.nulls == {"x": 2, "y": 1}
    findings = str(report)
    for says in (
        "g@v1: 2 of 9 labels have a value; 2 no such key, 2 before its first row, 1 not known yet",
        "'A' in the labels is 'a' in the group",
        "is label_time='t' the time at which the values are needed?",
        "created_time_filter=False",
        "ttl='6h', and the newest of these values is 1d old",
    ):
        assert says in findings


def reason(
    rows: list[dict[str, Any]], label: dict[str, Any], *, ttl: timedelta | None, filtered: bool
) -> str:
    """Return why a label has no value, from the definition of the reasons."""
    key_rows = [row for row in rows if row["id"] == label["id"]]
    past_rows = [row for row in key_rows if row["at"] <= label["t"]]
    known_rows = [row for row in past_rows if not filtered or row["known"] <= label["t"]]
    if not key_rows:
        return "no_such_key"
    if not past_rows:
        return "before_first_row"
    if not known_rows:
        return "not_known_yet"
    best = max(known_rows, key=lambda row: (row["at"], row["known"]))
    if ttl is not None and label["t"] - best["at"] > ttl:
        return "older_than_ttl"
    return "null" if best["x"] is None else "found"


@spark_in_soak
@pytest.mark.parametrize("ttl", [None, timedelta(hours=5)])
def test_coverage_reasons_match_the_definition(store: FeatureStore, ttl: timedelta | None) -> None:
    drawn = random.Random(7)
    rows, keys = [], set()
    for _ in range(60):
        row = {
            "id": drawn.randrange(6), "at": hours(drawn.randrange(20)),
            "known": hours(drawn.randrange(30)), "x": drawn.choice([None, 1.0]),
        }  # fmt: skip
        if (row["id"], row["at"], row["known"]) not in keys:
            keys.add((row["id"], row["at"], row["known"]))
            rows.append(row)
    labels = [{"id": drawn.randrange(8), "t": hours(drawn.randrange(-5, 40))} for _ in range(200)]
    store.create_featuregroup(
        rows,
        "g",
        primary_key="id",
        event_time="at",
        created_time="known",
        ttl=ttl,
        validation="off",
        statistics=False,
    )
    for filtered in (True, False):
        frame = store.get_features("g.x", labels=labels, created_time_filter=filtered)
        expected: dict[str, int] = {}
        for label in labels:
            name = reason(rows, label, ttl=ttl, filtered=filtered)
            expected[name] = expected.get(name, 0) + 1
        assert counts(frame.coverage()["g"]) == expected
        assert sum(counts(frame.coverage(sample=50)["g"]).values()) == 50


def test_coverage_explains_load_time_as_created_time(
    empty_store: FeatureStore,
) -> None:
    rows = []
    for number in range(50):
        rows.append(
            {"driver_id": 1001 + number % 5, "event_timestamp": hours(-number), "created": LOADED,
             "conv_rate": number / 100, "acc_rate": 0.5}
        )  # fmt: skip
    empty_store.create_featuregroup(
        rows, "driver_hourly_stats", primary_key="driver_id", event_time="event_timestamp",
        created_time="created",
    )  # fmt: skip
    entities = [{"driver_id": 1001 + n, "event_timestamp": hours(n), "label": n} for n in range(3)]
    expected = ["driver_hourly_stats.conv_rate", "driver_hourly_stats.acc_rate"]
    frame = empty_store.get_features(expected, labels=entities)
    says = r"has values for 0 of 3 rows(.|\n)*3 not known yet(.|\n)*created_time_filter=False"
    with pytest.warns(CoverageWarning, match=says) as caught_warnings:
        assert frame.to_pandas()["conv_rate"].isna().all()
    assert len(caught_warnings) == 1
    assert caught_warnings[0].filename == __file__
    assert counts(frame.coverage()["driver_hourly_stats"]) == {"not_known_yet": 3}
    mended = empty_store.get_features(expected, labels=entities, created_time_filter=False)
    assert mended.to_pandas()["conv_rate"].notna().all()


def test_coverage_explains_event_time_in_key(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    creation = importlib.import_module("featurestore.featuregroups.write")
    monkeypatch.setattr(
        creation, "check_primary_key", lambda declared: None
    )  # as older releases did
    rows = [{"customer": n, "ts": hours(n), "spend": 1.0 * n} for n in range(5)]
    empty_store.create_featuregroup(rows, "spend", primary_key=["customer", "ts"], event_time="ts")
    labels = [{"customer": n, "ts": hours(n + 0.5)} for n in range(5)]
    frame = empty_store.get_features("spend.spend", labels=labels)
    with pytest.warns(CoverageWarning, match="'ts' is part of the primary key"):
        frame.to_arrow()
    covered = frame.coverage()["spend"]
    assert counts(covered) == {"no_such_key": 5}
    assert "primary_key=['customer'], event_time='ts'" in covered.advice[0]


@pytest.mark.parametrize("ttl", [None, "1d"])
def test_coverage_explains_misread_milliseconds(empty_store: FeatureStore, ttl: str | None) -> None:
    pd = pytest.importorskip("pandas")
    times = pd.to_datetime([1618491906000, 1618491907000], utc=True)
    rows = pd.DataFrame({"id": [1, 2], "ts": times, "x": [1.0, 2.0]})
    with pytest.warns(SuspiciousTimeWarning):
        empty_store.create_featuregroup(rows, "g", primary_key="id", event_time="ts", ttl=ttl)
    labels = [{"id": 1, "t": NOW}, {"id": 2, "t": NOW}]
    covered = empty_store.get_features("g.x", labels=labels).coverage()["g"]
    assert counts(covered) == ({"found": 2} if ttl is None else {"older_than_ttl": 2})
    assert "epoch numbers in 'ms' read as nanoseconds" in covered.advice[-1]


def test_export_warns_of_group_without_values(empty_store: FeatureStore) -> None:
    rows = [{"id": n, "at": hours(0), "x": 1.0} for n in range(3)]
    empty_store.create_featuregroup(rows, "g", primary_key="id", event_time="at")
    labels = [{"id": n, "t": hours(-1), "y": n % 2} for n in range(3)]
    frame = empty_store.get_features("g.x", labels=labels)
    with pytest.warns(CoverageWarning, match=r"g@v1 has values for 0 of 3 rows(.|\n)*first row"):
        empty_store.create_training_dataset(frame, "d", label="y", progress=False)


@pytest.mark.parametrize(("hits", "warns"), [(1, False), (0, True)])
def test_coverage_below_one_percent_warns(
    empty_store: FeatureStore, hits: int, warns: bool
) -> None:
    rows = [{"id": n, "at": hours(0), "x": 1.0} for n in range(2)]
    empty_store.create_featuregroup(rows, "g", primary_key="id", event_time="at")
    labels = [{"id": min(1, n), "t": hours(-1)} for n in range(199 - hits)]
    labels += [{"id": 1, "t": hours(1)}] * (1 + hits)
    frame = empty_store.get_features("g.x", labels=labels)
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        frame.to_arrow()
        frame.filter("x is null").to_arrow()  # chosen on purpose
    assert [warning.category for warning in caught_warnings] == [CoverageWarning] * warns


def test_inner_join_dropping_all_labels_has_reason(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup([{"id": "a", "x": 1.0}], "g", primary_key="id")
    labels = [{"id": "A "}, {"id": "b"}]
    frame = empty_store.get_features("g.x", labels=labels, join="inner")
    with pytest.warns(CoverageWarning, match=r"dropped every label(.|\n)*'A ' in the labels"):
        assert frame.to_arrow().num_rows == 0


def test_chained_retrievals_are_covered_join_by_join(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup([{"id": 1, "x": 5}], "first", primary_key="id")
    empty_store.create_featuregroup([{"x": 5, "z": 1.0}], "second", primary_key="x")
    frame = empty_store.get_features("first.x", labels=[{"id": 1}, {"id": 2}])
    report = empty_store.get_features("second.z", labels=frame).coverage()
    assert [counts(coverage) for coverage in report] == [{"found": 1, "no_such_key": 1}] * 2
    assert "null matches no key" in report["second"].advice[0]
    with pytest.raises(InvalidArgument, match="get_features"):
        empty_store.get_featuregroup("first").coverage()
    with pytest.raises(InvalidArgument, match=r"Available: first@v1, second@v1"):
        report["third"]


@spark_in_soak
def test_group_without_key_requires_unique_columns(store: FeatureStore) -> None:
    rows = [{"team": 1, "x": 1.0}, {"team": 2, "x": 2.0}, {"team": None, "x": 3.0}]
    store.create_featuregroup(
        [*rows, {"team": None, "x": 4.0}], "teams", validation="off", statistics=False
    )
    labels = [{"team": 2}, {"team": 2}, {"team": None}, {"team": 9}]
    frame = store.get_features("teams.x", labels=labels, join_key={"teams": "team"})
    assert frame.to_arrow()["x"].to_pylist() == [2.0, 2.0, None, None]
    assert not any("the latest" in note for note in frame.plan.notes)
    store.insert_into_featuregroup([{"team": 2, "x": 5.0}], "teams")
    with pytest.raises(NoJoinKey, match=r"1 values of team .* team=2(.|\n)*primary_key=\['team'\]"):
        store.get_features("teams.x", labels=labels, join_key={"teams": "team"})
    # Joining in the other direction returns a row per pair, as the hint says.
    store.create_featuregroup([{"team": 1, "name": "a"}, {"team": 2, "name": "b"}], "names",
                              primary_key="team")  # fmt: skip
    pairs = store.get_features("names.name", labels="teams").to_arrow()
    assert pairs.num_rows == 5
    assert sorted(pairs.filter(pairs["name"].is_valid())["name"].to_pylist()) == ["a", "b", "b"]
