"""The table conformance suite at a URI."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from featurestore.plugins.engine import Engine
from featurestore.storage.connections import use_options
from featurestore.testing.table_conformance import TableConformance
from featurestore_connectors.duckdb_delta import DuckDBEngine
from tests.object_server import ObjectServer
from tests.storage.stores import ABOUT_VALUES
from tests.storage.uri_path import UriPath


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = DuckDBEngine()
    yield engine
    engine.close()


class TestTablesOnS3(TableConformance):
    in_soak = ABOUT_VALUES

    @pytest.fixture
    def tmp_path(self, bucket: str, object_server: ObjectServer) -> UriPath:
        use_options(bucket, object_server.options)
        return UriPath(bucket) / "some folder"
