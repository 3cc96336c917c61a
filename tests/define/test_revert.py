"""A project folder under git: a revert makes the earlier version of a group current again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from featurestore.errors import DefinitionsRefused
from featurestore.store import FeatureStore

DEFINITIONS = """\
from featurestore import define

define.featuregroup(
    "trips",
    schema={"trip": "int64", "zone": "int64"},
    primary_key="trip",
)
define.feature_view("zones", features="trips.zone")
"""


class Repository:
    """A git repository with the definitions of a project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.features = folder / "features"
        self.features.mkdir(parents=True)
        self.git("init", "--quiet")
        self.commit(DEFINITIONS)

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=city", "-c", "user.email=city@example.com")
        command = ["git", *identity, *arguments]
        completed = subprocess.run(
            command, cwd=self.folder, check=True, capture_output=True, text=True
        )
        return completed.stdout.strip()

    def commit(self, text: str) -> None:
        (self.features / "groups.py").write_text(text)
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "Change the definitions")

    def revert(self) -> None:
        self.git("revert", "--no-edit", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "city")


SECOND = DEFINITIONS.replace("    primary", '    version=2,\n    partition_by="zone",\n    primary')


@pytest.mark.parametrize("first_version", ["", "    version=1,\n"], ids=["latest", "numbered"])
def test_revert_of_version_makes_earlier_one_current(
    empty_store: FeatureStore, repository: Repository, first_version: str
) -> None:
    if first_version:
        repository.commit(DEFINITIONS.replace("    primary", first_version + "    primary"))
    empty_store.apply(repository.features)
    empty_store.insert_into_featuregroup([{"trip": 1, "zone": 7}], "trips")
    repository.commit(SECOND)
    empty_store.apply(repository.features)
    assert empty_store.get_feature_view("zones").spec.groups == (("trips", 2),)
    versions = {
        version: empty_store.featuregroup("trips", version=version).delta_version
        for version in (1, 2)
    }
    repository.revert()
    plan = empty_store.plan(repository.features)
    assert [str(change) for change in plan] == ["change feature view 'zones' version 3"]
    assert plan.changes[0].details[-1] == (
        "feature group 'trips' version 1 is current again, as the project defines it; version 2 "
        "remains"
    )
    assert empty_store.apply(repository.features, remove=True) == plan
    assert empty_store.plan(repository.features).is_empty
    assert empty_store.apply(repository.features).is_empty
    for version, delta_version in versions.items():
        group = empty_store.featuregroup("trips", version=version)
        assert group.delta_version == delta_version
    view = empty_store.get_feature_view("zones")
    rows = view.get_features(labels=[{"trip": 1}]).to_pandas()
    assert rows["zone"].tolist() == [7]
    # The revert of the revert is the second version again, not an empty third one.
    repository.revert()
    plan = empty_store.apply(repository.features)
    assert [str(change) for change in plan] == ["change feature view 'zones' version 4"]
    assert empty_store.get_feature_view("zones").spec.groups == (("trips", 2),)
    assert len(empty_store.get_featuregroups()) == 2


def test_revert_restores_metadata_and_names_jobs(
    empty_store: FeatureStore, repository: Repository
) -> None:
    jobs = """\
import featurestore

featurestore.sql_job(
    "count", sql="select 1 as trip, $window_end as at", featuregroup="trips", primary_key="trip",
    event_time="at", schedule="0 * * * *",
)
"""
    (repository.features / "jobs.py").write_text(jobs)
    repository.commit(DEFINITIONS)
    empty_store.apply(repository.features)
    repository.commit(SECOND)
    empty_store.apply(repository.features)
    empty_store.add_featuregroup_tag("trips", "team", "city", version=1)
    repository.revert()
    plan = empty_store.apply(repository.features)
    assert [str(change) for change in plan] == [
        "change feature group 'trips' version 1",
        "change feature view 'zones' version 3",
    ]
    assert "jobs still write the latest version of 'trips'" in str(plan)
    assert empty_store.get_featuregroup_tags("trips", version=1) == {}
    assert empty_store.plan(repository.features).is_empty


def test_definition_without_equal_version_is_refused(
    empty_store: FeatureStore, repository: Repository
) -> None:
    empty_store.apply(repository.features)
    repository.commit(SECOND)
    empty_store.apply(repository.features)
    # A column that no version has is not a revert.
    repository.commit(DEFINITIONS.replace('"zone": "int64"', '"zone": "int64", "tip": "double"'))
    with pytest.raises(DefinitionsRefused, match=r"version=3 in the definition") as refused:
        empty_store.plan(repository.features)
    assert "'trips' version 2 cannot change in place" in refused.value.message
