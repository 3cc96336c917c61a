"""The scheduler's /metrics endpoint, and JSON logs with run ids."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from featurestore.cli import app
from featurestore.errors import ConfigurationError
from featurestore.jobs.metrics import serving_metrics
from featurestore.store import FeatureStore
from tests.monitoring.conftest import DAY, NOW, Clock

Define = Callable[..., str]


def read(port: int) -> dict[tuple[str, tuple[str, ...]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        text = response.read().decode()
    result = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            result[sample.name, tuple(sorted(sample.labels.values()))] = sample.value
    return result


def test_metrics_endpoint_returns_current_state(
    shop: FeatureStore, define: Define, clock: Clock
) -> None:
    define()
    with serving_metrics(shop.session, host="127.0.0.1", port=0) as port:
        before = read(port)
        assert ("featurestore_monitor_state", ("alarm", "watch")) not in before
        clock.now = NOW + DAY
        shop.check_monitor("watch")
        assert read(port)["featurestore_monitor_state", ("alarm", "watch")] == 1.0
        with (
            pytest.raises(ConfigurationError, match="cannot be served"),
            serving_metrics(shop.session, host="127.0.0.1", port=port),
        ):
            pass
    with pytest.raises(OSError):
        read(port)


def test_scheduler_serves_metrics_and_logs_json(shop: FeatureStore, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(
        "import featurestore\n"
        "featurestore.sql_job('hourly', sql='select id, \"at\", late from sales', "
        "inputs={'sales': 'sales'}, featuregroup='hourly', primary_key='id', event_time='at', "
        "closed='left', schedule='0 0 * * *', start='2024-03-08T00:00Z', catchup=1)\n"
    )
    shop.register_jobs(tmp_path / "jobs.py")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    words = ["--location", shop.location, "--log-format", "json"]
    start = ["scheduler", "start", "--every", "60s", "--metrics-port", str(port)]
    program = "from featurestore.cli import main; main()"
    command = [sys.executable, "-c", program, *words, *start]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    log = tmp_path / "log.jsonl"
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stderr=stderr, env=environment) as process,
    ):
        try:
            until = time.monotonic() + 60
            while '"done: ' not in log.read_text() and time.monotonic() < until:
                time.sleep(0.2)
            name = "featurestore_job_last_success_timestamp_seconds"
            assert read(port)[name, ("hourly",)] > time.time() - 600
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            finally:
                process.kill()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (run, *_) = shop.get_runs("hourly")
    of_run = [line for line in lines if line.get("run_id") == run.run_id]
    assert {line["job"] for line in of_run} == {"hourly"}
    assert {"time", "level", "logger", "message", "run_id", "job", "work"} <= set(of_run[0])


@pytest.fixture
def logging_of_before() -> Iterator[None]:
    """Restore the logging configuration that a command changes."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


@pytest.mark.usefixtures("logging_of_before")
def test_commands_accept_log_format(
    shop: FeatureStore, define: Define, capfd: pytest.CaptureFixture[str]
) -> None:
    define()
    words = ["job", "run", "watch", "--location", shop.location, "--log-format=json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    (run,) = shop.get_runs("watch")
    document = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    assert {line["run_id"] for line in document if "run_id" in line} == {run.run_id}
