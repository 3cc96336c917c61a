from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featurestore.store import FeatureStore
from tests.streams.kafka_server import NoKafka, free_port, running, spark_jars
from tests.streams.topics import Broker

SKIPPED = "Kafka suite skipped"


def require_spark_reader(engine_name: str) -> None:
    """Skip the current test if it runs on Spark without Spark's reader of Kafka."""
    if engine_name == "spark" and not spark_jars():
        pytest.skip(f"{SKIPPED}: python -m tests.fetch fetches Spark's reader")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for the run; the test is skipped without one."""
    pytest.importorskip("confluent_kafka", reason=f"{SKIPPED}: confluent-kafka is not installed")
    folder = tmp_path_factory.mktemp("kafka")
    try:
        port = free_port()
        with running(folder, secured=port) as address:
            yield Broker(address, f"127.0.0.1:{port}")
    except NoKafka as error:
        pytest.skip(f"{SKIPPED}: {error}")


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Write a job file whose grants are stored in the test's folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def write(text: str) -> Path:
        path = tmp_path / f"jobs{len(os.listdir(tmp_path))}.py"
        path.write_text(f"import featurestore\n\n{text}\n")
        return path

    return write


@dataclass
class Landings:
    """The committed rows, with the state before each commit."""

    rows: list[int] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)


@pytest.fixture
def landings(monkeypatch: pytest.MonkeyPatch) -> Landings:
    """Record the commits of streams."""
    from featurestore.streams import loop

    result, land = Landings(), loop.commit_micro_batch

    def watched(session: Any, job: str, work: Any, group: Any, batch: Any, **kwargs: Any) -> Any:
        (status,) = FeatureStore(session).get_jobs()
        assert status.stream is not None
        result.lags.append(status.stream.lag)
        result.allocated.append(pa.total_allocated_bytes())
        if isinstance(batch.records, pa.Table):
            result.bytes.append(batch.records.nbytes)
        landed = land(session, job, work, group, batch, **kwargs)
        result.rows.append(landed.rows)
        return landed

    monkeypatch.setattr(loop, "commit_micro_batch", watched)
    return result
