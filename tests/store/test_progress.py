"""Progress of long calls on a terminal, in a notebook, and without either."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import featurestore
from featurestore import FeatureStore, progress


class Terminal:
    """A pseudo terminal in place of standard error."""

    def __init__(self) -> None:
        self._reading_end, writing_end = pty.openpty()
        self.file = os.fdopen(writing_end, "w", encoding="utf-8")
        self._chunks: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                chunk = os.read(self._reading_end, 65536)
            except OSError:  # how Linux reports a closed peer
                return
            if not chunk:
                return
            self._chunks.append(chunk)

    def text(self) -> str:
        """Close the terminal and return the printed text without control sequences."""
        self.file.close()
        self._reader.join()
        os.close(self._reading_end)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(self._chunks).decode())


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(progress, "_setting", None)
    monkeypatch.delenv(progress.SETTING, raising=False)
    for name, value in {"TERM": "xterm", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    yield terminal
    if not terminal.file.closed:
        terminal.text()


def chunks(count: int) -> Iterator[pa.Table]:
    """Yield tables of 1,000 rows slowly."""
    for number in range(count):
        time.sleep(0.05)
        yield pa.table({"id": range(number * 1000, number * 1000 + 1000), "x": [1.5] * 1000})


def test_progress_of_write_export_read_and_download(
    store: FeatureStore, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not in the fixture, because pytest replaces standard error after it.
    monkeypatch.setattr(sys, "stderr", terminal.file)
    store.create_featuregroup(chunks(6), "points", primary_key="id")
    # Long phases, since a phase that ends between two refreshes is not drawn.
    rows = pa.table({"id": range(6000, 206_000), "x": [2.5] * 200_000})
    store.insert_into_featuregroup(rows, "points")
    dataset = store.create_training_dataset(
        store.get_featuregroup("points"), "points", label="x", splits={"all": 1.0}
    )
    store.get_featuregroup("points").to_arrow()
    assert dataset.verify().ok
    dataset.download(tmp_path / "copy")
    printed = terminal.text()
    for pattern in (
        r"read the dataframe .*[1-6],000 rows, [\d,]+ rows/s, 0:0\d elapsed",
        r"read the dataframe .*[\d,]+ of 200,000 rows",
        r"write shards .*[\d,]+ of 206,000 rows, [\d,]+ rows/s",
        r"read rows .*206,000 rows",
        r"read shards .* ([\d,]+) of \1 bytes",
        r"copy shards .* ([\d,]+) of \1 bytes",
    ):
        assert re.search(pattern, printed), (pattern, printed[-3000:])


@pytest.mark.parametrize("switch", ["argument", "variable", "short call", "pipe", "thread"])
def test_progress_is_off(
    empty_store: FeatureStore,
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    switch: str,
) -> None:
    def write() -> None:
        empty_store.create_featuregroup(chunks(1), "points", primary_key="id")

    monkeypatch.setattr(sys, "stderr", terminal.file)
    if switch == "argument":
        featurestore.connect(empty_store.location, progress=False)
    elif switch == "variable":
        monkeypatch.setenv(progress.SETTING, "off")
    elif switch == "short call":
        monkeypatch.setattr(progress, "_DELAY_SECONDS", 60.0)
    elif switch == "pipe":
        monkeypatch.setattr(sys, "stderr", io.StringIO())
    if switch == "thread":
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    else:
        write()
    assert terminal.text() == ""


def test_progress_that_is_off_costs_microseconds(empty_store: FeatureStore) -> None:
    bare: Callable[[object], str] = type(empty_store).get_latest_featuregroup_version
    assert bare.__wrapped__ is not None  # type: ignore[attr-defined]
    assert timeit.timeit(lambda: progress.advance(1), number=10_000) < 0.1
    assert timeit.timeit(progress._is_enabled, number=10_000) < 0.5


def test_progress_survives_closed_terminal(
    empty_store: FeatureStore, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.file)
    monkeypatch.setattr(progress, "_setting", True)
    terminal.text()
    group = empty_store.create_featuregroup(chunks(2), "points", primary_key="id")
    assert group.version == 1


def test_progress_in_notebook_updates_one_output(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    client_module = pytest.importorskip("nbclient")
    cell = f"""
import time, featurestore, pyarrow as pa
from featurestore import progress
progress._DELAY_SECONDS = 0.1
store = featurestore.connect({str(tmp_path / "store")!r})
def chunks():
    for number in range(5):
        time.sleep(0.1)
        yield pa.table({{"id": [number]}})
group = store.create_featuregroup(chunks(), "points", primary_key="id")
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    drawn = []

    class Client(client_module.NotebookClient):  # type: ignore[misc, name-defined]
        def process_message(self, message: dict, *arguments: object) -> object:  # type: ignore[type-arg]
            if message["msg_type"] == "update_display_data":
                drawn.append(message["content"]["data"]["text/html"])
            return super().process_message(message, *arguments)

    Client(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any("<progress" in html for html in drawn)
    (output,) = notebook.cells[0].outputs
    assert output["data"]["text/html"].startswith("create featuregroup: ")
    assert "<progress" not in output["data"]["text/html"]
