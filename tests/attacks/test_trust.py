"""A registry of another person: its definitions do not act before a user registers them.

Each definition leaves a trace if it acts: a marker file, a connection to a listening socket, or rows of
a file outside of the store.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featurestore
from featurestore import config
from featurestore.alerts.channels import NotDelivered, deliver
from featurestore.errors import ConfigurationError, FeatureStoreError, InvalidArgument
from featurestore.model.alert import Alert, Channel
from featurestore.model.failure_action import FailureAction
from featurestore.model.featuregroup import ExternalRows, FeatureGroupSpec
from featurestore.model.group_options import GroupOptions
from featurestore.model.job import (
    Alerts,
    CatalogWork,
    GroupWork,
    JobSpec,
    JobWork,
    MonitorWork,
    PublishWork,
    PythonWork,
    Schedule,
    SqlWork,
    StreamWork,
    TrainingWork,
    TransformWork,
    WindowedWork,
    WindowWork,
)
from featurestore.model.monitor import MonitorSpec
from featurestore.model.names import ENVIRONMENT
from featurestore.model.online_store import OnlineStoreSpec, online_kind
from featurestore.model.publication_target import CatalogTarget, PublicationTarget
from featurestore.model.source import SourceInput, SourceSpec, source_kind
from featurestore.model.stream import StreamSpec
from featurestore.registry import alerts, jobs, online_stores, sources
from featurestore.serving.stores import check_online_store
from featurestore.storage.grants import (
    ActingDefinition,
    acting_channel,
    acting_group,
    acting_job,
    acting_job_file,
    acting_online_store,
    acting_source,
    authorize,
    grant,
    is_granted,
)
from featurestore.store import FeatureStore

START = datetime(2024, 1, 1, tzinfo=UTC)
NOT_HERE = "registered on this machine"
ALERT = Alert("1", "begin", "watch", ("drift",), ("a feature drifted",), START)


@contextmanager
def listener() -> Iterator[tuple[int, list[bytes]]]:
    """Listen on a port; yield it and the first bytes of each connection."""
    received: list[bytes] = []

    def accept() -> None:
        with suppress(OSError):  # the socket is closed
            while True:
                connection, _ = server.accept()
                connection.settimeout(0.2)
                received.append(b"connected")
                with connection, suppress(OSError):
                    received[-1] = connection.recv(4096)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1], received
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.fixture
def foreign(empty_store: FeatureStore, tmp_path: Path) -> FeatureStore:
    """The store of another person, with a group."""
    rows = pa.table({"id": [1, 2], "at": pa.array([START, START], pa.timestamp("us", tz="UTC"))})
    empty_store.create_featuregroup(rows, "trips", primary_key="id", event_time="at")
    return empty_store


def elsewhere(store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureStore:
    """Return the same store, connected by a user of another machine without grants."""
    store.close()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    return featurestore.connect(store.location)


def job_specs(mark: Path) -> Iterator[JobSpec]:
    """Yield a job of each kind, which creates a file when it fails."""
    action = FailureAction(("touch", str(mark)))
    schedule = Schedule("0 0 * * *", start=START, retries=0, on_failure=action)
    stream = StreamSpec("events", "clicks", pa.schema([("id", pa.int64())]))
    watched = MonitorSpec("trips", drift={}, freshness=timedelta(days=1), volume=None, schema=False)
    target: dict[str, Any] = {"target": "out"}
    missing: dict[str, Any] = {"inputs": {"rows": "/no/such/folder"}, "code": "select 1"}
    for work_type in (PythonWork, SqlWork, WindowWork):
        options = GroupOptions(event_time="at", compact="auto", job=f"{work_type.kind}_job")
        work = work_type(options=options, **target, **missing)
        yield JobSpec(f"{work_type.kind}_job", schedule, Alerts(), work)
    options = GroupOptions(event_time="at", compact="auto", job="stream_job")
    works = (
        TrainingWork(**target, **missing),
        MonitorWork(target="trips", inputs={"rows": "trips"}, watched=watched),
        PublishWork(publishes=(PublicationTarget.parse("no_view", online=None),)),
        CatalogWork(registers=CatalogTarget("lake", "features", ("stops",))),
        StreamWork(target="clicks", options=options, stream=stream),
    )
    for each in works:
        yield JobSpec(f"{each.kind}_job", schedule, Alerts(), each)


def test_foreign_jobs_of_each_kind_run_nothing(
    foreign: FeatureStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    subtests: pytest.Subtests,
) -> None:
    mark, imported = tmp_path / "executed", tmp_path / "imported"
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(imported)!r}, 'w').close()\n")
    specs = list(job_specs(mark))
    assert len({spec.kind for spec in specs}) == 8
    with listener() as (port, received):
        foreign.add_source("events", f"kafka://127.0.0.1:{port}")
        foreign.add_source("lake", f"iceberg+http://127.0.0.1:{port}")
        with foreign.session.registry.transaction() as connection:
            for spec in specs:
                jobs.register(connection, spec, origin=str(evil), watermark=None)
        store = elsewhere(foreign, tmp_path, monkeypatch)
        for spec in specs:
            with subtests.test(spec.kind):
                with pytest.raises(ConfigurationError, match=NOT_HERE) as refused:
                    store.run_job(spec.name)
                assert refused.value.hint == f"featurestore job register {evil}"
                with pytest.raises(ConfigurationError, match=NOT_HERE):
                    store.plan_job(spec.name)
        scheduler = store.scheduler()
        for _ in range(3):
            scheduler.run_due()
        # Each job is logged once, and does not keep others from running.
        logged = [
            text for text in (record.getMessage() for record in caplog.records) if NOT_HERE in text
        ]
        assert sorted(line.split()[0] for line in logged) == sorted(spec.name for spec in specs)
        assert [status.name for status in store.get_jobs()] == sorted(spec.name for spec in specs)
    assert not mark.exists()
    assert not imported.exists()
    assert received == []


def test_granted_monitor_runs_its_failure_program(
    foreign: FeatureStore, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """The attack above acts if it is granted: otherwise the test could not fail."""
    mark = tmp_path / "executed"
    (spec,) = [spec for spec in job_specs(mark) if spec.kind == "publish"]
    with foreign.session.registry.transaction() as connection:
        jobs.register(connection, spec, origin="jobs", watermark=None)
    for changed, runs in (
        (spec, True),
        (replace(spec, schedule=replace(spec.schedule, retries=9)), False),
    ):
        grant(acting_job(foreign.session.location, changed, origin="jobs"))
        grant(acting_job_file(foreign.session.location, "jobs"))
        with pytest.raises(FeatureStoreError):
            foreign.run_job(spec.name)
        assert mark.exists() == runs
        mark.unlink(missing_ok=True)


SOURCES = {
    "postgresql": "postgresql://me@127.0.0.1:{}/shop",
    "mysql": "mysql://me@127.0.0.1:{}/shop",
    "kafka": "kafka://127.0.0.1:{}",
    "iceberg": "iceberg+http://127.0.0.1:{}",
    "unity": "unity://127.0.0.1:{}/main?tls=false",
    "flightsql": "flightsql://me@127.0.0.1:{}?tls=false",
}


def test_foreign_sources_and_online_stores_connect_to_nothing(
    foreign: FeatureStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    with listener() as (port, received):
        uris = {kind: uri.format(port) for kind, uri in SOURCES.items()}
        # The user of the machine registered these names with other addresses.
        for kind in uris:
            foreign.add_source(kind, f"{uris[kind]}".replace(str(port), "1"))
        online = {"pg": "postgresql://me@127.0.0.1:{}/x", "cache": "redis://127.0.0.1:{}/0"}
        for name, uri in online.items():
            foreign.add_online_store(name, uri.format(1))
        with foreign.session.registry.transaction() as connection:
            for kind, uri in uris.items():
                sources.remove(connection, kind)
                sources.add(connection, SourceSpec(kind, source_kind(uri), uri))
            for name, uri in online.items():
                online_stores.remove(connection, name)
                address = uri.format(port)
                online_stores.add(connection, OnlineStoreSpec(name, online_kind(address), address))
        for kind, uri in uris.items():
            with subtests.test(kind):
                assert any(NOT_HERE in text for text in foreign.check_source(kind).problems)
                with pytest.raises(ConfigurationError, match=NOT_HERE) as refused:
                    foreign.read_source(kind, table="orders")
                assert refused.value.hint == f"featurestore.add_source({kind!r}, {uri!r})"
        for name in online:
            with subtests.test(name), pytest.raises(ConfigurationError, match=NOT_HERE):
                check_online_store(foreign.session, name)
        with subtests.test("catalog"), pytest.raises(ConfigurationError, match=NOT_HERE):
            foreign.register_in("iceberg")
        assert received == []
        # A registration grants the address, which proves that the attacks would connect.
        foreign.add_source("postgresql", uris["postgresql"])
        with pytest.raises(FeatureStoreError):
            foreign.read_source("postgresql", table="orders")
        assert received != []
        assert not any(b"hunter2" in content for content in received)


def test_foreign_paths_and_link_targets_are_not_read(foreign: FeatureStore, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/rows.csv").write_text("id\n1\n")
    (tmp_path / "private").mkdir()
    (tmp_path / "private/rows.csv").write_text("id\n4711\n")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "own")
    foreign.add_source("files", str(link))
    assert foreign.read_source("files").to_arrow().column("id").to_pylist() == [1]
    group = foreign.create_external_featuregroup("orders", source="files", primary_key="id")
    # The target of the link changes, then the folder in the registry, then a file in the folder.
    link.unlink()
    link.symlink_to(tmp_path / "private")
    with pytest.raises(ConfigurationError, match=NOT_HERE):
        foreign.read_source("files")
    with pytest.raises(ConfigurationError, match=NOT_HERE):
        group.read().to_arrow()
    with foreign.session.registry.transaction() as connection:
        changed = replace(sources.get(connection, "files"), uri=str(tmp_path / "private"))
        sources.remove(connection, "files")
        sources.add(connection, changed)
    with pytest.raises(ConfigurationError, match=NOT_HERE):
        foreign.read_source("files")
    foreign.remove_source("files")
    (tmp_path / "own/other.csv").symlink_to(tmp_path / "private/rows.csv")
    foreign.add_source("own", str(tmp_path / "own"))
    with pytest.raises(FeatureStoreError, match="outside of the folder"):
        foreign.read_source("own")


def test_folder_of_catalogs_is_absolute_and_its_link_is_granted(
    foreign: FeatureStore, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name in ("own", "private"):
        (tmp_path / name).mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "own")
    for uri, more in (
        (f"delta+{tmp_path}/own", {}),
        ("iceberg+https://127.0.0.1:1", {}),
        ("unity://127.0.0.1:1/main", {}),
        ("glue://eu-central-1", {"secret": ENVIRONMENT}),
    ):
        with subtests.test(uri):
            kind = source_kind(uri)
            for folder in ("own", "~/own"):
                with pytest.raises(InvalidArgument, match="is not an absolute path"):
                    foreign.add_source(kind, uri, options={"folder": folder}, **more)
            foreign.add_source(kind, uri, options={"folder": str(link)}, **more)
    definitions = [acting_source(foreign.session.location, spec) for spec in foreign.get_sources()]
    assert len(definitions) == 4
    assert all(map(is_granted, definitions))
    link.unlink()
    link.symlink_to(tmp_path / "private")
    assert not any(map(is_granted, definitions))


def test_link_of_relative_catalog_is_granted(
    foreign: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("own.db", "private.db"):
        (tmp_path / name).touch()
    link = tmp_path / "catalog.db"
    link.symlink_to("own.db")
    foreign.add_source("lake", "iceberg+sqlite:///catalog.db")
    (spec,) = foreign.get_sources()
    assert spec.uri == f"iceberg+sqlite:///{link}"
    definition = acting_source(foreign.session.location, spec)
    assert is_granted(definition)
    link.unlink()
    link.symlink_to("private.db")
    assert not is_granted(definition)


def test_foreign_query_of_external_group_is_not_run(
    foreign: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/rows.csv").write_text("id\n1\n")
    foreign.add_source("files", str(tmp_path / "files"))
    arguments: dict[str, Any] = {"source": "files", "primary_key": "id", "if_exists": "return"}
    foreign.create_external_featuregroup("orders", **arguments)
    store = elsewhere(foreign, tmp_path, monkeypatch)
    store.add_source("files", str(tmp_path / "files"))
    with pytest.raises(ConfigurationError, match=NOT_HERE) as refused:
        store.get_featuregroup("orders").to_arrow()
    # The line of the error creates the same group again, which only writes the grant.
    eval(str(refused.value.hint), {"store": store})
    assert store.featuregroup("orders").version == 1
    assert store.get_featuregroup("orders").count() == 1


def test_foreign_channels_send_and_run_nothing(
    foreign: FeatureStore, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    mark = tmp_path / "executed"
    program = tmp_path / "notify"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    with listener() as (port, received):
        for uri in (
            f"webhook+http://127.0.0.1:{port}/hook",
            f"smtp://127.0.0.1:{port}/?to=me@example.com&starttls=no",
            f"command:{program}",
        ):
            with subtests.test(uri.partition(":")[0]):
                channel = Channel("ops", uri)
                with foreign.session.registry.transaction() as connection:
                    alerts.put_channel(connection, channel)
                with pytest.raises(NotDelivered, match=NOT_HERE):
                    deliver(channel, ALERT, location=foreign.session.location)
        assert received == []
        assert not mark.exists()
    foreign.add_alert_channel("ops", f"command:{program}")
    deliver(channel, ALERT, location=foreign.session.location)
    assert mark.exists()


def test_hints_cannot_add_words_to_the_shell(foreign: FeatureStore) -> None:
    text = "x; touch /tmp/pwned\n$(id)"
    spec = next(job_specs(Path("/mark")))
    for acting in (
        acting_job("/store", spec, origin=text),
        acting_source("/store", SourceSpec("shop", "file", f"/data/{text}", options={"a": text})),
        acting_channel("/store", Channel("ops", f"command:/{text}")),
    ):
        with pytest.raises(ConfigurationError) as refused:
            authorize(acting)
        words = shlex.split(str(refused.value.command))
        assert words[0] == "featurestore"
        assert "touch" not in words
        assert "\n" not in str(refused.value.command)
        assert "\n" not in str(refused.value.hint)


def test_settings_file_of_another_user_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can create a file of another user")
    monkeypatch.delenv("FEATURESTORE_LOCATION", raising=False)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    file = tmp_path / "featurestore.toml"
    file.write_text(f'location = "{tmp_path}/theirs"\nregistry = "sqlite:////{tmp_path}/their.db"')
    assert config.resolve().location == f"{tmp_path}/theirs"
    os.chown(file, 65534, 65534)
    with pytest.raises(ConfigurationError, match="belongs to another user") as refused:
        config.resolve()
    assert str(file) in str(refused.value)
    # Another location is enough, and the registry of the file is not used, either.
    resolved = config.resolve(location="own")
    assert (resolved.location, resolved.registry) == ("own", None)
    assert str(file) in caplog.text
    # A link of another user to an own file, and an own link to a file of another user.
    own = tmp_path / "own.toml"
    own.write_text('location = "own"')
    for owner, target in ((65534, own), (0, file.rename(tmp_path / "theirs.toml"))):
        file.symlink_to(target)
        os.chown(file, owner, owner, follow_symlinks=False)
        with pytest.raises(ConfigurationError, match="belongs to another user"):
            config.resolve()
        file.unlink()
    file.symlink_to(own)
    assert config.resolve().location == f"{tmp_path}/own"


# -- the hash ---------------------------------------------------------------------------------

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NUMBERS = st.integers(-9, 9) | st.sampled_from([9.0, 0.5, -0.0, 1e300])
URIS = st.sampled_from(
    ["/data/a", "delta+/data/a", "sqlite:////data/a.db", "postgresql://me@db/shop", "s3://lake/a"]
)
SECRETS = st.sampled_from([None, "env:A", "file:/run/a", ENVIRONMENT])
ACTIONS = st.sampled_from(
    [None, FailureAction(("sh", "-c", "true")), FailureAction(function="notify")]
)


# The options of a group that definitions of jobs store.
STORED_OPTIONS = [
    "primary_key",
    "event_time",
    "created_time",
    "partition_by",
    "ttl",
    "expectations",
    "validation",
    "statistics",
    "compact",
    "description",
    "tags",
]


@st.composite
def random_jobs(draw: st.DrawFn) -> JobSpec:
    spec = draw(st.sampled_from(list(job_specs(Path("/mark")))))
    schedule = replace(
        spec.schedule,
        retries=draw(st.integers(0, 9)),
        on_failure=draw(ACTIONS),
        catchup=draw(st.sampled_from([None, 3])),
    )
    alerts = Alerts(tuple(draw(st.lists(NAMES, max_size=2))))
    name, work = draw(NAMES), spec.work
    described: dict[str, Any] = {"description": draw(TEXTS)}
    if not isinstance(work, PublishWork | CatalogWork):
        described["tags"] = draw(st.dictionaries(TEXTS, TEXTS, max_size=2))
    if isinstance(work, GroupWork):
        expectations = st.lists(st.dictionaries(NAMES, NUMBERS, max_size=2), max_size=2)
        options = replace(
            work.options,
            job=name,
            expectations=tuple(draw(expectations)),
            ttl=draw(st.sampled_from([None, timedelta(days=1)])),
            **described,
        )
        work = replace(work, options=options)
    else:
        work = replace(work, **described)
    if isinstance(work, WindowedWork | TrainingWork):
        work = replace(work, code=draw(TEXTS))
    if isinstance(work, TransformWork):
        work = replace(work, lookback=timedelta(seconds=draw(st.integers(0, 9))))
        if draw(st.booleans()):
            work = replace(work, sources={"rows": SourceInput(draw(NAMES), sql=draw(TEXTS))})
    return JobSpec(name, schedule, alerts, work)


def random_sources() -> st.SearchStrategy[SourceSpec]:
    options = st.dictionaries(NAMES, TEXTS, max_size=2)
    return st.builds(
        lambda name, uri, secret, values, description, created: SourceSpec(
            name, source_kind(uri), uri, secret, values, description, created
        ),
        NAMES, URIS, SECRETS, options, TEXTS, st.integers(0, 2**40),
    )  # fmt: skip


def random_online_stores() -> st.SearchStrategy[OnlineStoreSpec]:
    uris = st.sampled_from(["redis://cache:6379/0", "sqlite:////data/a.db"])
    return st.builds(
        lambda name, uri, secret: OnlineStoreSpec(name, online_kind(uri), uri, secret),
        NAMES, uris, SECRETS,
    )  # fmt: skip


def random_channels() -> st.SearchStrategy[Channel]:
    uris = st.sampled_from(["command:/bin/true", "webhook+https://hooks.example.com/x"])
    return st.builds(Channel, NAMES, uris, st.sampled_from([None, "env:A", "file:/a"]))


def random_groups() -> st.SearchStrategy[FeatureGroupSpec]:
    rows = st.builds(ExternalRows, NAMES, sql=st.none() | TEXTS, table=st.none() | TEXTS)
    schema = pa.schema([("id", pa.int64())])
    return st.builds(
        lambda name, version, external: FeatureGroupSpec(
            name, version, schema, ("id",), None, external=external
        ),
        NAMES, st.integers(1, 9), rows,
    )  # fmt: skip


def acting(value: Any, location: str = "/store") -> ActingDefinition:
    """Return any definition as an acting definition."""
    if isinstance(value, JobSpec):
        return acting_job(location, value, origin="/jobs.py")
    by_type: dict[type, Callable[[str, Any], ActingDefinition]] = {
        SourceSpec: acting_source,
        OnlineStoreSpec: acting_online_store,
        Channel: acting_channel,
        FeatureGroupSpec: acting_group,
    }
    return by_type[type(value)](location, value)


def read_back(value: Any) -> Any:
    """Return a definition as a registry returns it."""
    if isinstance(value, FeatureGroupSpec):
        external = ExternalRows.from_json(json.loads(json.dumps(value.external.to_json())))
        return replace(value, external=external)
    if isinstance(value, Channel):
        return Channel(**json.loads(json.dumps(vars(value))))
    return type(value).from_text(json.dumps(value.to_json()))


def changed_fields(value: Any) -> Iterator[Any]:
    """Yield copies of a definition, each with another value of one field."""
    if isinstance(value, FeatureGroupSpec):
        for external in changed_fields(value.external):
            yield replace(value, external=external)
        yield replace(value, version=value.version + 1)
        yield replace(value, schema=value.schema.append(pa.field("salary", pa.int64())))
        return
    for field in dataclasses.fields(value):
        current = getattr(value, field.name)
        if isinstance(current, Schedule | Alerts | GroupWork | JobWork | GroupOptions):
            for changed in changed_fields(current):
                yield replace(value, **{field.name: changed})
            continue
        # Jobs have no values of these options.
        if isinstance(value, GroupOptions) and field.name not in STORED_OPTIONS:
            continue
        # The time of a registration differs between machines.
        if field.name == "created" or (field.name == "snapshots"):
            continue
        other: Any = {"changed": "x"}
        if isinstance(current, bool):
            other = not current
        elif isinstance(current, int):
            other = current + 1
        elif isinstance(current, str):
            other = f"{current}x"
        elif isinstance(current, tuple):
            other = (*current, {"a": "b"}) if field.name == "expectations" else None
        elif isinstance(current, timedelta | datetime):
            other = current + timedelta(microseconds=1)
        elif isinstance(current, FailureAction):
            other = FailureAction(("touch", "/another"))
        elif current is None:
            other = "env:B" if field.name == "secret" else None
        elif not isinstance(current, dict):
            other = None
        if other is None or (isinstance(current, dict) and field.name == "sources"):
            continue
        yield replace(value, **{field.name: other})


ANY = st.one_of(
    random_jobs(), random_sources(), random_online_stores(), random_channels(), random_groups()
)


@settings(max_examples=150, deadline=None)
@given(value=ANY)
def test_grant_holds_for_what_a_registry_returns_and_no_change(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        assert not is_granted(acting(value))
        grant(acting(value))
        authorize(acting(read_back(value)))
        assert not is_granted(acting(value, location="/copy"))
        for changed in changed_fields(value):
            with pytest.raises(ConfigurationError):
                authorize(acting(changed))


@given(number=st.integers(-(2**53), 2**53))
def test_whole_numbers_hash_as_integers_and_floats(number: int) -> None:
    hashes = {
        ActingDefinition("/store", "job", "a", {"values": [value, {"b": value}]}).hash
        for value in (number, float(number))
    }
    assert len(hashes) == 1
    assert hashes != {ActingDefinition("/store", "job", "a", {"values": [number + 1]}).hash}


def test_damaged_grant_permits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    source = acting_source("/store", SourceSpec("shop", "file", "/data"))
    grant(source)
    (path,) = (tmp_path / "featurestore/grants").iterdir()
    for content in (b"", b"[]", b"{}", b"\xff", b"null", path.read_bytes()[:-9]):
        with subtests.test(content):
            path.write_bytes(content)
            assert not is_granted(source)


def test_grants_of_earlier_releases_permit_nothing(
    foreign: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Path(tmp_path / "old")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    for folder in ("registered-jobs", "allowed-secrets", "alert-channels"):
        (state / "featurestore" / folder).mkdir(parents=True)
    assert not is_granted(acting_channel(foreign.location, Channel("ops", "command:/bin/true")))
