"""User SQL predicates, on their way to an engine."""

from __future__ import annotations

from collections.abc import Iterable

from featurestore import sql
from featurestore.plugins.engine import Engine


def for_engine(predicate: str, *, columns: Iterable[str], engine: Engine) -> str:
    """Return a predicate of DuckDB's dialect in the engine's own; errors as ``featurestore.sql.predicate``."""
    return sql.predicate(predicate, columns=columns, dialect=engine.dialect)
