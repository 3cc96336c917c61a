"""Stores of released versions open with this release, and this release refuses newer stores."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import featurestore
from featurestore.errors import (
    FeatureStoreError,
    FormatTooNew,
    RegistryTooNew,
    UnsupportedTable,
)
from featurestore.model.drift import DriftReport
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.json_object import seal
from featurestore.model.manifest import Manifest
from featurestore.model.monitor_report import MonitorReport
from featurestore.model.registered_model import ModelSpec
from featurestore.model.run_record import RunRecord
from featurestore.model.statistics import Statistics
from featurestore.model.validation import ValidationReport
from featurestore.recovery.rebuild import rebuild
from featurestore.recovery.record_files import restore_access
from featurestore.registry import open_registry
from featurestore.registry.migrations import head_revision
from featurestore.serving.layout import ValueLayout
from featurestore.serving.state import PublishedView, ViewState
from featurestore.storage import StorePaths
from featurestore.transform.fitted import Transformations
from featurestore_connectors.tfrecord.layout import read_layout
from tests.commit_files import read_actions, write_actions
from tests.compat.old_store import ASSETS, DATASETS, read_tables, weather

UPGRADE = "Hint: pip install --upgrade featurestore"


@pytest.fixture(params=sorted(ASSETS.glob("*.zip")), ids=lambda path: path.stem)
def old_store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The location of an extracted store of a released version."""
    with zipfile.ZipFile(request.param) as archive:
        archive.extractall(tmp_path)
    return tmp_path / "store"


def test_old_store_has_equal_values_and_accepts_writes(old_store: Path) -> None:
    with featurestore.connect(old_store, engine="duckdb") as store:
        for name, table in read_tables(store).items():
            expected = pq.read_table(old_store.with_name(f"{name}.parquet"))
            assert table.equals(expected.cast(table.schema)), name
        datasets = [store.get_training_dataset(name) for name in DATASETS]
        for dataset in datasets:
            dataset.verify()
            assert dataset.tags == {"format": dataset.name.removeprefix("delays_")}
        assert [job.name for job in store.get_jobs()] == ["totals"]
        assert [run.state for run in store.get_runs("totals")] == ["done"]
        assert store.get_featuregroup_tags("weather") == {"team": "air"}
        assert [match.reference for match in store.search("airports")] == ["weather"]
        server = store.get_feature_view("current").server()
        assert server.get_vector({"origin": "EWR"}) == {"temp": 9.5}
        assert store.get_featuregroup_statistics("weather").rows == 40

        store.insert_into_featuregroup(weather(40, 44), "weather")
        again = store.get_feature_view("delays").create_training_dataset(
            "delays_tfrecord", splits={"train": 0.7, "test": 0.3}
        )
        assert again.version == 2
        assert again.read("test").to_arrow().equals(datasets[0].read("test").to_arrow())
        store.register_jobs(old_store.with_name("jobs.py"))
        store.run_job("totals", window="2026-03-02T00:00Z")
        store.publish("current")
        assert server.get_vector({"origin": "EWR"}) == {"temp": 10.5}


# -- newer formats ------------------------------------------------------------------------------


def edit_registry(location: Path, statement: str) -> None:
    with sqlite3.connect(location / "registry.db") as connection:
        assert connection.execute(statement).rowcount == 1
    connection.close()


def test_newer_registry_is_refused(old_store: Path) -> None:
    edit_registry(old_store, "update alembic_version set version_num = '9999'")
    with pytest.raises(RegistryTooNew, match=rf"9999(.|\n)*{head_revision()}(.|\n)*{UPGRADE}"):
        featurestore.connect(old_store)


def test_newer_definitions_are_refused_by_name(old_store: Path) -> None:
    edit = "update featuregroups set spec = json_set(spec, '$.format', 99) where name = 'weather'"
    edit_registry(old_store, edit)
    view_file = old_store / "featureviews" / "delays" / "v1" / "view.json"
    view = {**json.loads(view_file.read_text()), "format": 99}
    view_file.write_bytes(seal({name: view[name] for name in view.keys() - {"checksum"}}))
    manifest = old_store / "trainingdatasets" / DATASETS[0] / "v1" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99', 1))
    with featurestore.connect(old_store) as store:
        for read, subject in (
            (lambda: store.get_featuregroup("weather"), "feature group 'weather' version 1"),
            (lambda: store.get_feature_view("delays"), "feature view 'delays'"),
            (lambda: store.get_training_dataset(DATASETS[0]), DATASETS[0]),
        ):
            with pytest.raises(FormatTooNew, match=rf"{subject}.* 99;.* [13]\.\n{UPGRADE}"):
                read()
        assert store.get_training_dataset(DATASETS[1]).verify().ok
        assert store.get_featuregroup("departures").to_arrow().num_rows == 35


def test_newer_table_property_is_refused_by_rebuild(old_store: Path) -> None:
    log = old_store / "featuregroups" / "departures" / "v1" / "_delta_log"
    for path in log.glob("*.json"):
        write_actions(path, read_actions(path))
        text = path.read_text()
        path.write_text(text.replace('{\\"format\\": 1', '{\\"format\\": 99'))
    for path in log.glob("*.crc"):
        path.unlink()
    (old_store / "registry.db").unlink()
    unreadable = rebuild(str(old_store)).unreadable
    [message] = [text for path, text in unreadable if "departures" in path]
    assert "format 99; this release reads up to 1" in message


def test_newer_delta_reader_version_is_refused(old_store: Path) -> None:
    log = old_store / "featuregroups" / "departures" / "v1" / "_delta_log"
    number = len(list(log.glob("*.json")))
    protocol = {"minReaderVersion": 4, "minWriterVersion": 8}
    newer = json.dumps({"protocol": protocol})
    (log / f"{number:020}.json").write_text(newer + "\n")
    with featurestore.connect(old_store) as store:
        with pytest.raises(UnsupportedTable, match=r"reader version 4 .*up to 3"):
            store.get_featuregroup("departures", as_of=number)
        with pytest.raises(FeatureStoreError, match="reader version 4"):
            store.insert_into_featuregroup(weather(0, 1), "departures")


def read_newer_access(directory: Path) -> None:
    registry = open_registry(str(directory))
    Path(StorePaths(str(directory)).access).write_text('{"format": 99}')
    with registry.transaction() as connection:
        restore_access(connection, str(directory))


def read_newer_value(directory: Path) -> None:
    layout = ValueLayout(pa.schema([("x", pa.int64())]), (pa.int64(),), None)
    columns = {"x": pa.array([1])}
    [value] = layout.encode(columns, event_time=None, created_time=None, sequence=1)
    layout.single_entry(bytes([99]) + value[1:], 0)


READERS: dict[str, Callable[[Path], Any]] = {
    "access": read_newer_access,
    "drift report": lambda _: DriftReport.from_json({"format": 99}),
    "feature group": lambda _: FeatureGroupSpec.from_json(
        {"format": 99, "name": "g", "version": 1}
    ),
    "feature view": lambda _: FeatureViewSpec.from_bytes(
        seal({"format": 99, "name": "v"}), path="v.json"
    ),
    "manifest": lambda _: Manifest.from_bytes(b'{"format": 99}', path="manifest.json"),
    "model": lambda _: ModelSpec.from_bytes(seal({"format": 99, "name": "m"}), path="m.json"),
    "monitor report": lambda _: MonitorReport.from_json({"format": 99}),
    "published state": lambda _: ViewState.parse(
        b'{"format": 99}', PublishedView("v", 1, "embedded")
    ),
    "published value": read_newer_value,
    "run": lambda _: RunRecord.from_bytes(seal({"format": 99, "id": "r"})),
    "statistics": lambda _: Statistics.from_json({"format": 99}),
    "TFRecord layout": lambda _: read_layout({"version": 99}),
    "transformations": lambda _: Transformations.from_bytes(
        seal({"format": 99, "dataset": "d"}), path="t.json"
    ),
    "validation report": lambda _: ValidationReport.from_json({"format": 99}),
}


@pytest.mark.parametrize("subject", READERS)
def test_newer_format_error_names_both_versions(subject: str, tmp_path: Path) -> None:
    with pytest.raises(FormatTooNew, match=rf"99; this release reads up to [123]\.\n{UPGRADE}"):
        READERS[subject](tmp_path)
