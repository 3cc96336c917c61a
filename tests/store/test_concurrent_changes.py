"""Changes of metadata by several processes: each acknowledged one is in the result.

The result of a register, such as a tag, is that of some order of the acknowledged calls: the value
of a call after whose end no other call on the item began. This needs no knowledge of the store.
"""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
import sqlalchemy as sa

import featurestore
from featurestore.delta import commits
from featurestore.delta.snapshot import read_snapshot
from featurestore.experiments.models import catalog
from featurestore.model.registered_model import ModelAnnotations, ModelSpec
from featurestore.registry import (
    access,
    artifacts,
    audit_log,
    featuregroups,
    jobs,
    tables,
    training_datasets,
)
from featurestore.server.access import changes
from featurestore.storage.grants import acting_channel, acting_job, is_granted
from featurestore.store import FeatureStore
from tests.forked_processes import start
from tests.registry.conftest import postgres_server, postgres_url, registry_url  # noqa: F401
from tests.store.metadata_changes import ACTOR, JOB, KEYS, Item, work

PROCESSES, CHANGES = 4, 16
PERMISSIONS = ("user", "role", "private")
COLUMNS = ("x", "y", "z")


class Call(NamedTuple):
    """An acknowledged call: the value that it set, and when it started and ended."""

    value: Any
    started: float
    ended: float


@pytest.fixture
def store(tmp_path: Path, registry_url: str | None) -> Iterator[FeatureStore]:  # noqa: F811
    """A store with one object of each kind."""
    location = tmp_path / "store"
    with featurestore.connect(location, registry=registry_url, engine="duckdb") as opened:
        now = datetime(2024, 1, 1, tzinfo=UTC)
        rows = pa.table({"id": [1], "at": [now], **{name: [1.0] for name in COLUMNS}})
        opened.create_featuregroup(rows, "g", primary_key=["id"], event_time="at")
        view = opened.create_feature_view("v", features="g.x")
        dataset = opened.create_training_dataset(opened.get_featuregroup("g"), "d")
        source = {"name": "d", "version": 1, "manifest": dataset.manifest.content_hash}
        artifact = tmp_path / "model.pkl"
        artifact.write_bytes(pickle.dumps(0))
        spec = ModelSpec("m", 1, "pickle", "", (), source, view.spec, (), ())
        catalog.publish(
            opened.session,
            spec,
            ModelAnnotations(),
            artifact=str(artifact),
            fitted=None,
            version=None,
        )
        file = tmp_path / "first.py"
        file.write_text(JOB.format(retries=0))
        opened.register_jobs(str(file))
        for key in KEYS:
            changes.add_user(opened.session, ACTOR, f"user-{key}")
        yield opened


def final_values(store: FeatureStore) -> dict[Item, Any]:
    """Return the value of each item, from the tables and files of objects that have some."""
    meta = commits.meta_of(read_snapshot(store.featuregroup("g").path))
    spec, dataset = store.featuregroup("g").spec, store.get_training_dataset("d")
    model = catalog.Model(store.session, catalog.get(store.session, "m", 1))
    with store.session.registry.reading() as connection:
        job = jobs.get(connection, "hourly")
        roles = access.roles_on(connection, "g")
        is_private = "g" in access.private_groups_of_store(connection)
        users = {user.name: user.role for user in access.list_users(connection)}
    channels = {channel.name: channel.uri for channel in store.get_alert_channels()}
    values: dict[Item, Any] = {
        ("group description",): meta.description,
        ("ttl",): None if spec.ttl is None else spec.ttl.days,
        ("dataset description",): dataset.description,
        ("model stage",): model.stage,
        ("model description",): model.description,
        ("model tags",): model.tags,
        ("job retries",): job.spec.schedule.retries,
        ("job paused",): job.paused,
        ("private",): is_private,
    }
    for key in KEYS:
        values["group tag", key] = meta.tags.get(key)
        values["dataset tag", key] = dataset.tags.get(key)
        values["channel", key] = channels.get(key)
        values["role", key] = roles.get(f"user-{key}")
    values |= {("feature description", name): meta.features.get(name) for name in COLUMNS}
    values |= {("column", name): True for name in spec.schema.names}
    values |= {("view", view.description): True for view in store.get_feature_views()}
    values |= {("source", source.name): True for source in store.get_sources()}
    values |= {("online store", online.name): True for online in store.get_online_stores()}
    values |= {("user", name): role for name, role in users.items()}
    return values


def indexed_values(store: FeatureStore) -> dict[Item, Any]:
    """Return the values that the registry indexes from tables and files."""
    with store.session.registry.reading() as connection:
        group = featuregroups.get(connection, "g")
        group_tags = artifacts.tags_of(connection, featuregroups.KIND, "g", 1)
        dataset = training_datasets.get(connection, "d")
        dataset_tags = artifacts.tags_of(connection, training_datasets.KIND, "d", 1)
        assert group.delta_version == read_snapshot(store.featuregroup("g").path).version
        columns = featuregroups.feature_names(connection, "g", 1)
        stage = connection.execute(sa.select(tables.models.c.stage)).scalar_one()
    return {
        ("group description",): group.description,
        ("ttl",): None if group.spec.ttl is None else group.spec.ttl.days,
        ("dataset description",): dataset.description,
        ("model stage",): stage,
        **{("group tag", key): group_tags.get(key) for key in KEYS},
        **{("dataset tag", key): dataset_tags.get(key) for key in KEYS},
        **{("column", name): True for name in columns},
    }


def possible_values(calls: list[Call]) -> list[Any]:
    """Return the values that an item may have after calls, some of which ran at the same time."""
    last_start = max(call.started for call in calls)
    return [call.value for call in calls if call.ended >= last_start]


def test_result_equals_an_order_of_all_acknowledged_changes(
    store: FeatureStore,
    registry_url: str | None,  # noqa: F811
) -> None:
    workers = [
        start(work, store.location, registry_url, number, PROCESSES, CHANGES)
        for number in range(PROCESSES)
    ]
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * PROCESSES
    calls: dict[Item, list[Call]] = defaultdict(list)
    for number in range(PROCESSES):
        for item, *call in json.loads(Path(store.location).with_name(f"{number}.json").read_text()):
            calls[tuple(item)].append(Call(*call))
    assert sum(map(len, calls.values())) > PROCESSES * CHANGES / 2
    final = final_values(store)
    lost = {
        item: (final.get(item), possible_values(of_item))
        for item, of_item in calls.items()
        if final.get(item) not in possible_values(of_item)
    }
    assert lost == {}
    # Of two registrations, the last one also wrote the last grant of this machine.
    with store.session.registry.reading() as connection:
        job = jobs.get(connection, "hourly")
    definitions = [acting_channel(store.location, each) for each in store.get_alert_channels()]
    definitions.append(acting_job(store.location, job.spec, origin=job.origin))
    assert [each.name for each in definitions if not is_granted(each)] == []
    indexed = indexed_values(store)
    assert indexed == {item: final[item] for item in indexed}
    # One entry for each acknowledged change of permissions.
    with store.session.registry.reading() as connection:
        entries = [entry.subject for entry in audit_log.entries(connection, limit=None)]
    permissions = [call for item in calls for call in calls[item] if item[0] in PERMISSIONS]
    assert len(entries) == len(permissions) + len(KEYS)
