"""One dataset per format, created once per run and read-only."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featurestore.model.manifest import Manifest
from tests.readers.example_datasets import ROW, example_table, make_dataset

ROWS = 203
BEGIN = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# "variable" is TFRecord with records of different lengths: one long text in many short ones.
VARIANTS = ("tfrecord", "variable", "parquet", "petastorm", "csv")


class Example:
    """A dataset and its rows; ``row_id`` is the canonical row number."""

    def __init__(self, directory: Path, manifest: Manifest, table: pa.Table) -> None:
        self.path, self.manifest, self.table = str(directory), manifest, table
        self.values = {
            name: [plain(value) for value in table[name].to_pylist()] for name in table.column_names
        }


def plain(value: Any) -> Any:
    """Return a table value as readers return it."""
    if isinstance(value, dt.datetime):
        return (value - BEGIN) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.date):
        return (value - BEGIN.date()).days
    return value.encode() if isinstance(value, str) else value


def make_example(directory: Path, variant: str, *, nulls: bool = False) -> Example:
    if variant == "petastorm":
        pytest.importorskip("petastorm", exc_type=ImportError)
    table = example_table(ROWS, nulls=nulls)
    if variant == "variable":
        names = table["name"].to_pylist()
        names[7] = "x" * 3000
        table = table.set_column(table.schema.get_field_index("name"), "name", pa.array(names))
    data_format = "tfrecord" if variant == "variable" else variant
    manifest = make_dataset(
        directory, table, data_format=data_format, shards=5, labels=["label"], keys=["small"]
    )
    if variant in ("tfrecord", "variable"):
        assert manifest.layout["kind"] == ("variable" if variant == "variable" else "fixed")
    assert table[ROW].to_pylist() == list(range(ROWS))
    return Example(directory, manifest, table)


@pytest.fixture(scope="session", params=VARIANTS)
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Example:
    """A dataset without nulls, in each format."""
    return make_example(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="session", params=VARIANTS)
def example_with_nulls(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Example:
    """A dataset with nulls in most columns, in each format."""
    return make_example(
        tmp_path_factory.mktemp(request.param + "-nulls"), request.param, nulls=True
    )


@pytest.fixture(scope="session")
def tfrecord(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """A dataset of random-access TFRecord."""
    return make_example(tmp_path_factory.mktemp("tfrecord-only"), "tfrecord")


# -- how many cases the property tests tried ---------------------------------------------------------------------------

_CASES = "reader cases"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """Record the number of cases of a property test."""
    report: pytest.TestReport = yield  # type: ignore[assignment, misc]
    if call.when == "call" and report.passed:
        counts = re.findall(
            r"(\d+) passing(?:,| examples)", getattr(item, "hypothesis_statistics", "")
        )
        if counts:
            report.user_properties.append((_CASES, sum(map(int, counts))))
    return report  # type: ignore[return-value]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the number of cases per property of the readers."""
    findings = {
        report.nodeid: count
        for report in terminalreporter.stats.get("passed", ())
        for name, count in report.user_properties
        if name == _CASES
    }
    if findings:
        terminalreporter.section(f"properties of the readers: {sum(findings.values()):,} cases")
        for nodeid, count in sorted(findings.items()):
            terminalreporter.write_line(f"{count:6,}  {nodeid.split('::', 1)[1]}")
