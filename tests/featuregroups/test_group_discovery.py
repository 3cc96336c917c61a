"""Tags, search, lists and column provenance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from featurestore.errors import (
    FeatureGroupNotFound,
    FeatureNotFound,
    InvalidArgument,
    SourceNotFound,
)
from featurestore.featuregroups import create
from featurestore.featuregroups.discovery import derived_from, provenance
from featurestore.featuregroups.write import insert
from featurestore.featuregroups.write_request import WriteRequest
from featurestore.model.group_options import GroupOptions

if TYPE_CHECKING:
    from featurestore.store import FeatureStore


def test_tags_are_stored_in_table_and_registry(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup(pa.table({"x": [1]}), "g", tags={"team": "traffic"})
    empty_store.add_featuregroup_tag("g", "pii", "no")
    empty_store.add_featuregroup_tag("g", "team", "roads")
    assert empty_store.get_featuregroup_tags("g") == {"pii": "no", "team": "roads"}
    empty_store.remove_featuregroup_tag("g", "pii")
    assert empty_store.get_featuregroup_tags("g") == {"team": "roads"}

    from featurestore.delta import commits
    from featurestore.delta.snapshot import read_snapshot

    assert commits.meta_of(read_snapshot(empty_store.featuregroup("g").path)).tags == {
        "team": "roads"
    }
    with pytest.raises(InvalidArgument, match=r"no tag 'pii'\. Available: 'team'"):
        empty_store.remove_featuregroup_tag("g", "pii")
    with pytest.raises(InvalidArgument, match="not a pair of strings"):
        empty_store.add_featuregroup_tag("g", "", "x")


def test_search_results_name_matched_field(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup(
        pa.table({"id": [1], "wind_speed": [1.0]}), "weather", primary_key="id"
    )
    empty_store.create_featuregroup(
        pa.table({"x": [1]}), "planes", description="Wind tunnel data", tags={"source": "WIND lab"}
    )
    matches = [
        (match.where, match.group, match.text, match.reference)
        for match in empty_store.search("Wind")
    ]
    assert matches == [
        ("feature", "weather", "wind_speed", "weather.wind_speed"),
        ("tag", "planes", "source=WIND lab", "planes"),
        ("description", "planes", "Wind tunnel data", "planes"),
    ]
    assert [match.where for match in empty_store.search("weather")] == ["name"]
    assert empty_store.search("nothing like it") == []
    with pytest.raises(InvalidArgument):
        empty_store.search(" ")


def test_features_list_omits_keys_times_and_old_versions(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup(pa.table({"id": [1], "old": [1]}), "g", primary_key="id")
    empty_store.create_featuregroup(
        pa.table({"id": [1], "a": [1], "b": [1]}), "g", primary_key="id"
    )
    assert empty_store.get_features_list() == ["g.a", "g.b"]


def test_column_provenance_contains_run_and_source_versions(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup(pa.table({"x": [1]}), "raw")
    empty_store.create_featuregroup(pa.table({"y": [1]}), "derived")
    source = {"featuregroup": "raw", "version": 1, "delta_version": 1}
    insert(
        empty_store.session,
        pa.table({"y": [2]}),
        WriteRequest("derived", run_id="run7", inputs=(source,)),
    )
    actual = provenance(empty_store.session, "derived.y")
    assert (actual.reference, actual.run_id, actual.delta_version, actual.inputs) == (
        "derived.y",
        "run7",
        2,
        (source,),
    )
    edges = derived_from(empty_store.session, "raw")
    assert [
        (e.name, e.version, e.delta_version, e.source_delta_version, e.run_id) for e in edges
    ] == [("derived", 1, 2, 1, "run7")]
    with pytest.raises(FeatureNotFound, match=r"no column 'z'\. Available: 'y'"):
        provenance(empty_store.session, "derived.z")


def test_created_groups_record_declared_and_read_inputs(empty_store: FeatureStore) -> None:
    raw = empty_store.create_featuregroup([{"k": 1, "x": 2.0}, {"k": 2, "x": 3.0}], "raw")
    frame = empty_store.get_featuregroup("raw")
    copy = frame.to_pandas()
    selected = copy[copy["x"] > 2].assign(y=1).groupby("k", as_index=False).sum()
    forged = copy.copy()
    forged.attrs["featurestore.inputs"]["inputs"] = [{"featuregroup": "absent", "version": 1}]
    cases: tuple[tuple[object, Any], ...] = (
        (frame.filter("x > 2").select("k"), ()),
        (selected, ()),
        ([{"k": 1}], "raw"),
        ([{"k": 2}], ["raw@v1", raw, frame]),
        (copy.drop(columns="x"), raw),
    )
    for number, (rows, inputs) in enumerate(cases):
        empty_store.create_featuregroup(rows, f"derived{number}", inputs=inputs)
        [source] = empty_store.get_featuregroup_history(f"derived{number}")[0].inputs.values()
        assert (source["featuregroup"], source["version"]) == ("raw", 1)
    assert sorted(edge.name for edge in raw.derived()) == [f"derived{n}" for n in range(5)]
    # The attributes of a dataframe may come from a file, so they are not trusted.
    empty_store.create_featuregroup(forged, "forged")
    assert not empty_store.get_featuregroup_history("forged")[0].inputs
    for unknown, error in (
        ("rwa", FeatureGroupNotFound),
        ("source:shop", SourceNotFound),
        ([3], InvalidArgument),
    ):
        with pytest.raises(error):
            empty_store.create_featuregroup([{"k": 1}], "bad", inputs=unknown)


def test_provenance_contains_job_and_training_datasets(empty_store: FeatureStore) -> None:
    raw = empty_store.create_featuregroup(pa.table({"x": [1, 2]}), "raw")
    source = {"featuregroup": "raw", "version": 1, "delta_version": 1}
    options = GroupOptions(job="nightly")
    request = WriteRequest("derived", options=options, run_id="run7", inputs=(source,))
    create(empty_store.session, pa.table({"y": [1, 2]}), request)
    empty_store.compact_featuregroup("derived")
    actual = empty_store.featuregroup("derived").provenance("y")
    assert (actual.job, actual.run_id, actual.inputs) == ("nightly", "run7", (source,))
    empty_store.create_training_dataset(
        empty_store.get_featuregroup("raw"), "rides", data_format="parquet"
    )
    edges = [(e.kind, e.name, e.version, e.job, e.source_delta_version) for e in raw.derived()]
    assert edges == [
        ("featuregroup", "derived", 1, "nightly", 1),
        ("training_dataset", "rides", 1, None, 1),
    ]
    empty_store.delete_training_dataset("rides", version=1)
    assert [edge.name for edge in raw.derived()] == ["derived"]


def test_lists_and_searches_are_paginated(empty_store: FeatureStore) -> None:
    store = empty_store
    for name in ("a", "b", "c"):
        for version in (1, 2):
            store.create_featuregroup(pa.table({"temp": [1.0]}), name, version=version)
    first = store.get_featuregroups(limit=3)
    assert [(group.name, group.version) for group in first] == [("a", 1), ("a", 2), ("b", 1)]
    after = [(group.name, group.version) for group in store.get_featuregroups(offset=3, limit=2)]
    assert after == [("b", 2), ("c", 1)]
    assert [match.reference for match in store.search("temp", limit=2)] == ["a.temp", "b.temp"]
    history = store.featuregroup("a").insert(pa.table({"temp": [2.0]}))
    assert history.delta_version == 2
    assert [commit.delta_version for commit in store.get_featuregroup_history("a", limit=1)] == [2]
    assert [commit.delta_version for commit in store.get_featuregroup_history("a", before=2)] == [1]
    for refused in (
        lambda: store.search("temp", limit=0),
        lambda: store.get_featuregroup_history("a", limit=0),
    ):
        with pytest.raises(InvalidArgument, match="limit"):
            refused()
