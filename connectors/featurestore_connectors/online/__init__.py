"""Connectors for online stores: Redis, Postgres and SQLite."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Each store imports its own driver, so a store is imported on first use.
_EXPORTS = {
    "PostgresOnlineStore": "postgres",
    "RedisOnlineStore": "redis",
    "SQLiteOnlineStore": "sqlite",
}
__all__ = ["PostgresOnlineStore", "RedisOnlineStore", "SQLiteOnlineStore"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
