"""``update_featuregroup`` changes a definition in one commit, without changing rows or versions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

import featurestore
from featurestore.delta import commits
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import InvalidArgument, InvalidExpectation, ValidationFailed
from featurestore.featuregroups.table import open_group
from featurestore.model.featuregroup import VALIDATION_POLICIES
from featurestore.recovery.rebuild import rebuild
from featurestore.registry import featuregroups
from featurestore.store import FeatureStore
from tests.docstrings.weather import hour

POSITIVE = {
    "type": "expect_column_values_to_be_between",
    "kwargs": {"column": "temp", "min_value": 0},
}
PRESENT = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "temp"}}


def rows(*temps: float | None, first: int = 0) -> pa.Table:
    """Return rows of one airport, one hour apart."""
    times = [hour(first + number) for number in range(len(temps))]
    return pa.table({"k": ["a"] * len(temps), "t": times, "temp": pa.array(temps, pa.float64())})


def registered(store: FeatureStore, name: str = "weather") -> Any:
    """Return the spec in the registry."""
    with store.session.registry.reading() as connection:
        return featuregroups.get(connection, name).spec


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "expectations": st.lists(st.sampled_from([POSITIVE, PRESENT]), max_size=2),
        "validation": st.sampled_from(VALIDATION_POLICIES),
        "ttl": st.sampled_from(["", "exact", "1h", "30d"]),
        "event_time_tolerance": st.sampled_from(["0s", "5min"]),
        "statistics": st.booleans(),
        "compact": st.sampled_from(["", "auto"]),
        "description": st.text("ab", max_size=2),
        "descriptions": st.dictionaries(st.sampled_from(["k", "temp"]), st.text("xy", max_size=2)),
    },
)


@settings(max_examples=25, deadline=None)
@given(changes=st.lists(CHANGES, min_size=1, max_size=4))
def test_update_changes_named_fields_in_one_commit(
    tmp_path_factory: pytest.TempPathFactory, changes: list[dict[str, Any]]
) -> None:
    with featurestore.connect(tmp_path_factory.mktemp("redefined") / "store") as store:
        store.create_featuregroup(
            rows(1, 2), "weather", primary_key="k", event_time="t", tags={"team": "sky"}
        )
        data = store.get_featuregroup("weather", dataframe_type="arrow")
        for change in changes:
            before = store.featuregroup("weather")
            spec = before.spec
            if change in ({}, {"descriptions": {}}):
                with pytest.raises(InvalidArgument, match="nothing to change"):
                    store.update_featuregroup("weather", **change)
                continue
            group = store.update_featuregroup("weather", **change)
            for name in ("validation", "statistics"):
                assert getattr(group.spec, name) == change.get(name, getattr(spec, name))
            if "ttl" in change:
                expected = {"": None, "exact": timedelta(0), "1h": timedelta(hours=1)}
                assert group.spec.ttl == expected.get(change["ttl"], timedelta(days=30))
            if "expectations" in change:
                types = [expectation["type"] for expectation in group.spec.expectations]
                assert types == [expectation["type"] for expectation in change["expectations"]]
            is_changed = (group.spec, group.description, group.descriptions) != (
                spec,
                before.description,
                before.descriptions,
            )
            (*_, newest) = sorted(group.history(), key=lambda commit: commit.delta_version)
            assert (newest.operation == "update" and bool(newest.changes)) or not is_changed
            assert registered(store) == group.spec
            # The same change again has nothing to write.
            version = group.delta_version
            assert store.update_featuregroup("weather", **change).delta_version == version
        group = store.featuregroup("weather")
        assert (group.version, group.tags) == (1, {"team": "sky"})
        assert store.get_featuregroup("weather", dataframe_type="arrow").equals(data)
        spec = group.spec
        rebuild(store.location)
        assert registered(store) == spec == store.featuregroup("weather").spec


def test_ttl_change_keeps_pinned_retrievals(store: FeatureStore) -> None:
    store.create_featuregroup(rows(1, 2), "weather", primary_key="k", event_time="t", ttl="30d")
    questions = [{"k": "a", "at": hour(1)}, {"k": "a", "at": hour(22)}]
    store.create_featuregroup(questions, "questions", primary_key="k", event_time="at")

    def temperature(**options: Any) -> Any:
        frame = store.get_features(["weather.temp"], labels="questions", **options)
        ordered = frame.to_arrow().sort_by("at")
        return ordered["temp"].to_pylist()

    frame = store.get_features(["weather.temp"], labels="questions")
    dataset = store.create_training_dataset(frame, "d", data_format="parquet", progress=False)
    version = store.featuregroup("weather").delta_version
    assert temperature() == [2.0, 2.0]
    store.update_featuregroup("weather", ttl="1h")
    assert temperature() == [2.0, None]
    assert temperature(as_of={"weather": version}) == [2.0, 2.0]
    assert dataset.verify(recompute=True).ok
    (update,) = [commit for commit in store.get_featuregroup_history("weather") if commit.changes]
    assert update.changes == ("ttl: '30d' becomes '1h'",)


def test_report_of_commit_names_its_expectations(store: FeatureStore) -> None:
    store.create_featuregroup(
        rows(-1.0), "weather", primary_key="k", event_time="t", expectations=[PRESENT]
    )
    with pytest.raises(InvalidExpectation, match="columns that 'weather' does not have: 'gust'"):
        store.update_featuregroup(
            "weather", expectations=[{**PRESENT, "kwargs": {"column": "gust"}}]
        )
    assert store.featuregroup("weather").delta_version == 1
    store.update_featuregroup("weather", expectations=[PRESENT, POSITIVE])
    with pytest.raises(ValidationFailed, match="to_be_between"):
        store.insert_into_featuregroup(rows(-2.0, first=1), "weather")
    store.insert_into_featuregroup(rows(2.0, first=1), "weather")
    store.update_featuregroup("weather", expectations=[], validation="warn")
    store.insert_into_featuregroup(rows(None, first=2), "weather")
    path = open_group(store.session, "weather").path
    checked = {}
    for report in store.get_validation_history("weather"):
        if report.delta_version is not None:
            names = [str(result.expectation["type"]) for result in report.results]
            checked[report.delta_version] = {name for name in names if name.startswith("expect")}
    assert sorted(checked) == [1, 3, 5]
    for delta_version, types in checked.items():
        spec = commits.spec_of(read_snapshot(path, delta_version))
        assert types == {expectation["type"] for expectation in spec.expectations}
    changes = [
        commit.changes for commit in store.get_featuregroup_history("weather") if commit.changes
    ]
    assert changes == [
        (
            "expectation expect_column_values_to_not_be_null(column='temp') was removed",
            "expectation expect_column_values_to_be_between(column='temp', min_value=0) was removed",
            "validation: 'strict' becomes 'warn'",
        ),
        ("expectation expect_column_values_to_be_between(column='temp', min_value=0) is new",),
    ]


def test_update_during_write_is_not_undone(empty_store: FeatureStore) -> None:
    store = empty_store
    store.create_featuregroup(rows(1.0), "weather", primary_key="k", event_time="t")
    new = rows(2.0, first=1).append_column("gust", pa.array([5.0]))

    def batches() -> Iterator[pa.RecordBatch]:
        # The write has read the definition, and reads its rows.
        store.update_featuregroup("weather", ttl="1h", validation="warn", description="changed")
        yield from new.to_batches()

    reader = pa.RecordBatchReader.from_batches(new.schema, batches())
    store.insert_into_featuregroup(reader, "weather", schema_change="add")
    group = store.featuregroup("weather")
    assert group.schema.names == ["k", "t", "temp", "gust"]
    assert (group.spec.ttl, group.spec.validation) == (timedelta(hours=1), "warn")
    assert registered(store) == group.spec
    assert group.description == "changed"


def test_update_refuses_invalid_values(flights_store: FeatureStore) -> None:
    for change, message in (
        ({"ttl": "0d"}, "only at its exact event time"),
        ({"ttl": "7d"}, "ttl"),
        ({"validation": "loose"}, "not a validation policy"),
        ({"compact": "always"}, "compact"),
        ({"event_time_tolerance": "soon"}, "event_time_tolerance"),
        ({"descriptions": {"y": "?"}}, "Unknown column 'y'"),
    ):
        with pytest.raises(featurestore.FeatureStoreError, match=message):
            flights_store.update_featuregroup("planes", **change)
    assert flights_store.featuregroup("planes").delta_version == 1
