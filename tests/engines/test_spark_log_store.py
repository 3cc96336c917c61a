"""Commits of Spark on a POSIX file system.

They are links, so none replaces that of another writer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pytest

from featurestore.delta.log import latest_version
from featurestore.errors import ConfigurationError, EngineError, PublicationWarning
from featurestore.plugins.engine import TableWrite
from featurestore_connectors.duckdb_delta import DuckDBEngine
from featurestore_connectors.spark_delta import SparkEngine, tables
from featurestore_connectors.spark_delta import session as sessions
from featurestore_connectors.spark_delta.commits import CommitSession
from tests.on_spark import APPENDED, appending, assert_appends_at_once_all_land


@pytest.fixture
def path(spark_engine: SparkEngine, tmp_path: Path) -> str:
    """An empty table."""
    path = str(tmp_path / "table")
    spark_engine.create_table(
        path, schema=APPENDED, partition_by=(), properties={}, commit_metadata={}
    )
    return path


@pytest.fixture
def write(spark: Any) -> Callable[..., bool]:
    """Write lines with the JVM log store; return False if the file exists."""
    from py4j.protocol import Py4JJavaError

    machine, configuration = spark._jvm, spark._jsc.hadoopConfiguration()
    store = machine.featurestore.delta.PosixLogStore(configuration)

    def write(path: Path, *lines: str, overwrite: bool = False) -> bool:
        rows = machine.java.util.ArrayList()
        for line in lines:
            rows.add(line)
        target = machine.org.apache.hadoop.fs.Path(str(path))
        try:
            store.write(target, rows.iterator(), overwrite, configuration)
        except Py4JJavaError as error:
            if "java.nio.file.FileAlreadyExistsException" not in str(error):
                raise
            return False
        return True

    return write


def test_log_file_is_atomic_and_never_replaced(write: Callable[..., bool], tmp_path: Path) -> None:
    target = tmp_path / "00000000000000000001.json"
    assert write(target, '{"a":"é"}', "{}")
    assert not write(target, "other")
    assert target.read_text(encoding="utf-8") == '{"a":"é"}\n{}\n'
    assert os.listdir(tmp_path) == [target.name]


def test_replaceable_file_has_last_content(
    write: Callable[..., bool], spark: Any, tmp_path: Path
) -> None:
    target = tmp_path / "_last_checkpoint"
    machine, configuration = spark._jvm, spark._jsc.hadoopConfiguration()
    name = machine.org.apache.hadoop.fs.Path(str(target))
    stream = name.getFileSystem(configuration).create(name)
    stream.write(b"old")
    stream.close()
    assert (tmp_path / "._last_checkpoint.crc").exists()  # Hadoop's sum of what is replaced now
    assert write(target, "new", overwrite=True)
    lines = machine.featurestore.delta.PosixLogStore(configuration).read(name, configuration)
    assert lines.next() == "new"
    assert os.listdir(tmp_path) == [target.name]


def test_concurrent_commit_has_one_winner(write: Callable[..., bool], tmp_path: Path) -> None:
    names = [tmp_path / f"{number:020}.json" for number in range(60)]
    won: list[tuple[Path, str]] = []
    start = threading.Barrier(3)

    def link(path: Path, line: str) -> bool:
        temporary_path = tmp_path / f".{line}"
        temporary_path.write_text(f"{line}\n")
        try:
            os.link(temporary_path, path)
        except FileExistsError:
            return False
        finally:
            temporary_path.unlink()
        return True

    def commit_all(me: str, put: Callable[[Path, str], bool]) -> None:
        for path in names:
            start.wait()
            if put(path, me):
                won.append((path, me))

    writers = [("spark", write), ("another spark", write), ("duckdb", link)]
    threads = [threading.Thread(target=commit_all, args=writer) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path for path, _ in won) == names
    assert all(path.read_text() == f"{me}\n" for path, me in won)


def test_concurrent_appends_of_both_engines_are_committed(
    spark_engine: SparkEngine, path: str
) -> None:
    embedded = DuckDBEngine()
    writers = {"spark": appending(spark_engine, path), "duckdb": appending(embedded, path)}
    assert_appends_at_once_all_land(path, writers, times={"spark": 3, "duckdb": 25})
    embedded.close()


def test_error_after_commit_is_a_warning(
    spark_engine: SparkEngine, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from py4j.protocol import Py4JNetworkError

    save = tables._save_rows

    def save_and_break(*arguments: Any, **options: Any) -> None:
        save(*arguments, **options)
        raise Py4JNetworkError("the answer was lost")

    monkeypatch.setattr(tables, "_save_rows", save_and_break)
    rows = pa.table({"k": [1], "by": ["spark"]}, APPENDED)
    with pytest.warns(PublicationWarning, match="Delta version 1 of .* became visible, but .*lost"):
        assert (
            spark_engine.write(
                path, spark_engine.from_arrow(rows.to_reader()), TableWrite("append")
            )
            == 1
        )
    assert spark_engine.count(spark_engine.read_table(path)) == 1


def test_interrupt_after_commit_keeps_commit(
    spark_engine: SparkEngine, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = tables._save_rows

    def save_and_interrupt(*arguments: Any, **options: Any) -> None:
        save(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(tables, "_save_rows", save_and_interrupt)
    rows = pa.table({"k": [1], "by": ["spark"]}, APPENDED)
    with pytest.raises(KeyboardInterrupt):
        spark_engine.write(path, spark_engine.from_arrow(rows.to_reader()), TableWrite("append"))
    assert spark_engine.count(spark_engine.read_table(path)) == 1


def test_error_before_commit_fails_the_write(
    spark_engine: SparkEngine, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from py4j.protocol import Py4JNetworkError

    def break_off(*arguments: Any, **options: Any) -> None:
        raise Py4JNetworkError("the answer was lost")

    monkeypatch.setattr(tables, "_save_rows", break_off)
    rows = pa.table({"k": [1], "by": ["spark"]}, APPENDED)
    with pytest.raises(EngineError, match="the answer was lost"):
        spark_engine.write(path, spark_engine.from_arrow(rows.to_reader()), TableWrite("append"))
    assert latest_version(path) == 0


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"spark.delta.logStore.file.impl": "io.delta.storage.HDFSLogStore"},
        {"delta.logStore.class": "io.delta.storage.LocalLogStore"},
    ],
)
def test_session_with_unsafe_log_store_is_refused(spark: Any, settings: dict[str, str]) -> None:
    ours = {"spark.delta.logStore.file.impl": "featurestore.delta.PosixLogStore"}
    if "delta.logStore.class" in settings:
        settings = ours | settings
    context = SimpleNamespace(_jsc=SimpleNamespace(getConf=lambda: settings))
    session = SimpleNamespace(sparkContext=context, _jvm=spark._jvm)
    with pytest.raises(ConfigurationError, match="which then lose rows") as caught:
        sessions.check_log_store(session, "/data/store")
    assert "spark.delta.logStore.file.impl=featurestore.delta.PosixLogStore" in str(caught.value)
    assert f"spark.jars={sessions.JVM_JAR}" in str(caught.value)
    sessions.check_log_store(spark, "/data/store")


def test_jar_is_built_from_its_source() -> None:
    folder = sessions.JVM_JAR.parent
    sources = {source.name: source.read_bytes() for source in folder.glob("*.java")}
    with zipfile.ZipFile(sessions.JVM_JAR) as jar:
        names = jar.namelist()
        packed = {Path(name).name: jar.read(name) for name in names if name.endswith(".java")}
    assert packed == sources, "scripts/spark-jar builds it anew"
    assert {name.removesuffix(".java") + ".class" for name in sources} <= {
        Path(name).name for name in names
    }


# Commits are renamed 20 ms after their writers checked that the name is free.
DELAYED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int rename(const char *from, const char *to) {
    usleep(20000);
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
}
int link(const char *from, const char *to) {
    usleep(20000);
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "link"))(from, to);
}
"""

APPENDS = """
import os, sys
import pyarrow as pa
from featurestore.plugins.engine import TableWrite, find_engine

path, name, times, stop = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
engine, landed = find_engine(name), 0
while landed < times and not os.path.exists(stop):
    rows = pa.table({"k": [landed], "by": [name]})
    assert engine.write(path, engine.from_arrow(rows.to_reader()), TableWrite("append")) is not None
    landed += 1
open(stop, "w").close()
print(landed)
"""


def compiled(source: str, folder: Path) -> Path:
    """Return a preloaded library that traces or slows down system calls."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: nothing looks at the calls of a process")
    library = folder / "before.so"
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(command, input=source, text=True, check=True)
    return library


@pytest.mark.spark
@pytest.mark.soak
def test_concurrent_appends_with_slow_commits_are_committed(tmp_path: Path) -> None:
    library = compiled(DELAYED, tmp_path)
    path, stop = str(tmp_path / "table"), tmp_path / "stop"
    tables.create_table(path, schema=APPENDED, partition_by=(), properties={}, commit_metadata={})
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "FEATURESTORE_SPARK_MASTER": "local[1]"}
    writers = {}
    for name, times in (("spark", 15), ("duckdb", 10**9)):
        arguments = [sys.executable, "-c", APPENDS, path, name, str(times), str(stop)]
        extra_env = {"LD_PRELOAD": str(library)} if name == "spark" else {}
        writers[name] = subprocess.Popen(
            arguments, env=env | extra_env, stdout=subprocess.PIPE, text=True
        )
    landed = {name: int(writer.communicate(timeout=570)[0]) for name, writer in writers.items()}
    embedded = DuckDBEngine()
    rows = embedded.stream(embedded.read_table(path)).read_all()
    embedded.close()
    assert dict(Counter(rows["by"].to_pylist())) == landed


@pytest.mark.parametrize("name", ["part-0.parquet", "by=a b/é-0.parquet"])
def test_commit_appears_after_data_files_are_synced(spark: Any, tmp_path: Path, name: str) -> None:
    """A file that cannot be synced shows that the sync is called before the commit is renamed."""
    from py4j.protocol import Py4JJavaError

    machine, configuration = spark._jvm, spark._jsc.hadoopConfiguration()
    log = tmp_path / "_delta_log"
    file = tmp_path / name
    for folder in (log, file.parent):
        folder.mkdir(exist_ok=True)
    file.symlink_to("/dev/null")
    rows = machine.java.util.ArrayList()
    rows.add('{"commitInfo":{}}')
    rows.add(json.dumps({"add": {"path": quote(name), "size": 1}}, separators=(",", ":")))
    target = log / f"{1:020}.json"
    hadoop_path = machine.org.apache.hadoop.fs.Path(str(target))
    with pytest.raises(Py4JJavaError, match="could not be brought to disk"):
        machine.featurestore.delta.PosixLogStore(configuration).write(
            hadoop_path, rows.iterator(), False, configuration
        )
    assert os.listdir(log) == []
    fast = machine.org.apache.hadoop.conf.Configuration(configuration)
    fast.set("featurestore.durability", "fast")
    machine.featurestore.delta.PosixLogStore(fast).write(hadoop_path, rows.iterator(), False, fast)
    assert os.listdir(log) == [target.name]
    file.unlink()
    file.write_bytes(b"x")
    next_path = machine.org.apache.hadoop.fs.Path(str(log / f"{2:020}.json"))
    machine.featurestore.delta.PosixLogStore(configuration).write(
        next_path, rows.iterator(), False, configuration
    )
    assert len(os.listdir(log)) == 2


# Syncs and links are recorded in order.
NOTED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void note(const char *what, const char *path) {
    char line[4200];
    int log = open(getenv("SYNC_LOG"), O_WRONLY | O_CREAT | O_APPEND, 0644);
    int size = snprintf(line, sizeof line, "%s %s\\n", what, path);
    if (write(log, line, size) != size) abort();
    close(log);
}
static void note_file(int file) {
    char name[64], path[4096];
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    ssize_t size = readlink(name, path, sizeof path - 1);
    if (size < 0) return;
    path[size] = 0;
    note("sync", path);
}
int fsync(int file) {
    int done = ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
    note_file(file);
    return done;
}
int fdatasync(int file) {
    int done = ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(file);
    note_file(file);
    return done;
}
int link(const char *from, const char *to) {
    note("link", to);
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "link"))(from, to);
}
"""

EVERY_WRITE = """
import os, sys
import pyarrow as pa
from featurestore.plugins.engine import TableWrite, find_engine
from tests.on_spark import on_executors

folder = sys.argv[1]
engine = find_engine("spark")
for name, partition_by in (("plain", ()), ("parted", ("by",))):
    path = os.path.join(folder, name)
    first = pa.table({"k": [1, 2, 3], "by": ["a", "a", "b"]})
    engine.create_table(
        path, schema=first.schema, partition_by=partition_by, properties={}, commit_metadata={}
    )
    held = engine.from_arrow(first.to_reader())
    engine.write(path, held, TableWrite("append"))
    more = engine.from_arrow(pa.table({"k": [4, 5], "by": ["b", "c"]}).to_reader())
    staged = engine.stage(on_executors(more), os.path.join(folder, "rows-" + name))
    engine.write(path, staged, TableWrite("append"))
    engine.write(path, staged, TableWrite("append", offsets={"app": (None, 1)}))
    engine.write(path, held, TableWrite("upsert", key=("k",)))
    engine.write(path, on_executors(held), TableWrite("upsert", key=("k",)))
    engine.delete(path, "k = 1", commit_metadata={})
    engine.compact(path)
    engine.write(path, staged, TableWrite("overwrite"))
engine.close()
"""


@pytest.mark.spark
@pytest.mark.soak
def test_spark_write_syncs_files_before_commit(tmp_path: Path) -> None:
    library, noted = compiled(NOTED, tmp_path), tmp_path / "noted"
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "FEATURESTORE_SPARK_MASTER": "local[1]"}
    env |= {"LD_PRELOAD": str(library), "SYNC_LOG": str(noted)}
    subprocess.run([sys.executable, "-c", EVERY_WRITE, str(tmp_path)], env=env, check=True)
    events = [tuple(line.split(" ", 1)) for line in noted.read_text().splitlines()]
    checked = 0
    for table in (tmp_path / "plain", tmp_path / "parted"):
        commits = sorted((table / "_delta_log").glob("*.json"))
        linked = [events.index(("link", str(commit))) for commit in commits]
        assert len(commits) == latest_version(str(table)) + 1
        for commit, start, end in zip(commits[1:], linked, linked[1:], strict=False):
            synced = {name for event, name in events[start:end] if event == "sync"}
            for line in commit.read_text().splitlines():
                added = json.loads(line).get("add")
                if added is None:
                    continue
                file = table / unquote(added["path"])
                names = [file, *[parent for parent in file.parents if parent.is_relative_to(table)]]
                assert set(map(str, names)) <= synced, (commit.name, file)
                checked += 1
    assert checked >= 12


@pytest.mark.parametrize("durability", ["full", "fast"])
def test_durability_setting_reaches_the_log_store(spark: Any, path: str, durability: str) -> None:
    engine = SparkEngine(spark, durability=durability)
    with CommitSession(spark, path, {}, durable=engine._durable) as commit:
        configuration = commit.session._jsparkSession.sessionState().newHadoopConf()
        assert configuration.get("featurestore.durability") == durability
