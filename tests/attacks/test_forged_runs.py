"""Forged run records with a valid checksum and invalid content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.errors import FeatureStoreError, RunDamaged, StorageError
from featurestore.experiments import run_files
from featurestore.model.json_object import MalformedJson, seal
from featurestore.model.run_record import RUN_FILE, RunDataset, RunRecord
from featurestore.recovery import record_files

ID = "20240301-120000-abcdef"
RECORD = RunRecord(
    id=ID,
    name="late_flights",
    kind="launch",
    state="finished",
    created="2024-03-01T12:00:00+00:00",
    metrics={"auc": 0.9},
    dataset=RunDataset("flights", 1, "0" * 64, "/store/trainingdatasets/flights/v1"),
    settings={"workers": 1, "on": "local"},
    code={"function": "train:train_fn"},
    files={"metrics.jsonl": "0" * 64},
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def write_forged_run(tmp_path: Path, **changes: Any) -> str:
    """Write a forged record into a run directory, and return the directory."""
    data = {
        name: value for name, value in json.loads(RECORD.to_bytes()).items() if name != "checksum"
    }
    directory = tmp_path / "late_flights" / ID
    directory.mkdir(parents=True)
    (directory / RUN_FILE).write_bytes(seal({**data, **changes}))
    return str(directory)


def test_valid_record_is_read(tmp_path: Path) -> None:
    assert record_files.read_run(write_forged_run(tmp_path)) == RECORD


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "20240301-120000-fedcba"},
        {"id": "../../x"},
        {"name": "other"},
        {"name": "../late_flights"},
        {"name": "late_flights/../other"},
        {"parent": "../x"},
        {"state": "won"},
        {"created": "yesterday"},
        {"metrics": {"auc": "0.9"}},
        {"metrics": {"auc": True}},
        {"files": {"a": 1}},
        {"seed": -1},
        {"number": "1"},
        {"dataset": {"name": "flights"}},
        {"format": 0},
    ],
)
def test_record_of_another_run_is_damaged(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(RunDamaged):
        record_files.read_run(write_forged_run(tmp_path, **changes))


@pytest.mark.parametrize(
    "path", ["../../secret", "/etc/passwd", "a/../../../secret", "", "a\x00b", "link"]
)
def test_record_cannot_name_files_outside_run(tmp_path: Path, path: str) -> None:
    directory = write_forged_run(tmp_path, files={path: "0" * 64})
    (tmp_path / "secret").write_text("secret")
    (Path(directory) / "link").symlink_to(tmp_path / "secret")
    record = record_files.read_run(directory)
    with pytest.raises(StorageError):
        run_files.check_files(directory, record, below=[path])


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(json.loads(RECORD.to_bytes()))), value=VALUES)
def test_forged_records_raise_store_errors(name: str, value: Any) -> None:
    data = {key: entry for key, entry in json.loads(RECORD.to_bytes()).items() if key != "checksum"}
    try:
        RunRecord.from_bytes(seal({**data, name: value}))
    except (MalformedJson, FeatureStoreError):
        return
