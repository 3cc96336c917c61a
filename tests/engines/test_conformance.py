"""The engine conformance suite on DuckDB."""

from __future__ import annotations

import pytest

from featurestore.testing.engine_conformance import EngineConformance


class TestDuckDB(EngineConformance):
    upsert_seeds = range(5)


@pytest.mark.soak
class TestManyUpserts(EngineConformance):
    upsert_seeds = range(5, 300)
