"""What is audited: a name for messages, the columns, which of them are keys and times."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from featurestore.model.featuregroup import FeatureGroupSpec


@dataclass(frozen=True)
class Subject:
    """A table to be audited. ``key`` identifies a row: primary key and times, as declared.

    () where nothing does.
    """

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
