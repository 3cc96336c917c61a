"""File systems that become read-only, and folders that lose their permissions."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import OnlineStoreUnavailable, PublicationWarning, RegistryError
from featurestore.store import FeatureStore
from tests.forked_processes import kill, server, start

pytestmark = pytest.mark.services


def mount(*arguments: str | Path) -> None:
    """Mount a file system, or skip the test where nothing can be mounted."""
    result = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"nothing can be mounted here: {result.stderr.strip()}")


@contextmanager
def mounted(*arguments: str | Path, path: Path) -> Iterator[None]:
    """Mount a file system at a path within the block."""
    mount(*arguments, path)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


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


def test_vectors_of_read_only_store_are_read_and_renewed(tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    with mounted("-t", "tmpfs", "tmpfs", path=folder):
        location = folder / "store"
        run(publish, location, 1.0)
        mount("-o", "remount,ro", folder)
        with featurestore.connect(location) as reading_store:
            server = reading_store.get_feature_view("current").server()
            assert server.get_vector({"id": 2}) == {"price": 2.0}
            with pytest.raises(OnlineStoreUnavailable, match=r"online(.|\n)*Hint.*can be written"):
                reading_store.publish("current")
            mount("-o", "remount,rw", folder)
            run(publish, location, 5.0)
            assert server.get_vector({"id": 2}) == {"price": 6.0}


WRITES: Sequence[Callable[[FeatureStore], object]] = (
    lambda store: store.insert_into_featuregroup(prices(5.0), "prices", mode="upsert"),
    lambda store: store.add_featuregroup_tag("prices", "unit", "euro"),
    lambda store: store.create_featuregroup(prices(1.0), "costs", primary_key="id"),
    lambda store: store.create_feature_view("newest", features=["prices.price"]),
    lambda store: store.create_training_dataset(
        store.get_featuregroup("prices"), "second", progress=False
    ),
    lambda store: store.delete_training_dataset("first", version=1),
)


def read(store: FeatureStore) -> tuple[object, ...]:
    """Return rows, a vector, and what ``WRITES`` change in lists."""
    return (
        store.get_featuregroup("prices").to_arrow().to_pydict(),
        store.get_feature_view("current").server().get_vector({"id": 2}),
        store.get_featuregroup_tags("prices"),
        sorted(group.name for group in store.get_featuregroups()),
        sorted(view.name for view in store.get_feature_views()),
        sorted(dataset.name for dataset in store.get_training_datasets()),
    )


def test_read_only_registry_file_refuses_writes_and_changes_nothing(tmp_path: Path) -> None:
    location = tmp_path / "store"
    run(publish, location, 1.0)
    registry = location / "registry.db"
    with featurestore.connect(location) as store:
        frame = store.get_featuregroup("prices")
        store.create_training_dataset(frame, "first", progress=False)
        store.publish("current")
        before = read(store)
    with mounted("--bind", registry, path=registry):
        mount("-o", "remount,bind,ro", registry)
        with featurestore.connect(location) as store:
            for write in WRITES:
                with pytest.raises(RegistryError, match=rf"{registry}(.|\n)*Hint.*write access"):
                    write(store)
            assert store.publish("current").rows == {"prices@v1": 0}
            assert read(store) == before
    with featurestore.connect(location) as store:
        assert read(store) == before
        for write in WRITES:
            write(store)
        assert read(store) == (
            {"id": [1, 2], "price": [5.0, 6.0]},
            {"price": 2.0},
            {"unit": "euro"},
            ["costs", "prices"],
            ["current", "newest"],
            ["second"],
        )


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
