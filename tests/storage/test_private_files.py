"""Private files are closed to other users of the machine; data files follow the umask."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import featurestore
from featurestore.storage import protection
from featurestore.store import FeatureStore
from featurestore_connectors.duckdb_delta import DuckDBEngine

if TYPE_CHECKING:
    from featurestore_connectors.spark_delta import SparkEngine

ROOT = Path(__file__).parents[2]
# Paths below the folder of the scenario. A path that matches no pattern fails the test.
PRIVATE = re.compile(
    r"store/(registry\.db(-wal|-shm)?|access\.json|_(logs|origins|owners|staging)(/.*)?)"
    r"|store/experiments/.*\.log|store/online/.*|state/featurestore(/.*)?|tmp/.+"
)
DATA = re.compile(
    r"store(/(featuregroups|trainingdatasets|featureviews|experiments|sources|online)(/.*)?)?"
)
OF_TEST = re.compile(r"|state|tmp|shop(/.*)?|jobs\.py|out\.txt")


def modes_below(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each path below a folder with its status."""
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(parent, name)
            yield os.path.relpath(path, folder), os.lstat(path)


@pytest.mark.services
@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_modes_of_all_files_of_store(tmp_path: Path, umask: int) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "state").mkdir()
    places = {"XDG_STATE_HOME": f"{tmp_path}/state", "TMPDIR": f"{tmp_path}/tmp"}
    command = [sys.executable, "-m", "tests.storage.private_scenario", f"{tmp_path}/store"]
    environment = {**os.environ, **places, "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, f"{umask:o}"], env=environment, cwd=ROOT, check=True, timeout=300)
    kinds: dict[str, int] = {"private": 0, "data": 0}
    for path, status in modes_below(tmp_path):
        mode, is_folder = stat.S_IMODE(status.st_mode), stat.S_ISDIR(status.st_mode)
        if PRIVATE.fullmatch(path):
            assert not mode & 0o077, f"{path} has the mode {mode:o}"
            kinds["private"] += 1
        elif DATA.fullmatch(path):
            assert mode == (0o777 if is_folder else 0o666) & ~umask, f"{path}: {mode:o}"
            kinds["data"] += 1
        else:
            assert OF_TEST.fullmatch(path), f"{path} is not classified"
    assert min(kinds.values()) > 20


def test_group_of_setgid_folder_has_its_rights(tmp_path: Path) -> None:
    expected = {0o2770: (0o660, 0o2770), 0o2750: (0o640, 0o2750), 0o770: (0o600, 0o700)}
    previous = os.umask(0)
    try:
        for number, (mode, of_private) in enumerate(expected.items()):
            shared = tmp_path / str(number)
            shared.mkdir()
            shared.chmod(mode)
            with featurestore.connect(shared) as store:
                store.create_featuregroup(pa.table({"id": [1]}), "g")
            actual = {path: stat.S_IMODE(status.st_mode) for path, status in modes_below(shared)}
            assert (actual["registry.db"], actual["_owners"]) == of_private
    finally:
        os.umask(previous)


def test_doctor_prints_command_for_private_files_of_older_stores(
    empty_store: FeatureStore, command_line: Callable[..., Any]
) -> None:
    location = Path(empty_store.location)
    log = location / "experiments" / "a" / "b" / "logs" / "worker-00000.log"
    log.parent.mkdir(parents=True)
    log.touch()
    (location / "access.json").touch()
    (location / "_owners").mkdir(exist_ok=True)
    exposed_paths = [location / "access.json", location / "registry.db", location / "_owners", log]
    for path in exposed_paths:
        path.chmod(0o755)
    words = ("--location", str(location), "--output", "json", "doctor")
    checks = json.loads(command_line(*words, code=1).out)
    problems = [check for check in checks if check["check"] == "private files"]
    assert len(problems) >= len(exposed_paths)
    for problem in problems:
        subprocess.run(problem["hint"], shell=True, check=True)
    assert all(not path.stat().st_mode & 0o077 for path in exposed_paths)
    checks = json.loads(command_line(*words).out)
    assert [check["state"] for check in checks if check["check"] == "private files"] == ["ok"]


def test_private_file_may_disappear_during_the_search(tmp_path: Path) -> None:
    paths = [tmp_path / "access.json", tmp_path / "registry.db", tmp_path / "registry.db-journal"]
    for path in paths:
        path.touch(mode=0o644)
        path.chmod(0o644)
    exposed_paths = protection.find_exposed_paths(str(tmp_path))
    assert next(exposed_paths).path == str(paths[0])
    paths[2].unlink()
    assert [exposed.path for exposed in exposed_paths] == [str(paths[1])]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="Windows has a folder for each user")
def test_prepared_temporary_folder_of_other_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    usual = tmp_path / f"featurestore-{os.getuid()}"
    assert protection.user_temporary_folder() == str(usual)
    assert protection.user_temporary_folder() == str(usual)
    usual.chmod(0o755)
    assert protection.user_temporary_folder() != str(usual)
    usual.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    usual.symlink_to(tmp_path / "elsewhere")
    folder = protection.user_temporary_folder()
    assert folder != str(usual)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    engine = DuckDBEngine()
    spill = engine.database.rows("select current_setting('temp_directory')")
    engine.close()
    assert spill == [(f"{folder}/duckdb-{os.getpid()}",)]
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.spark
def test_spark_staging_folders_are_private(
    spark_engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of this process reach the executors through a folder, and staged rows a table."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2770)
    monkeypatch.setenv("FEATURESTORE_SPARK_STAGING", str(shared))
    rows = pa.table({"id": range(2_000_000)})
    previous = os.umask(0)
    try:
        relation = spark_engine.from_arrow(rows.to_reader())
        (folder,) = shared.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o2770
        shared.chmod(0o755)
        other = spark_engine.from_arrow(rows.to_reader())
        (other_folder,) = set(shared.iterdir()) - {folder}
        assert stat.S_IMODE(other_folder.stat().st_mode) == 0o700
        assert spark_engine.count(other) == len(rows)
        staged = spark_engine.stage(relation, str(tmp_path / "store" / "_staging" / "run"))
        assert stat.S_IMODE((tmp_path / "store" / "_staging").stat().st_mode) == 0o700
        assert spark_engine.count(staged) == len(rows)
    finally:
        os.umask(previous)
