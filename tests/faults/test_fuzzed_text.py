"""Random changes to every kind of text that is read from outside.

An answer or an error of the library, nothing else.

No other traceback, no file outside the location written or removed, none opened that the text
names, no process started.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import shutil
import sqlite3
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import featurestore
from featurestore import transform as t
from featurestore import usersql
from featurestore.errors import FeatureStoreError
from featurestore.model import json_object, manifest
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.recovery.rebuild import rebuild
from featurestore.registry import alerts
from featurestore.statistics.state import state_from_bytes
from featurestore.statistics.storage import StatisticsFiles
from featurestore.storage import protection
from featurestore.transform.fit import chains_from_json
from featurestore.transform.fitted import Transformations
from tests.commit_files import read_actions, write_actions

TABLE = pa.table(
    {
        "id": list(range(20)),
        "t": pa.array([1_700_000_000_000_000 + n for n in range(20)], pa.timestamp("us", "UTC")),
        "x": [n * 0.5 for n in range(20)],
        "s": [f"text {n}" for n in range(20)],
    }
)
# Each value twice, so that none looks like a row number.
CODED = pa.concat_tables([TABLE, TABLE]).append_column("row", pa.array(range(40)))
EXPECTATIONS = [
    {
        "type": "expect_column_values_to_be_between",
        "kwargs": {
            "column": "x",
            "min_value": 0,
            "row_condition": "id > 3 and s != 'a'",
            "condition_parser": "pandas",
        },
    },
    {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id", "mostly": 0.5}},
]
CHAINS = {
    "x": t.impute("median") | t.log1p() | t.standardize(),
    "id": t.quantile_bins(3) | t.one_hot(),
    "s": t.text_tokens(2),
    "t": t.clip(0) | t.cast("int64"),
}
# The values to which a changed chain is applied, by feature kind.
VALUES = {"number": [1.5, None], "whole": [3, None], "text": ["text 3", None], "binary": [b"a"]}
JOBS = """
import featurestore
featurestore.sql_job("hourly", sql="select id, t, x from g", inputs={"g": "g"}, featuregroup="hourly",
                     primary_key=["id"], event_time="t", window="1h", schedule="0 * * * *",
                     start="2023-11-14T22:00:00Z")
featurestore.monitor_job("watch", featuregroup="g", schedule="0 0 * * *", start="2023-11-14T00:00:00Z",
                         metrics={"mean": "avg(x)"}, limits={"mean": (0, 9)}, freshness="1d", alert="ops")
"""


# -- what is changed ------------------------------------------------------------------------------------------------


def odd_values(outside: Path) -> st.SearchStrategy[Any]:
    """Values that a parser does not expect, including paths that lead outside."""
    paths = [
        str(outside),
        f"../../{outside.name}",
        f"x/../../../{outside.name}",
        "/etc/passwd",
        "\0",
        "a\nb",
    ]
    numbers = [-1, 0, 2**31, 2**63, 2**70, -(2**70), 0.5, float("inf"), float("nan"), True]
    texts = [
        "",
        "\x1b[31mred",
        "<script>alert(1)</script>",
        "__import__('os').system('x')",
        "é" * 300,
        "null",
    ]
    return st.sampled_from([*paths, *numbers, *texts, None, [], {}, [[]], {"": {}}])


def changed(value: Any, data: st.DataObject, outside: Path) -> Any:
    """Return a JSON value with one to three of its parts replaced, removed or repeated."""
    value = copy.deepcopy(value)
    for _ in range(data.draw(st.integers(1, 3))):
        node = value
        while isinstance(node, dict | list) and node:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = data.draw(st.sampled_from(keys))
            below = node[key]
            if isinstance(below, dict | list) and below and data.draw(st.integers(0, 4)):
                node = below
                continue
            if data.draw(st.integers(0, 5)) == 0:
                del node[key]
            else:
                node[key] = data.draw(odd_values(outside))
            break
    return value


def flipped(content: bytes, data: st.DataObject) -> bytes:
    """Return bytes with some of them changed, or cut off."""
    content = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(content) - 1))
        content[index] = data.draw(st.integers(0, 255))
    return bytes(content[: data.draw(st.sampled_from([len(content), len(content) // 2]))])


# -- where it is read -------------------------------------------------------------------------------------------------


class World:
    """A store with one object of each kind, next to a file that must not be touched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.template = folder / "template"
        self.location = folder / "store"
        self.outside = folder / "outside"
        self.outside.mkdir()
        (self.outside / "secret.txt").write_text("secret")
        (folder / "jobs.py").write_text(JOBS)
        with featurestore.connect(self.template) as store:
            store.create_featuregroup(
                TABLE, "g", primary_key="id", event_time="t", expectations=EXPECTATIONS
            )
            store.insert_into_featuregroup(TABLE.slice(0, 1), "g", mode="upsert")
            store.add_featuregroup_tag("g", "owner", "ada")
            store.create_training_dataset(TABLE.drop_columns(["s"]), "d", label="x", key="id")
            coded = store.create_training_dataset(
                CODED,
                "coded",
                label="x",
                features=["id", "s", "t"],
                key="row",
                transformations=CHAINS,
            )
            self.transformations = coded.transformations.to_json()  # type: ignore[union-attr]
            store.add_alert_channel("ops", "log")
            store.register_jobs(folder / "jobs.py")
            store.check_monitor("watch", window="2023-11-14T00:00:00Z")
            with store.session.registry.transaction() as connection:
                lines = {"drift": ["x drifted"]}
                alerts.enqueue_alert(connection, "begin", "watch", lines, ["ops"])
            self.statistics = store.featuregroup("g").statistics().to_json()
            store.add_source("shop", str(folder / "lake"), options={"format": "csv"})
            (folder / "lake").mkdir()
            (folder / "lake" / "rows.csv").write_text("id,y\n1,2.5\n2,3.5\n")
            store.create_external_featuregroup(
                "elsewhere", source="shop", path="rows.csv", primary_key="id", tags={"a": "b"}
            )
        states = sorted((self.template / "featuregroups/g/v1_statistics").rglob("*.state"))
        self.state = states[0].read_bytes() if states else b""
        self.manifest = json.loads(
            (self.template / "trainingdatasets/d/v1/manifest.json").read_bytes()
        )

    def fresh(self) -> Path:
        """Restore the location and return it."""
        shutil.rmtree(self.location, ignore_errors=True)
        shutil.copytree(self.template, self.location)
        return self.location

    def fresh_statistics(self) -> Path:
        """Return the path of a table that contains only statistics."""
        folder = self.folder / "table_statistics"
        folder.mkdir(exist_ok=True)
        return self.folder / "table"

    def use(self) -> None:
        """Read everything in a store, and write."""
        with contextlib.suppress(FeatureStoreError), featurestore.connect(self.location) as store:
            for call in (
                store.get_featuregroups,
                store.get_training_datasets,
                store.get_jobs,
                lambda: store.get_featuregroup("g").to_arrow(),
                lambda: store.get_featuregroup_history("g"),
                lambda: store.get_featuregroup("g", as_of=1).to_arrow(),
                lambda: store.featuregroup("g").statistics(),
                lambda: repr(store.featuregroup("g")),
                lambda: (store.get_features_list(), store.search("x")),
                lambda: store.add_featuregroup_tag("g", "team", "rust"),
                lambda: store.plan_job("hourly"),
                *_monitor_calls(store),
                lambda: store.get_training_dataset("d").verify(),
                lambda: store.insert_into_featuregroup(TABLE.slice(0, 1), "g", mode="upsert"),
                lambda: store.vacuum_featuregroup("g", retain="0s"),
                lambda: store.delete_training_dataset("d", version=1),
            ):
                with contextlib.suppress(FeatureStoreError):
                    call()


def _monitor_calls(store: featurestore.FeatureStore) -> list[Callable[[], object]]:
    """Calls that read stored monitors, channels and messages."""
    return [
        store.get_monitors,
        lambda: store.get_monitor_history("watch"),
        lambda: store.check_monitor("watch", window="2023-11-14T00:00:00Z"),
        lambda: store.visualize_monitor("watch").to_html(),
        store.get_alert_channels,
        lambda: list(map(str, store.get_alerts())),
        store.send_alerts,
        store.get_metrics,
    ]


def fuzz_monitors(world: World, data: st.DataObject) -> None:
    """Changed monitors, channels and messages of a registry run and send nothing."""
    world.fresh()
    conditions = {
        ("job_definitions", "spec"): "where name = 'watch'",
        ("monitor_results", "report"): "",
        ("outbox", "message"): "",
        ("alert_channels", "uri"): "",
        ("alert_channels", "secret"): "",
    }
    table, column = data.draw(st.sampled_from(sorted(conditions)))
    condition = conditions[table, column]
    with contextlib.closing(sqlite3.connect(world.location / "registry.db")) as database:
        (old_text,) = database.execute(f"select {column} from {table} {condition}").fetchone()
        if table == "alert_channels":
            uris = [
                "command:",
                "command:/bin/sh",
                f"command:{world.outside}/run",
                "webhook+http://[",
                "smtp://",
            ]
            texts = [*uris, f"file:{world.outside}/secret.txt", "env:HOME", "log:", "\0", "file:"]
            text = data.draw(st.sampled_from(texts))
        else:
            text = json.dumps(changed(json.loads(old_text), data, world.outside))
            if data.draw(st.integers(0, 3)) == 0:
                text = text[: data.draw(st.integers(0, len(text)))]
        database.execute(f"update {table} set {column} = ? {condition}", (text,))
        database.commit()
    with contextlib.suppress(FeatureStoreError), featurestore.connect(world.location) as store:
        for call in _monitor_calls(store):
            with contextlib.suppress(FeatureStoreError):
                call()


def fuzz_profiles(world: World, data: st.DataObject) -> None:
    """A changed or damaged window profile is read or recomputed."""
    profiles = (world.fresh() / "featuregroups/g/v1_statistics/windows").glob("*.json.z")
    file = data.draw(st.sampled_from(sorted(profiles)))
    value = changed(json.loads(zlib.decompress(file.read_bytes())), data, world.outside)
    content = zlib.compress(json.dumps(value).encode())
    if data.draw(st.integers(0, 3)) == 0:
        content = flipped(content, data)
    file.write_bytes(content)
    with contextlib.suppress(FeatureStoreError), featurestore.connect(world.location) as store:
        store.check_monitor("watch", window="2023-11-14T00:00:00Z")


def fuzz_manifest(world: World, data: st.DataObject) -> None:
    """A manifest with a valid checksum, as an attacker could write it."""
    value = changed(world.manifest, data, world.outside)
    if data.draw(st.booleans()):
        value.pop("checksum", None)
        with contextlib.suppress(ValueError):
            content = json_object.seal(value)
    content = json.dumps(value, allow_nan=True).encode() if "content" not in locals() else content
    folder = world.fresh() / "trainingdatasets/d/v1"
    (folder / "manifest.json").write_bytes(content)
    with contextlib.suppress(FeatureStoreError):
        dataset = featurestore.TrainingDataset.open(folder)
        reader = dataset.reader("train", global_batch_size=4, nulls="mask")
        next(iter(reader.batches(0)), None)


def fuzz_manifest_bytes(world: World, data: st.DataObject) -> None:
    manifest_without_checksum = {**world.manifest}
    manifest_without_checksum.pop("checksum")
    content = flipped(json_object.seal(manifest_without_checksum), data)
    with contextlib.suppress(FeatureStoreError):
        manifest.Manifest.from_bytes(content, path="manifest.json")


def fuzz_definition(world: World, data: st.DataObject) -> None:
    log = world.fresh() / "featuregroups/g/v1/_delta_log" / f"{0:020d}.json"
    actions = read_actions(log)
    for action in actions:
        configuration = action.get("metaData", {}).get("configuration", {})
        for name in ("featurestore.spec", "featurestore.meta"):
            if name in configuration:
                value = changed(json.loads(configuration[name]), data, world.outside)
                text = json.dumps(value)
                if data.draw(st.integers(0, 3)) == 0:
                    text = text[: data.draw(st.integers(0, len(text)))]
                configuration[name] = text
    write_actions(log, actions)
    if data.draw(st.booleans()):  # table definitions are also read if the registry has them
        (world.location / "registry.db").unlink()
    world.use()


def fuzz_source(world: World, data: st.DataObject) -> None:
    """A source definition from which the registry is rebuilt."""
    file = world.fresh() / "sources" / "shop.json"
    content = file.read_bytes()
    if data.draw(st.booleans()):
        content = json.dumps(changed(json.loads(content), data, world.outside)).encode()
    else:
        content = flipped(content, data)
    file.write_bytes(content)
    (world.location / "registry.db").unlink()
    with contextlib.suppress(FeatureStoreError):
        rebuild(str(world.location))
    with contextlib.suppress(FeatureStoreError), featurestore.connect(world.location) as store:
        names = [source.name for source in store.get_sources()]
        assert names in ([], ["shop"])
        for call in (
            lambda: store.read_source("shop", path="rows.csv"),
            lambda: store.add_source("shop", "elsewhere"),
            lambda: store.remove_source("shop"),
        ):
            with contextlib.suppress(FeatureStoreError):
                call()


def fuzz_external(world: World, data: st.DataObject) -> None:
    """The definition of an external group."""
    log = world.fresh() / "featuregroups/elsewhere/v1/_delta_log" / f"{0:020d}.json"
    actions = read_actions(log)
    for action in actions:
        configuration = action.get("metaData", {}).get("configuration", {})
        if "featurestore.spec" in configuration:
            spec = json.loads(configuration["featurestore.spec"])
            spec["external"] = changed({"e": spec["external"]}, data, world.outside).get("e")
            configuration["featurestore.spec"] = json.dumps(spec)
    write_actions(log, actions)
    with contextlib.suppress(FeatureStoreError), featurestore.connect(world.location) as store:
        for call in (
            lambda: repr(store.featuregroup("elsewhere")),
            lambda: store.featuregroup("elsewhere").external,
            lambda: str(store.explain_features("elsewhere.y", labels=[{"id": 1}])),
            lambda: store.insert_into_featuregroup([{"id": 3, "y": 1.0}], "elsewhere"),
            lambda: store.delete_featuregroup("elsewhere", version=1),
        ):
            with contextlib.suppress(FeatureStoreError):
                call()


def fuzz_commit(world: World, data: st.DataObject) -> None:
    log = world.fresh() / "featuregroups/g/v1/_delta_log" / f"{1:020d}.json"
    actions = read_actions(log)
    for action in actions:
        if "userMetadata" in action.get("commitInfo", {}):
            note = json.loads(action["commitInfo"]["userMetadata"])
            action["commitInfo"]["userMetadata"] = json.dumps(changed(note, data, world.outside))
    if data.draw(st.booleans()):
        actions = changed(actions, data, world.outside)
    write_actions(log, actions)
    world.use()


def fuzz_registry(world: World, data: st.DataObject) -> None:
    world.fresh()
    with contextlib.closing(sqlite3.connect(world.location / "registry.db")) as database:
        query = "select name from sqlite_master where type = 'table' and name not like 'alembic%'"
        tables = sorted(name for (name,) in database.execute(query))
        table = data.draw(st.sampled_from(tables))
        columns = [row[1] for row in database.execute(f"pragma table_info({table})")]
        value = data.draw(odd_values(world.outside))
        if isinstance(value, int) and abs(value) > 2**62:
            value = str(value)
        if isinstance(value, list | dict):
            value = json.dumps(value)
        with contextlib.suppress(sqlite3.IntegrityError):
            column = data.draw(st.sampled_from(columns))
            database.execute(f'update "{table}" set "{column}" = ?', (value,))
        database.commit()
    world.use()


def fuzz_statistics(world: World, data: st.DataObject) -> None:
    files = StatisticsFiles(str(world.fresh_statistics()), {})
    value = changed(world.statistics, data, world.outside)
    Path(files.directory, "1.json").write_text(json.dumps(value), encoding="utf-8")
    files.get(1)


def fuzz_statistics_state(world: World, data: st.DataObject) -> None:
    with contextlib.suppress(FeatureStoreError):
        state_from_bytes(flipped(world.state, data))


CONDITION = st.lists(
    st.sampled_from(
        [
            "id",
            "x",
            "s",
            "t",
            "nothing",
            "1",
            "2.5",
            "'a'",
            '"b"',
            "(",
            ")",
            "[",
            "]",
            ",",
            ".",
            ":",
            "==",
            "!=",
            "<",
            ">",
            "<=",
            ">=",
            "and",
            "or",
            "not",
            "in",
            "is",
            "null",
            "None",
            "True",
            "col('x')",
            ".notnull()",
            ".str",
            "__class__",
            "@",
            "lambda",
            ";",
            "\\",
            "import",
            "len(",
            "-1",
            "1e999",
            "~",
            "&",
            "|",
        ]
    ),
    max_size=12,
).map(" ".join)


def fuzz_transformations(world: World, data: st.DataObject) -> None:
    """Fitted transformations with a valid checksum, and those stored in a feature view."""
    value = changed(world.transformations, data, world.outside)
    content = json.dumps(value).encode()
    with contextlib.suppress(ValueError):
        content = json_object.seal(value)
    with contextlib.suppress(FeatureStoreError):
        fitted = Transformations.from_bytes(content, path="t.json")
        assert Transformations.from_bytes(fitted.to_bytes(), path="t.json") == fitted
        assert repr(fitted)
        for column in fitted.columns:
            if math.prod(column.output.shape) < 10_000 and column.input_form.value_type in VALUES:
                fitted.apply({column.name: VALUES[column.input_form.value_type]})
    request = {column["name"]: column["steps"] for column in world.transformations["columns"]}
    with contextlib.suppress(FeatureStoreError, MalformedJson):
        chains = JsonObject.from_value(changed(request, data, world.outside)).read_values(
            JsonObject.array
        )
        assert isinstance(chains_from_json(chains, view="v"), dict)


def fuzz_expectations(world: World, data: st.DataObject) -> None:
    from featurestore.plugins.validator import find_validator

    validator = find_validator()
    expectations = changed(EXPECTATIONS, data, world.outside)
    if data.draw(st.booleans()):
        with contextlib.suppress(TypeError, KeyError, IndexError, AttributeError):
            expectations[0]["kwargs"]["row_condition"] = data.draw(CONDITION | st.text(max_size=30))
    with contextlib.suppress(FeatureStoreError):
        validator.check(TABLE, validator.normalize(expectations))


WORDS = (
    "select from where id x s t g ( ) , * and or not null is in like between case when then else end = < > + - / "
    "'a' \"x\" 1 2.5 lateral read_text('F') read_csv('F') glob('F') 'F' \"F\" with recursive as union all summarize "
    "describe copy to attach 'F' install load pragma set now() random() current_timestamp getenv('HOME') count(*) "
    "sum(x) over (order by t) limit 3 ; -- /* */ $window_start unnest([1]) range(3) struct_pack(a := 1) list_value(1) "
    "values (1) exists (select 1) cast(x as varchar) x::int main.g information_schema.tables duckdb_settings()"
)


def sql_texts(outside: Path) -> st.SearchStrategy[str]:
    words = WORDS.replace("F", str(outside / "secret.txt")).split(" ")
    return st.lists(st.sampled_from(words), min_size=1, max_size=14).map(" ".join)


def fuzz_sql(world: World, data: st.DataObject) -> None:
    text = data.draw(sql_texts(world.outside))
    for dialect in ("duckdb", "spark"):
        with contextlib.suppress(FeatureStoreError):
            usersql.predicate(text, schema=TABLE.schema, dialect=dialect)
        with contextlib.suppress(FeatureStoreError):
            usersql.query("select " + text, tables=["g"], dialect=dialect)


def fuzz_filters(world: World, data: st.DataObject) -> None:
    """Accepted conditions are run, and their results never contain the text of the outside file."""
    if not world.location.exists():
        world.fresh()
    text = data.draw(sql_texts(world.outside))
    with contextlib.suppress(FeatureStoreError), featurestore.connect(world.location) as store:
        assert "secret" not in str(store.get_featuregroup("g").filter(text).to_arrow().to_pylist())


def fuzz_job_file(world: World, data: st.DataObject) -> None:
    if not world.location.exists():
        world.fresh()
    path = world.folder / "changed_jobs.py"
    words = JOBS.split('"')
    index = data.draw(st.integers(0, len(words) - 1))
    words[index] = data.draw(
        st.sampled_from(["", "\n", "0", "é", "select", "\\", "[1", "2023", "1x", "../x"])
    )
    path.write_text('"'.join(words), encoding="utf-8")
    with contextlib.suppress(FeatureStoreError), featurestore.connect(world.location) as store:
        store.register_jobs(path)


# Parsers are fast; targets that open a store for each text have fewer examples.
TARGETS: dict[str, tuple[Callable[[World, st.DataObject], None], int]] = {
    "sql": (fuzz_sql, 325),
    "bytes of a manifest": (fuzz_manifest_bytes, 250),
    "expectations": (fuzz_expectations, 125),
    "statistics": (fuzz_statistics, 125),
    "states of statistics": (fuzz_statistics_state, 75),
    "transformations": (fuzz_transformations, 75),
    "manifests": (fuzz_manifest, 50),
    "definitions": (fuzz_definition, 4),
    "commits": (fuzz_commit, 4),
    "sources": (fuzz_source, 7),
    "external groups": (fuzz_external, 7),
    "registries": (fuzz_registry, 5),
    "filters": (fuzz_filters, 7),
    "job files": (fuzz_job_file, 7),
    "monitors": (fuzz_monitors, 4),
    "profiles of windows": (fuzz_profiles, 2),
}
SOAK = 100


# -- who watches ------------------------------------------------------------------------------------------------------


class Watch:
    """Record file changes outside a folder and started processes by an audit hook."""

    CHANGES = frozenset(
        {
            "os.remove",
            "os.rename",
            "os.rmdir",
            "os.mkdir",
            "os.link",
            "os.symlink",
            "os.truncate",
            "shutil.rmtree",
        }
    )

    IN_FOLDER = frozenset({"os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"})

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.forbidden: tuple[str, ...] = ()
        self.allowed: tuple[str, ...] = ()
        self.violations: list[str] = []
        sys.addaudithook(self._hook)

    @contextlib.contextmanager
    def on(self, folder: Path, outside: Path) -> Iterator[None]:
        """Record while the block runs."""
        self.folder, self.forbidden, self.violations = folder, (str(outside), "/etc/passwd"), []
        state = os.environ["XDG_STATE_HOME"]
        temporary = protection.user_temporary_folder()
        self.allowed = (str(folder), state, temporary, os.path.abspath(".hypothesis"))
        try:
            yield
        finally:
            self.folder = None
        assert self.violations == []

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"):
            self.violations.append(event)
        if event in self.CHANGES or event == "open":
            path = arguments[0]
            if not isinstance(path, str | bytes | os.PathLike):
                return
            folder = arguments[-1] if event in self.IN_FOLDER else -1
            base = (
                os.readlink(f"/proc/self/fd/{folder}") if folder not in (-1, None) else os.getcwd()
            )
            full = os.path.normpath(os.path.join(base, os.fsdecode(path)))
            if full.startswith(self.forbidden) or (
                event in self.CHANGES and not full.startswith((*self.allowed, "/dev/"))
            ):
                self.violations.append(f"{event} {full}")


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("fuzz"))


def fuzz(world: World, watch: Watch, name: str, times: int) -> None:
    target, examples = TARGETS[name]

    @settings(
        max_examples=examples * times,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target(world, data)

    with watch.on(world.folder, world.outside):
        run()
    assert [path.name for path in world.outside.iterdir()] == ["secret.txt"]
    shutil.rmtree(world.location, ignore_errors=True)


@pytest.mark.parametrize("name", TARGETS)
def test_fuzzed_text_is_read_or_raises(world: World, watch: Watch, name: str) -> None:
    """A thousand texts."""
    fuzz(world, watch, name, 1)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", TARGETS)
def test_many_fuzzed_texts_are_read_or_raise(world: World, watch: Watch, name: str) -> None:
    """A hundred thousand texts."""
    fuzz(world, watch, name, SOAK)
