"""Password guessing is slowed down by failures per account and address."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from featurestore.errors import NotSignedIn, TooManyAttempts
from featurestore.registry import access as registry
from featurestore.server.access import changes, visitors
from featurestore.server.access import sign_in as access
from featurestore.store import FeatureStore
from tests.server.private_groups import PASSWORD, ROOT

USERS = [f"user{number}" for number in range(8)]
CLIENT_ADDRESS, OTHER_ADDRESS = "192.0.2.1", "198.51.100.7"


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = datetime(2024, 3, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (access, registry):
        monkeypatch.setattr(module, "utc_now", clock)
    return clock


@pytest.fixture
def users_store(
    empty_store: FeatureStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> FeatureStore:
    from argon2 import PasswordHasher

    fast = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
    monkeypatch.setattr(visitors, "_hasher", lambda: fast)
    for name in USERS:
        changes.add_user(empty_store.session, ROOT, name, role="reader", password=PASSWORD)
    return empty_store


def outcome(store: FeatureStore, name: str, password: str, address: str = CLIENT_ADDRESS) -> str:
    """Return "in", "wrong", or the seconds to wait after an attempt."""
    try:
        access.sign_in(store.session, name, password, address=address)
    except TooManyAttempts as error:
        seconds = re.fullmatch(r"wait (\d+) seconds", str(error.hint))
        assert seconds is not None
        return seconds[1]
    except NotSignedIn:
        return "wrong"
    return "in"


def test_correct_passwords_are_not_counted(users_store: FeatureStore) -> None:
    assert {outcome(users_store, "user0", PASSWORD) for _ in range(40)} == {"in"}
    with ThreadPoolExecutor(16) as pool:
        parallel = pool.map(
            lambda number: outcome(users_store, USERS[number % 8], PASSWORD), range(40)
        )
        assert set(parallel) == {"in"}


def test_parallel_guesses_count(users_store: FeatureStore) -> None:
    with ThreadPoolExecutor(16) as pool:
        outcomes = list(
            pool.map(lambda number: outcome(users_store, "user0", f"guess {number}"), range(40))
        )
    assert outcomes.count("wrong") == 5
    assert "in" not in outcomes


def test_wait_doubles_up_to_fifteen_minutes(users_store: FeatureStore, clock: Clock) -> None:
    for _ in range(5):
        assert outcome(users_store, "user0", "wrong") == "wrong"
    waits = []
    for _ in range(7):
        waits.append(int(outcome(users_store, "user0", PASSWORD)))
        clock.now += timedelta(seconds=waits[-1] - 1)
        assert outcome(users_store, "user0", PASSWORD) == "1"
        clock.now += timedelta(seconds=1)
        assert outcome(users_store, "user0", "wrong") == "wrong"
    assert waits == [30, 60, 120, 240, 480, 900, 900]
    clock.now += timedelta(minutes=15)
    assert outcome(users_store, "user0", PASSWORD) == "in"
    assert outcome(users_store, "user0", "wrong") == "wrong"
    assert outcome(users_store, "user0", PASSWORD) == "in"


def test_locked_account_does_not_lock_others(users_store: FeatureStore, clock: Clock) -> None:
    for _ in range(30):
        if outcome(users_store, "user0", "wrong") != "wrong":
            clock.now += timedelta(minutes=2)
    assert outcome(users_store, "user0", PASSWORD) not in ("in", "wrong")
    assert outcome(users_store, "user0", PASSWORD, OTHER_ADDRESS) == "in"
    assert outcome(users_store, "user1", PASSWORD) == "in"


def test_password_spraying_locks_the_address(users_store: FeatureStore) -> None:
    for number in range(30):
        assert outcome(users_store, f"name % _ {number}", "wrong") == "wrong"
        if number % 10 == 0:  # a correct password does not reset the count of others
            assert outcome(users_store, "user1", PASSWORD) == "in"
    assert outcome(users_store, "user1", PASSWORD) == "30"
    assert outcome(users_store, "user1", PASSWORD, OTHER_ADDRESS) == "in"


def test_many_addresses_lock_the_account(users_store: FeatureStore) -> None:
    outcomes = [outcome(users_store, "user0", "wrong", f"10.0.{number}.1") for number in range(101)]
    assert outcomes == ["wrong"] * 100 + ["30"]
    assert outcome(users_store, "user1", PASSWORD, "10.0.0.1") == "in"


def test_ipv6_network_counts_as_one_address(users_store: FeatureStore) -> None:
    outcomes = [
        outcome(users_store, "user0", "wrong", f"2001:db8::{number}") for number in range(1, 7)
    ]
    assert outcomes == ["wrong"] * 5 + ["30"]


@pytest.mark.parametrize("days", [1, -1])
def test_clock_jump_locks_no_account(users_store: FeatureStore, clock: Clock, days: int) -> None:
    for _ in range(5):
        assert outcome(users_store, "user0", "wrong") == "wrong"
    clock.now += timedelta(days=days)
    assert outcome(users_store, "user0", PASSWORD) == "in"


def test_registry_stores_no_attempted_names(users_store: FeatureStore) -> None:
    outcome(users_store, "my secret password", "ann")
    with users_store.session.registry.reading() as connection:
        rows = connection.exec_driver_sql("select who from failed_sign_ins").scalars().all()
    assert len(rows) == 1
    assert "secret" not in rows[0]
