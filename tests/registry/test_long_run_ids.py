"""Runs with ids of maximum length, in both databases."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

import featurestore
from featurestore.model.run_record import RunRecord, check_run_id
from featurestore.registry import access, experiments, tables
from featurestore.registry.hidden import find_hidden_objects

# Truncated ids must not match another run, since ids may have equal endings.
IDS = ["r" * 63 + "a", "r" * 63 + "b", "r" * 63, "runs"]


def record(run: str, group: str, parent: str | None = None) -> RunRecord:
    return RunRecord(
        id=check_run_id(run),
        name="lines",
        kind="launch",
        state="finished",
        created="2024-03-01T12:00:00+00:00",
        params={"group": group},
        parent=parent,
    )


@pytest.mark.parametrize("run", IDS)
def test_runs_with_long_ids_follow_group_privacy(
    tmp_path: Path, registry_url: str | None, run: str
) -> None:
    with featurestore.connect(tmp_path / "store", registry=registry_url) as store:
        for group in ("salaries", "visits"):
            store.create_featuregroup([{"k": 1}], group, primary_key="k")
        with store.session.registry.transaction() as connection:
            access.set_private(connection, "salaries", True)
            for run_id in IDS:
                group = "salaries" if run_id == run else "visits"
                experiments.register(connection, record(run_id, group, parent=IDS[0]))
            hidden = find_hidden_objects(connection, granted=(), reads_store=True)
            # The other runs are trials of the first one and derive from it.
            hidden_runs = set(IDS) if run == IDS[0] else {run}
            assert {name for _, name, _ in hidden.outputs} == hidden_runs
            experiments.remove(connection, run)
            query = sa.select(tables.tags.c.name).where(tables.tags.c.kind == "experiment_run")
            assert sorted(connection.execute(query).scalars()) == sorted(set(IDS) - {run})


def test_run_id_columns_allow_longest_ids() -> None:
    """Run ids have at most 64 letters, all other names 63."""
    lengths = {}
    for table in tables.metadata.sorted_tables:
        for column in table.columns:
            if column.name in ("run", "run_id", "parent") or (table.name, column.name) in (
                ("experiment_runs", "id"),
                ("tags", "name"),
            ):
                lengths[f"{table.name}.{column.name}"] = column.type.length  # type: ignore[attr-defined]
    assert len(lengths) >= 8
    assert set(lengths.values()) == {64}
