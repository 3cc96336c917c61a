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
from tests.sources.source_writers import SOURCE_WRITERS, mysql, postgres, sqlalchemy


class TestFiles(SourceConformance):
    @pytest.fixture(autouse=True, params=SOURCE_WRITERS)
    def _set_source_type(self, request: pytest.FixtureRequest) -> None:
        self.source_type = request.param

    def source(self, rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
        return SOURCE_WRITERS[self.source_type](rows, directory)


@pytest.mark.postgres
class TestPostgres(SourceConformance):
    @pytest.fixture(autouse=True)
    def _database(self, postgres_server: str) -> None:  # noqa: F811
        self.url = f"{postgres_server}/postgres"

    def source(self, rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
        del directory
        return postgres(rows, self.url)


@pytest.mark.postgres
class TestDialectOfSQLAlchemy(TestPostgres):
    def source(self, rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
        del directory
        return sqlalchemy(rows, self.url)


@pytest.mark.mariadb
class TestMariaDB(SourceConformance):
    @pytest.fixture(autouse=True)
    def _server(self, mariadb_port: int) -> None:
        self.port = mariadb_port

    def source(self, rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
        del directory
        return mysql(rows, self.port)
