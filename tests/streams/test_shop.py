"""The shop example runs from its servers to its training dataset."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.registry.conftest import require_postgres
from tests.streams.conftest import SKIPPED
from tests.streams.kafka_server import NoKafka, kafka_jars

SHOP = Path(__file__).parents[2] / "examples" / "shop" / "main.py"


@pytest.mark.slow
@pytest.mark.postgres
def test_shop_example_creates_dataset_and_stops_servers(tmp_path: Path) -> None:
    require_postgres()
    pytest.importorskip("confluent_kafka", reason=f"{SKIPPED}: confluent-kafka is not installed")
    try:
        kafka_jars()
    except NoKafka as error:
        pytest.skip(f"{SKIPPED}: {error}")
    assert shutil.which("java"), "Kafka runs on Java"
    result = subprocess.run(
        [sys.executable, str(SHOP), "--customers", "20"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "clicks: 600 rows, lag 0" in result.stdout
    assert "orders: 20 rows" in result.stdout
    assert "1 clicks could not be read: the value is not JSON" in result.stdout
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert "featurestore-shop-" not in processes.stdout
