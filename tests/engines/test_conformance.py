"""The engine conformance suite on DuckDB."""

from __future__ import annotations

from featurestore.testing.engine_conformance import EngineConformance


class TestDuckDB(EngineConformance):
    pass
