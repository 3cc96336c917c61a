"""Inferred types of a source are stored once, also with concurrent processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from featurestore.errors import StorageError
from featurestore.external.reading import StoredDecisions
from featurestore.store import FeatureStore


def test_concurrent_decide_returns_first_decision(tmp_path: Path) -> None:
    decisions = StoredDecisions(str(tmp_path), "lake")
    assert decisions.get("ab") is None
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: decisions.decide("ab", {"n": n}), range(32)))
    assert len({decision["n"] for decision in results}) == 1
    assert decisions.get("ab") == results[0]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["ab.json"]
    with pytest.raises(StorageError, match="not a key"):
        decisions.get("../ab")


def test_remove_source_removes_decisions(empty_store: FeatureStore, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    empty_store.add_source("lake", str(tmp_path / "a.csv"))
    empty_store.read_source("lake")
    folder = Path(empty_store.location) / "sources"
    assert len(list(folder.rglob("*.decisions/*.json"))) == 1
    empty_store.remove_source("lake")
    assert list(folder.rglob("*.json")) == []
