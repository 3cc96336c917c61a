"""A store follows a folder of definitions: plans, changes, removals, refusals, crashes."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

import featurestore
from featurestore.define.steps import comparable_view
from featurestore.errors import DefinitionsRefused, InvalidArgument
from featurestore.model.project import ProjectPlan
from featurestore.store import FeatureStore

FILES = {
    "sources.py": """
        define.source("shop", "sqlite:///{folder}/shop.db", description="orders")
        define.alert_channel("ops", "log")
    """,
    "groups.py": """
        define.featuregroup(
            "trips",
            schema={{"trip": "int64", "zone": "int64", "left_at": "timestamp", "tip": "decimal(10, 2)"}},
            primary_key="trip", event_time="left_at", description="trips", tags={{"team": "city"}},
        )
        define.featuregroup(
            "demand", schema={{"zone": "int64", "hour": "timestamp", "trips": "int64"}},
            primary_key="zone", event_time="hour",
        )
        define.external_featuregroup("orders", source="shop", table="orders", primary_key="id")
    """,
    "views.py": """
        define.feature_view(
            "tips", features=["demand.trips"], labels="trips", label="tip", label_time="left_at"
        )
    """,
    "jobs/hourly.py": """
        demand = featurestore.sql_job(
            "demand", sql="select zone, left_at as hour, count(*) as trips from trips group by all",
            primary_key="zone", event_time="hour", schedule="0 * * * *", start="2024-01-01T00:00Z",
            inputs={{"trips": "trips"}}, alert="ops",
        )
        featurestore.monitor_job("watch", featuregroup="demand", schedule="0 0 * * *", alert="ops")
        featurestore.window_job(
            "tips_7d", [featurestore.window("trips.tip", "sum", over="7d")], every="1d",
            featuregroup="tips_7d", schedule="0 0 * * *",
        )
    """,
}


class Folder:
    """A folder of definitions, with a database for its source."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "features"
        folder.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(folder / "shop.db")) as database, database:
            database.execute("create table if not exists orders (id integer, total real)")
        for name, text in FILES.items():
            self.write(name, text.format(folder=folder))

    def write(self, name: str, text: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [line.removeprefix("        ") for line in text.strip("\n").split("\n")]
        path.write_text("import featurestore\nfrom featurestore import define\n" + "\n".join(lines))

    def replace(self, name: str, old: str, new: str) -> None:
        text = (self.path / name).read_text()
        assert old in text
        (self.path / name).write_text(text.replace(old, new))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "city")


def titles(plan: ProjectPlan) -> list[str]:
    return [str(change) for change in plan]


def read_content(store: FeatureStore) -> tuple[list[str], dict[str, int]]:
    """Return the content of the registry and the sizes of all other files."""
    with closing(sqlite3.connect(Path(store.location, "registry.db"))) as database:
        dump = [line for line in database.iterdump() if '"owners"' not in line]
    sizes = {
        str(path): path.stat().st_mtime_ns
        for path in Path(store.location).rglob("*")
        if path.is_file() and not path.name.startswith("registry.db")
    }
    return dump, sizes


def test_apply_creates_every_kind_then_writes_nothing(
    empty_store: FeatureStore, folder: Folder
) -> None:
    before = read_content(empty_store)
    planned = empty_store.plan(folder.path)
    assert read_content(empty_store) == before
    assert titles(planned) == [
        "create source 'shop'",
        "create alert channel 'ops'",
        "create feature group 'demand' version 1",
        "create feature group 'orders' version 1",
        "create feature group 'trips' version 1",
        "create feature view 'tips' version 1",
        "create job 'demand'",
        "create job 'tips_7d'",
        "create job 'watch'",
    ]
    assert planned.changes[4].position == "features/groups.py:3"
    assert planned.project == "city"
    assert titles(empty_store.apply(folder.path)) == titles(planned)
    assert empty_store.featuregroup("orders").schema.names == ["id", "total"]
    assert empty_store.get_featuregroup_tags("trips") == {"team": "city"}
    times = pa.array([1_704_067_500_000_000], pa.timestamp("us", tz="UTC"))
    rows = pa.table(
        {
            "trip": [1],
            "zone": [2],
            "left_at": times,
            "tip": pa.array([1.5]).cast(pa.decimal128(10, 2)),
        }
    )
    empty_store.insert_into_featuregroup(rows, "trips")
    (run,) = empty_store.run_job("demand", window="2024-01-01T00:00Z")
    assert (run.state, run.rows) == ("done", 1)
    assert empty_store.get_feature_view("tips").get_features().count() == 1
    before = read_content(empty_store)
    assert empty_store.apply(folder.path).is_empty
    assert empty_store.plan(folder.path).is_empty
    assert read_content(empty_store) == before


def test_apply_changes_each_kind_in_place_or_as_next_version(
    empty_store: FeatureStore, folder: Folder
) -> None:
    empty_store.apply(folder.path)
    folder.replace("sources.py", 'description="orders"', 'description="all orders"')
    folder.replace(
        "groups.py", '"tip": "decimal(10, 2)"', '"tip": "decimal(12, 2)", "fare": "double"'
    )
    folder.replace("groups.py", '"city"', '"taxi"')
    folder.replace("views.py", '"demand.trips"', '"demand.trips as count"')
    folder.replace("jobs/hourly.py", 'alert="ops",\n)', ")")
    plan = empty_store.apply(folder.path)
    assert titles(plan) == [
        "change source 'shop'",
        "change feature group 'trips' version 1",
        "change feature view 'tips' version 2",
        "change job 'demand'",
    ]
    assert plan.changes[1].details == (
        "new column fare (double)",
        "column tip: decimal128(10, 2) becomes decimal128(12, 2)",
        "tags: {'team': 'city'} becomes {'team': 'taxi'}",
    )
    group = empty_store.featuregroup("trips")
    assert group.schema.field("tip").type == pa.decimal128(12, 2)
    assert (group.schema.names[-1], group.tags) == ("fare", {"team": "taxi"})
    assert [view.version for view in empty_store.get_feature_views()] == [1, 2]
    assert empty_store.plan(folder.path).is_empty


def test_apply_changes_fields_of_groups_in_place(empty_store: FeatureStore, folder: Folder) -> None:
    empty_store.apply(folder.path)
    before = {group.name: group.delta_version for group in empty_store.get_featuregroups()}
    fields = """,
            ttl="7d", validation="quarantine", event_time_tolerance="5min", statistics=False,
            compact="auto", expectations=[
                {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "trips"}},
                {"type": "expect_column_values_to_be_in_feature",
                 "kwargs": {"column": "zone", "feature": "trips.zone"}},
            ],
        )"""
    in_place = fields.replace("\n        ", "\n")
    folder.replace("groups.py", 'event_time="hour",\n)', 'event_time="hour"' + in_place)
    folder.replace("groups.py", 'primary_key="id")', 'primary_key="id", description="of the shop")')
    plan = empty_store.plan(folder.path)
    assert titles(plan) == [
        "change feature group 'demand' version 1",
        "change feature group 'orders' version 1",
    ]
    assert plan.changes[0].details == (
        "ttl: None becomes '7d'",
        "expectation expect_column_values_to_not_be_null(column='trips') is new",
        "expectation expect_column_values_to_be_in_feature(column='zone') is new",
        "validation: 'strict' becomes 'quarantine'",
        "statistics: True becomes False",
        "event_time_tolerance: '0us' becomes '5min'",
        "compact: None becomes 'auto'",
        "later retrievals of feature view 'tips' version 1 use the new ttl",
    )
    assert empty_store.apply(folder.path) == plan
    assert empty_store.plan(folder.path).is_empty
    group = empty_store.featuregroup("demand")
    assert (group.version, group.delta_version) == (1, before["demand"] + 1)
    assert (group.spec.ttl, group.spec.validation) == (timedelta(days=7), "quarantine")
    (update,) = [commit for commit in group.history() if commit.operation == "update"]
    assert update.changes == plan.changes[0].details[:-1]
    # The definition decides about fields that were changed in the store.
    empty_store.update_featuregroup("demand", ttl="1h", validation="off")
    assert titles(empty_store.apply(folder.path)) == ["change feature group 'demand' version 1"]
    assert empty_store.featuregroup("demand").spec.ttl == timedelta(days=7)
    # A removal shows the expectations that compare with the group, which must be dropped first.
    folder.replace("groups.py", '"trips",', '"rides",')
    folder.replace("groups.py", '"feature": "trips.zone"', '"feature": "rides.zone"')
    folder.write("views.py", "")
    folder.write("jobs/hourly.py", "")
    empty_store.create_featuregroup([{"zone": 1}], "zones")
    comparison = {"column": "zone", "feature": "trips.zone"}
    expectation = {"type": "expect_column_values_to_be_in_feature", "kwargs": comparison}
    empty_store.update_featuregroup("zones", expectations=[expectation])
    removals = {str(change): change.breaks for change in empty_store.plan(folder.path).removals}
    assert removals["remove feature group 'trips' version 1"] == (
        "the expectations of feature group 'zones' version 1, which compare with it",
    )


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        ('not_be_null", "kwargs": {"column": "fare"}', "does not have: 'fare'"),
        ('be_in_feature", "kwargs": {"column": "zone", "feature": "zones.id"}', "'zones'"),
        ('be_in_feature", "kwargs": {"column": "zone", "feature": "trips.id"}', "no column 'id'"),
    ],
)
def test_apply_refuses_expectation_without_column_or_feature(
    empty_store: FeatureStore, folder: Folder, expectation: str, message: str
) -> None:
    folder.replace(
        "groups.py",
        'event_time="hour",\n',
        'event_time="hour",\n    expectations=[{"type": "expect_column_values_to_'
        + expectation
        + "}],\n",
    )
    with pytest.raises(DefinitionsRefused) as refused:
        empty_store.apply(folder.path)
    (_, line) = refused.value.message.split("\n")
    assert line.startswith("features/groups.py:")
    assert message in line
    assert empty_store.get_featuregroups() == []


def test_apply_incompatible_group_needs_version_line(
    empty_store: FeatureStore, folder: Folder
) -> None:
    empty_store.apply(folder.path)
    folder.replace("groups.py", '"trip": "int64"', '"trip": "string"')
    folder.write("channels.py", '        define.alert_channel("dev", "log")')
    with pytest.raises(DefinitionsRefused) as refused:
        empty_store.apply(folder.path)
    (_, line) = refused.value.message.split("\n")
    assert line.startswith("features/groups.py:3: Feature group 'trips' version 1 cannot change")
    assert "column 'trip': stored int64, declared string" in line
    assert "version=2 in the definition" in line
    # Nothing was applied.
    assert [channel.name for channel in empty_store.get_alert_channels()] == ["ops"]
    folder.replace("groups.py", 'primary_key="trip"', 'version=2, primary_key="trip"')
    assert "create feature group 'trips' version 2" in titles(empty_store.apply(folder.path))
    assert empty_store.plan(folder.path).is_empty
    assert empty_store.featuregroup("trips", version=1).schema.field("trip").type == pa.int64()


def test_apply_removes_only_own_objects_and_shows_what_breaks(
    empty_store: FeatureStore, folder: Folder
) -> None:
    empty_store.apply(folder.path)
    empty_store.create_featuregroup([{"id": 1}], "by_hand")
    empty_store.create_feature_view("mine", features=["demand.trips"])
    folder.write("groups.py", "")
    folder.write("views.py", "")
    folder.write("sources.py", '        define.source("shop", "sqlite:////elsewhere.db")')
    folder.write("jobs/hourly.py", "")
    plan = empty_store.plan(folder.path)
    removals = {str(change): change for change in plan.removals}
    assert list(removals) == [
        "remove job 'demand'",
        "remove job 'tips_7d'",
        "remove job 'watch'",
        "remove feature view 'tips' version 1",
        "remove feature group 'demand' version 1",
        "remove feature group 'orders' version 1",
        "remove feature group 'trips' version 1",
        "remove alert channel 'ops'",
    ]
    assert removals["remove feature group 'demand' version 1"].blockers == (
        "feature view 'mine' version 1",
    )
    assert "not before feature view 'mine' version 1 is removed" in str(plan)
    empty_store.apply(folder.path)  # without remove=, nothing is removed
    assert empty_store.plan(folder.path).removals == plan.removals
    with pytest.raises(DefinitionsRefused, match="'mine' version 1 must be removed before"):
        empty_store.apply(folder.path, remove=True)
    assert len(empty_store.get_jobs()) == 3
    empty_store.delete_feature_view("mine", version=1)
    empty_store.apply(folder.path, remove=True)
    assert [group.name for group in empty_store.get_featuregroups()] == ["by_hand"]
    assert (len(empty_store.get_jobs()), len(empty_store.get_alert_channels())) == (0, 0)
    assert empty_store.plan(folder.path).is_empty


def test_plan_of_removal_names_broken_jobs_and_views(
    empty_store: FeatureStore, folder: Folder
) -> None:
    empty_store.apply(folder.path)
    folder.replace("groups.py", '"trips",', '"rides",')  # in the job and the view it is still trips
    folder.write(
        "jobs/hourly.py",
        '        featurestore.monitor_job("watch", featuregroup="trips", schedule="0 0 * * *", '
        'alert="ops")',
    )
    folder.write("views.py", "")
    folder.write(
        "sources.py",
        f'        define.source("shop", "sqlite:///{folder.path.parent}/shop.db")',
    )
    removals = {str(change): change.breaks for change in empty_store.plan(folder.path).removals}
    assert removals["remove feature group 'trips' version 1"] == ("job 'watch', which reads it",)
    assert removals["remove job 'demand'"] == (
        "feature group 'demand', which is no longer computed",
    )
    assert removals["remove alert channel 'ops'"] == ("the alerts of job 'watch'",)


# Definitions that are refused when their file is executed, and when they are compared.
LOADED = [
    ("1 / 0", "ZeroDivisionError: division by zero"),
    ("def", "SyntaxError"),
    ("import nothing_here", "ModuleNotFoundError"),
    ('define.featuregroup("x", schema={"id": "int128"})', "unknown type 'int128'"),
    ('define.featuregroup("x", schema={"a": "int64"}, primary_key="b")', "unknown columns 'b'"),
    ('define.featuregroup("trips", schema={"a": "int64"})', "also defined in features/groups.py:3"),
    ('define.source("x", "postgresql://me:secret@db/x")', "password"),
    ('define.alert_channel("x", "pigeon://roof")', "pigeon"),
]
COMPARED = [
    ('define.feature_view("x1", features="trips.nothing")', "nothing"),
    ('define.feature_view("x2", features="demand.trips", labels="orders")', "no column 'zone'"),
    ('define.feature_view("x3", features="gone.a")', "gone"),
    ('define.source("x4", "nosuchkind://db")', "nosuchkind"),
    ('define.external_featuregroup("x5", source="nowhere", table="t")', "nowhere"),
    (
        'featurestore.monitor_job("x6", featuregroup="trips", schedule="0 0 * * *", alert="no")',
        "unknown alert channels 'no'",
    ),
    (
        'featurestore.window_job("x7", [featurestore.window("trips.no", "sum", over="7d")], '
        'every="1d", featuregroup="x", schedule="0 0 * * *")',
        "no",
    ),
]


@pytest.mark.parametrize("cases", [LOADED, COMPARED], ids=["loaded", "compared"])
def test_refused_definitions_have_file_and_line(
    empty_store: FeatureStore, folder: Folder, cases: list[tuple[str, str]]
) -> None:
    for number, (text, _) in enumerate(cases):
        folder.write(f"z{number}.py", text)
    with pytest.raises(DefinitionsRefused) as refused:
        empty_store.apply(folder.path)
    lines = dict(line.split(":3: ", 1) for line in refused.value.message.split("\n")[1:])
    assert len(lines) == len(cases)
    for number, (_, message) in enumerate(cases):
        assert message in lines[f"features/z{number}.py"]
    assert "secret@" not in refused.value.message
    assert empty_store.get_featuregroups() == []


def test_apply_refuses_other_project_and_empty_folder(
    empty_store: FeatureStore, folder: Folder
) -> None:
    empty_store.apply(folder.path)
    with pytest.raises(DefinitionsRefused, match="belongs to the project 'city', and this is"):
        empty_store.apply(folder.path, project="other")
    (folder.path.parent / "empty").mkdir()
    for path in (folder.path.parent / "empty", folder.path.parent / "absent"):
        with pytest.raises(InvalidArgument, match="definitions"):
            empty_store.apply(path, project="city", remove=True)


def test_definitions_can_be_imported_from_neighbors(
    empty_store: FeatureStore, folder: Folder
) -> None:
    folder.write("_names.py", 'ZONE = "int64"')
    folder.write("a.py", "from b import extra\nfrom _names import ZONE")
    folder.write(
        "b.py",
        'from _names import ZONE\nextra = define.featuregroup("extra", schema={"zone": ZONE})',
    )
    empty_store.apply(folder.path)
    folder.replace("_names.py", "int64", "string")  # an unchanged file imports a changed one
    with pytest.raises(DefinitionsRefused, match=r"b\.py:4: .*stored int64, declared string"):
        empty_store.plan(folder.path)


KILLED = """
import os, signal, sys
import featurestore
from featurestore.registry import projects
from featurestore.define import apply
steps, add = int(sys.argv[3]), projects.add
def count(*arguments):
    global steps
    steps -= 1
    add(*arguments)
    if steps < 0:
        os.kill(os.getpid(), signal.SIGKILL)
projects.add = count
featurestore.connect(sys.argv[1]).apply(sys.argv[2])
"""


def test_apply_after_kill_continues(tmp_path: Path, folder: Folder) -> None:
    steps = 6
    location = tmp_path / "store"
    process = subprocess.run(
        [sys.executable, "-c", KILLED, str(location), str(folder.path), str(steps)], check=False
    )
    assert process.returncode == -9
    with featurestore.connect(location) as store:
        assert len(titles(store.apply(folder.path))) == 9 - steps
        assert store.plan(folder.path).is_empty
        assert [view.version for view in store.get_feature_views()] == [1]
        (folder.path / "views.py").unlink()
        assert titles(store.apply(folder.path, remove=True)) == [
            "remove feature view 'tips' version 1"
        ]


def test_simultaneous_applies_create_each_object_once(tmp_path: Path, folder: Folder) -> None:
    plans: list[ProjectPlan] = []
    start = threading.Barrier(2)
    stores = [featurestore.connect(tmp_path / "store") for _ in range(2)]

    def apply(store: FeatureStore) -> None:
        start.wait()
        plans.append(store.apply(folder.path))

    threads = [threading.Thread(target=apply, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(titles(plan)) for plan in plans) == [0, 9]
    assert [group.version for group in stores[0].get_featuregroups()] == [1, 1, 1]
    for store in stores:
        store.close()


class SilentServer:
    """A server that accepts a connection and sends nothing until it is closed."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.connected = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        self.accepted, _ = self.listener.accept()
        self.connected.set()

    def close(self) -> None:
        self.accepted.close()
        self.listener.close()


WAITING = {
    "columns": """
        define.source("slow", "unity://127.0.0.1:{port}/main?tls=false")
        define.external_featuregroup("later", source="slow", table="s.t", primary_key="id")
    """,
    "topic": """
        define.source("slow", "kafka://127.0.0.1:{port}")
        featurestore.stream_job(
            "later", source="slow", topic="t", schema={{"id": "int64", "at": "timestamp"}},
            featuregroup="later", primary_key="id", event_time="at",
        )
    """,
}


@pytest.mark.parametrize("source_type", WAITING)
def test_plan_that_waits_for_source_delays_no_writer(
    tmp_path: Path, folder: Folder, source_type: str
) -> None:
    if source_type == "topic":
        pytest.importorskip("confluent_kafka")
    server = SilentServer()
    folder.write("later.py", WAITING[source_type].format(port=server.port))
    errors: list[DefinitionsRefused] = []
    with (
        featurestore.connect(tmp_path / "store") as store,
        featurestore.connect(tmp_path / "store") as other_store,
    ):

        def plan() -> None:
            try:
                store.plan(folder.path)
            except DefinitionsRefused as error:
                errors.append(error)

        planning = threading.Thread(target=plan)
        planning.start()
        try:
            assert server.connected.wait(30)
            other_store.create_featuregroup([{"id": 1}], "written")
            assert planning.is_alive()  # the plan still waits for its source
        finally:
            server.close()
            planning.join()
    (error,) = errors
    assert "features/later.py:4: " in error.message
    assert "cannot be reached" in error.message


def state(store: FeatureStore) -> dict[str, Any]:
    """Return what is defined in a store, without numbers of versions that views and jobs count."""
    groups = {
        f"{group.name}@{group.version}": (
            sorted((field.name, str(field.type)) for field in group.schema),
            group.description,
            group.tags,
        )
        for group in store.get_featuregroups()
    }
    views = {
        view.name: json.dumps(comparable_view(view.spec)) for view in store.get_feature_views()
    }
    return {
        "groups": groups,
        "views": views,
        "jobs": {status.name: status.job.spec.hash for status in store.get_jobs()},
        "channels": [(channel.name, channel.uri) for channel in store.get_alert_channels()],
    }


CHOICES = {
    "columns": st.sets(st.sampled_from(["a", "b", "c"])),
    "description": st.sampled_from(["", "first", "second"]),
    "tags": st.sampled_from([{}, {"team": "x"}, {"team": "y", "more": "z"}]),
    "view": st.sampled_from(["", "g.k", "g.k as other"]),
    "watch": st.sampled_from(["", "0 0 * * *", "0 1 * * *"]),
    "channel": st.booleans(),
}


def write_choice(folder: Path, choice: dict[str, Any]) -> None:
    schema = {"k": "int64", **dict.fromkeys(sorted(choice["columns"]), "double")}
    lines = [
        "import featurestore",
        "from featurestore import define",
        f"define.featuregroup('g', schema={schema}, primary_key='k', "
        f"description={choice['description']!r}, tags={choice['tags']})",
    ]
    if choice["view"]:
        lines.append(f"define.feature_view('v', features={choice['view']!r})")
    if choice["watch"]:
        lines.append(
            f"featurestore.monitor_job('w', featuregroup='g', schedule={choice['watch']!r}, "
            "window='1d', volume=None, metrics={'n': 'count(*)'})"
        )
    if choice["channel"]:
        lines.append("define.alert_channel('c', 'log')")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "all.py").write_text("\n".join(lines))


@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.fixed_dictionaries(CHOICES), st.fixed_dictionaries(CHOICES))
def test_apply_after_apply_equals_apply_on_empty_store(
    tmp_path_factory: pytest.TempPathFactory, first: dict[str, Any], second: dict[str, Any]
) -> None:
    base = tmp_path_factory.mktemp("pair")
    second = {**second, "columns": second["columns"] | first["columns"]}  # a compatible change
    features = base / "features"
    with (
        featurestore.connect(base / "followed") as followed,
        featurestore.connect(base / "new") as new,
    ):
        write_choice(features, first)
        followed.apply(features)
        write_choice(features, second)
        followed.apply(features, remove=True)
        new.apply(features)
        assert state(followed) == state(new)
        assert followed.plan(features).is_empty


def test_project_from_init_runs_and_passes_check(
    tmp_path: Path, command_line: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEATURESTORE_LOCATION", raising=False)
    result = json.loads(command_line("init", "--project", "demand", "--output", "json").out)
    assert "features/groups.py" in result["created"]
    monkeypatch.chdir(tmp_path / "demand")
    assert "create job 'zone_demand'" in command_line("apply", "features", "--dry-run").out
    command_line("apply", "features", "--check", code=1)
    applied = json.loads(command_line("apply", "features", "--output", "json").out)
    assert (applied["project"], applied["applied"], len(applied["changes"])) == ("demand", True, 6)
    assert command_line("apply", "features", "--check").out == "project demand: no changes\n"
    assert json.loads(command_line("init", "--project", "--output", "json").out)["created"] == []
    Path("features/views.py").unlink()
    assert "not removed: 1; --remove removes them" in command_line("apply", "features").out
    command_line("apply", "features", "--check", code=1)
    command_line("apply", "features", "--remove")
    command_line("apply", "features", "--check")
    Path("features/views.py").write_text("1 / 0")
    refused = command_line("apply", "features", "--dry-run", code=1).err
    assert refused == (
        "error: Refused, so nothing is applied:\n"
        "features/views.py:1: ZeroDivisionError: division by zero\n"
    )
