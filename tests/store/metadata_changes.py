"""Random changes of a store's metadata by one of several processes, and their record.

A change sets the value of one item, such as a tag of a group, or adds an item that nobody else adds.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import featurestore
from featurestore.errors import InvalidArgument, JobLeased, SchemaMismatch
from featurestore.experiments.models.catalog import Model
from featurestore.experiments.models.catalog import get as get_model
from featurestore.registry.audit_log import Actor
from featurestore.server.access import changes
from featurestore.store import FeatureStore

Item = tuple[str, ...]
# The item, its new value, and the function that sets it.
Change = tuple[Item, Any, Callable[[], object]]
KEYS = ("a", "b", "c")
# Errors of a change after that of another process: the tag was removed, or a column was added.
REFUSED = (InvalidArgument, JobLeased, SchemaMismatch)
ACTOR = Actor("ann", "test")
JOB = """
import featurestore
hourly = featurestore.sql_job(
    "hourly", sql="select id, at as hour from g where at >= $window_start and at < $window_end",
    primary_key=["id"], event_time="hour", schedule="0 * * * *", start="2024-01-01T00:00Z",
    inputs={{"g": "g"}}, retries={retries},
)
"""


def group_changes(store: FeatureStore, rng: random.Random, text: str) -> list[Change]:
    """Return changes of the feature group ``g``."""
    key, column = rng.choice(KEYS), rng.choice(["x", "y", "z"])
    ttl = rng.randint(1, 30)

    def add_column() -> None:
        row = dict.fromkeys([*store.featuregroup("g").schema.names, text], 1.0)
        row |= {"id": rng.randint(2, 9), "at": datetime(2024, 1, 2, tzinfo=UTC)}
        store.insert_into_featuregroup([row], "g", mode="upsert", schema_change="add")

    return [
        (("group tag", key), text, lambda: store.add_featuregroup_tag("g", key, text)),
        (("group tag", key), None, lambda: store.remove_featuregroup_tag("g", key)),
        (
            ("feature description", column),
            text,
            lambda: store.update_featuregroup("g", descriptions={column: text}),
        ),
        (
            ("group description",),
            text,
            lambda: store.update_featuregroup("g", description=text),
        ),
        (("ttl",), ttl, lambda: store.update_featuregroup("g", ttl=f"{ttl}d")),
        (("column", text), True, add_column),
    ]


def version_changes(store: FeatureStore, rng: random.Random, text: str) -> list[Change]:
    """Return changes of a training dataset, a model, and the versions of a feature view."""
    key, stage = rng.choice(KEYS), rng.choice(["staging", "production", "archived"])
    model = Model(store.session, get_model(store.session, "m", 1))
    return [
        (("dataset tag", key), text, lambda: store.add_training_dataset_tag("d", key, text)),
        (("dataset tag", key), None, lambda: store.remove_training_dataset_tag("d", key)),
        (
            ("dataset description",),
            text,
            lambda: store.update_training_dataset("d", description=text),
        ),
        (("model stage",), stage, lambda: model.update(stage=stage)),
        (("model description",), text, lambda: model.update(description=text)),
        (("model tags",), {key: text}, lambda: model.update(tags={key: text})),
        (
            ("view", text),
            True,
            lambda: store.create_feature_view("v", features="g.x", description=text),
        ),
    ]


def registry_changes(store: FeatureStore, rng: random.Random, text: str) -> list[Change]:
    """Return changes of jobs, alert channels, sources, online stores, users and permissions."""
    session, key, role = store.session, rng.choice(KEYS), rng.choice(["reader", "writer", "admin"])
    retries, is_private = rng.randint(0, 9), rng.random() < 0.5
    address = f"webhook+http://127.0.0.1:{rng.randint(2000, 9000)}/"
    # Each process has its own file, since a grant contains the hash of the file.
    file = Path(store.location).parent / f"{text}.py"
    file.write_text(JOB.format(retries=retries))
    return [
        (("job retries",), retries, lambda: store.register_jobs(str(file))),
        (("job paused",), True, lambda: store.pause_job("hourly")),
        (("job paused",), False, lambda: store.unpause_job("hourly")),
        (("channel", key), address, lambda: store.add_alert_channel(key, address)),
        (("channel", key), None, lambda: store.remove_alert_channel(key)),
        (("source", text), True, lambda: store.add_source(text, "sqlite:////tmp/none.db")),
        (("online store", text), True, lambda: store.add_online_store(text, "redis://localhost/0")),
        (("user", text), "reader", lambda: changes.add_user(session, ACTOR, text)),
        (
            ("role", key),
            role,
            lambda: changes.set_group_role(session, ACTOR, "g", f"user-{key}", role),
        ),
        (
            ("role", key),
            None,
            lambda: changes.set_group_role(session, ACTOR, "g", f"user-{key}", None),
        ),
        (
            ("private",),
            is_private,
            lambda: changes.set_private(session, ACTOR, "g", is_private),
        ),
    ]


CHANGES = (group_changes, version_changes, registry_changes)


def work(location: str, registry: str | None, number: int, processes: int, count: int) -> None:
    """Make random changes, and write the acknowledged ones with their times to a file.

    All processes start to make changes when each one has opened the store.
    """
    folder = Path(location).parent
    rng = random.Random(f"{time.time_ns()}/{number}")
    acknowledged = []
    with featurestore.connect(location, registry=registry, engine="duckdb") as store:
        (folder / f"{number}.ready").touch()
        while len(list(folder.glob("*.ready"))) < processes:
            time.sleep(0.01)
        for turn in range(count):
            choices = CHANGES[turn % len(CHANGES)](store, rng, f"p{number}_{turn}")
            item, value, change = rng.choice(choices)
            started = time.monotonic()
            try:
                change()
            except REFUSED:
                continue
            acknowledged.append((item, value, started, time.monotonic()))
    (folder / f"{number}.json").write_text(json.dumps(acknowledged))
