"""Lineage events of inserts, exports, validations, jobs and failures, as received."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from openlineage.client.generated.base import EventType

import featurestore
from featurestore.errors import JobFailed, JobWarning, ValidationFailed
from featurestore.lineage import emitter
from featurestore.lineage.emitter import Emitter
from featurestore.lineage.events import build_event
from featurestore.plugins.observers import Work, add_observer, observed, remove_observer
from featurestore.store import FeatureStore
from tests.lineage.conftest import FLIGHTS, WEATHER, Lineage
from tests.lineage.schemas import check_event

JOBS = """
import featurestore
featurestore.sql_job("daily", sql="select origin, max(temp) + 1 as warmest, $window_end as at "
                     "from weather group by origin", inputs={"weather": "weather"},
                     featuregroup="daily", primary_key="origin",
                     event_time="at", schedule="0 0 * * *", start="2023-11-14T00:00Z", retries=0)

@featurestore.job(featuregroup="broken", event_time="at", schedule="0 0 * * *", start="2023-11-14T00:00Z", retries=0)
def broken(window):
    raise ValueError("nothing works")
"""


def fill(store: FeatureStore) -> None:
    store.create_featuregroup(WEATHER, "weather", primary_key="origin", event_time="at")
    store.create_featuregroup(FLIGHTS, "flights", primary_key="id", event_time="asked")


def facets(dataset: dict[str, Any]) -> dict[str, Any]:
    return dataset["facets"]


def origins(output: dict[str, Any], column: str) -> set[tuple[str, str, str]]:
    """Return (folder of the group, column, subtype) of the inputs of a column."""
    return {
        (field["name"].split("featuregroups/")[1], field["field"], transformation["subtype"])
        for field in facets(output)["columnLineage"]["fields"][column]["inputFields"]
        for transformation in field["transformations"]
    }


def test_insert_event_has_columns_version_and_counts(
    emitting_store: FeatureStore, lineage: Lineage
) -> None:
    fill(emitting_store)
    emitting_store.insert_into_featuregroup(WEATHER.slice(0, 1), "weather", mode="upsert")
    (_, start_event), (event_type, end_event) = lineage.job_events("write.weather")
    assert (start_event["eventType"], event_type) == ("START", "COMPLETE")
    assert start_event["run"]["runId"] == end_event["run"]["runId"]
    assert end_event["job"]["namespace"] == "traffic"
    (output,) = end_event["outputs"]
    assert output["namespace"] == "file"
    assert output["name"] == f"{emitting_store.location}/featuregroups/weather/v1"
    assert [(field["name"], field["type"]) for field in facets(output)["schema"]["fields"]] == [
        ("origin", "string"),
        ("at", "timestamp[us, tz=UTC]"),
        ("temp", "double"),
    ]
    assert facets(output)["version"]["datasetVersion"] == "2"
    assert facets(output)["symlinks"]["identifiers"][0]["name"] == "weather@v1"
    metrics = facets(output)["dataQualityMetrics"]
    assert (metrics["rowCount"], metrics["columnMetrics"]["temp"]["nullCount"]) == (6, 1)
    assert output["outputFacets"]["outputStatistics"]["rowCount"] >= 1


def test_validation_event_has_parent_write_and_expectations(
    emitting_store: FeatureStore, lineage: Lineage
) -> None:
    fill(emitting_store)
    wrong = FLIGHTS.set_column(0, "id", [[1, None, 3]])
    with pytest.raises(ValidationFailed):
        emitting_store.create_featuregroup(wrong, "wrong", primary_key="id")
    emitting_store.validate_featuregroup("weather")
    (_, start_event), (event_type, end_event) = lineage.job_events("validate.wrong")
    assert event_type == "FAIL"
    parent = end_event["run"]["facets"]["parent"]
    assert parent["job"]["name"] == "create.wrong"
    (created, *_), (failed, failure) = lineage.job_events("create.wrong")
    assert (created, failed) == ("START", "FAIL")
    assert parent["run"]["runId"] == failure["run"]["runId"]
    assert "id" in failure["run"]["facets"]["errorMessage"]["message"]
    (checked,) = end_event["inputs"]
    actual = checked["inputFacets"]["dataQualityAssertions"]["assertions"]
    successes = {assertion["assertion"]: assertion["success"] for assertion in actual}
    assert successes["no_null_keys"] is False
    _, (_, alone) = lineage.job_events("validate.weather")[-2:]
    assert alone["inputs"][0]["facets"]["version"]["datasetVersion"] == "1"
    assert "parent" not in alone["run"]["facets"]
    assert start_event["inputs"][0]["name"] == checked["name"]


def test_start_event_sent_late_equals_event_at_start(
    tmp_path: Path,
) -> None:
    all_done = threading.Event()
    events: list[Any] = []

    def send(event: Any) -> None:
        assert all_done.wait(60)
        events.append(event)

    class Emits(Emitter):
        """Also creates the start event immediately."""

        def began(self, work: Work) -> None:
            immediate_events.append(build_event(work, work.started, ended=False))
            super().began(work)

    immediate_events: list[Any] = []
    emitter = Emits(send)
    add_observer(emitter)
    try:
        with featurestore.connect(tmp_path / "store", engine="duckdb") as store:
            fill(store)
            store.insert_into_featuregroup(WEATHER.slice(0, 1), "weather", mode="upsert")
            store.validate_featuregroup("weather")
            (tmp_path / "jobs.py").write_text(JOBS)
            store.register_jobs(tmp_path / "jobs.py")
            store.run_job("daily", window="2023-11-14T00:00Z")
            frame = store.get_features(["weather.temp"], labels="flights")
            dataset = store.create_training_dataset(frame, "late", label="late", progress=False)
            store.delete_training_dataset("late", version=dataset.version)
            with pytest.warns(JobWarning, match="'daily' again"):
                store.delete_featuregroup("daily", version=1)
    finally:
        remove_observer(emitter)
        all_done.set()
        emitter.close(30)
    start_events = [event for event in events if event.eventType == EventType.START]
    assert start_events == immediate_events
    kinds = {event.job.name.partition(".")[0] for event in start_events}
    assert kinds == {"create", "write", "validate", "daily", "export", "remove", "delete"}


def test_export_event_has_inputs_and_column_lineage(
    emitting_store: FeatureStore, lineage: Lineage
) -> None:
    fill(emitting_store)
    window = featurestore.window("weather.temp", "mean", over="2h")
    first = emitting_store.get_features(["weather.temp as warm", window], labels="flights")
    dataset = emitting_store.create_training_dataset(
        first, "late", label="late", shards=1, progress=False
    )
    _, (event_type, end_event) = lineage.job_events("export.late")
    assert event_type == "COMPLETE"
    (output,) = end_event["outputs"]
    assert output["name"] == dataset.path
    read = {entry["name"].rpartition("featuregroups/")[2]: entry for entry in end_event["inputs"]}
    assert set(read) == {"weather/v1", "flights/v1"}
    assert facets(read["weather/v1"])["version"]["datasetVersion"] == "1"
    assert origins(output, "warm") == {("weather/v1", "temp", "IDENTITY")}
    assert origins(output, "late") == {("flights/v1", "late", "IDENTITY")}
    assert origins(output, "temp_mean_2h") == {("weather/v1", "temp", "AGGREGATION")}
    joined = facets(output)["columnLineage"]["dataset"]
    assert {"origin", "at", "asked"} <= {field["field"] for field in joined}
    assert facets(output)["version"]["datasetVersion"] == "1"
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 3


def test_create_event_from_retrieval_keeps_column_lineage(
    emitting_store: FeatureStore, lineage: Lineage
) -> None:
    fill(emitting_store)
    frame = emitting_store.get_features(["weather.temp"], labels="flights")
    emitting_store.create_featuregroup(frame, "joined", primary_key="id", event_time="asked")
    _, (_, end_event) = lineage.job_events("create.joined")
    assert origins(end_event["outputs"][0], "temp") == {("weather/v1", "temp", "IDENTITY")}
    read = {entry["name"].rpartition("featuregroups/")[2] for entry in end_event["inputs"]}
    assert read == {"weather/v1", "flights/v1"}


def test_job_event_is_parent_and_failure_has_error(
    emitting_store: FeatureStore, lineage: Lineage, tmp_path: Path
) -> None:
    fill(emitting_store)
    (tmp_path / "jobs.py").write_text(JOBS)
    emitting_store.register_jobs(tmp_path / "jobs.py")
    (run,) = emitting_store.run_job("daily", window="2023-11-14T00:00Z")
    with pytest.raises(JobFailed):
        emitting_store.run_job("broken", window="2023-11-14T00:00Z")
    (_, start_event), (event_type, end_event) = lineage.job_events("daily")
    assert event_type == "COMPLETE"
    assert end_event["run"]["runId"].replace("-", "") == run.run_id.removeprefix("job-")
    assert (
        start_event["run"]["facets"]["nominalTime"]["nominalStartTime"]
        == "2023-11-14T00:00:00+00:00"
    )
    assert "max(temp)" in end_event["job"]["facets"]["sql"]["query"]
    assert facets(end_event["inputs"][0])["version"]["datasetVersion"] == "1"
    _, (_, create_event) = lineage.job_events("create.daily")
    assert create_event["run"]["facets"]["parent"]["run"]["runId"] == end_event["run"]["runId"]
    assert origins(create_event["outputs"][0], "warmest") == {("weather/v1", "temp", "AGGREGATION")}
    assert create_event["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == run.rows
    _, (failed, failure) = lineage.job_events("broken")
    assert failed == "FAIL"
    assert failure["run"]["facets"]["errorMessage"]["message"] == "ValueError: nothing works"


def test_events_follow_openlineage_specification(
    emitting_store: FeatureStore, lineage: Lineage, tmp_path: Path
) -> None:
    fill(emitting_store)
    (tmp_path / "jobs.py").write_text(
        JOBS + "featurestore.monitor_job('watch', featuregroup='weather', "
        "schedule='0 0 * * *', start='2023-11-14T00:00Z')\n"
    )
    emitting_store.register_jobs(tmp_path / "jobs.py")
    emitting_store.run_job("daily", window="2023-11-14T00:00Z")
    emitting_store.check_monitor("watch", window="2023-11-14T00:00Z")
    frame = emitting_store.get_features(["weather.temp"], labels="flights")
    emitting_store.create_training_dataset(frame, "late", label="late", shards=1, progress=False)
    emitting_store.delete_training_dataset("late", version=1)
    emitting_store.delete_featuregroup("flights", version=1)
    events = lineage.events()
    for event in events:
        check_event(event)
    start_ids = [event["run"]["runId"] for event in events if event["eventType"] == "START"]
    end_ids = [event["run"]["runId"] for event in events if event["eventType"] != "START"]
    assert sorted(start_ids) == sorted(end_ids)
    assert len(set(start_ids)) == len(start_ids)
    dropped = dict(lineage.job_events("remove.late"))["COMPLETE"]["outputs"][0]
    assert facets(dropped)["lifecycleStateChange"]["lifecycleStateChange"] == "DROP"
    dataset = dict(lineage.job_events("watch"))["COMPLETE"]["inputs"][0]
    assert dataset["name"].endswith("featuregroups/weather/v1")


def test_events_without_transport_are_not_sent(
    monkeypatch: pytest.MonkeyPatch, lineage: Lineage, tmp_path: Path
) -> None:
    monkeypatch.delenv("OPENLINEAGE_URL")
    with featurestore.connect(tmp_path / "quiet") as quiet:
        fill(quiet)
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{lineage.received.port}")
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    with featurestore.connect(tmp_path / "quiet") as quiet:
        quiet.insert_into_featuregroup(FLIGHTS.slice(0, 1), "flights", mode="upsert")
    assert lineage.events() == []


@pytest.mark.parametrize("behavior", ["refuses", "hangs", "fails"])
def test_unreachable_receiver_does_not_fail_or_delay_writes(
    monkeypatch: pytest.MonkeyPatch,
    lineage: Lineage,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    behavior: str,
) -> None:
    lineage.received.behavior = behavior
    port = lineage.received.port
    if behavior == "refuses":
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
    monkeypatch.delenv("OPENLINEAGE_URL")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", '{"total": 1}')
    with featurestore.connect(tmp_path / "store") as store:
        start = time.monotonic()
        store.create_featuregroup(WEATHER, "weather", primary_key="origin", event_time="at")
        for _ in range(3):
            store.insert_into_featuregroup(WEATHER, "weather", mode="upsert")
        assert time.monotonic() - start < 15  # an attempt of each write that hangs takes 5
        assert store.get_featuregroup_history("weather")[0].delta_version == 4
    emitter.stop()
    lineage.received.behavior = "well"
    lineage.received.stop.set()  # release the hanging requests


def _log_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the emitter logged, without the logs of HTTP clients.

    ``record.message`` is not set where another library replaced the formatter.
    """
    return [
        record.getMessage() for record in caplog.records if record.name.startswith("featurestore.")
    ]


def test_emitter_full_queue_drops_events_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    arrived: list[Any] = []

    def send(event: Any) -> None:
        time.sleep(0.2)
        arrived.append(event)

    emitter = Emitter(send, waiting=2)
    with caplog.at_level(logging.WARNING, logger="featurestore.lineage"):
        for number in range(50):
            work = Work("delete", "weather", f"{number:032x}", "/nowhere", 1)
            emitter.began(work)
        emitter.close(5)
    assert len(arrived) <= 4
    assert _log_messages(caplog) == ["lineage events are dropped: the queue is full"]


def test_emitter_close_drops_waiting_events() -> None:
    events = []
    release = threading.Event()

    def send(event: Any) -> None:
        events.append(event)
        release.wait(30)

    emitter = Emitter(send)
    for number in range(20):
        emitter.began(Work("delete", "weather", f"{number:032x}", "/nowhere", 1))
    thread = emitter._thread
    assert thread is not None
    emitter.close(0)
    release.set()
    thread.join(30)
    assert not thread.is_alive()
    assert len(events) <= 1


def test_emitter_warns_once_per_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ill = True

    def send(_event: Any) -> None:
        if ill:
            raise ConnectionError("refused")

    emitter = Emitter(send)
    work = Work("delete", "weather", "0" * 32, "/nowhere", 1)

    def send_event() -> None:
        emitter.began(work)
        while emitter._pending:
            time.sleep(0.01)

    with caplog.at_level(logging.WARNING, logger="featurestore.lineage"):
        for well in (False, False, True, True, False):
            ill = not well
            send_event()
    emitter.close(0)
    messages = _log_messages(caplog)
    assert len(messages) == 2
    assert "ConnectionError: refused" in messages[0]


def test_lineage_events_leave_environment_unchanged(
    emitting_store: FeatureStore, lineage: Lineage
) -> None:
    emitting_store.create_featuregroup([{"x": 1}], "numbers")
    assert lineage.events()
    settings = {name for name in os.environ if name.startswith("OPENLINEAGE")}
    assert settings == {"OPENLINEAGE_NAMESPACE", "OPENLINEAGE_URL"}


def test_observed_without_observers_runs_work() -> None:
    with observed(Work("job", "daily", "0" * 32, "/nowhere")) as work:
        work.committed_version = 3
    assert work.error is None
