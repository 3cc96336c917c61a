"""Progress of exports: listener calls and progress bar."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from featurestore import FeatureStore
from featurestore.training import create
from featurestore.training.create import ExportProgress, open_progress

Example = Callable[..., pa.Table]


def test_progress_listener_receives_phases_and_row_counts(
    empty_store: FeatureStore, example: Example
) -> None:
    reports: list[tuple[str, int, int]] = []
    empty_store.create_training_dataset(
        example(500), "d", key="at", progress=lambda *report: reports.append(report)
    )
    assert list(dict.fromkeys(phase for phase, _, _ in reports)) == [
        "compute rows",
        "plan shards",
        "write shards",
    ]
    assert reports[-1] == ("write shards", 500, 500)
    assert all(count <= total for phase, count, total in reports if phase == "write shards")


def test_progress_rows_estimated_from_bytes_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create, "_POLL_INTERVAL", 0.01)
    counts: list[int] = []

    def listen(phase: str, count: int, total: int) -> None:
        counts.append(count)
        if count < 30:  # as a writer in another process does
            (tmp_path / "shard").write_bytes(bytes(100 * (count + 10)))

    with ExportProgress(listen).report_writing(str(tmp_path), rows=100, bytes_per_row=100):
        while not counts or counts[-1] < 30:
            pass
    assert counts == sorted(counts)
    assert {0, 10, 20, 30, 100} <= set(counts)


def test_progress_bar_shows_rate_and_remaining_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with open_progress(True) as shown:
        assert shown._report is not None
        shown._report("write shards", 0, 1_000_000)
        for count in range(100_000, 600_000, 100_000):
            shown._report("write shards", count, 1_000_000)
    printed = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "write shards" in printed
    assert re.search(r"\d[\d,]* rows/s", printed)
    assert re.search(r"\d:\d\d left", printed)


def test_progress_without_terminal_prints_nothing(
    empty_store: FeatureStore, example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    empty_store.create_training_dataset(example(20), "d", key="at")
    assert capsys.readouterr().err == ""
