"""A rebuild restores intact objects and lists damaged ones, with concurrent writers."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import RegistryError, RegistryWarning
from featurestore.recovery import liveness
from featurestore.recovery.in_flight import in_flight
from featurestore.recovery.rebuild import rebuild
from featurestore.registry import intents
from featurestore.store import FeatureStore
from tests.commit_files import read_actions, write_actions

pytestmark = [pytest.mark.services, pytest.mark.slow]

TABLE = pa.table({"x": [1, 2], "y": [0, 1]})


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two groups and two datasets, copied for each kind of damage."""
    location = tmp_path_factory.mktemp("template") / "store"
    with featurestore.connect(location) as store:
        for name in ("bad", "good"):
            store.create_featuregroup(TABLE, name, primary_key="x")
            store.create_training_dataset(store.get_featuregroup(name), name, label="y")
    return location


def log_line(location: Path, number: int, change: Callable[[dict[str, object]], None]) -> None:
    """Change the actions of a commit of the group "bad"."""
    path = location / "featuregroups" / "bad" / "v1" / "_delta_log" / f"{number:020d}.json"
    actions = read_actions(path)
    for action in actions:
        change(action)
    write_actions(path, actions)


def set_spec(text: str) -> Callable[[Path], None]:
    def change(action: dict[str, object]) -> None:
        if "metaData" in action:
            action["metaData"]["configuration"]["featurestore.spec"] = text  # type: ignore[index]

    return lambda location: log_line(location, 0, change)


def overwrite(path: str, content: bytes | None) -> Callable[[Path], None]:
    def damage(location: Path) -> None:
        file = location / path
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)

    return damage


COMMIT = "featuregroups/bad/v1/_delta_log/{:020d}.json"
MANIFEST = "trainingdatasets/bad/v1/manifest.json"
GROUP_DAMAGES = {
    "log emptied": overwrite(COMMIT.format(0), b""),
    "log scrambled": overwrite(COMMIT.format(0), b"\x00\xff"),
    "log of a list": overwrite(COMMIT.format(0), b"[1]\n"),
    "commit scrambled": overwrite(COMMIT.format(1), b"{"),
    "log is lost": lambda location: shutil.rmtree(
        location / "featuregroups" / "bad" / "v1" / "_delta_log"
    ),
    "log begins late": overwrite(COMMIT.format(0), None),
    "spec is no JSON": set_spec("{"),
    "spec is a list": set_spec("[]"),
    "spec is empty": set_spec("{}"),
    "spec names another group": set_spec('{"name": "good", "version": 1}'),
}
DATASET_DAMAGES = {
    "manifest is lost": overwrite(MANIFEST, None),
    "manifest emptied": overwrite(MANIFEST, b""),
    "manifest scrambled": overwrite(MANIFEST, b"\x00\xff"),
    "manifest of a list": overwrite(MANIFEST, b"[]"),
    "manifest without values": overwrite(MANIFEST, b"{}"),
}


@pytest.mark.parametrize("damage", [*GROUP_DAMAGES, *DATASET_DAMAGES])
def test_rebuild_restores_intact_and_lists_damaged_artifacts(
    template: Path, tmp_path: Path, damage: str
) -> None:
    location = tmp_path / "store"
    shutil.copytree(template, location)
    (GROUP_DAMAGES | DATASET_DAMAGES)[damage](location)
    actual = rebuild(str(location))
    sound = ["good@v1"]
    both = ["bad@v1", "good@v1"]
    assert actual.featuregroups == (sound if damage in GROUP_DAMAGES else both)
    assert actual.training_datasets == (sound if damage in DATASET_DAMAGES else both)
    ((path, reason),) = actual.unreadable
    assert "/bad/v1" in path
    assert reason
    # A damaged object is not registered, and its directory may still have the entry of a published one.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The registry lacks .* bad@v1", RegistryWarning)
        store = featurestore.connect(location)
    with store:
        assert store.get_featuregroup("good").count() == 2
        assert store.get_training_dataset("good").verify().ok
        assert "good" in {dataset.name for dataset in store.get_training_datasets()}
        store.vacuum_featuregroup("good", retain="0s")


def test_rebuild_lists_unknown_directories_without_registering(
    template: Path, tmp_path: Path
) -> None:
    location = tmp_path / "store"
    shutil.copytree(template, location)
    groups, datasets = location / "featuregroups", location / "trainingdatasets"
    shutil.copytree(groups / "good", groups / "Strange Name")
    shutil.copytree(groups / "good", groups / "copied")
    shutil.copytree(datasets / "good", datasets / "copied")
    (groups / "file").write_text("")
    actual = rebuild(str(location))
    assert actual.featuregroups == actual.training_datasets == ["bad@v1", "good@v1"]
    assert [Path(path).relative_to(location).as_posix() for path, _ in actual.unreadable] == [
        "featuregroups/Strange Name",
        "featuregroups/copied/v1",
        "trainingdatasets/copied/v1",
    ]


def test_rebuild_during_creation_lets_it_complete(tmp_path: Path) -> None:
    store = featurestore.connect(tmp_path)
    session = store.session
    write = session.engine.write

    def write_and_rebuild(*arguments: object, **options: object) -> object:
        result = write(*arguments, **options)  # type: ignore[arg-type]
        assert rebuild(str(tmp_path)).featuregroups == ["g@v1"]
        return result

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session.engine, "write", write_and_rebuild)
        group = store.create_featuregroup(TABLE, "g", description="Made", tags={"a": "b"})
    assert (group.description, store.get_featuregroup_tags("g")) == ("Made", {"a": "b"})
    assert store.get_featuregroup("g").count() == 2


def test_rebuild_keeps_intents_of_running_writes(empty_store: FeatureStore) -> None:
    session = empty_store.session
    with in_flight(session, operation="create", name="g", version=1) as run:
        rebuild(empty_store.location)
        with session.registry.reading() as connection:
            assert intents.find(connection, run.intent) is not None
        run.check_intent()


def test_rebuild_keeps_damaged_registry_while_writer_runs(tmp_path: Path) -> None:
    featurestore.connect(tmp_path).close()
    program = (
        "import sys\nfrom featurestore.recovery import liveness\n"
        "print(liveness.owner_of_this_process(sys.argv[1]), flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        name = writer.stdout.readline().strip()
        for ending in ("-wal", "-shm"):
            Path(tmp_path, f"registry.db{ending}").unlink(missing_ok=True)
        (tmp_path / "registry.db").write_bytes(b"scrambled" * 1000)
        with pytest.raises(RegistryError, match=name):
            rebuild(str(tmp_path))
        writer.kill()
    assert liveness.other_processes(str(tmp_path)) == []
    assert rebuild(str(tmp_path)).moved_away is not None
