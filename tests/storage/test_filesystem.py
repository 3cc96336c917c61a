"""DuckDB's file system for URIs: concurrent reads through one handle."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from featurestore.storage import storage_for
from featurestore.storage.connections import use_options_for_owner
from featurestore.storage.filesystem import file_systems
from tests.object_server import ObjectServer

DATA = bytes(range(256)) * 40


def test_file_handle_is_shared_between_threads(bucket: str, object_server: ObjectServer) -> None:
    uri = use_options_for_owner(bucket, "reader", object_server.options)
    storage_for(uri).write_atomically(f"{uri}/data", DATA)
    (system,) = (
        file_system for file_system in file_systems(nullcontext) if file_system.protocol == "s3"
    )
    handle = system.open(f"{uri}/data")
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        content = b""
        for turn in range(10):
            pool = first if turn % 2 else second
            content += pool.submit(handle.read, 7).result()
        assert content == DATA[:70]
    begin = threading.Barrier(4)

    def read(offset: int) -> bytes:
        handle.seek(offset)
        begin.wait()
        return bytes(handle.read(100))

    with ThreadPoolExecutor(4) as pool:
        starts = [10, 500, 3000, 9000]
        assert list(pool.map(read, starts)) == [DATA[start : start + 100] for start in starts]
