"""A job handed to spark-submit on a real standalone cluster gives the rows of the embedded engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featurestore

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HERE = Path(__file__).parent
PROGRAM = HERE.parents[1] / "examples" / "schedules" / "spark_job.py"
START = datetime(2024, 1, 1, tzinfo=UTC)
JOB = """
import featurestore
demand = featurestore.sql_job(
    "demand",
    sql="select zone, date_trunc('hour', t) + interval 1 hour as hour, count(*) as n from trips group by 1, 2",
    primary_key=["zone"], event_time="hour", schedule="0 * * * *", start="2024-01-01T00:00Z", inputs={"trips": "trips"},
)
"""


@pytest.fixture(scope="module")
def helpers() -> Iterator[Any]:
    sys.path.insert(0, str(HERE))
    try:
        import standalone

        yield standalone
    finally:
        sys.path.remove(str(HERE))


def test_a_submitted_job_gives_the_rows_of_the_embedded_engine(
    helpers: Any, tmp_path: Path
) -> None:
    from featurestore_connectors.spark_delta.session import delta_package

    (tmp_path / "jobs.py").write_text(JOB)
    moments = [START + timedelta(minutes=7 * number) for number in range(200)]
    trips = pa.table(
        {"t": pa.array(moments, pa.timestamp("us", tz="UTC")), "zone": ["a", "b"] * 100}
    )
    stores = [
        featurestore.connect(tmp_path / name, engine="duckdb") for name in ("submitted", "embedded")
    ]
    for store in stores:
        store.create_featuregroup(trips, "trips", event_time="t")
        store.register_jobs(tmp_path / "jobs.py")
    between = (START.isoformat(), (START + timedelta(hours=12)).isoformat())
    with helpers.standalone_cluster(tmp_path) as master:
        command = [
            str(helpers.spark_home() / "bin" / "spark-submit"),
            *("--master", master, "--packages", delta_package(), "--conf", "spark.log.level=ERROR"),
            *("--conf", "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension"),
            *(
                "--conf",
                "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
            ),
            *(
                "--conf",
                "spark.sql.session.timeZone=UTC",
                "--conf",
                f"spark.pyspark.python={sys.executable}",
            ),
            *(str(PROGRAM), stores[0].location, "demand", *between),
        ]
        env = helpers.environment(
            FEATURESTORE_SPARK_STAGING=str(tmp_path / "staging"), SPARK_DRIVER_MEMORY="1g"
        )
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=540, check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]
    stores[1].backfill_job("demand", *between)
    tables = [
        store.get_featuregroup("demand").to_arrow().sort_by("hour").to_pylist() for store in stores
    ]
    assert len(tables[0]) == 24
    assert sorted(map(str, tables[0])) == sorted(map(str, tables[1]))
