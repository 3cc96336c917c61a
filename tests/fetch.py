"""Download the test dependencies that are not Python packages into a cache outside the repository.

``python -m tests.fetch`` prints one line for each part that is not in the cache. Tests that need
a part which could not be fetched are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from featurestore.errors import FeatureStoreError
from featurestore_connectors.spark_delta.jars import fetch_gcs_connector
from tests.azure_server import azurite
from tests.gcs_server import fake_gcs_server
from tests.hdfs_server import NoHdfs, hdfs_jars
from tests.maven import NotFetched
from tests.server.axe import axe
from tests.server.browser import fetch_browser
from tests.sources.flight_sql_server import sqlite_server
from tests.sources.iceberg_rest_server import catalog_jars
from tests.streams.debezium_server import debezium_jars
from tests.streams.kafka_server import NoKafka, kafka_jars, spark_connectors

FETCHERS: dict[str, Callable[[], object]] = {
    "Kafka (Maven Central)": kafka_jars,
    "Spark's connectors to Kafka, S3 and PostgreSQL (Maven Central)": spark_connectors,
    "Debezium with Kafka Connect (Maven Central)": debezium_jars,
    "HDFS (Maven Central)": hdfs_jars,
    "Azurite (npm)": azurite,
    "fake-gcs-server (Go)": fake_gcs_server,
    "Google's connector of Hadoop (Maven Central)": fetch_gcs_connector,
    "Arrow's Flight SQL server (Go)": sqlite_server,
    "Iceberg's REST catalog (Maven Central)": catalog_jars,
    "axe-core for accessibility (npm)": axe,
    "Chromium, if none is installed (Playwright)": fetch_browser,
}


def main() -> None:
    for name, fetch in FETCHERS.items():
        start = time.monotonic()
        try:
            fetch()
        except (NotFetched, NoKafka, NoHdfs, FeatureStoreError) as error:
            print(f"{name}: not fetched, tests that need it are skipped: {error}", flush=True)
        else:
            seconds = time.monotonic() - start
            if seconds > 1:
                print(f"{name}: fetched in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
