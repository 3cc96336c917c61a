"""The point-in-time rules on the embedded engine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.plugins.engine import Engine
from featurestore.testing.retrieval_cases import Case, any_shape
from featurestore.testing.retrieval_conformance import RetrievalConformance, World, check_cases
from featurestore_connectors.duckdb_delta import DuckDBEngine


class TestDuckDB(RetrievalConformance):
    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        engine = DuckDBEngine()
        yield engine
        engine.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = DuckDBEngine()
    yield engine
    engine.close()


@settings(max_examples=60, deadline=None)
@given(shape=any_shape(), count=st.integers(1, 50), seed=st.integers(0, 2**32 - 1))
def test_every_combination_of_rules_agrees_with_the_oracle(
    engine: Engine, shape: Case, count: int, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        check_cases(World(engine, Path(directory), engine), shape, count=count, seed=seed)
