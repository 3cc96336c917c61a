"""Jobs of a store at a URI: each window once, with logs as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore.storage import files
from featurestore.store import FeatureStore
from tests.storage.jobs_at_a_uri import RANGE, filled
from tests.storage.stores import StoreLocation

pytest.importorskip("croniter")


def read_rows(store: FeatureStore, name: str) -> list[Any]:
    frame = store.get_featuregroup(name).to_pandas()
    return sorted(map(tuple, frame.itertuples(index=False)))


def test_remote_location_jobs_equal_local_jobs(
    store_location: StoreLocation, tmp_path: Path
) -> None:
    with featurestore.connect(tmp_path / "disk") as disk:
        expected = []
        for store in (
            filled(disk, tmp_path / "one"),
            filled(store_location.connect(), tmp_path / "two"),
        ):
            for name in ("demand", "tips"):
                store.backfill_job(name, *RANGE)
            store.backfill_job("demand", *RANGE)
            expected.append([read_rows(store, "demand"), read_rows(store, "tips")])
        assert expected[0] == expected[1]
    runs = store.get_runs("tips")
    assert {run.state for run in runs} == {"done"}
    for run in runs:
        assert run.log is not None
        assert run.log.startswith(f"{store.location}/_logs/tips/")
        assert "tips, 1 windows" in files.read_text(run.log)
