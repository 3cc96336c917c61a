from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sources import mariadb_server


@pytest.fixture(scope="session")
def mariadb_port() -> Iterator[int]:
    """The port of a MariaDB server; the test is skipped without one."""
    with mariadb_server.running() as port:
        yield port
