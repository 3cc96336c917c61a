"""The subject of an audit: name, schema, key and time columns."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from featurestore.model.featuregroup import FeatureGroupSpec


@dataclass(frozen=True)
class Subject:
    """A table to audit. ``key``: the columns that identify a row, () if rows need not be unique."""

    name: str
    version: int
    schema: pa.Schema
    key: tuple[str, ...] = ()
    event_time: str | None = None

    @classmethod
    def of(cls, spec: FeatureGroupSpec) -> Subject:
        """Return the subject for a feature group; without a primary key rows need not be unique."""
        key: tuple[str, ...] = ()
        if spec.primary_key:
            key = spec.upsert_key
        return cls(spec.name, spec.version, spec.schema, key, spec.event_time)
