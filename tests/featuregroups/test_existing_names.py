"""Creation under the name of an existing group: equal groups are returned, others are announced."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from featurestore.errors import (
    DefinitionMismatch,
    FeatureGroupExists,
    FeatureViewWarning,
    InvalidArgument,
)
from featurestore.store import FeatureStore

ROWS = pa.table(
    {
        "id": [1, 2, 3],
        "x": [0.5, None, float("nan")],
        "text": ["a", "", None],
        "box": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float64(), 2)),
    }
)
TIMES = [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
CHANGED_ROWS = ROWS.set_column(1, "x", pa.array([0.5, None, 1.0]))
REVERSED = ROWS.take([2, 0, 1])
LIKES: dict[str, Callable[[pa.Table], object]] = {
    "arrow": lambda table: table,
    "pandas": lambda table: table.select(["id", "text"]).to_pandas(),
    "polars": lambda table: pytest.importorskip("polars").from_arrow(table.drop(["box"])),
    "rows": lambda table: table.drop(["box", "x"]).to_pylist(),
    "numpy": lambda table: np.asarray(table["id"]).reshape(-1, 1),
    "stream": lambda table: pa.RecordBatchReader.from_batches(table.schema, table.to_batches()),
    "chunks": lambda table: iter([table.slice(0, 1), table.slice(1)]),
}


def test_create_equal_rows_returns_existing_group(
    store: FeatureStore, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    definitions: dict[str, dict[str, Any]] = {
        "plain": {},
        "keyed": {"primary_key": "id", "validation": "off"},
    }
    for title, like in product(definitions, LIKES):
        with subtests.test(f"{like}, {title}"):
            # The columns of an array have no names, so that none can be a key.
            declared = {} if like == "numpy" else definitions[title]
            name, convert = f"{like}_{title}", LIKES[like]
            capsys.readouterr()
            first = store.create_featuregroup(convert(ROWS), name, **declared)
            assert capsys.readouterr().out == ""
            again = store.create_featuregroup(convert(REVERSED), name, **declared)
            assert (again, again.delta_version) == (first, 1)
            notice = f"Feature group '{name}' version 1 already has this definition and these rows"
            assert capsys.readouterr().out == f"{notice}; nothing was written.\n"
            # One row less: the count differs; another value: the count is equal.
            changed = store.create_featuregroup(convert(ROWS.slice(0, 2)), name, **declared)
            assert changed.version == 2
            out = capsys.readouterr().out
            assert out.count("\n") == 1
            assert f"insert_into_featuregroup(df, '{name}')" in out
            assert f"get_or_create_featuregroup(df, '{name}')" in out


def test_create_other_values_or_arguments_makes_version(
    empty_store: FeatureStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert empty_store.create_featuregroup(ROWS, "g").version == 1
    assert empty_store.create_featuregroup(CHANGED_ROWS, "g").version == 2
    assert empty_store.create_featuregroup(pa.concat_tables([CHANGED_ROWS] * 2), "g").version == 3
    zeros = [pa.table({"x": [value]}) for value in (0.0, -0.0)]
    assert [empty_store.create_featuregroup(table, "z").version for table in zeros] == [1, 2]
    capsys.readouterr()
    for version, declared in enumerate(
        ({"primary_key": "id"}, {"primary_key": "id", "validation": "warn"}, {"ttl": None}), 4
    ):
        group = empty_store.create_featuregroup(CHANGED_ROWS, "g", **declared)
        assert group.version == version
        assert "which differs from version" in capsys.readouterr().out
    tagged = empty_store.create_featuregroup(CHANGED_ROWS, "g", tags={"team": "a"})
    assert (tagged.version, tagged.tags) == (6, {})
    assert "update_featuregroup" in capsys.readouterr().out


def test_create_after_insert_compares_current_rows(empty_store: FeatureStore) -> None:
    group = empty_store.create_featuregroup(ROWS, "g")
    group.insert(CHANGED_ROWS)
    both = pa.concat_tables([CHANGED_ROWS, ROWS])
    assert empty_store.create_featuregroup(both, "g") == group
    assert empty_store.create_featuregroup(ROWS, "g").version == 2


def test_create_other_schema_lists_differences_and_readers(
    empty_store: FeatureStore, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = ROWS.drop(["box"]).append_column("t", pa.array(TIMES))
    empty_store.create_featuregroup(rows, "g", primary_key="id", event_time="t")
    empty_store.create_feature_view("v", features=["g.x"])
    (tmp_path / "jobs.py").write_text(
        "import featurestore\n"
        "for name, source in (('follows', 'g'), ('pinned', 'g@v1')):\n"
        "    featurestore.sql_job(name, sql='select id, t from g', inputs={'g': source},\n"
        "        event_time='t', window='1d', schedule='0 0 * * *', start='2024-01-01T00:00Z')\n"
    )
    empty_store.register_jobs(str(tmp_path / "jobs.py"))
    capsys.readouterr()
    with pytest.warns(FeatureViewWarning, match="previously double"):
        empty_store.create_featuregroup(pd.DataFrame({"id": [1], "x": ["a"], "y": [2]}), "g")
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    for text in (
        "primary_key: stored ['id'], declared []",
        "event_time: stored 't', declared None",
        "column 'x': stored double, declared string",
        "column 'text' (string) is missing",
        "column 'y' is new",
        "Follow the latest version: job 'follows'.",
        "Keep version 1: feature view 'v' version 1.",
    ):
        assert text in out


def test_if_exists_decides_for_existing_names(empty_store: FeatureStore) -> None:
    create = empty_store.create_featuregroup
    first = create(ROWS, "g", if_exists="error")
    for rows in (ROWS, CHANGED_ROWS):
        with pytest.raises(FeatureGroupExists, match="'g' exists, with version 1"):
            create(rows, "g", if_exists="error")
        assert create(rows, "g", if_exists="return") == first
    with pytest.raises(DefinitionMismatch, match=r"'id' .* is missing"):
        create(ROWS.drop(["id"]), "g", if_exists="return")
    with pytest.raises(FeatureGroupExists):
        create(ROWS, "g", version=1)
    assert create(ROWS, "g", version=1, if_exists="return") == first
    assert create(ROWS, "new", if_exists="return").version == 1
    with pytest.raises(InvalidArgument, match="Unknown if_exists='returns'"):
        create(ROWS, "g", if_exists="returns")  # type: ignore[arg-type]


def test_quarantining_create_is_repeatable(empty_store: FeatureStore) -> None:
    def create(bad: int) -> int:
        rows = [{"id": 1, "x": 1.0}, {"id": bad, "x": 2.0}, {"id": bad, "x": 3.0}]
        group = empty_store.create_featuregroup(
            rows, "g", primary_key="id", validation="quarantine"
        )
        return group.version

    assert [create(2), create(2), create(3), create(3)] == [1, 1, 2, 2]


def test_external_group_with_equal_definition_is_returned(
    empty_store: FeatureStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "orders"
    folder.mkdir()
    (folder / "orders.csv").write_text("id,total\n1,2.5\n")
    empty_store.add_source("shop", str(folder), options={"format": "csv"})

    def create(**declared: Any) -> int:
        return empty_store.create_external_featuregroup("orders", source="shop", **declared).version

    assert [create(), create(), create(primary_key="id")] == [1, 1, 2]
    out = capsys.readouterr().out
    assert "already has this definition" in out
    assert "primary_key: stored [], declared ['id']" in out
    with pytest.raises(FeatureGroupExists):
        create(if_exists="error")
    assert create(primary_key="id", if_exists="return") == 2
