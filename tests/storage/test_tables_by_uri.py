"""The table conformance suite on S3 and HDFS."""

from __future__ import annotations

import pytest

from featurestore.storage.connections import use_options
from featurestore.testing.table_conformance import TableConformance
from tests.object_server import ObjectServer
from tests.storage.stores import ABOUT_VALUES
from tests.storage.uri_path import UriPath


class TestTablesOnS3(TableConformance):
    in_soak = ABOUT_VALUES

    @pytest.fixture
    def tmp_path(self, bucket: str, object_server: ObjectServer) -> UriPath:
        use_options(bucket, object_server.options)
        return UriPath(bucket) / "some folder"


class TestTablesOnHdfs(TableConformance):
    in_soak = ABOUT_VALUES

    @pytest.fixture
    def tmp_path(self, hdfs_folder: str) -> UriPath:
        return UriPath(hdfs_folder) / "some folder"
