"""The online stores pass the shipped conformance suite."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from featurestore.plugins.online import OnlineConfig, OnlineStore, open_config
from featurestore.testing.online_conformance import OnlineConformance

PASSWORD = "tr0ub4dor&3"


class TestSQLite(OnlineConformance):
    def store(self, directory: Path) -> OnlineStore:
        return open_config(OnlineConfig("ours", f"sqlite:///{directory}/online.db"))


class TestRedis(OnlineConformance):
    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        import redis

        # The permissions in docs/how-to/online-stores.md are sufficient.
        permissions = "~* +@read +@write +@scripting +info +time +scan +dbsize"
        with redis.Redis.from_url(redis_url) as client:
            user = ("acl", "setuser", "features", "on", f">{PASSWORD}", *permissions.split())
            client.execute_command(*user)
        self.url = redis_url.replace("://", "://features@")

    def store(self, directory: Path) -> OnlineStore:
        del directory
        return open_config(OnlineConfig("ours", self.url, partial(str, PASSWORD)))


@pytest.mark.postgres
class TestPostgres(OnlineConformance):
    @pytest.fixture(autouse=True)
    def _server(self, postgres_server: str) -> None:
        self.url = f"{postgres_server}/postgres"

    def store(self, directory: Path) -> OnlineStore:
        import psycopg

        del directory
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("drop table if exists featurestore_online")
        return open_config(OnlineConfig("ours", self.url))

    def test_first_writes_of_many_processes_create_one_table(self, tmp_path: Path) -> None:
        for _ in range(5):
            first = self.store(tmp_path)
            writers = [first, *(open_config(OnlineConfig("ours", self.url)) for _ in range(7))]
            for writer in writers:
                writer.read([b"key"])  # connects
            start = threading.Barrier(len(writers))
            with ThreadPoolExecutor(len(writers)) as threads:
                list(threads.map(partial(_write_together, start), writers, range(len(writers))))
            assert first.statistics()["keys"] == len(writers)
            for writer in writers:
                writer.close()


def _write_together(start: threading.Barrier, writer: OnlineStore, number: int) -> None:
    start.wait()
    writer.write([b"%d" % number], [b"value"])
