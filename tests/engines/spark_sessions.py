"""A process with a Spark session started by the engine, then with a plain session.

Prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys

import pyarrow as pa
from pyarrow import RecordBatch
from pyspark.sql import SparkSession

from featurestore.errors import ConfigurationError
from featurestore_connectors.spark_delta import SparkEngine


def add_interpreter(batch: RecordBatch) -> RecordBatch:
    return RecordBatch.from_arrays(
        [batch.column(0), pa.array([sys.executable] * batch.num_rows)], names=["id", "python"]
    )


def main() -> None:
    engine = SparkEngine()
    rows = engine.from_arrow(pa.table({"id": [0, 1]}).to_reader())
    mapped = engine.map_batches(
        rows, add_interpreter, schema=pa.schema([("id", pa.int64()), ("python", pa.string())])
    )
    report: dict[str, object] = {"rows": engine.stream(mapped).read_all().to_pylist()}
    names = [
        "master",
        "driver.memory",
        "sql.session.timeZone",
        "sql.shuffle.partitions",
        "ui.enabled",
    ]
    report["settings"] = {
        f"spark.{name}": engine.session.conf.get(f"spark.{name}") for name in names
    }
    context = engine.session.sparkContext
    engine.close()
    report["stopped"] = context._jsc is None
    plain = SparkSession.builder.config("spark.sql.extensions", "").getOrCreate()
    try:
        engine.count(engine.from_arrow(pa.table({"id": [0]}).to_reader()))
    except ConfigurationError as error:
        report |= {"refused": error.message, "hint": error.hint}
    engine.close()
    report["left_running"] = plain.range(2).count() == 2
    plain.stop()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
