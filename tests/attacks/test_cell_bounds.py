"""Cell sizes are limited before a write, and in responses."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from featurestore.arrow.bounds import (
    CELL_BYTES_VARIABLE,
    cell_bytes,
    find_oversized,
    variable_size_columns,
)
from featurestore.errors import ConfigurationError, LimitExceeded
from featurestore.server import ServerSettings, create_app
from featurestore.store import FeatureStore
from tests.on_spark import on_engines

BOUND = 400
TYPES = {
    "text": pa.string(),
    "bytes": pa.binary(),
    "list": pa.list_(pa.int64()),
    "texts": pa.list_(pa.string()),
    "struct": pa.struct([("name", pa.string()), ("values", pa.list_(pa.float64()))]),
    "array": pa.list_(pa.float64(), 64),
}
SHORT, LONG = 2, 500


def cell(cell_type: str, length: int) -> Any:
    """Return a cell of at least ``length`` bytes; length 2 is below ``BOUND`` for every type."""
    values = {
        "text": "x" * length,
        "bytes": b"x" * length,
        "list": [1] * (length // 8 + 1),
        "texts": ["x"] * length,
        "struct": {"name": "x" * length, "values": [0.5]},
        "array": [0.5] * 64,
    }
    return values[cell_type]


def table(cell_type: str, lengths: list[int]) -> pa.Table:
    cells = [cell(cell_type, length) for length in lengths]
    return pa.table({"k": range(len(cells)), "cell": pa.array(cells, TYPES[cell_type])})


@given(
    st.sampled_from(sorted(TYPES)),
    st.lists(st.integers(0, 3 * BOUND), max_size=8),
    st.integers(0, 4),
    st.integers(1, 2 * BOUND),
)
@example("text", [BOUND], 0, BOUND)
@example("text", [BOUND + 1], 0, BOUND)
def test_the_first_cell_above_a_bound_is_named(
    cell_type: str, lengths: list[int], skipped: int, most: int
) -> None:
    array = table(cell_type, lengths)["cell"].combine_chunks().slice(skipped)
    too_long = []
    for row in range(len(array)):
        if cell_bytes(array.slice(row, 1)) > most:
            too_long.append(row)
    if "cell" not in variable_size_columns(pa.schema([("cell", array.type)]), max_bytes=most):
        assert not too_long or cell_type == "array"  # a cell does not include its mask of nulls
        return
    assert find_oversized(array, max_bytes=most) == (too_long[0] if too_long else None)


FORMS = {
    "arrow": lambda rows, store: rows,
    "pandas": lambda rows, store: rows.to_pandas(),
    "rows": lambda rows, store: rows.to_pylist(),
    "batches": lambda rows, store: iter(rows.to_batches(max_chunksize=1)),
    "native": lambda rows, store: native(rows, store),
}


def native(rows: pa.Table, store: FeatureStore) -> Any:
    """Return rows as a native frame of the engine."""
    import duckdb

    if store.session.engine.name == "duckdb":
        return duckdb.from_arrow(rows)
    return store.session.engine.from_arrow(rows.to_reader()).native


CASES = list(product(sorted(set(TYPES) - {"array"}), sorted(FORMS)))


# On Spark each type and each form runs once.
@on_engines("cell_type,form", CASES, spark=CASES[:: len(FORMS) + 1])
def test_no_cell_above_the_bound_is_written(
    store: FeatureStore, cell_type: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CELL_BYTES_VARIABLE, str(BOUND))
    shown = "The row with k=2" if form == "native" else "Row 2"
    message = rf"{shown} has [\d,]+ bytes in 'cell'; a cell has at most {BOUND}"
    long = table(cell_type, [SHORT, SHORT, LONG, LONG])
    group = store.create_featuregroup(table(cell_type, [SHORT, SHORT]), "cells", primary_key="k")
    for mode in ("append", "upsert", "overwrite"):
        with pytest.raises(LimitExceeded, match=message) as error:
            group.insert(FORMS[form](long, store), mode=mode)
        assert CELL_BYTES_VARIABLE in str(error.value.hint)
    with pytest.raises(LimitExceeded, match=message):
        store.create_featuregroup(FORMS[form](long, store), "others", primary_key="k")
    assert group.read().count() == 2
    assert not store.get_latest_featuregroup_version("others")
    monkeypatch.setenv(CELL_BYTES_VARIABLE, "100000")
    group.insert(FORMS[form](long, store), mode="overwrite")
    assert group.read().count() == 4


def test_invalid_cell_bytes_setting_is_refused(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("64 MiB", "0", "-1", "1e6", "²"):
        monkeypatch.setenv(CELL_BYTES_VARIABLE, text)
        with pytest.raises(ConfigurationError, match="is not a number of bytes"):
            empty_store.create_featuregroup(table("text", [SHORT]), "cells")


@pytest.fixture
def served(empty_store: FeatureStore) -> FeatureStore:
    """A store with a group of five rows of 1,000 bytes."""
    empty_store.create_featuregroup(table("text", [1000] * 5), "cells", primary_key="k")
    return empty_store


@pytest.mark.parametrize("max_bytes", [100, 2_500, 1 << 20])
def test_row_responses_are_bounded(served: FeatureStore, max_bytes: int) -> None:
    app = create_app(served, ServerSettings(answer=max_bytes))
    client = TestClient(app, base_url="http://localhost")
    fits = max_bytes // 1000 if max_bytes < 5_000 else 5
    for limit in (1, 2, 5):
        response = client.get(f"/api/v1/featuregroups/cells/1/rows?limit={limit}")
        if limit <= fits:
            assert response.status_code == 200
            assert len(response.json()["rows"]) == limit
        else:
            assert response.status_code == 413
            assert f"exceed the limit of {max_bytes:,} bytes" in response.json()["detail"]
    file = client.get("/groups/cells/1/rows?format=csv")
    assert file.status_code == (200 if fits == 5 else 413)
    page = client.get("/groups/cells/1/rows")
    assert page.status_code == 200
    assert f"The first {max(fits, 1)} rows" in page.text


# Print the memory growth of one insert as a multiple of the cell size.
GROWTH = """
import os, re, sys
import pyarrow as pa
import featurestore

def high_water():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10

size = 48 << 20
with featurestore.connect(sys.argv[1]) as store:
    group = store.create_featuregroup(pa.table({"k": [1], "cell": ["a"]}), "cells", primary_key="k")
    group.insert(pa.table({"k": [2], "cell": ["a"]}))
    rows = pa.table({"k": [3], "cell": [os.urandom(size // 2).hex()]})
    open("/proc/self/clear_refs", "w").write("5")
    before = high_water()
    group.insert(rows)
    print((high_water() - before) / size)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_insert_memory_is_proportional_to_cell(tmp_path: Path) -> None:
    command = [sys.executable, "-c", GROWTH, str(tmp_path / "store")]
    growth = float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert growth < 5  # three on average; nine while statistics copied texts
