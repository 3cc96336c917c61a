"""A process with a Spark Connect session that uses a store. Prints its results as JSON.

Arguments: the address of the server and the location of the store.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

import featurestore
from featurestore.errors import FeatureStoreError

ROWS = """
    SELECT id AS zone, CAST(id AS double) AS trips, CAST(id AS smallint) AS small,
           CAST(id AS decimal(9, 2)) AS price, TIMESTAMP '2024-01-01 00:00:00Z' AS at,
           IF(id % 7 = 0, NULL, CONCAT('z', id)) AS name,
           IF(id % 5 = 0, NULL, ARRAY(CAST(id AS float), 2f)) AS pair,
           ARRAY(ARRAY(id, 1), ARRAY(2, 3), ARRAY(4, 5)) AS matrix,
           SLICE(ARRAY(1, 2, 3), 1, CAST(1 + id % 3 AS int)) AS ragged
    FROM range({rows})
"""


def record_reads(session: Any) -> list[list[int]]:
    """Record the rows of each batch of each result that the server sends."""
    reads: list[list[int]] = []
    client = session.client
    fetch = client._execute_and_fetch_as_iterator

    def record(*arguments: Any, **keywords: Any) -> Any:
        batches: list[int] = []
        reads.append(batches)
        for item in fetch(*arguments, **keywords):
            if hasattr(item, "num_rows"):
                batches.append(item.num_rows)
            yield item

    client._execute_and_fetch_as_iterator = record
    return reads


def main() -> None:
    address, location = sys.argv[1:]
    session = SparkSession.builder.remote(address).getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    store = featurestore.connect(location, engine="duckdb")
    record: dict[str, Any] = {}
    reads = record_reads(session)
    rows = session.sql(ROWS.format(rows=5000))
    store.create_featuregroup(rows, "zones", primary_key="zone", event_time="at")
    record["group_reads"] = [sum(batches) for batches in reads if batches]
    record["largest_batch"] = max(map(max, filter(None, reads)))
    reads.clear()
    store.insert_into_featuregroup(session.sql(ROWS.format(rows=10)), "zones", mode="upsert")
    store.insert_into_featuregroup(rows.where("false"), "zones", mode="upsert")
    labels = session.sql(
        "SELECT id AS zone, TIMESTAMP '2024-02-01 00:00:00Z' AS at, id % 2 AS y FROM range(4)"
    )
    reads.clear()
    frame = store.get_features(["zones.name", "zones.pair", "zones.matrix"], labels=labels)
    table = frame.to_arrow()
    record["label_reads"] = [sum(batches) for batches in reads if batches]
    record["types"] = {field.name: str(field.type) for field in table.schema}
    record["rows"] = json.loads(json.dumps(table.to_pylist(), default=str))
    group = store.get_featuregroup("zones")
    record["group_types"] = {field.name: str(field.type) for field in group.to_arrow().schema}
    returned = group.to_spark()
    record["module"] = type(returned).__module__
    record["changed"] = returned.exceptAll(rows.select(*returned.columns)).count()
    record["stored"] = returned.count()
    record["joined"] = returned.join(rows, "zone").count()
    on_spark = featurestore.connect(location, engine="spark")
    for name, call in (
        ("group", lambda: on_spark.get_featuregroup("zones").to_arrow()),
        ("frame", lambda: on_spark.insert_into_featuregroup(rows, "zones", mode="upsert")),
    ):
        try:
            call()
        except FeatureStoreError as error:
            record[f"refused_{name}"] = str(error)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
