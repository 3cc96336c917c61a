"""Groups equal the Postgres table after crashes of Debezium, on both engines."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import featurestore
from featurestore.store import FeatureStore
from tests.registry.conftest import new_database, postgres_server
from tests.streams.conftest import require_spark_reader
from tests.streams.debezium_server import Connect, connecting
from tests.streams.memory_topics import quarantined
from tests.streams.test_real_debezium import (
    JobFile,
    current_rows,
    require_debezium,
    rows_of_table,
)
from tests.streams.topics import Broker

if TYPE_CHECKING:
    import psycopg

psycopg = pytest.importorskip("psycopg")
pytestmark = [pytest.mark.services, pytest.mark.postgres, pytest.mark.soak]
assert postgres_server

TYPES = {"id": "int64", "name": "string", "balance": "decimal(12, 2)", "seen": "timestamp"}
CONNECTORS = {
    # The slot stays behind: Debezium confirms positions although earlier records are still being
    # sent, and a connector that is killed then would lose them.
    "killed": {"lsn.flush.mode": "manual"},
}
# Other formats of times and decimals; the values of the table need no more digits than these have.
MODES = {
    "typed": {},
    "connect": {"time.precision.mode": "connect", "decimal.handling.mode": "string"},
    "nanoseconds": {"time.precision.mode": "nanoseconds", "decimal.handling.mode": "precise"},
    "microseconds": {"time.precision.mode": "microseconds", "decimal.handling.mode": "string"},
}
_ROUNDS = 5
_STATEMENTS = (
    "insert into accounts values (%(id)s, 'in ' || %(n)s, %(n)s / 4.0) on conflict do nothing",
    "update accounts set name = 'up ' || %(n)s, balance = -balance where id = %(id)s",
    "update accounts set id = %(other)s, name = 'moved ' || %(n)s where id = %(id)s"
    " and not exists (select 1 from accounts where id = %(other)s)",
    "delete from accounts where id = %(id)s",
    "update accounts set seen = date_trunc('ms', clock_timestamp()) where id between %(id)s and %(id)s + 5",
)


@pytest.fixture
def accounts(
    broker: Broker, postgres_server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Connect:
    """Connectors that are not started, and a database with one table."""
    require_debezium()
    url = new_database(postgres_server, f"accounts_{abs(hash(request.node.nodeid)) % 10**9}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "create table accounts (id int primary key, name text, balance numeric(12, 2), seen timestamptz)"
        )
        connection.execute(
            "insert into accounts select n, 'old', n / 8.0 from generate_series(1, 2000) n"
        )
    (tmp_path / "connect").mkdir()
    return Connect(tmp_path / "connect", broker.address, url, ("accounts",), CONNECTORS)


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.parametrize("seed", [1, 2])
def test_group_equals_table_after_killed_connector(
    broker: Broker,
    job_file: JobFile,
    accounts: Connect,
    tmp_path: Path,
    engine: Any,
    seed: int,
    request: pytest.FixtureRequest,
) -> None:
    """The connector repeats changes after a kill.

    It is killed after its snapshot: Debezium takes another one if the first is interrupted, and
    writes no events for rows that were deleted in between.
    """
    require_spark_reader(engine)
    if engine == "spark":
        request.getfixturevalue("spark")
    chance = random.Random(seed)
    store = featurestore.connect(tmp_path / "store", engine=engine)
    store.add_source("events", broker.uri)
    with (
        connecting(accounts),
        psycopg.connect(accounts.database, autocommit=True) as connection,
    ):
        accounts.wait()
        for turn in range(_ROUNDS):
            end = time.monotonic() + chance.uniform(0.2, 2)
            while time.monotonic() < end:
                _change(connection, chance)
            if chance.random() < 0.5:
                accounts.wait()
            accounts.kill()
            for _ in range(50):
                _change(connection, chance)
            accounts.start()
            if turn == _ROUNDS // 2:
                accounts.wait()
                store.register_jobs(job_file(_job(accounts, "killed")))
                store.run_job("killed")
        accounts.wait()
        store.run_job("killed")
        _check_rows(store, "killed", rows_of_table(connection, "accounts"))
    store.close()


def test_group_equals_table_in_each_mode_of_connector(
    broker: Broker, job_file: JobFile, accounts: Connect, tmp_path: Path
) -> None:
    chance = random.Random(7)
    accounts.connectors = MODES
    store = featurestore.connect(tmp_path / "store")
    store.add_source("events", broker.uri)
    with (
        connecting(accounts),
        psycopg.connect(accounts.database, autocommit=True) as connection,
    ):
        accounts.wait_for_slots()
        for _ in range(500):
            _change(connection, chance)
        accounts.wait()
        store.register_jobs(job_file("\n".join(_job(accounts, name) for name in MODES)))
        for name in MODES:
            store.run_job(name)
            _check_rows(store, name, rows_of_table(connection, "accounts"))
    store.close()


def _check_rows(store: FeatureStore, name: str, expected: list[dict[str, Any]]) -> None:
    assert quarantined(store, name) == []
    rows = current_rows(store, name, ("id",))
    for row in rows:
        assert row.pop("known_at") is not None
    assert rows == expected


def _job(accounts: Connect, name: str) -> str:
    return (
        f"{name} = featurestore.stream_job({name!r}, source='events', "
        f"topic={accounts.topic(name, 'accounts')!r}, format='debezium', schema={TYPES!r}, "
        "primary_key='id', event_time='changed_at', created_time='known_at', batch_records=2000)"
    )


def _change(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    """Commit one to three random changes."""
    with connection.transaction():
        for _ in range(chance.randint(1, 3)):
            values = {
                "id": chance.randint(1, 2100),
                "other": chance.randint(1, 2100),
                "n": chance.randrange(1000),
            }
            connection.execute(chance.choice(_STATEMENTS), values)
