"""File systems that become read-only, and folders that lose their permissions."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import OnlineStoreUnavailable, PublicationWarning
from tests.forked_processes import kill, server, start

pytestmark = pytest.mark.services


class Mount:
    """A file system in memory that a test makes read-only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def call(self, *command: str | Path) -> None:
        """Run a command, or skip the test where nothing can be mounted."""
        result = subprocess.run(list(command), capture_output=True, text=True, check=False)
        if result.returncode:
            pytest.skip(f"nothing can be mounted here: {result.stderr.strip()}")

    def remount(self, mode: str) -> None:
        """Mount it again with the mode "ro" or "rw"."""
        self.call("mount", "-o", f"remount,{mode}", self.folder)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    result = Mount(tmp_path / "mounted")
    result.folder.mkdir()
    result.call("mount", "-t", "tmpfs", "tmpfs", result.folder)
    try:
        yield result
    finally:
        subprocess.run(["umount", "-l", str(result.folder)], check=True)


def prices(price: float) -> pa.Table:
    return pa.table({"id": [1, 2], "price": [price, price + 1]})


def publish(location: Path, price: float) -> None:
    """Write and publish prices; a file system with files open for writing cannot be remounted."""
    with featurestore.connect(location) as store:
        store.get_or_create_featuregroup(prices(price), "prices", primary_key="id")
        store.insert_into_featuregroup(prices(price), "prices", mode="upsert")
        if not store.get_feature_views():
            store.create_feature_view("current", features=["prices.price"])
        store.publish("current")


def run(target: Callable[..., None], *arguments: object) -> None:
    """Run a function in another process."""
    process = start(target, *arguments)
    process.join(60)
    assert process.exitcode == 0


def test_vectors_of_read_only_store_are_read_and_renewed(mount: Mount) -> None:
    location = mount.folder / "store"
    run(publish, location, 1.0)
    mount.remount("ro")
    with featurestore.connect(location) as reading_store:
        server = reading_store.get_feature_view("current").server()
        assert server.get_vector({"id": 2}) == {"price": 2.0}
        with pytest.raises(OnlineStoreUnavailable, match=r"online(.|\n)*Hint.*can be written"):
            reading_store.publish("current")
        mount.remount("rw")
        run(publish, location, 5.0)
        assert server.get_vector({"id": 2}) == {"price": 6.0}


def create(location: Path, names: Sequence[str], ends: Connection) -> None:
    """Create datasets, report each, and stay alive until the other end is closed."""
    with featurestore.connect(location) as store:
        for name in names:
            frame = store.get_featuregroup("prices")
            with pytest.warns(PublicationWarning, match="became visible"):
                store.create_training_dataset(frame, name, progress=False)
        ends.send("created")
        ends.recv()


def test_unregistered_write_of_live_process_is_recovered_at_connect(tmp_path: Path) -> None:
    location = tmp_path / "store"
    run(publish, location, 1.0)
    # The registration of datasets fails, since their folder of records is a file.
    records = location / "_origins" / "training_dataset"
    records.parent.mkdir(exist_ok=True)
    records.touch()
    parent, child = server.Pipe()
    process = start(create, location, ("first", "second"), child)
    try:
        assert parent.poll(60)
        assert parent.recv() == "created"
        records.unlink()
        with featurestore.connect(location) as store:
            names = [dataset.name for dataset in store.get_training_datasets()]
            assert sorted(names) == ["first", "second"]
        parent.send("end")
        process.join(60)
        assert process.exitcode == 0
    finally:
        kill(process)
