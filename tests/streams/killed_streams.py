"""Processes that run a stream job in a loop until they are killed."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path

import featurestore
from featurestore.errors import FeatureStoreError
from featurestore.store import FeatureStore
from tests import forked_processes


def run_for_ever(location: str, ready: str) -> None:
    """Run the job until the process is killed."""
    store = featurestore.connect(location)
    Path(ready).touch()
    while True:
        with contextlib.suppress(FeatureStoreError):  # another runner may be in the way
            store.run_job("clicks")


def start(store: FeatureStore, folder: Path) -> tuple[BaseProcess, Path]:
    """Start a runner; the file exists once it starts to work."""
    ready = folder / f"ready-{len(list(folder.glob('ready-*')))}-{os.urandom(4).hex()}"
    return forked_processes.start(run_for_ever, store.location, str(ready)), ready


def count_click_ids(store: FeatureStore) -> Counter[int]:
    """Return how often each click is in the group or, by its offset, in the quarantine."""
    rows = store.get_featuregroup("clicks").to_arrow()
    result = Counter(rows.column("id").to_pylist())
    path = store.session.quarantine_path("clicks", 1)
    if Path(path).exists():
        quarantine_rows = store.session.engine.stream(
            store.session.engine.read_table(path)
        ).read_all()
        for value in quarantine_rows.column("record_value").to_pylist():
            result[int(value.removeprefix(b"poison "))] += 1
    return result
