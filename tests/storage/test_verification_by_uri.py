"""Verification of groups that both engines wrote to a server: changed files, foreign commits."""

from __future__ import annotations

import json
import random
import re

import pytest

from featurestore.delta import log
from featurestore.delta.datafile import file_path
from featurestore.storage import storage_for
from featurestore.store import FeatureStore
from tests.storage.stores import StoreLocation, names_below, on_servers, rows, spark_on_servers

VERIFIED_FILE = re.compile(r"[^_].*\.parquet|_delta_log/\d{20}\.json")


def write_in_turns(stores: list[FeatureStore]) -> None:
    """Create a group and write all kinds of commits, each with the next store."""
    first, second = stores[0], stores[-1]
    first.create_featuregroup(rows(0, 20), "g", primary_key="id", partition_by="city")
    second.insert_into_featuregroup(rows(20, 10), "g")
    first.insert_into_featuregroup(rows(30, 10), "g")
    second.insert_into_featuregroup(rows(5, 3, x=7.0), "g", mode="upsert")
    first.delete_from_featuregroup("g", "id = 25")
    second.add_featuregroup_tag("g", "team", "sky")


def commit_without_checksums(path: str, version: int) -> str:
    """Commit a copy of a data file as another program does; return its name.

    delta-rs reads tables on HDFS and Azure, but cannot write to those of the test servers.
    """
    storage = storage_for(path)
    name = "part-of-another-engine.parquet"
    [add, *_] = log.actions_of_kind(log.read_commit(log.commit_path(path, 1)), "add")
    storage.write_atomically(f"{path}/{name}", storage.read_bytes(file_path(path, add["path"])))
    info = {"commitInfo": {"operation": "WRITE", "engineInfo": "another engine"}}
    added = {key: value for key, value in add.items() if key != "tags"} | {"path": name}
    lines = [json.dumps(action) for action in (info, {"add": added})]
    assert storage_for(log.commit_path(path, version)).write_new(
        log.commit_path(path, version), "\n".join(lines).encode()
    )
    return name


def check_verification(stores: list[FeatureStore]) -> None:
    """Change a bit of each file, remove the newest commit, and commit with another program."""
    write_in_turns(stores)
    path = stores[0].featuregroup("g").path
    report = stores[0].verify_featuregroup("g")
    assert (report.problems, report.unverified, report.rows) == ((), (), 39)
    assert {store.verify_featuregroup("g") for store in stores} == {report}
    generator = random.Random(7)
    names = list(filter(VERIFIED_FILE.fullmatch, names_below(path)))
    assert len(names) == report.files + report.commits
    for name in names:
        file = f"{path}/{name}"
        content = storage_for(file).read_bytes(file)
        changed, bit = bytearray(content), generator.randrange(8 * len(content))
        changed[bit // 8] ^= 1 << bit % 8
        storage_for(file).write_atomically(file, bytes(changed))
        problems = generator.choice(stores).verify_featuregroup("g").problems
        assert name in {problem.file for problem in problems}, (name, bit)
        storage_for(file).write_atomically(file, content)
    newest = log.commit_path(path, report.delta_version)
    storage = storage_for(newest)
    content = storage.read_bytes(newest)
    storage.remove(newest, below=path)
    [problem] = stores[0].verify_featuregroup("g").problems
    assert newest.endswith(problem.file)
    assert "the registry" in problem.message
    storage.write_atomically(newest, content)
    add = commit_without_checksums(path, report.delta_version + 1)
    for store in stores:
        after = store.verify_featuregroup("g")
        assert (after.problems, after.delta_version) == ((), report.delta_version + 1)
        commit, file = after.unverified
        assert commit.startswith(f"Delta version {after.delta_version}: another engine")
        assert file == f"{add}: has no checksum, but its rows are readable"


@pytest.mark.spark
@pytest.mark.usefixtures("spark_folder")
@spark_on_servers("s3", "hdfs", "gs")
def test_groups_of_both_engines_on_servers_are_verified(store_location: StoreLocation) -> None:
    check_verification([store_location.connect(engine="spark"), store_location.connect()])


@on_servers("az")
def test_groups_on_azure_are_verified(store_location: StoreLocation) -> None:
    check_verification([store_location.connect()])
