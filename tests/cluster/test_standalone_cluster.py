"""The Spark engine on a real standalone cluster, from a session of its own and from spark-submit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HERE = Path(__file__).parent


def answer_of(command: list[str], env: dict[str, str]) -> dict[str, Any]:
    result = subprocess.run(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    # Under spark-submit the program's own errors come by stdout.
    assert result.returncode == 0, result.stderr[-2000:] + result.stdout[-4000:]
    answer: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    return answer


def test_work_is_done_by_the_executors(helpers: Any, master: str, tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    env = helpers.environment(
        FEATURESTORE_SPARK_MASTER=master,
        FEATURESTORE_SPARK_STAGING=str(staging),
        FEATURESTORE_SPARK_DRIVER_MEMORY="1g",
    )
    answer = answer_of([sys.executable, str(HERE / "engine_on_cluster.py"), str(tmp_path)], env)
    rows = 600_000
    assert answer["master"] == master
    assert answer["version"] == 1
    assert answer["count"] == answer["streamed"] == rows
    assert answer["total"] == rows * (rows - 1) // 2
    assert answer["summed_by"] == 2
    written = answer["written"]
    assert [(each["shard"], each["rows"], each["ordered"]) for each in written] == [
        (n, rows // 8, True) for n in range(8)
    ]
    assert len({each["process"] for each in written}) == 2
    # Shard 3 was written twice, by two attempts of its task: one file is left, with all its rows.
    assert answer["files"] == ["failed-once", *(f"shard-{number:05d}" for number in range(8))]
    ids = np.fromfile(tmp_path / "shards" / "shard-00003", dtype=np.int64)
    np.testing.assert_array_equal(ids, np.arange(3, rows, 8)[::-1])
    assert answer["parked"] == []


@pytest.mark.soak
def test_spark_submit_makes_the_bytes_that_the_embedded_engine_makes(
    helpers: Any, master: str, tmp_path: Path
) -> None:
    from featurestore_connectors.spark_delta.session import delta_package

    command = [
        str(helpers.spark_home() / "bin" / "spark-submit"),
        *("--master", master, "--packages", delta_package(), "--conf", "spark.log.level=ERROR"),
        *(str(HERE / "submitted.py"), str(tmp_path / "store")),
    ]
    env = helpers.environment(
        FEATURESTORE_SPARK_STAGING=str(tmp_path / "staging"), SPARK_DRIVER_MEMORY="1g"
    )
    answer = answer_of(command, env)
    assert answer["master"] == master
    assert answer["rows"] == 2000
    assert answer["shards"] == shards_of_the_embedded_engine(tmp_path / "embedded")


def shards_of_the_embedded_engine(location: Path) -> dict[str, list[str]]:
    import pyarrow as pa

    import featurestore

    store = featurestore.connect(location, engine="duckdb")
    rows = [{"zone": number % 50, "trips": number, "fare": number / 4} for number in range(2000)]
    store.create_featuregroup(
        pa.Table.from_pylist(rows), "trips", validation="off", statistics=False
    )
    dataset = store.create_training_dataset(
        store.get_featuregroup("trips"),
        "fares",
        label="fare",
        splits={"train": 0.8, "test": 0.2},
        shards=4,
        seed=7,
        statistics=False,
    )
    return {
        split.name: [shard.sha256 for shard in split.shards] for split in dataset.manifest.splits
    }
