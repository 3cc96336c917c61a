"""A receiver of lineage events, and a store that sends to it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featurestore.lineage import emitter
from featurestore.store import FeatureStore
from tests.monitoring.receivers import Received, web_server

HOURS = pa.array(
    [1_700_000_000_000_000 + n * 3_600_000_000 for n in range(6)], pa.timestamp("us", "UTC")
)
WEATHER = pa.table(
    {"origin": ["EWR"] * 6, "at": HOURS, "temp": [40.0, 41.5, None, 39.0, 38.0, 37.0]}
)
FLIGHTS = pa.table({"id": [1, 2, 3], "origin": ["EWR"] * 3, "asked": HOURS[2:5], "late": [0, 1, 0]})


@dataclass
class Lineage:
    """Events received from the emitter."""

    received: Received

    def events(self) -> list[dict[str, Any]]:
        """Return the received events after flushing the emitter."""
        emitter.stop(seconds=10)
        return self.received.messages

    def job_events(self, job: str) -> list[tuple[str, dict[str, Any]]]:
        return [
            (event["eventType"], event) for event in self.events() if event["job"]["name"] == job
        ]


@pytest.fixture
def lineage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Lineage]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with web_server() as received:
        monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{received.port}")
        monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "traffic")
        try:
            yield Lineage(received)
        finally:
            emitter.stop()
            # Keep the log messages of retries out of other tests.
            for thread in threading.enumerate():
                if thread.name == "lineage":
                    thread.join(30)
                    assert not thread.is_alive()
            logging.getLogger("featurestore.lineage").setLevel(logging.NOTSET)


@pytest.fixture
def emitting_store(lineage: Lineage, empty_store: FeatureStore) -> FeatureStore:
    """An empty store that sends events to the receiver."""
    return empty_store
