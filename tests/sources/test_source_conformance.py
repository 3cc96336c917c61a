"""Sources with relational tables pass the shipped conformance suite.

Records of Kafka have the columns of records (offset, key, value) whatever was written, so that rows
of orders cannot be put there; tests/streams tries them.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from featurestore.plugins.source import Source, SourceQuery
from featurestore.testing.source_conformance import SourceConformance
from tests.registry.conftest import postgres_server  # noqa: F401  # a fixture
from tests.sources.places import PLACES, mysql, postgres, sqlalchemy


class TestFiles(SourceConformance):
    @pytest.fixture(autouse=True, params=PLACES)
    def _kind(self, request: pytest.FixtureRequest) -> None:
        self.kind = request.param

    def source(self, rows: pa.Table, place: Path) -> tuple[Source, SourceQuery]:
        return PLACES[self.kind](rows, place)


@pytest.mark.postgres
class TestPostgres(SourceConformance):
    @pytest.fixture(autouse=True)
    def _database(self, postgres_server: str) -> None:  # noqa: F811
        self.url = f"{postgres_server}/postgres"

    def source(self, rows: pa.Table, place: Path) -> tuple[Source, SourceQuery]:
        del place
        return postgres(rows, self.url)


@pytest.mark.postgres
class TestDialectOfSQLAlchemy(TestPostgres):
    def source(self, rows: pa.Table, place: Path) -> tuple[Source, SourceQuery]:
        del place
        return sqlalchemy(rows, self.url)


@pytest.mark.mariadb
class TestMariaDB(SourceConformance):
    @pytest.fixture(autouse=True)
    def _server(self, mariadb_port: int) -> None:
        self.port = mariadb_port

    def source(self, rows: pa.Table, place: Path) -> tuple[Source, SourceQuery]:
        del place
        return mysql(rows, self.port)
