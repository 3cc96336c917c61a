"""Descriptions change without a new version; a rename creates the next version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import FeatureNotFound, InvalidArgument, InvalidName
from featurestore.recovery.rebuild import rebuild
from featurestore.store import FeatureStore
from tests.docstrings.weather import hour

EXPECTATION = {
    "type": "expect_column_values_to_be_between",
    "kwargs": {"column": "temp", "min_value": -100},
}


@pytest.fixture
def described(empty_store: FeatureStore) -> FeatureStore:
    """A store with a group with everything that a rename must keep."""
    rows = pa.table({"k": ["a", "b"], "t": [hour(1), hour(2)], "temp": [1.0, 2.0], "p": [1, 1]})
    group = empty_store.create_featuregroup(
        rows,
        "weather",
        primary_key="k",
        event_time="t",
        partition_by="p",
        ttl="6h",
        description="Hourly weather",
        descriptions={"temp": "in Fahrenheit", "k": "the airport"},
        tags={"team": "sky"},
        expectations=[EXPECTATION],
        validation="warn",
    )
    group.insert(pa.table({"k": ["a"], "t": [hour(3)], "temp": [3.0], "p": [1]}))
    return empty_store


def test_descriptions_are_searchable_and_displayed(
    described: FeatureStore, command_line: Callable[..., Any]
) -> None:
    matches = described.search("fahrenheit")
    assert [(match.where, match.reference) for match in matches] == [
        ("description", "weather.temp")
    ]
    shown = command_line("fg", "show", "weather", "--location", described.location).out
    assert "in Fahrenheit" in shown
    assert "in Fahrenheit" in described.featuregroup("weather")._repr_html_()
    listed = command_line("features", "search", "airport", "--location", described.location).out
    assert "weather.k" in listed


def test_description_change_keeps_version_and_survives_rebuild(described: FeatureStore) -> None:
    described.update_featuregroup("weather", descriptions={"temp": "in Celsius", "k": ""})
    group = described.update_featuregroup("weather", description="Weather by the hour")
    assert (group.version, group.delta_version) == (1, 4)
    assert group.tags == {"team": "sky"}
    described.add_featuregroup_tag("weather", "owner", "ops")
    rebuild(described.location)
    assert group.descriptions == {"temp": "in Celsius"}
    assert group.description == "Weather by the hour"
    assert [match.reference for match in described.search("celsius")] == ["weather.temp"]
    assert described.search("airport") == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "nothing to change"),
        ({"descriptions": {"tmp": "x"}}, "descriptions={'temp': '...'}"),
        ({"descriptions": {"temp": 5}}, "not a string"),
        ({"descriptions": "in F"}, "not a dict of strings"),
        ({"description": 5}, "description='Hourly weather'"),
    ],
)
def test_invalid_description_change_raises_without_change(
    described: FeatureStore, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument) as error:
        described.update_featuregroup("weather", **changes)
    assert message in str(error.value)
    assert described.featuregroup("weather").delta_version == 2


def test_create_with_description_of_unknown_column_raises(empty_store: FeatureStore) -> None:
    with pytest.raises(InvalidArgument, match="Unknown column 'y' in descriptions="):
        empty_store.create_featuregroup([{"x": 1}], "g", descriptions={"y": "?"})
    assert empty_store.get_featuregroups() == []


def test_rename_keeps_rows_keys_tags_descriptions_and_expectations(described: FeatureStore) -> None:
    before = described.featuregroup("weather")
    new_group = described.rename_feature("weather", "temp", "temperature")
    assert new_group.version == 2
    assert new_group.schema.names == ["k", "t", "temperature", "p"]
    spec, old = new_group.spec, before.spec
    fields = ("primary_key", "event_time", "partition_by", "ttl", "validation", "statistics")
    for name in fields:
        assert getattr(spec, name) == getattr(old, name)
    assert spec.expectations[0]["kwargs"]["column"] == "temperature"
    assert (new_group.tags, new_group.description) == ({"team": "sky"}, "Hourly weather")
    assert new_group.descriptions == {"temperature": "in Fahrenheit", "k": "the airport"}
    rows = sorted(new_group.read().to_arrow()["temperature"].to_pylist())
    assert rows == [1.0, 2.0, 3.0]
    (commit,) = new_group.history()
    (source,) = commit.inputs.values()
    assert source == {"featuregroup": "weather", "version": 1, "delta_version": 2}
    assert [edge.version for edge in before.derived()] == [2]
    assert len(before.history()) == 2
    assert described.get_features(["weather.temperature"]).count() == 3


def test_rename_key_updates_definition(described: FeatureStore) -> None:
    new_group = described.rename_feature("weather", "k", "airport")
    described.rename_feature("weather", "t", "measured_at")
    last = described.rename_feature("weather", "p", "part")
    assert new_group.primary_key == ("airport",)
    spec = last.spec
    assert (spec.event_time, spec.partition_by, spec.version) == ("measured_at", ("part",), 4)


@pytest.mark.parametrize(
    ("old", "new", "error_type", "message"),
    [
        ("tmp", "x", FeatureNotFound, "did you mean 'temp'"),
        ("temp", "k", InvalidName, "unique"),
        ("temp", "a b", InvalidName, "'a_b'"),
        ("temp", "temp", InvalidArgument, "already named 'temp'"),
    ],
)
def test_invalid_rename_creates_no_version(
    described: FeatureStore, old: str, new: str, error_type: type[Exception], message: str
) -> None:
    with pytest.raises(error_type) as error:
        described.rename_feature("weather", old, new)
    assert message in str(error.value)
    assert described.get_latest_featuregroup_version("weather") == 1


def test_group_of_older_release_has_no_descriptions(tmp_path: Path) -> None:
    with featurestore.connect(tmp_path) as store:
        group = store.create_featuregroup([{"x": 1}], "g")
        assert group.descriptions == {}
        assert (
            "features"
            not in (tmp_path / "featuregroups/g/v1/_delta_log/00000000000000000000.json")
            .read_text()
            .split("featurestore.meta")[1]
        )
