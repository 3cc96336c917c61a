"""The table conformance suite on HDFS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from featurestore.plugins.engine import Engine
from featurestore.testing.table_conformance import TableConformance
from featurestore_connectors.duckdb_delta import DuckDBEngine
from tests.storage.stores import ABOUT_VALUES
from tests.storage.uri_path import UriPath


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = DuckDBEngine()
    yield engine
    engine.close()


class TestTablesOnHdfs(TableConformance):
    in_soak = ABOUT_VALUES

    @pytest.fixture
    def tmp_path(self, hdfs_folder: str) -> UriPath:
        return UriPath(hdfs_folder) / "some folder"
