from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.registry.conftest import postgres_server, postgres_url  # noqa: F401  # fixtures
from tests.serving import redis_server as servers


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """The URL of a server without persistence; the test is skipped without one."""
    with servers.running() as server:
        yield server.url


@pytest.fixture(scope="session")
def durable_redis() -> Iterator[servers.RedisServer]:
    """A server that writes each command to its log before it acknowledges the command."""
    with servers.running("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """The URL of an empty Redis database."""
    servers.empty(redis_server)
    return redis_server
