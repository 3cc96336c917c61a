"""Distinct values read from an index equal those of all rows."""

from __future__ import annotations

import random
from pathlib import Path

import sqlalchemy as sa

from featurestore.registry import open_registry
from featurestore.registry.rows import select_distinct
from featurestore.registry.tables import experiment_runs


def test_select_distinct_equals_the_set_of_rows(tmp_path: Path, registry_url: str | None) -> None:
    registry = open_registry(str(tmp_path), url=registry_url)
    numbers = random.Random(7)
    rows = [
        {
            "id": f"run-{number:04}",
            "name": numbers.choice(["a", "b", "c", "d'"]),
            "kind": "launch",
            "state": "finished",
            "dataset": numbers.choice(["x", "y", None]),
            "dataset_version": numbers.randint(1, 3),
            "created": number,
        }
        for number in range(500)
    ]
    columns = experiment_runs.c
    names = ["name", "dataset", "dataset_version"]
    reads = sorted({tuple(row[name] for name in names) for row in rows if row["dataset"]})
    with registry.transaction() as connection:
        query = select_distinct(columns.id, [columns.name])
        assert connection.execute(query).all() == []
        connection.execute(experiment_runs.insert(), rows)
        assert connection.execute(query).scalars().all() == ["a", "b", "c", "d'"]
        for limit in (None, 1, 5, 100):
            query = select_distinct(
                columns.id,
                [columns[name] for name in names],
                columns.dataset.is_not(None),
                limit=limit,
            )
            assert list(map(tuple, connection.execute(query))) == reads[:limit]
            count = sa.select(sa.func.count()).select_from(query.subquery())
            assert connection.execute(count).scalar_one() == len(reads[:limit])
    registry.close()
