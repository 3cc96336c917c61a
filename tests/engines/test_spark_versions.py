"""Shared suites in environments with each supported pair of pyspark and delta-spark."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from featurestore_connectors.spark_delta.jars import DELTA_OF_SPARK, NEWEST_PAIR

pytestmark = [pytest.mark.spark, pytest.mark.soak]

ROOT = Path(__file__).parents[2]
PAIRS = [("4.0.5", "4.0.1"), ("4.1.4", "4.3.0"), ("4.1.4", "4.4.0"), ("4.2.0", "4.4.0")]
SUITES = (
    "tests/engines/test_spark_conformance.py",
    "tests/engines/test_spark_tables.py::test_spark_continues_after_checkpoint_of_embedded_engine",
    "tests/training/test_equal_bytes.py",
    "tests/retrieval/test_point_in_time_spark.py",
)


def test_pairs_are_first_and_last_of_supported_versions() -> None:
    supported = {(minor, delta) for minor, versions in DELTA_OF_SPARK.items() for delta in versions}
    assert {(spark.rpartition(".")[0], delta) for spark, delta in PAIRS} == supported
    assert PAIRS[-1] == NEWEST_PAIR


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("spark_version", "delta_version"), PAIRS)
def test_shared_suites_pass_with_pair(
    spark_version: str, delta_version: str, tmp_path: Path
) -> None:
    environment = tmp_path / "environment"
    packages = [f"pyspark=={spark_version}", f"delta-spark=={delta_version}", "pandas==2.3.3"]
    subprocess.run([ROOT / "scripts" / "spark-environment", environment, *packages], check=True)
    command = [environment / "bin" / "python", "-m", "pytest", "-q", "-n0", "--tb=short"]
    finished = subprocess.run(
        [*command, "-m", "spark and not soak", *SUITES],
        cwd=ROOT,
        env=os.environ | {"CI": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-4000:]
    print(finished.stdout[-200:])
